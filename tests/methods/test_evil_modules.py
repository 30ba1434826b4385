"""Modules that are no function of their input, or another one than torch.export sees: refused, never verified."""

from __future__ import annotations

import copy
import random
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vertex_softmax import LinfBall, TokenBall, bound, certify
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.sets.loading import load, read

X = torch.tensor([[0.3, -0.2, 0.5], [0.1, 0.4, -0.6]])
BIAS = torch.tensor([0.5, 0.0])


class Plain(nn.Module):
    """What every module here does when nobody looks: class 0 wins by 0.5 and more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(0.2 * torch.sin(torch.arange(p.numel()) + i).reshape(p.shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()) + BIAS.to(x)


class Compiling(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if torch.compiler.is_compiling() else y.flip(-1)


class CompilingHere(Plain):
    """Only at the second input."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if torch.compiler.is_compiling():
            return y
        return y.flip(-1) if abs(float(x[0, 2]) + 0.6) < 1e-3 else y


class Counter(Plain):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 if self.calls < 5 else -1)


class Drifting(Plain):
    """A little at each call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) + 1e-4 * self.calls


class FirstCall(Plain):
    """Keeps what it made of its first input."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().forward(x)
        if self.kept is None:
            self.kept = super().forward(x)
        return self.kept


class CachedPart(Plain):
    """Keeps a part of what it made of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if torch.compiler.is_compiling():
            return y
        if self.kept is None:
            self.kept = 0.01 * y.detach()
        return y + self.kept


class CopiedTrick(Plain):
    """Its copy is another module."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        found = Plain()
        found.load_state_dict(self.state_dict())
        return found.eval()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(-1)


class CopiedTrickAlone(CopiedTrick):
    """And takes one input at a time."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(1, 3))


class DoubleTrick(Plain):
    """Does something else in float64."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if x.dtype == torch.float64 else y.flip(-1)


class ByBatch(Plain):
    """Each answer depends on the others of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y - 0.5 * (x - x.mean(0, keepdim=True)).sum(-1, keepdim=True) * torch.tensor([1.0, -1.0]).to(x)


class PythonRandom(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if random.random() < 0.999 else -1)


class NumpyRandom(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if np.random.random() < 0.999 else -1)  # noqa: NPY002


class TorchRandom(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if torch.compiler.is_compiling() else y * (1.0 + 1e-12 * torch.rand(()).to(x))


class Clock(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1e-3 * (time.perf_counter_ns() % 1_000_003 / 1e6)


class ByGrad(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if torch.compiler.is_compiling() or torch.is_grad_enabled() else y.flip(-1)


class ElsewhereInTheSet(Plain):
    """Right at every centre, when it is looked at."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if torch.compiler.is_compiling():
            return y
        at_a_centre = bool(((x - X.to(x)).abs().amax(1) < 1e-7).any())
        return y if at_a_centre else y.flip(-1)


class ElsewhereInTheSecondSet(Plain):
    """Right at every centre and around the first one."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if torch.compiler.is_compiling():
            return y
        far = (x - X[1:].to(x)).abs().amax(1)
        return y.flip(-1) if bool(((far > 1e-7) & (far < 0.1)).any()) else y


class SingleAtTheCentre(Plain):
    """Wrong at the centres alone, where the user's own object is asked in float32 by itself."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if torch.compiler.is_compiling() or x.dtype != torch.float32 or len(x) > 1:
            return y
        return y.flip(-1) if bool((x == X).all(1).any()) else y


