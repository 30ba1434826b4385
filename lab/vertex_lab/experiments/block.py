"""Full attention–residual–MLP blocks: the paper's tab:full_mlp_nonmnist and its MNIST rows.

Patches (16 tokens), one block without LayerNorm, mean pooling, a linear classifier. Rates are end to end, over the
first 100 evaluation images of each of five seeds: a misclassified image counts as not certified.
"""

from __future__ import annotations

from vertex_lab.experiments import tables
from vertex_lab.experiments.learned import Setting
from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import ExperimentResult
from vertex_softmax.runs.demo.model import Architecture

NAME = "block"
TITLE = "Full attention–residual–MLP blocks"
METHODS = ("CROWN", "Hybrid")
"""whose figures the paper has"""
WIDE, NARROW = "d=32,h=4,m=64", "d=16,h=2,m=64"


def _setting(
    data: str, label: str, size: str, epsilons: tuple[float, ...], epochs: int, published: dict[float, dict[str, float]]
) -> Setting:
    image = 32 if data.startswith("cifar") else 28
    dim, heads = (32, 4) if size == WIDE else (16, 2)
    return Setting(
        name=f"{label} {size}",
        data=data,
        architecture=Architecture(image=image, patch=image // 4, dim=dim, heads=heads, mlp=64, classes=10),
        epsilons=epsilons,
        epochs=epochs,
        seeds=5,
        images=100,
        clean_correct=False,
        published=published,
    )


SETTINGS = (
    _setting("mnist", "MNIST", WIDE, (0.01, 0.02, 0.03), 12, {}),
    _setting("mnist", "MNIST", NARROW, (0.02,), 20, {}),
    _setting(
        "fashion-mnist",
        "Fashion-MNIST",
        WIDE,
        (0.01, 0.02, 0.03),
        8,
        tables.published_cells(
            METHODS,
            0.708,
            (0.01, 0.456, 0.484, 1.153, 1.368),
            (0.02, 0.056, 0.140, -7.784, -1.382),
            (0.03, 0.000, 0.058, -38.191, -4.583),
        ),
    ),
    _setting(
        "fashion-mnist",
        "Fashion-MNIST",
        NARROW,
        (0.02,),
        8,
        tables.published_cells(METHODS, 0.672, (0.02, 0.096, 0.252, -5.228, -0.620)),
    ),
    _setting(
        "cifar10-gray",
        "CIFAR-10 gray",
        WIDE,
        (0.005, 0.01),
        80,
        tables.published_cells(
            METHODS, 0.346, (0.005, 0.126, 0.150, -0.280, -0.098), (0.01, 0.004, 0.026, -6.041, -1.520)
        ),
    ),
)


NOTES = (
    "MNIST: the paper gives a clean accuracy of 0.749 for its block and, over clean-correct images at ε = "
    "0.02, 10.2 % (CROWN) and 14.3 % (Hybrid): table `bootstrap`.",
)


def found_trials(request: Request) -> tables.Trials:
    """The settings as asked for, and their trials; other tables are made of the same."""
    return tables.found_trials(NAME, SETTINGS, request)


def run(request: Request) -> ExperimentResult:
    """The published table with our methods and the attack's ceiling beside it."""
    return tables.write(NAME, TITLE, found_trials, request, NOTES)
