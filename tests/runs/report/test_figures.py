"""The pictures of a user's own results: what is drawn is what was given, and nothing global changes."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from vertex_softmax import Certification, Verdict, softmax_box_min
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, MissingDependencyError
from vertex_softmax.runs.records import packed
from vertex_softmax.runs.report import figures
from vertex_softmax.runs.report.figures import plot_bounds, plot_radii, plot_rates, plot_slack, plot_softmax_box
from vertex_softmax.runs.run import (
    Attacked,
    AttentionHeads,
    Data,
    Model,
    OtherSlack,
    Radius,
    Run,
    RunAnswer,
    RunInput,
    SlackMap,
)

inf, nan = math.inf, math.nan
LOWER = torch.tensor([[inf, 0.5, 1.0], [-0.25, inf, 2.0], [-1e4, 3.0, inf], [inf, nan, 1.0]], dtype=torch.float64)
CLEAN = torch.tensor([[inf, 2.0, 3.0], [1.0, inf, 2.5], [-1.0, 4.0, inf], [inf, 1.0, 1.5]], dtype=torch.float64)
VERDICTS = (Verdict.VERIFIED, Verdict.UNKNOWN, Verdict.FALSIFIED, Verdict.UNKNOWN)
RESULT = Certification(LOWER, VERDICTS, ("", "a", "b", "c"), "joint", CLEAN, {})
SAID = {True: "verified", False: "unknown"}
EMPTY = np.zeros((1, 2, 2))
RUN = Run(
    "a run", "0.1.0", "", Model("m"), Data("d", (1, 2, 2)), ("crown", "joint"), (0.1, 0.2),
    tuple(RunInput(i, 0, 0, 1.0, packed(EMPTY)) for i in range(2)),
    tuple(
        RunAnswer(i, method, eps, SAID[(method == "joint") + (eps == 0.1) + (i == 0) > 1], 0.0, 1, 0.0)
        for method in ("crown", "joint") for eps in (0.1, 0.2) for i in range(2)
    ),
    tuple(Attacked(i, eps, 0.5, 1) for eps in (0.1, 0.2) for i in range(2)),
    (
        Radius(0, "crown", 0.1, 0.11, 0.5, 0.0), Radius(1, "crown", 0.0, 0.01, None, 0.0),
        Radius(0, "joint", 0.3, 0.31, 0.5, 0.0), Radius(1, "joint", 0.2, None, None, 0.0),
    ),
    SlackMap(
        0.1, "joint", 2, 1.0, (AttentionHeads("attention", [[0.25, 0.25], [0.125, 0.125]], [[[1.0]]]),),
        (OtherSlack("mlp/relu", "Relu", 0.25),),
    ),
)  # fmt: skip


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    """What is drawn, by label."""
    return {line.get_label(): tuple(map(list, line.get_data())) for line in axes.get_lines()}


def drawn(axes: Any) -> bytes:
    import io

    target = io.BytesIO()
    axes.figure.savefig(target, format="png")
    return target.getvalue()


def test_bounds_of_one_result() -> None:
    axes = plot_bounds(RESULT, attack=torch.tensor([1.5, 0.5, -2.0, 0.75]))
    found = lines(axes)
    assert found["worst bound: verified"] == ([0], [0.5])
    assert found["worst bound: unknown"] == ([1], [-0.25])  # the NaN is an arrow
    assert found["worst bound: falsified"] == ([], [])  # −1e4 is an arrow too
    assert found["margin at the centre"][1] == [2.0, 1.0, -1.0, 1.0]
    assert found["lowest margin an attack found"][1] == [1.5, 0.5, -2.0, 0.75]
    assert axes.get_ylim()[0] > -10
    assert isinstance(axes.figure, Figure)
    assert drawn(axes).startswith(b"\x89PNG")


def test_bounds_of_several_results_are_the_worst_of_each() -> None:
    other = dataclasses.replace(RESULT, method="crown", lower=LOWER - 1)
    for given in ([other, RESULT], {"crown": other, "joint": RESULT}):
        found = lines(plot_bounds(given))
        assert found["joint"] == ([0, 1], [0.5, -0.25])
        assert found["crown"] == ([0, 1], [-0.5, -1.25])


def test_bounds_that_cannot_be_drawn() -> None:
    with pytest.raises(InvalidValueError, match="two results have the same method"):
        plot_bounds([RESULT, RESULT])
    fewer = dataclasses.replace(RESULT, lower=LOWER[:1], clean=CLEAN[:1], verdicts=VERDICTS[:1], method="crown")
    with pytest.raises(InvalidValueError, match="different numbers of inputs"):
        plot_bounds([RESULT, fewer])
    for wrong in (LOWER, [], {}, {"a": LOWER}, "joint", None):
        with pytest.raises(InvalidTypeError, match="certify"):
            plot_bounds(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="attack has shape"):
        plot_bounds(RESULT, attack=torch.zeros(3))


def test_rates_against_eps() -> None:
    found = lines(plot_rates(RUN))
    assert found["joint"] == ([0.1, 0.2], [100.0, 50.0])
    assert found["crown"] == ([0.1, 0.2], [50.0, 0.0])
    assert found["not fooled by the attack"] == ([0.1, 0.2], [100.0, 100.0])


def test_rates_of_radii() -> None:
    radii = dataclasses.replace(RUN, answers=(), attacks=(), eps=())
    found = lines(plot_rates(radii))
    assert found["joint"] == ([0.0, 0.2, 0.3, pytest.approx(0.306)], [100.0, 100.0, 50.0, 0.0])
    assert found["crown"] == ([0.0, 0.1, pytest.approx(0.102)], [50.0, 50.0, 0.0])
    with pytest.raises(InvalidValueError, match="no rate"):
        plot_rates(dataclasses.replace(radii, radii=()))


def test_radii() -> None:
    axes = plot_radii(RUN)
    found = lines(axes)
    assert found["joint"] == ([0, 1], [0.2, 0.3])  # in the order of its radii
    assert found["crown"] == ([0, 1], [0.0, 0.1])
    assert any(line.get_ydata().tolist() == [0.3, 0.5] for line in axes.get_lines() if len(line.get_ydata()) == 2)
    with pytest.raises(InvalidValueError, match="no radii"):
        plot_radii(dataclasses.replace(RUN, radii=()))


def test_slack_adds_up() -> None:
    assert RUN.slack is not None
    axes = plot_slack(RUN.slack)
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars == [(0.0, 0.5), (0.5, 0.25), (0.0, 0.25)]
    assert sum(width for _, width in bars) == RUN.slack.total
    assert [label.get_text() for label in axes.get_yticklabels()] == ["attention", "mlp/relu (Relu)"]
    with pytest.raises(InvalidTypeError, match=r"run\.slack"):
        plot_slack(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_the_box_and_its_worst_vertex(kind: Any) -> None:
    c, lower, upper = [1.0, -1.0, 0.5, 7.0], [-1.0, 0.0, 0.25, -inf], [1.0, 2.0, 0.5, -inf]
    axes = plot_softmax_box(kind(c), kind(lower), kind(upper), names=["a", "b", "c", "d"])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["b\n-1", "c\n+0.5", "a\n+1", "d\n+7"]
    exact = softmax_box_min(np.array(c), np.array(lower), np.array(upper))
    assert f"= {exact:.4g} " in axes.get_title()
    dots = [(x[0], y[0]) for line in axes.get_lines() if len(x := line.get_xdata()) == 1 for y in [line.get_ydata()]]
    assert dots == [(0, 2.0), (1, 0.25), (2, -1.0), (3, -1.0)]  # the last is the masked key's cross
    assert drawn(axes)


def test_boxes_that_cannot_be_drawn() -> None:
    one = np.zeros(3)
    with pytest.raises(InvalidValueError, match="one row"):
        plot_softmax_box(np.zeros((2, 3)), one, one)
    with pytest.raises(InvalidValueError, match="2 names for 3 keys"):
        plot_softmax_box(one, one, one, names=["a", "b"])
    with pytest.raises(InvalidValueError, match="lower"):
        plot_softmax_box(one, one + 1, one)


def test_the_callers_axes_are_used() -> None:
    assert RUN.slack is not None
    row = np.arange(3.0)
    for draw in (
        lambda ax: plot_bounds(RESULT, ax=ax),
        lambda ax: plot_rates(RUN, ax=ax),
        lambda ax: plot_radii(RUN, ax=ax),
        lambda ax: plot_slack(RUN.slack, ax=ax),
        lambda ax: plot_softmax_box(row, row, row + 1, ax=ax),
    ):
        figure = Figure()
        axes = figure.add_subplot()
        assert draw(axes) is axes
        assert figure.axes == [axes]
        assert drawn(axes)


def test_no_global_state(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    before, backend = dict(matplotlib.rcParams), matplotlib.get_backend()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would be an error
    drawn(plot_bounds(RESULT))
    drawn(plot_rates(RUN))
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.get_backend() == backend


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vertex-softmax\[report\]'"):
        plot_bounds(RESULT)


def test_importing_the_module_needs_no_matplotlib() -> None:
    assert not any(name.startswith("matplotlib") for name in vars(figures))
