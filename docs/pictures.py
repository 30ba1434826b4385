"""The pictures of these pages, made from numbers that this script computes: `python docs/pictures.py [NAME …]`.

theorem.svg, phi.svg, walk.svg, box.svg, growth.svg and tightness.svg take seconds; rates.svg trains a small transformer
on digits and certifies 40 images at six ε by four methods, which takes about half a minute on one core.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from vertex_softmax.runs.demo import demo
from vertex_softmax.runs.demo.digits import digits
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.runs.demo.training import one_thread, train
from vertex_softmax.runs.evaluate import Plan, evaluate
from vertex_softmax.runs.report import plots
from vertex_softmax.runs.report.figures import plot_rates, plot_softmax_box
from vertex_softmax.runs.subject import read_inputs, subject

HERE = Path(__file__).parent
SIZES = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1)
METHODS = ("crown", "vertex", "hybrid", "joint")


def theorem() -> bytes:
    """The README's picture: the worst vertex of a score box, and what relaxations say of the same box."""
    return plots.save(plots.theorem(demo.theorem()), "svg")


def phi() -> bytes:
    """φ(t) for the same box, and where it is 0."""
    data = demo.theorem()
    t, values, exact = data["phi"]["t"], data["phi"]["value"], data["exhaustive"]
    axes = Figure(figsize=(6.2, 3.2), layout="constrained").add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.plot(t, values, color=plots.BLUE)
    axes.axhline(0, color=plots.GREY, lw=0.8)
    axes.fill_between(t, 0, np.maximum(values, 0), color=plots.GREEN, alpha=0.12)
    axes.plot(exact, 0, "o", color=plots.GREEN, ms=8)
    axes.annotate("the minimum", (exact, 0), textcoords="offset points", xytext=(10, 10), color=plots.GREEN)
    axes.set(xlabel="t", ylabel="φ(t)", title="t is a lower bound where φ(t) ≥ 0")
    return _saved(axes.figure)


def box() -> bytes:
    """`plot_softmax_box` on the five keys of idea.md."""
    c = np.array([0.3, 1.4, 0.8, -0.9, -1.6])
    lower, upper = np.array([0.0, 0.5, -0.4, -1.2, -0.6]), np.array([1.0, 1.8, 0.2, 0.4, 0.9])
    return _saved(plot_softmax_box(c, lower, upper, names=["the", "film", "was", "not", "bad"]).figure)


def rates() -> bytes:
    """`plot_rates` of a small transformer on digits."""
    data = digits()
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        model = PatchTransformer(patch=4, dim=16, heads=2, mlp=32, seed=0)
        train(model, data.train_images, data.train_labels, epochs=30, batch=64, lr=1e-2, adversarial=0.1)
        inputs = read_inputs("digits", count=40)
        plan = Plan(bounds_at=(), slack_inputs=0, title="one block, 4 tokens, 40 digits")
        run = evaluate(subject(model, inputs), inputs, METHODS, SIZES, Path(folder), plan)
    return _saved(plot_rates(run).figure)


def growth() -> bytes:
    """Processor seconds of `crown` against tokens, width and depth, from lab/benchmarks/runs/growth.json."""
    rows = json.loads((HERE.parent / "lab/benchmarks/runs/growth.json").read_text())["rows"]
    figure = Figure(figsize=(9, 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, 3, sharey=True), ("tokens", "width", "depth"), strict=True):
        for version, style in (("before", "o--"), ("now", "o-")):
            some = [row for row in rows if row["case"].startswith(name) and row["version"] == version]
            sizes = [int(row["case"].split()[1]) for row in some]
            axes.loglog(sizes, [row["seconds"] for row in some], style, label=version)
        axes.set_xlabel(name)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].set_ylabel("seconds")
    figure.axes[0].legend()
    return _saved(figure)


COLOURS = {
    "`crown`": plots.BLUE,
    "`alpha-crown`": "tab:cyan",
    "`vertex`": "tab:purple",
    "`hybrid`": "tab:olive",
    "`joint`": plots.GREEN,
    "CROWN of auto_LiRPA": "tab:orange",
    "α-CROWN of auto_LiRPA": "tab:red",
    "α-CROWN with optimised boxes of auto_LiRPA": "tab:brown",
}
"""Of tightness.svg. Ours are circles, those of auto_LiRPA squares."""


def tightness() -> bytes:
    """Mean bound against median seconds, a point for each method and peer; the points are in the file as text too."""
    sys.path.append(str(HERE.parent / "lab" / "benchmarks"))  # scripts, not a package
    from readme_measure import RUNS
    from readme_runs import Runs
    from readme_tightness import points

    panels = points(Runs(RUNS))
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, (name, panel) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for method, (seconds, bound) in panel.items():
            peer = "auto_LiRPA" in method
            axes.semilogx(seconds, bound, "s" if peer else "o", color=COLOURS[method], ms=7)
        axes.axhline(0, color=plots.GREY, lw=0.8)
        axes.set_title(name, fontsize=9)
        axes.set_xlim(min(s for s, _ in panel.values()) / 2, max(s for s, _ in panel.values()) * 2)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("seconds")
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].set_ylabel("mean lower bound of the margin")
    marks = [
        Line2D([], [], color=colour, marker="s" if "auto_LiRPA" in name else "o", ls="", label=name.replace("`", ""))
        for name, colour in COLOURS.items()
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return _saved(figure, json.dumps(panels, ensure_ascii=False))


def _saved(figure: Any, description: str | None = None) -> bytes:
    target = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "vertex", "svg.fonttype": "none"}):
        figure.savefig(target, format="svg", metadata={"Date": None, "Description": description})
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


PICTURES: dict[str, Callable[[], bytes]] = {f.__name__: f for f in (theorem, phi, box, walk, rates, growth, tightness)}


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        (HERE / f"{chosen}.svg").write_bytes(PICTURES[chosen]())
