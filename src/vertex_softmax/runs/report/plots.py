"""The pictures of the demo's report, drawn from its JSON. Needs the extra `report`."""

from __future__ import annotations

import io
from typing import Any

from vertex_softmax.foundation.errors import MissingDependencyError

BLUE, ORANGE, GREY, RED, GREEN = "#2b6cb0", "#dd6b20", "#8a94a6", "#c53030", "#2f855a"
COLOURS = {"IBP": RED, "simplex": ORANGE, "Wei-LSE": "#805ad5", "Vertex": GREEN}


def pyplot() -> Any:
    """pyplot with the headless backend; raises an error that says how to install matplotlib if it is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError(
            "pictures need matplotlib, which is not installed: pip install 'vertex-softmax[report]'"
        ) from error
    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "vertex", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    )
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, form: str) -> bytes:
    """The figure as "svg" or "png", without a date, so that the same numbers give the same file."""
    target = io.BytesIO()
    figure.savefig(
        target, format=form, dpi=150, bbox_inches="tight", metadata={"Date": None} if form == "svg" else None
    )
    pyplot().close(figure)
    return target.getvalue()


def theorem(data: dict[str, Any]) -> Any:
    """Left: the score box and the vertex that attains the minimum. Right: the K + 1 threshold values and the bounds."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.2), gridspec_kw={"width_ratios": [1, 1.15]})
    _score_box(left, data)
    _thresholds(right, data)
    figure.tight_layout(w_pad=3)
    return figure


def _score_box(axes: Any, data: dict[str, Any]) -> None:
    keys = range(len(data["c"]))
    for j in keys:
        low, high, up = data["lower"][j], data["upper"][j], data["at_upper"][j]
        axes.plot([j, j], [low, high], color=GREY, lw=7, alpha=0.35, solid_capstyle="butt")
        axes.plot(j, high if up else low, "o", ms=9, color=BLUE if up else ORANGE, zorder=3)
    cut = data["threshold"] - 0.5
    axes.axvline(cut, color=GREY, ls=":", lw=1.2)
    axes.set_xticks(
        list(keys), [f"{token}\n{value:+.1f}" for token, value in zip(data["tokens"], data["c"], strict=True)]
    )
    axes.set_xlabel("keys, sorted by their coefficient c")
    axes.set_ylabel("attention score")
    axes.set_title("The worst point of the box is a threshold vertex", fontsize=11)
    top = max(data["upper"]) + 0.3
    axes.set_ylim(top=top + 0.15)
    axes.text(cut - 0.15, top, "upper ends", color=BLUE, ha="right", va="center", fontsize=9)
    axes.text(cut + 0.15, top, "lower ends", color=ORANGE, ha="left", va="center", fontsize=9)


def _thresholds(axes: Any, data: dict[str, Any]) -> None:
    counts = list(range(len(data["tau"])))
    axes.plot(
        counts, data["tau"], "o-", color=BLUE, ms=5, lw=1.2, label=r"$\tau_m$: upper ends on the $m$ smallest $c$"
    )
    best = min(counts, key=lambda m: data["tau"][m])
    axes.plot(best, data["tau"][best], "o", ms=11, mfc="none", mec=GREEN, mew=2)
    right = counts[-1] + 1.6
    axes.scatter(
        [right - 0.4 + 0.03 * (i % 9) for i in range(0, len(data["sampled"]), 40)],
        data["sampled"][::40],
        s=2,
        color=GREY,
        alpha=0.5,
        label="random points of the box",
    )
    span = max(*data["tau"], *data["sampled"]) - min(method["bound"] for method in data["methods"])
    label = float("-inf")
    for method in sorted(data["methods"], key=lambda m: float(m["bound"])):
        colour, bound = COLOURS[method["name"]], method["bound"]
        axes.axhline(bound, color=colour, lw=1.6, ls="-" if method["name"] == "Vertex" else "--")
        label = max(bound, label + 0.055 * span)  # so that labels do not overlap
        text = f"{method['name']} {bound:+.3f}"
        axes.annotate(text, (right + 0.1, label), color=colour, va="center", fontsize=9, annotation_clip=False)
    axes.set_xlim(-0.4, right)
    axes.set_xticks(counts)
    axes.set_xlabel("m")
    axes.set_ylabel(r"$c\cdot\mathrm{softmax}(s)$")
    axes.set_title("Exact, where relaxations leave slack", fontsize=11)
    axes.legend(loc="upper center", frameon=False, fontsize=8)


def growth(rows: list[dict[str, float]]) -> Any:
    """Nanoseconds per entry against K: flat is linear. `rows` is the "growth" of a benchmark's JSON."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.2, 3.4))
    keys = [row["keys"] for row in rows]
    axes.plot(keys, [row["threshold"] for row in rows], "s--", color=ORANGE, ms=4, label="threshold (sort)")
    axes.plot(keys, [row["newton"] for row in rows], "o-", color=GREEN, ms=4, label="newton (default)")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("K")
    axes.set_ylabel("ns per entry, one thread")
    axes.set_title("Cost per entry as rows grow: flat is linear in K", fontsize=11)
    axes.legend(frameon=False)
    figure.tight_layout()
    return figure
