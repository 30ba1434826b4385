"""Patch-attention classifiers of MNIST digits: the paper's tab:mnist_patch_attention.

Patches, one attention with two heads of 16 dimensions in all, mean pooling, a linear classifier; pixels move by ε and
stay in [0, 1]. Rates are over correctly classified images.
"""

from __future__ import annotations

from vertex_lab.experiments import tables
from vertex_lab.experiments.learned import Setting
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import ExperimentResult
from vertex_softmax.runs.demo.model import Architecture

NAME = "patch"
TITLE = "Patch-attention certificates"
METHODS = ("CROWN", "Vertex")
"""whose figures the paper has"""
EPOCHS = 60
"""of 8,000 images: as many steps as 8 epochs of 60,000"""


SETTINGS = (
    Setting(
        name="Binary, 16 tokens",
        data="mnist",
        classes=(0, 1),
        architecture=Architecture(image=28, patch=7, dim=16, heads=2, mlp=0, classes=2, residual=False),
        epsilons=(0.02, 0.03, 0.05),
        epochs=EPOCHS,
        seeds=3,
        images=1000,
        clean_correct=True,
        published=tables.published_cells(
            METHODS,
            0.992,
            (0.02, 0.738, 0.916, 1.915, 4.552),
            (0.03, 0.203, 0.778, -8.263, 2.426),
            (0.05, 0.002, 0.260, -74.505, -2.142),
        ),
    ),
    Setting(
        name="Binary, 49 tokens",
        data="mnist",
        classes=(0, 1),
        architecture=Architecture(image=28, patch=4, dim=16, heads=2, mlp=0, classes=2, residual=False),
        epsilons=(0.02, 0.03),
        epochs=EPOCHS,
        seeds=2,
        images=500,
        clean_correct=True,
        published=tables.published_cells(
            METHODS, 0.993, (0.02, 0.840, 0.972, 3.788, 6.482), (0.03, 0.465, 0.925, -3.354, 4.934)
        ),
    ),
    Setting(
        name="10-class, 16 tokens",
        data="mnist",
        architecture=Architecture(image=28, patch=7, dim=16, heads=2, mlp=0, classes=10, residual=False),
        epsilons=(0.02, 0.03),
        epochs=EPOCHS,
        seeds=3,
        images=500,
        clean_correct=True,
        published=tables.published_cells(
            METHODS, 0.875, (0.02, 0.033, 0.129, -8.931, -2.895), (0.03, 0.001, 0.012, -30.785, -7.375)
        ),
    ),
)


NOTES = (
    "The published table has 1,000, 500 and 500 correctly classified images per seed; ours has as many of the "
    "evaluation images as are classified correctly, at most these.",
)


def found_trials(request: Request) -> tables.Trials:
    """The settings as asked for, and their trials; other tables are made of the same."""
    return tables.found_trials(NAME, SETTINGS, request)


def run(request: Request) -> ExperimentResult:
    """The published table with our methods and the attack's ceiling beside it."""
    return tables.write(NAME, TITLE, found_trials, request, NOTES)
