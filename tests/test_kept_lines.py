"""Lines that are looked up are those that would be found, and a mutant of what makes them gets its own."""

from __future__ import annotations

import pytest
import torch

from tests.kept_lines import kept_lines
from vertex_softmax.ops import elementwise, lines
from vertex_softmax.ops.elementwise import Gelu, Tanh

LOWER = torch.linspace(-3, 2, 12, dtype=torch.float64).reshape(3, 4).T
UPPER = LOWER + torch.linspace(0, 4, 4, dtype=torch.float64)[:, None]


def asked(op: elementwise.Curved, name: str) -> list[torch.Tensor]:
    found = getattr(elementwise, name)(op.evaluate, op.derivative, *op.curvature(), LOWER, UPPER)
    parts = found if isinstance(found, tuple) else (found,)
    return [x for part in parts for x in ([part] if isinstance(part, torch.Tensor) else vars(part).values())]


@pytest.mark.parametrize("name", ["curved_lines", "end_lines", "curved_band"])
@pytest.mark.parametrize("op", [Gelu(), Gelu(tanh=True), Tanh()], ids=str)
def test_what_is_kept_is_what_is_found(op: elementwise.Curved, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elementwise, name, getattr(lines, name))
        expected = asked(op, name)
    with kept_lines() as kept:
        first, second = asked(op, name), asked(op, name)
        assert len(kept) == 1
        second[0].fill_(7.0)
        for parts in (first, asked(op, name)):
            assert [x.stride() for x in parts] == [x.stride() for x in expected]
            assert all(torch.equal(x, y) for x, y in zip(parts, expected, strict=True))


def test_others_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with kept_lines() as kept:
        asked(Gelu(), "curved_lines")
        asked(Gelu(tanh=True), "curved_lines")
        asked(Tanh(), "curved_lines")
        assert len(kept) == 3
        monkeypatch.setattr(lines, "BISECTIONS", 3)
        asked(Tanh(), "curved_lines")
        assert len(kept) == 4
        monkeypatch.setattr(lines, "below", lambda *given: given[3] * 0)
        asked(Tanh(), "curved_lines")
        assert len(kept) == 5
        monkeypatch.setattr(Tanh, "derivative", lambda _self, x: x * 0)
        asked(Tanh(), "curved_lines")
        assert len(kept) == 6
        monkeypatch.setattr(Tanh, "convex", ((-1.0, 0.0),))
        asked(Tanh(), "curved_lines")
        assert len(kept) == 7
