"""The state of a module: every change of what it computes by is noticed, however it was made."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import vertex_softmax as vx
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.from_torch.state import state_of
from vertex_softmax.sets.loading import read

N = 64
BALL = vx.LinfBall(torch.zeros(1, N), 1.0)
ADVERSE = torch.tensor([[1.0, -1.0] * (N // 2)])
"""The corner of the ball where the hidden unit wakes up."""
TEN = torch.tensor([[0.0, 1.0], [10.0, 0.0]])


class Scale(nn.Module):
    """An activation with settings of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0
        self.settings: dict[str, Any] = {"shift": [0.0, (1, "a")], "on": True}
        self.table = torch.ones(2)
        self.array = np.ones(2)
        self.register_buffer("hidden", torch.ones(2), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        return torch.relu(h) * self.factor


class Ten(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.relu(h) * torch.tensor([10.0, 1.0], dtype=h.dtype)


def fresh() -> nn.Sequential:
    """Class 0 wins everywhere: 1 against a unit of at most 1/2, which is 0 but near a few corners."""
    model = nn.Sequential(nn.Linear(N, 2), Scale(), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.cat([ADVERSE / N, torch.zeros(1, N)]))
        model[0].bias.copy_(torch.tensor([-0.5, 1.0]))
        model[2].weight.copy_(TEN.clamp(max=1.0))
        model[2].bias.zero_()
    return model


def by_data(m: Any) -> None:
    m[2].weight.data.mul_(torch.tensor([[1.0, 1.0], [10.0, 1.0]]))


def by_new_data(m: Any) -> None:
    m[2].weight.data = TEN.clone()


def by_writing(m: Any) -> None:
    with torch.no_grad():
        m[2].weight[1, 0] = 10.0


def by_numpy(m: Any) -> None:
    m[2].weight.detach().numpy()[1, 0] = 10.0


def by_vector(m: Any) -> None:
    vector = parameters_to_vector(m.parameters()).detach()
    vector[-4] = 10.0
    vector_to_parameters(vector, m.parameters())


def by_optimiser(m: Any) -> None:
    optimiser = torch.optim.SGD(m.parameters(), 1.0)
    m[2].weight.grad = torch.tensor([[0.0, 0.0], [-9.0, 0.0]])
    optimiser.step()


def by_loading(m: Any, **how: bool) -> None:
    m.load_state_dict({**m.state_dict(), "2.weight": TEN.clone()}, **how)


def by_submodule(m: Any) -> None:
    m[1] = Ten().eval()


def by_class(m: Any) -> None:
    m[1].__class__ = Ten


def by_method(m: Any) -> None:
    m[1].forward = Ten().forward


def by_hook(m: Any) -> None:
    m[1].register_forward_hook(lambda _m, _i, out: out * torch.tensor([10.0, 1.0], dtype=out.dtype))


def by_hook_before(m: Any) -> None:
    m[2].register_forward_pre_hook(lambda _m, i: (i[0] * torch.tensor([10.0, 1.0], dtype=i[0].dtype),))


def by_setting(m: Any) -> None:
    m[1].factor = 10.0


CHANGES: dict[str, Callable[[Any], None]] = {
    name: change for name, change in globals().items() if name.startswith("by_")
} | {"by_assigning": functools.partial(by_loading, assign=True)}


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_was_read_is_not_answered_for_after_a_change(name: str) -> None:
    module = fresh()
    model = read(module)
    assert vx.certify(model, BALL, 0, "crown").verdict == "verified"
    CHANGES[name](module)
    assert int(module(ADVERSE).argmax()) == 1 or name == "by_setting"  # which scales both classes
    with pytest.raises(InvalidValueError, match="changed since it was read"):
        vx.certify(model, BALL, 0, "crown")
    with pytest.raises(InvalidValueError, match="changed since it was read"):
        model.rows(torch.zeros(1, 1, dtype=torch.long))


SMALL: dict[str, Callable[[Any], object]] = {
    "a buffer": lambda m: m[1].hidden.data.add_(1),
    "a number in a dict": lambda m: m[1].settings["shift"].__setitem__(0, 1e-300),
    "a type in a tuple": lambda m: m[1].settings["shift"].__setitem__(1, (True, "a")),
    "a tensor that is no buffer": lambda m: m[1].table.data.neg_(),
    "an array": lambda m: m[1].array.__setitem__(0, -1.0),
    "a tensor's type": lambda m: setattr(m[0].bias, "data", m[0].bias.data.double()),
    "a tensor's shape": lambda m: setattr(m[1], "table", torch.ones(2, 1)),
    "a hook's flags": lambda m: m[1].register_forward_hook(print, with_kwargs=True),
    "an attribute": lambda m: setattr(m, "note", object()),
    "train mode": lambda m: m[1].train(),
    "the sign of 0": lambda m: m[2].bias.data.neg_(),
    "a name": lambda m: m.add_module("3", nn.Identity()),
    "one bit": lambda m: m[0].weight.data.view(torch.int32)[1, 5].add_(1),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_part_counts(name: str) -> None:
    module = fresh()
    before = state_of(module)
    assert state_of(module) == before
    SMALL[name](module)
    assert state_of(module) != before


def test_the_order_of_hooks_counts() -> None:
    module = fresh()
    handles = [module[1].register_forward_pre_hook(hook) for hook in (print, repr)]
    before = state_of(module)
    handles[0].remove()
    module[1].register_forward_pre_hook(print)
    assert state_of(module) != before


def test_hooks_of_all_modules_count() -> None:
    module = fresh()
    before = state_of(module)
    handle = register_module_forward_hook(lambda _m, _i, out: out)
    try:
        assert state_of(module) != before
    finally:
        handle.remove()
    assert state_of(module) == before


def test_calls_gradients_and_what_is_undone_do_not_count() -> None:
    module = fresh()
    before = state_of(module)
    module(ADVERSE).sum().backward()
    module.train().eval()
    with torch.no_grad():
        module[2].bias.add_(1.0).sub_(1.0)
    module[1].register_forward_hook(print).remove()
    assert state_of(module) == before
    assert state_of(copy.deepcopy(module)) != before  # another object has a state of its own


def test_tensors_without_numbers_count_by_their_object() -> None:
    module = nn.Linear(2, 2, device="meta")
    before = state_of(module)
    assert state_of(module) == before
    module.bias = nn.Parameter(torch.empty(2, device="meta"))
    assert state_of(module) != before


def test_what_contains_itself_is_no_trouble() -> None:
    module = fresh()
    module[1].settings["itself"] = module[1].settings
    before = state_of(module)
    assert state_of(module) == before