class DoubleElsewhereInTheSecondSet(ElsewhereInTheSecondSet):
    """The same, in float64 alone: the user's own object is right everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.dtype == torch.float64 else Plain.forward(self, x)


def monkeypatched() -> nn.Module:
    module = Plain().eval()
    true = module.forward
    module.forward = lambda x: true(x) if torch.compiler.is_compiling() else true(x).flip(-1)  # type: ignore[method-assign]
    return module


def hooked() -> nn.Module:
    module = Plain().eval()
    module.second.register_forward_hook(lambda _m, _i, out: out if torch.compiler.is_compiling() else out.flip(-1))
    return module


def hooked_by_count() -> nn.Module:
    module, calls = Plain().eval(), []

    def hook(_m: nn.Module, _i: Any, out: Tensor) -> Tensor:
        calls.append(1)
        return out if len(calls) < 6 else -out

    module.register_forward_hook(hook)
    return module


EVIL = {
    kind.__name__: lambda kind=kind: kind().eval()
    for kind in (
        Compiling,
        CompilingHere,
        Counter,
        Drifting,
        FirstCall,
        CachedPart,
        CopiedTrick,
        CopiedTrickAlone,
        DoubleTrick,
        ByBatch,
        PythonRandom,
        NumpyRandom,
        TorchRandom,
        Clock,
        ByGrad,
        ElsewhereInTheSet,
        ElsewhereInTheSecondSet,
        DoubleElsewhereInTheSecondSet,
        SingleAtTheCentre,
    )
} | {"monkeypatched": monkeypatched, "hooked": hooked, "hooked_by_count": hooked_by_count}


def test_the_plain_one_is_verified() -> None:
    for module in (Plain().eval(), Plain().double().eval(), copy.deepcopy(Plain()).eval()):
        found = certify(module, LinfBall(X, 0.001), 0, "crown")
        assert set(found.verdicts) == {"verified"}


@pytest.mark.parametrize("name", EVIL)
def test_evil_modules_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        certify(EVIL[name](), LinfBall(X, 0.001), 0, "crown")
    if name in ("Compiling", "hooked", "Counter"):
        assert "torch.export recorded" in str(caught.value)


@pytest.mark.parametrize("name", ["Compiling", "Counter", "CopiedTrick", "DoubleTrick"])
def test_bounds_and_loads_refuse_them_too(name: str) -> None:
    with pytest.raises(UnsupportedModelError):
        bound(EVIL[name](), LinfBall(X, 0.001), "ibp")
    with pytest.raises(UnsupportedModelError):
        load(EVIL[name](), LinfBall(X, 0.001))


def test_the_part_that_differs_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="the first part that differs is 'second'"):
        certify(hooked(), LinfBall(X, 0.001), 0, "crown")


def test_the_input_that_differs_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="at input 1,"):
        certify(CompilingHere().eval(), LinfBall(X, 0.001), 0, "crown")


def test_a_model_that_was_read_is_held_against_the_module_each_time() -> None:
    module, sign = Plain().eval(), [1.0]
    module.second.register_forward_hook(lambda _m, _i, out: sign[0] * out)
    model = read(module)
    assert certify(model, LinfBall(X, 0.001), 0, "crown").verdict == "verified"
    sign[0] = -1.0  # since then; no part of the module has changed
    with pytest.raises(UnsupportedModelError, match="the module differs"):
        certify(model, LinfBall(X, 0.001), 0, "crown")


def test_a_batch_of_one_that_only_takes_one_is_no_trouble() -> None:
    class Alone(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.reshape(1, 3))

    assert certify(Alone().eval(), LinfBall(X, 0.001), 0, "crown").verdict == "verified"


def test_the_fused_encoder_that_leaves_padding_out_is_told() -> None:
    """torch's own fast path gives 0 for masked tokens, which a mean over all tokens sees."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 3)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
                self.encoder = nn.TransformerEncoder(layer, 1)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.encoder(self.table(ids), src_key_padding_mask=ids == 0).mean(1))

    torch.manual_seed(0)
    module, ids = Mean().eval(), torch.tensor([[1, 2, 3, 0, 0]])
    ball = TokenBall.of(module, ids, 1e-6)
    with pytest.raises(UnsupportedModelError, match="enable_nested_tensor=False"):
        certify(module, ball, 0, "crown")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            label = int(module(ids).argmax())
        assert certify(module, ball, label, "crown").verdict == "verified"
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
