"""What `certify(…, progress=)` tells: its stages in order, and every input; it changes nothing, and can end the run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vertex_softmax as vx
from vertex_softmax.foundation.errors import InvalidTypeError


def small() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double().eval()
    return model, torch.randn(3, 4, dtype=torch.float64)


@pytest.mark.parametrize("method", ["ibp", "joint", "bab"])
def test_every_input_is_told_and_nothing_changes(method: str) -> None:
    model, x = small()
    told: list[tuple[str, int, int]] = []
    balls, labels, options = vx.LinfBall(x, 0.4), model(x).argmax(-1), vx.Options(batch=1, search=vx.Search(domains=64))
    found = vx.certify(model, balls, labels, method, options=options, progress=lambda *a: told.append(a))
    same = vx.certify(model, balls, labels, method, options=options)
    assert found.verdicts == same.verdicts
    assert torch.equal(found.lower, same.lower)
    assert all(0 <= done <= total for _, done, total in told)
    assert told[:2] == [("reading the model", 0, 1), ("reading the model", 1, 1)]
    assert [done for what, done, total in told if what == "inputs" and total == 3] == [1, 2, 3]
    assert told[-1] == ("inputs", 3, 3)
    assert method == "ibp" or {"boxes", "ascent"} <= {what for what, _, _ in told}


def test_what_was_attacked_first_and_what_is_proved_is_told_too() -> None:
    model, x = small()
    told: list[tuple[str, int, int]] = []
    balls, labels = vx.LinfBall(x, torch.tensor([0.001, 5.0, 0.001])), model(x).argmax(-1)
    options = vx.Options(goal=0.0)
    vx.certify(model, balls, labels, options=options, certificate=True, progress=lambda *a: told.append(a))
    stages = [what for what, _, _ in told]
    assert stages.index("attack") < stages.index("inputs") < stages.index("proofs")
    assert [done for what, done, _ in told if what == "inputs"][-1] == 3


def test_an_exception_of_the_listener_ends_the_run() -> None:
    model, x = small()

    def stop(what: str, _done: int, _total: int) -> None:
        if what == "boxes":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vx.certify(model, vx.LinfBall(x, 0.1), [0, 0, 0], progress=stop)


def test_what_is_no_function_is_refused() -> None:
    model, x = small()
    with pytest.raises(InvalidTypeError, match="progress is a bool"):
        vx.certify(model, vx.LinfBall(x, 0.1), [0, 0, 0], progress=True)  # type: ignore[arg-type]
