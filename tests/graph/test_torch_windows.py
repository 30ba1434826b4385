"""Pooling, resizing, convolutions of every kind and the newer activations, as torch has them.

Every function is imported, compared with itself at points far from the example, and bounded: what `ibp` and `crown` say
of a ball contains what the function gives at its corners and at random points of it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import vertex_softmax as vx
from tests.slowly import few
from vertex_softmax.graph.from_torch.importer import from_torch

Function = Callable[[Tensor], Tensor]


class Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def channels_last(x: Tensor) -> Tensor:
    """The same image, its channels next to each other in memory."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


CURVES: dict[str, Function] = {
    "elu": functional.elu,
    "elu, steep": lambda x: functional.elu(x, 1.7),
    "elu, flat": lambda x: functional.elu(x, 0.3),
    "selu": functional.selu,
    "celu": lambda x: functional.celu(x, 0.7),
    "softplus": functional.softplus,
    "softplus, scaled": lambda x: functional.softplus(x, 2.0, 1.5),
    "mish": functional.mish,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "logsigmoid": functional.logsigmoid,
    "prelu": seeded(lambda: nn.PReLU(2, 0.3)),
    "log1p": lambda x: torch.log1p(x.relu()),
    "expm1": torch.expm1,
    "sines of constants": lambda x: x * torch.sin(torch.arange(8.0)) + torch.cos(torch.arange(8.0)),
}
WINDOWS: dict[str, Function] = {
    "max pool": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "max pool, ceil": lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max pool, dilated": lambda x: functional.max_pool2d(x, (2, 3), 1, 1, dilation=2),
    "max pool, 1d": lambda x: functional.max_pool1d(x.flatten(2), 3, 2, 1),
    "adaptive max pool": lambda x: functional.adaptive_max_pool2d(x, (3, 1)),
    "average pool without its padding": lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average pool, ceil": lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average pool, divisor": lambda x: functional.avg_pool2d(x, (2, 3), divisor_override=5),
    "average pool, 1d": lambda x: functional.avg_pool1d(x.flatten(2), 5, 3, 2, True, False),
    "adaptive average pool": lambda x: functional.adaptive_avg_pool2d(x, (3, 5)),
    "adaptive average pool, 1d": lambda x: functional.adaptive_avg_pool1d(x.flatten(2), 5),
    "adaptive average pool to 1, channels last": lambda x: functional.adaptive_avg_pool2d(channels_last(x), 1),
    "as_strided": lambda x: x.as_strided((1, 3, 2), (1, 8, 1)),
    "same padding": seeded(lambda: nn.Conv2d(2, 3, 3, padding="same")),
    "same padding of an even kernel": seeded(lambda: nn.Conv2d(2, 3, (2, 4), padding="same", dilation=(1, 2))),
    "valid padding": seeded(lambda: nn.Conv2d(2, 3, 2, padding="valid")),
    "circular padding": seeded(lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")),
    "transposed convolution": seeded(lambda: nn.ConvTranspose2d(2, 3, 2, 2)),
    "transposed convolution with everything": seeded(
        lambda: nn.ConvTranspose2d(2, 4, (3, 2), (2, 3), (1, 0), (1, 2), 2, dilation=(2, 1))
    ),
    "bilinear": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear to corners": lambda x: functional.interpolate(x, size=(5, 11), mode="bilinear", align_corners=True),
    "bilinear, smaller": lambda x: functional.interpolate(x, scale_factor=0.6, mode="bilinear"),
    "bilinear, own scale": lambda x: functional.interpolate(
        x, scale_factor=1.3, mode="bilinear", recompute_scale_factor=False
    ),
    "bicubic": lambda x: functional.interpolate(x, size=(5, 7), mode="bicubic"),
    "nearest": lambda x: functional.interpolate(x, size=(3, 11)),
}


def example() -> Tensor:
    return torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("name", [*CURVES, *WINDOWS])
def test_the_import_computes_the_function(name: str) -> None:
    module = Applied({**CURVES, **WINDOWS}[name]).double().eval()
    graph = from_torch(module, example())
    for size in (0.1, 1.0, 5.0, 40.0):
        x = size * example().flip(-1)
        with torch.no_grad():
            torch.testing.assert_close(graph.evaluate(x), module(x), rtol=1e-12, atol=1e-12)


QUICK = ("elu, steep", "softplus, scaled", "mish", "hardswish", "max pool, ceil", "bilinear")


@pytest.mark.parametrize("name", few([*CURVES, *WINDOWS], lambda name: name in QUICK))
@pytest.mark.parametrize("radius", [0.05, 1.5])
def test_bounds_contain_what_is_reached(name: str, radius: float) -> None:
    module = Applied({**CURVES, **WINDOWS}[name]).double().eval()
    ball = vx.LinfBall(example(), radius)
    graph = from_torch(module, example())
    generator = torch.Generator().manual_seed(1)
    shares = torch.rand(400, 1, 2, 8, 8, generator=generator, dtype=torch.float64)
    shares[:100] = shares[:100].round()
    points = ball.lower + shares * (ball.upper - ball.lower)
    with torch.no_grad():
        reached = torch.cat([module(point) for point in points]).flatten(1)
    for method in ("ibp", "crown"):
        found = vx.bound(graph, ball, method)
        size = 1e-12 * (1 + reached.abs().amax(0))
        assert bool((found.lower.flatten() <= reached.amin(0) + size).all())
        assert bool((found.upper.flatten() >= reached.amax(0) - size).all())


def test_indices_of_a_maximum_are_refused() -> None:
    module = Applied(lambda x: functional.max_pool2d_with_indices(x, 2)[1].double() + x.mean()).eval()
    with pytest.raises(vx.VertexError, match="only its first result is supported"):
        from_torch(module, example())


def test_memory_that_the_argument_does_not_fill_is_refused() -> None:
    module = Applied(lambda x: x[:, :, :4].as_strided((2, 2), (8, 1), 8)).eval()
    with pytest.raises(vx.VertexError, match="as_strided with an offset"):
        from_torch(module, example())


@pytest.mark.parametrize(
    "function",
    [functional.mish, functional.logsigmoid, functional.softplus, functional.elu, functional.hardswish],
)
def test_certificates(function: Function) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), Applied(function), nn.Linear(6, 3)).double().eval()
    x = torch.rand(1, 4, dtype=torch.float64)
    ball = vx.LinfBall(x, 0.01)
    for method in ("crown", "joint"):
        found = vx.certify(model, ball, model(x).argmax(-1), method, certificate=True)
        assert found.verdict == "verified"
        assert found.certificates is not None
