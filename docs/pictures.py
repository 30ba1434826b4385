"""The pictures of these pages, made from numbers that this script computes: `python docs/pictures.py [NAME …]`.

theorem.svg, phi.svg, walk.svg, box.svg take seconds; rates.svg trains a small transformer on digits and certifies 40
images at six ε by four methods, which takes about half a minute on one core.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from vertex_softmax import LinfBall, __version__, certify, demo
from vertex_softmax.methods.bounding import Options
from vertex_softmax.methods.certify import load
from vertex_softmax.report import plots
from vertex_softmax.report.figures import plot_rates, plot_softmax_box
from vertex_softmax.runs.run import Answer, Attacked, Data, Input, Model, Run, packed
from vertex_softmax.search.attack import pgd
from vertex_softmax.zoo.datasets import digits
from vertex_softmax.zoo.models import Architecture, PatchTransformer
from vertex_softmax.zoo.train import one_thread, train

HERE = Path(__file__).parent
SIZES = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1)
METHODS = ("crown", "vertex", "hybrid", "joint")
IMAGES = 40


def theorem() -> bytes:
    """The README's picture: the worst vertex of a score box, and what relaxations say of the same box."""
    return plots.save(plots.theorem(demo.run()), "svg")


def phi() -> bytes:
    """φ(t), and where it is 0."""
    return plots.save(plots.phi(demo.run()), "svg")


def box() -> bytes:
    """`plot_softmax_box` on the five keys of idea.md."""
    c = np.array([0.3, 1.4, 0.8, -0.9, -1.6])
    lower, upper = np.array([0.0, 0.5, -0.4, -1.2, -0.6]), np.array([1.0, 1.8, 0.2, 0.4, 0.9])
    return _saved(plot_softmax_box(c, lower, upper, names=["the", "film", "was", "not", "bad"]).figure)


def rates() -> bytes:
    """`plot_rates` of a small transformer on digits."""
    data = digits()
    images, labels = data.eval_images[:IMAGES], data.eval_labels[:IMAGES]
    with one_thread():
        model = PatchTransformer.of(Architecture(patch=4, dim=16, heads=2, mlp=32), 0)
        train(model, data.train_images, data.train_labels, epochs=30, batch=64, lr=1e-2, adversarial=0.1)
        model = model.double()
        graph = load(model, LinfBall(images, 0.01))
        answers, attacks = [], []
        for eps in SIZES:
            ball = LinfBall(images, eps, clip=(0, 1))
            attack = pgd(model, ball, labels)
            attacks += [Attacked(i, eps, float(x), int(attack.margins[i].argmin())) for i, x in enumerate(attack.worst)]
            for method in METHODS:
                found = certify(graph, ball, labels, method, options=Options(goal=0.0))
                answers += [
                    Answer(i, method, eps, str(v), float(found.worst[i]), int(found.lower[i].argmin()), 0.0)
                    for i, v in enumerate(found.verdicts)
                ]
        predicted = model(images).argmax(1)
    inputs = tuple(
        Input(i, int(labels[i]), int(predicted[i]), float(found.clean[i].amin()), packed(images[i]))
        for i in range(IMAGES)
    )
    about = Model("digits"), Data("digits", (1, 8, 8), (0.0, 1.0))
    title = "one block, 4 tokens, 40 digits"
    run = Run(title, __version__, "", *about, METHODS, SIZES, inputs, tuple(answers), tuple(attacks))
    return _saved(plot_rates(run).figure)


def _saved(figure: Any) -> bytes:
    target = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "vertex", "svg.fonttype": "none"}):
        figure.savefig(target, format="svg", metadata={"Date": None})
    return target.getvalue()


# The walk, drawn by hand ---------------------------------------------------------------------------------------------

STAGES = (
    ("input set", "l ≤ x ≤ u", "a box"),
    ("q, k, v", "affine in x", "known exactly"),
    ("scores s", "l ≤ s ≤ u", "a box"),
    ("row Σ p v", "the theorem", "best of K + 1"),
    ("MLP, norms", "linear bounds", "slopes are free"),
    ("margin", "y_label − y_k", "> 0 ?"),
)
WIDE, GAP, TOP = 122, 30, 58


def walk() -> bytes:
    """Boxes forward, linear bounds backward."""
    total = len(STAGES) * WIDE + (len(STAGES) - 1) * GAP + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} 210" font-family="sans-serif" font-size="13">',
        f'<rect width="{total}" height="210" fill="white"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>',
        f'<text x="10" y="22" fill="{plots.BLUE}">forward: a box for every input of a nonlinearity →</text>',
        f'<text x="{total - 10}" y="198" text-anchor="end" fill="{plots.GREEN}">'
        "← backward: Σ A·out ≥ Σ A′·in + constant, op by op, until only x is left</text>",
    ]
    for i, (name, what, how) in enumerate(STAGES):
        x = 10 + i * (WIDE + GAP)
        middle, exact = x + WIDE / 2, name.startswith("row")
        out += [
            f'<rect x="{x}" y="{TOP}" width="{WIDE}" height="84" rx="6" fill="{"#e6f4ec" if exact else "#f4f6f9"}" '
            f'stroke="{plots.GREEN if exact else plots.GREY}"/>',
            f'<text x="{middle}" y="{TOP + 25}" text-anchor="middle" font-weight="bold" fill="#1a202c">{name}</text>',
            f'<text x="{middle}" y="{TOP + 48}" text-anchor="middle" fill="#4a5568">{what}</text>',
            f'<text x="{middle}" y="{TOP + 69}" text-anchor="middle" fill="#4a5568">{how}</text>',
        ]
        if i:
            left = x - GAP + 3
            out += [
                f'<path d="M{left} {TOP - 12}H{x - 3}" stroke="{plots.BLUE}" stroke-width="2" marker-end="url(#a)"/>',
                f'<path d="M{x - 3} {TOP + 98}H{left}" stroke="{plots.GREEN}" stroke-width="2" marker-end="url(#a)"/>',
            ]
    return ("\n".join([*out, "</svg>"]) + "\n").encode()


PICTURES: dict[str, Callable[[], bytes]] = {f.__name__: f for f in (theorem, phi, box, walk, rates)}


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        (HERE / f"{chosen}.svg").write_bytes(PICTURES[chosen]())
