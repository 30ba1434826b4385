"""Pictures of your own results: `plot_bounds`, `plot_rates`, `plot_radii`, `plot_slack`, `plot_softmax_box`.

Invariant: a picture shows the numbers it is given; only `plot_softmax_box` computes a bound, of its one box. Each
function takes an Axes to draw on, or makes a Figure of its own without pyplot, and returns the Axes: no window opens,
and no global setting changes. Needs the extra `report`.

    axes = plot_bounds(certify(model, ball, labels))
    axes.figure.savefig("bounds.svg")
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, MissingDependencyError
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.report.plots import BLUE, GREEN, GREY, ORANGE, RED
from vertex_softmax.runs.run import Run, SlackMap
from vertex_softmax.softmax_box import softmax_box_argmin
from vertex_softmax.softmax_box.reference import ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

    from vertex_softmax.softmax_box.arguments import Array

METHODS = {
    "ibp": RED,
    "crown": ORANGE,
    "alpha-crown": "#b7791f",
    "vertex": BLUE,
    "hybrid": "#805ad5",
    "joint": GREEN,
    "bab": "#1a4731",
}
"""One colour per method, the same in every picture."""
OTHERS = ("#319795", "#d53f8c", "#4a5568", "#975a16")
"""The colours of methods that are not in METHODS."""
FLOOR = 1.5
"""How far below 0 `plot_bounds` goes, in multiples of the largest margin at a centre; lower bounds become arrows."""
VERDICTS = {Verdict.VERIFIED: GREEN, Verdict.UNKNOWN: ORANGE, Verdict.FALSIFIED: RED}


def plot_bounds(
    result: Certification | Sequence[Certification] | Mapping[str, Certification],
    *,
    attack: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot the margin bounds of every input: an input whose bounds are above 0 is proved robust.

    result: a result of `certify`, of which the bounds to every class are shown; or several for the same inputs, named
    by their methods or by the mapping's keys, of which the worst bounds are shown. attack: (batch,), the lowest margin
    that an attack reached (`pgd(…).worst`): no sound bound is above it.
    """
    results = _results(result)
    batch = len(next(iter(results.values())).verdicts)
    axes = _axes(ax, max(5.6, min(12.0, 3.4 + 0.32 * batch)), 3.4)
    _zero(axes)
    first = next(iter(results.values()))
    clean = _numbers(first.clean.amin(-1))
    axes.plot(range(batch), clean, "_", color=GREY, ms=11, mew=1.6, label="margin at the centre")
    if attack is not None:
        reached = _numbers(attack)
        if reached.shape != (batch,):
            raise InvalidValueError(f"attack has shape {reached.shape}; there are {batch} inputs: pass pgd(…).worst")
        axes.plot(range(batch), reached, "v", color=GREY, ms=5, label="lowest margin an attack found")
    floor = -max(1.0, FLOOR * float(np.nan_to_num(clean, neginf=0.0).max(initial=0.0)))
    if len(results) == 1:
        _classes(axes, first, floor)
    else:
        for i, (name, one) in enumerate(results.items()):
            _dots(axes, np.arange(batch), _numbers(one.worst), floor, _colour(name, i), name)
    axes.set_xlim(-0.6, batch - 0.4)
    axes.set_xlabel("input")
    axes.set_ylabel("margin bound")
    axes.locator_params(axis="x", integer=True)
    _legend(axes, beside=True)
    return axes


def _dots(axes: Axes, inputs: Any, bounds: Any, floor: float, colour: str, label: str) -> None:
    """A dot per bound; a bound that is below the floor, or not finite, is an arrow at the floor."""
    below = ~(bounds >= floor)
    axes.plot(inputs[~below], bounds[~below], "o", ms=5.5, color=colour, label=label)
    axes.plot(inputs[below], np.full(int(below.sum()), floor), marker="$\\downarrow$", ls="", ms=8, color=colour)


def _classes(axes: Axes, result: Certification, floor: float) -> None:
    """The bounds to every class in grey, and the worst one of each input in the colour of its verdict."""
    lower, worst = _numbers(result.lower), _numbers(result.worst)
    shown = np.isfinite(lower) & (lower >= floor)
    axes.plot(np.nonzero(shown)[0], lower[shown], ".", color=GREY, ms=4, alpha=0.6, label="bound, to each class")
    for verdict, colour in VERDICTS.items():
        which = np.array([i for i, said in enumerate(result.verdicts) if said is verdict], dtype=int)
        if len(which):
            _dots(axes, which, worst[which], floor, colour, f"worst bound: {verdict}")
    axes.set_title(result.method, fontsize=11)


