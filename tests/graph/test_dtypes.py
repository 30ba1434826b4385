"""Values of the input that a module puts into integers, or rounds coarsely: refused, as no graph has these steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import vertex_softmax as vx
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph.from_torch.importer import from_torch

N = 64
BALL = vx.LinfBall(torch.zeros(1, N), 1.0)
ADVERSE = torch.tensor([[1.0, -1.0] * (N // 2)])
Cut = Callable[[Tensor], Tensor]


class Hidden(nn.Module):
    """A value h that is 0 but near a few corners of the ball, where it is up to 1/2; class 1 wins if it is cut off."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.cut, self.l = cut, nn.Linear(N, 1)
        with torch.no_grad():
            self.l.weight.copy_(ADVERSE / N)
            self.l.bias.fill_(-0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.l(x))
        return torch.cat([0.1 + self.cut(h).to(x.dtype), 0.9 * h], -1)


def assigned(h: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    t = torch.zeros(1, 3, dtype=dtype)
    t[:, 1:2] = h
    return t[:, 1:2]


def selected(h: Tensor) -> Tensor:
    t = torch.zeros(1, 3, dtype=torch.int32)
    t[:, 1] = h[:, 0]
    return t[:, 1:2]


INTEGERS: dict[str, Cut] = {
    "sum": lambda h: h.sum(-1, keepdim=True, dtype=torch.int64),
    "sum of all": lambda h: h.sum(dtype=torch.int32).reshape(1, 1),
    "cumsum": lambda h: h.cumsum(-1, dtype=torch.int64),
    "copy_": lambda h: torch.empty(h.shape, dtype=torch.int32).copy_(h),
    "copy_ to bool": lambda h: torch.empty(h.shape, dtype=torch.bool).copy_(h - 0.7),
    "an assignment": assigned,
    "an assignment to a column": selected,
    "fill_": lambda h: torch.zeros(1, 1, dtype=torch.int64).fill_(h.sum()),
    "slice_scatter": lambda h: torch.slice_scatter(torch.zeros(1, 2, dtype=torch.int64), h, 1, 0, 1)[:, :1],
    "select_scatter": lambda h: torch.select_scatter(torch.zeros(1, 2, dtype=torch.uint8), h[:, 0], 1, 0)[:, :1],
    "masked_fill": lambda h: torch.zeros(1, 1, dtype=torch.int64).masked_fill(torch.ones(1, 1).bool(), h.sum()),
    "long": lambda h: h.long(),
    "to_int8": lambda h: h.to(torch.int8),
    "type_as": lambda h: h.type_as(torch.zeros(1, dtype=torch.int16)),
}
COARSE: dict[str, Cut] = {
    "half": lambda h: h.half(),
    "bfloat16": lambda h: h.bfloat16(),
    "float8": lambda h: h.to(torch.float8_e4m3fn),
    "sum": lambda h: h.sum(-1, keepdim=True, dtype=torch.bfloat16),
    "mean": lambda h: h.mean(-1, keepdim=True, dtype=torch.float16),
    "softmax": lambda h: torch.cat([h, 0 * h], -1).softmax(-1, dtype=torch.float16)[:, :1],
    "an assignment": lambda h: assigned(h, torch.bfloat16),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_a_value_that_becomes_an_integer_is_refused(name: str) -> None:
    module = Hidden(INTEGERS[name]).eval()
    with pytest.raises(UnsupportedModelError, match=r"torch\.(int|uint|bool)"):
        vx.certify(module, BALL, 0, "crown")


def test_one_of_them_is_truly_wrong_at_a_point() -> None:
    with torch.no_grad():
        assert int(Hidden(INTEGERS["sum"]).eval()(ADVERSE).argmax()) == 1


@pytest.mark.parametrize("name", COARSE)
def test_a_value_that_is_rounded_coarsely_is_refused(name: str) -> None:
    module = Hidden(COARSE[name]).eval()
    with pytest.raises(UnsupportedModelError, match=r"is rounded to torch\.(b?float16|float8)"):
        vx.certify(module, BALL, 0, "crown")


def test_whole_numbers_do_not_hide_it() -> None:
    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            total = x.sum(-1, keepdim=True, dtype=torch.int64)
            return torch.cat([2 * total + 0.05, 1.9 * x.sum(-1, keepdim=True)], -1)

    with pytest.raises(UnsupportedModelError, match=r"torch\.int64, which cuts fractions off"):
        vx.certify(Whole().eval(), vx.LinfBall(torch.ones(13, 1), 1.0), 0, "crown")


def test_autocast_within_the_module_is_refused() -> None:
    """Its copy in float64 does not feel it, and at the compared points h is 0."""

    def within(h: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return h @ torch.full((1, 1), 1.0039, dtype=h.dtype)

    def disabled(h: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return h @ torch.full((1, 1), 1.0039, dtype=h.dtype)

    def deeper(h: Tensor) -> Tensor:
        with torch.no_grad():
            return within(h)

    for cut in (within, deeper):
        with pytest.raises(UnsupportedModelError, match=r"torch\.bfloat16 within torch\.autocast"):
            vx.certify(Hidden(cut).eval(), BALL, 0, "crown")
    assert vx.certify(Hidden(disabled).eval(), BALL, 0, "crown").verdict == "verified"


HARMLESS: dict[str, Cut] = {
    "the values of a maximum": lambda h: h.max(-1, keepdim=True).values,
    "a dropout that is off": lambda h: torch.nn.functional.dropout(h, 0.5, training=False),
    "a constant of its shape": lambda h: h + torch.ones_like(h, dtype=torch.int64),
    "an integer factor": lambda h: h * torch.tensor([3], dtype=torch.int32),
    "float32 on the way": lambda h: h.float().sum(-1, keepdim=True, dtype=torch.float32),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_integers_that_do_not_depend_on_the_input_are_no_trouble(name: str) -> None:
    assert vx.certify(Hidden(HARMLESS[name]).eval(), BALL, 0, "crown").verdict == "verified"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_module_that_is_half_precision_as_a_whole_may_name_it(dtype: torch.dtype) -> None:
    """It is read as real numbers and compared in its own precision, as without the cast."""
    module = Hidden(lambda h: h.to(dtype)).eval().to(dtype)
    assert vx.certify(module, BALL, 0, "crown").verdict == "verified"
    other = torch.float16 if dtype == torch.bfloat16 else torch.bfloat16
    with pytest.raises(UnsupportedModelError, match="is rounded to"):
        vx.certify(Hidden(lambda h: h.to(other)).eval().to(dtype), BALL, 0, "crown")


def test_a_table_of_integers() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(10).reshape(5, 2))
            self.last = nn.Linear(2, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(nn.functional.embedding(ids, self.table).to(self.last.weight.dtype).mean(1))

    with pytest.raises(UnsupportedModelError, match=r"the table of the ids has the dtype torch\.int64"):
        from_torch(Table().eval(), torch.tensor([[1, 2]]), perturb="embedding")