def _results(result: Any) -> dict[str, Certification]:
    """The results by name; raises unless all are results of `certify` with the same number of inputs."""
    if isinstance(result, Certification):
        return {result.method: result}
    if isinstance(result, Mapping):
        found = dict(result)
    elif isinstance(result, Sequence) and all(isinstance(one, Certification) for one in result):
        found = {one.method: one for one in result}
        if len(found) != len(result):
            raise InvalidValueError('two results have the same method; name them: {"ε = 0.01": one, "ε = 0.02": other}')
    else:
        raise InvalidTypeError(f"result is a {type(result).__name__}; pass what `certify` returned, or several of it")
    if not found or not all(isinstance(one, Certification) for one in found.values()):
        raise InvalidTypeError("result is empty, or contains something that `certify` did not return")
    sizes = {name: len(one.verdicts) for name, one in found.items()}
    if len(set(sizes.values())) != 1:
        raise InvalidValueError(f"the results have different numbers of inputs, {sizes}; pass those of the same inputs")
    return found


def plot_rates(run: Run, *, ax: Axes | None = None) -> Axes:
    """Plot the share of inputs that each method certifies against ε, and in grey the share that the attack leaves.

    A run with answers has a point per ε; a run with radii alone has the exact curve, which falls at each radius.
    """
    axes = _axes(ax, 5.6, 3.6)
    drawn = False
    for i, method in enumerate(run.methods):
        points = [(eps, rate) for eps in run.eps if (rate := run.rate(method, eps)) is not None]
        if points:
            axes.plot(*_columns(points), "o-", ms=4, lw=1.6, color=_colour(method, i), label=method)
        elif steps := _steps(run, method):
            axes.step(*_columns(steps), where="pre", lw=1.6, color=_colour(method, i), label=method)
        drawn = drawn or bool(points) or bool(_steps(run, method))
    if not drawn:
        raise InvalidValueError("this run has no rate: no method has an answer for every input, and there are no radii")
    ceiling = [(eps, rate) for eps in run.eps if (rate := run.ceiling(eps)) is not None]
    if ceiling:
        axes.plot(*_columns(ceiling), "--", color=GREY, lw=1.4, label="not fooled by the attack")
    axes.set_ylim(-3, 103)
    axes.set_xlim(left=0)
    axes.set_xlabel("ε")
    axes.set_ylabel(f"% of {len(run.inputs)} inputs certified")
    axes.set_title(run.title, fontsize=11)
    _legend(axes)
    return axes


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The ε, and the shares in per cent."""
    return [eps for eps, _ in points], [100 * rate for _, rate in points]


def _steps(run: Run, method: str) -> list[tuple[float, float]]:
    """The certified accuracy from ε = 0 to the largest radius, and 0 beyond it; empty if radii are missing."""
    ends = sorted({r.certified for r in run.radii if r.method == method})
    points = [(eps, share) for eps in ends if (share := run.certified_accuracy(method, eps)) is not None]
    if not points:
        return []
    start = next((share for eps, share in points if eps > 0), 0.0)
    inside = [(0.0, start), *((eps, share) for eps, share in points if eps > 0)]
    return [*inside, (inside[-1][0] * 1.02, 0.0)] if inside[-1][0] > 0 else inside


def plot_radii(run: Run, *, ax: Axes | None = None) -> Axes:
    """Plot each input's certified radius by every method, and the ε at which the attack succeeds.

    The true radius lies between them: a grey bar reaches from the largest certified ε to the attack's. Inputs are
    sorted by the radii of the last method.
    """
    methods = [m for m in run.methods if any(r.method == m for r in run.radii)]
    if not methods:
        raise InvalidValueError("this run has no radii; `vertex radius` writes them")
    radii = {m: {r.input: r for r in run.radii if r.method == m} for m in methods}
    inputs = [i for i in range(len(run.inputs)) if any(i in radii[m] for m in methods)]
    last = radii[methods[-1]]
    inputs.sort(key=lambda i: (last[i].certified if i in last else math.inf, i))
    axes = _axes(ax, max(5.6, min(12.0, 3.2 + 0.22 * len(inputs))), 3.6)
    for position, i in enumerate(inputs):
        rows = [radii[m][i] for m in methods if i in radii[m]]
        fooled = [r.attacked for r in rows if r.attacked is not None]
        if fooled:
            best = max(r.certified for r in rows)
            axes.plot([position] * 2, [best, min(fooled)], color=GREY, lw=5, alpha=0.25, solid_capstyle="butt")
            axes.plot(position, min(fooled), "v", color=GREY, ms=5)
    for k, method in enumerate(methods):
        points = [(position, radii[method][i].certified) for position, i in enumerate(inputs) if i in radii[method]]
        axes.plot(*zip(*points, strict=True), "o", ms=4.5, color=_colour(method, k), label=method)
    if any(r.attacked is not None for r in run.radii):
        axes.plot([], [], "v", color=GREY, ms=5, label="fooled by the attack")
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.6, len(inputs) - 0.4)
    axes.set_xlabel(f"inputs, by the radius of {methods[-1]}")
    axes.set_ylabel("ε")
    axes.set_title(run.title, fontsize=11)
    axes.locator_params(axis="x", integer=True)
    _legend(axes, beside=True)
    return axes


def plot_slack(slack: SlackMap, *, ax: Axes | None = None) -> Axes:
    """Plot the slack of each op: attentions, by heads, then the others. The bars add up to the total slack.

    slack: `Run.slack`. The slack of a head is the sum over its rows.
    """
    if not isinstance(slack, SlackMap):
        raise InvalidTypeError(f"slack is a {type(slack).__name__}; pass run.slack of a run that has one")
    rows = len(slack.attentions) + len(slack.others)
    axes = _axes(ax, 7.6, 1.2 + 0.34 * max(1, rows))
    names: list[str] = []
    longest = 0.0
    for at, attention in enumerate(slack.attentions):
        names.append(attention.name)
        begin, heads = 0.0, [sum(head) for head in attention.row_slack]
        for k, part in enumerate(heads):
            axes.barh(at, part, left=begin, height=0.62, color=BLUE, alpha=0.9 if k % 2 == 0 else 0.55)
            begin += part
        axes.text(begin, at, f" {begin:.3g} in {len(heads)} heads", va="center", fontsize=8)
        longest = max(longest, begin)
    for at, other in enumerate(slack.others, start=len(slack.attentions)):
        names.append(f"{other.name} ({other.op})")
        axes.barh(at, other.slack, height=0.62, color=ORANGE)
        axes.text(other.slack, at, f" {other.slack:.3g}", va="center", fontsize=8)
        longest = max(longest, other.slack)
    axes.set_yticks(range(rows), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * longest or 1.0)  # room for the text after the longest bar
    axes.set_xlabel("slack of the worst target's bound")
    over = f"{slack.total:.3g} in all, mean over {slack.inputs} inputs"
    axes.set_title(f"where {slack.method} loses at ε = {slack.eps:g}: {over}", fontsize=11)
    return axes


def plot_softmax_box(
    c: Array, lower: Array, upper: Array, *, names: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Plot a score box and its vertex at which c · softmax(s) is least: the theorem for given numbers.

    c, lower, upper: one row, (K,) each. Keys are sorted by c: the m with the smallest c are at their upper ends, the
    others at their lower ends. A masked key (−inf) is a cross. names: the names of the keys.
    """
    rows = [np.asarray(_numbers(x), dtype=np.float64) for x in (c, lower, upper)]
    if any(row.ndim != 1 for row in rows):
        shapes = ", ".join(str(row.shape) for row in rows)
        raise InvalidValueError(f"c, lower and upper have shapes {shapes}; a picture shows one row: pass (K) each")
    if names is not None and len(names) != len(rows[0]):
        raise InvalidValueError(f"there are {len(names)} names for {len(rows[0])} keys; give one each")
    vertex = softmax_box_argmin(*rows)
    order = np.argsort(rows[0], kind="stable")
    up = np.asarray(vertex.mask)[order]
    values, low, high = (row[order] for row in rows)
    axes = _axes(ax, max(5.2, min(12.0, 2.8 + 0.55 * len(order))), 3.6)
    seen = np.isfinite(high)
    for j in np.flatnonzero(seen):
        axes.plot([j, j], [low[j], high[j]], color=GREY, lw=7, alpha=0.35, solid_capstyle="butt")
        axes.plot(j, high[j] if up[j] else low[j], "o", ms=8, color=BLUE if up[j] else ORANGE, zorder=3)
    floor = float(low[seen].min())
    axes.plot(np.flatnonzero(~seen), np.full(int((~seen).sum()), floor), "x", color=GREY)
    axes.axvline(int(up.sum()) - 0.5, color=GREY, ls=":", lw=1.2)
    called = [f"{j}" for j in order] if names is None else [names[j] for j in order]
    axes.set_xticks(range(len(order)), [f"{name}\n{value:+.2g}" for name, value in zip(called, values, strict=True)])
    axes.set_xlabel("keys, sorted by their coefficient c")
    axes.set_ylabel("score")
    middle = np.where(seen, (low + high) / 2, -np.inf)
    axes.set_title(
        f"least c · softmax(s) = {float(vertex.value):.4g} (at the centre {ratio(values, middle):.4g}): "
        f"{int(up.sum())} upper ends",
        fontsize=10,
    )
    axes.plot([], [], "o", color=BLUE, label="at its upper end")
    axes.plot([], [], "o", color=ORANGE, label="at its lower end")
    _legend(axes, beside=True)
    return axes


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    """The caller's Axes, or those of a new Figure that is not registered with pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "pictures need matplotlib, which is not installed: pip install 'vertex-softmax[report]'"
        ) from error
    axes = Figure(figsize=(width, height), layout="constrained").add_subplot() if ax is None else ax
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _numbers(x: Any) -> Any:
    """An array or a tensor as a numpy array."""
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)


def _colour(method: str, i: int) -> str:
    return METHODS.get(method, OTHERS[i % len(OTHERS)])


def _zero(axes: Axes) -> None:
    axes.axhline(0, color=GREY, lw=0.9)


def _legend(axes: Axes, *, beside: bool = False) -> None:
    """Add the legend where it covers nothing; `beside`: to the right of the Axes."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {"loc": "best"}
    axes.legend(frameon=False, fontsize=8, **place)
