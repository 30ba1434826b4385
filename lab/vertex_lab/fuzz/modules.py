"""The kind `modules`: modules that are not, or not everywhere, the function that their export is.

Truth is the user's module as the user calls it: eagerly, in its own precision, more than once. A module that asks who
is calling, counts its calls, keeps what it saw first, has hooks or casts, is imported as what it computes, or refused.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_lab.fuzz.asking import Asking, Report, Stop, reported
from vertex_lab.fuzz.recipe import Recipe
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import LinfBall

SIMPLE: dict[str, Any] = {"batch": 1, "d": 2, "method": "ibp", "certificate": False, "double": True, "eps": 0.1}
TRICKS = (
    *("none", "compiling", "exporting", "dynamo", "tracing", "grad", "inference", "dtype", "batch"),
    *("counter", "counter buffer", "first", "first buffer", "last", "example", "alternating"),
    *(
        "hook",
        "pre-hook",
        "inner hook",
        "global hook",
        "parametrised",
        "autocast",
        "half",
        "instance forward",
        "in place",
    ),
)
OPTIONS = Options(ascent=Ascent(steps=2))


def draw(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    return {
        "kind": "modules",
        "seed": seed,
        "trick": rng.choice(TRICKS),
        "agrees": rng.random() < 0.7,
        "d": rng.choice((2, 3)),
        "batch": rng.choice((1, 2)),
        "eps": rng.choice((0.01, 0.1, 0.3)),
        "double": rng.random() < 0.5,
        "method": rng.choice(("ibp", "crown", "joint")),
        "certificate": rng.random() < 0.2,
    }


class Tricky(nn.Module):
    """Two layers; where the trick says so, another function: one that agrees at `centre`, or one that does not."""

    centre: Tensor
    count: Tensor
    kept: Tensor

    def __init__(self, recipe: Recipe, centre: Tensor) -> None:
        super().__init__()
        d, generator = recipe["d"], torch.Generator().manual_seed(recipe["seed"])
        self.trick, self.agrees = recipe["trick"], recipe["agrees"]
        self.a, self.b = nn.Linear(d, 4), nn.Linear(4, 3)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        self.register_buffer("centre", centre)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("kept", torch.zeros_like(centre[:1]))
        self.calls = 0
        self.seen: Tensor | None = None

    def plain(self, x: Tensor) -> Tensor:
        """The ordinary function."""
        y: Tensor = self.b(functional.gelu(self.a(x)))
        return y

    def other(self, x: Tensor) -> Tensor:
        """The other one, whose labels differ away from the centre, or everywhere."""
        y = self.plain(x)
        if not self.agrees:
            return y.roll(1, -1)
        far = (x[:, None] - self.centre[None].to(x.dtype)).abs().sum(-1).amin(1)
        return y + 1000.0 * far[:, None] * torch.tensor([1.0, -1.0, 0.5], dtype=x.dtype, device=x.device)

    def forward(self, x: Tensor) -> Tensor:
        """As the trick says."""
        chosen: Tensor = getattr(self, f"_{self.trick.replace(' ', '_').replace('-', '_')}", self.plain)(x)
        return chosen

    def _compiling(self, x: Tensor) -> Tensor:
        return self.plain(x) if torch.compiler.is_compiling() else self.other(x)

    def _exporting(self, x: Tensor) -> Tensor:
        asked = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
        return self.plain(x) if asked() else self.other(x)

    def _dynamo(self, x: Tensor) -> Tensor:
        return self.plain(x) if type(x) is not Tensor else self.other(x)

    def _tracing(self, x: Tensor) -> Tensor:
        fake = type(x).__name__ in ("FakeTensor", "FunctionalTensor")
        return self.plain(x) if fake else self.other(x)

    def _grad(self, x: Tensor) -> Tensor:
        return self.plain(x) if not torch.is_grad_enabled() else self.other(x)

    def _inference(self, x: Tensor) -> Tensor:
        return self.plain(x) if torch.is_inference_mode_enabled() else self.other(x)

    def _dtype(self, x: Tensor) -> Tensor:
        return self.plain(x) if x.dtype == torch.float64 else self.other(x)

    def _batch(self, x: Tensor) -> Tensor:
        return self.plain(x) if x.shape[0] == 1 else self.other(x)

    def _counter(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.plain(x) if self.calls <= 2 else self.other(x)

    def _counter_buffer(self, x: Tensor) -> Tensor:
        self.count += 1
        return torch.where(self.count <= 2, self.plain(x), self.other(x))

    def _alternating(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.plain(x) if self.calls % 2 else self.other(x)

    def _first(self, x: Tensor) -> Tensor:
        if self.seen is None:
            self.seen = self.plain(x).detach().clone()
        return self.seen.expand(len(x), -1) + 0 * self.plain(x) if len(self.seen) == 1 else self.plain(x)

    def _first_buffer(self, x: Tensor) -> Tensor:
        if self.calls == 0:
            self.calls, self.kept = 1, x[:1].detach().clone()
        return self.plain(x) + 5.0 * (x - self.kept.to(x.dtype)).sum(-1, keepdim=True) * self.b.bias

    def _last(self, x: Tensor) -> Tensor:
        before, self.seen = self.seen, x.detach().clone()
        return self.plain(x) if before is None or before.shape != x.shape else self.plain(x + 3 * (x - before))

    def _example(self, x: Tensor) -> Tensor:
        try:
            near = bool((x - self.centre[:1].to(x.dtype)).abs().max() < 1e-6)
        except Exception:  # noqa: BLE001 - a module that copes with being traced
            return self.plain(x)
        return self.plain(x) if near else self.other(x)

    def _autocast(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.plain(x).to(x.dtype)

    def _half(self, x: Tensor) -> Tensor:
        rough: Tensor = 1000.0 * (x.bfloat16().to(x.dtype) - x)
        return self.plain(x) + rough.sum(-1, keepdim=True) * torch.tensor([1.0, -1.0, 0.0], dtype=x.dtype)

    def _in_place(self, x: Tensor) -> Tensor:
        y = self.plain(x)
        view = y[:, 0]
        view += 3.0
        view[0] *= -1.0
        return y


def module_of(recipe: Recipe, centre: Tensor) -> tuple[nn.Module, list[Any]]:
    """The module in eval mode, and handles to be removed."""
    dtype = torch.float64 if recipe["double"] else torch.float32
    module = Tricky(recipe, centre.to(dtype)).to(dtype).eval()
    handles: list[Any] = []
    if recipe["trick"] == "hook":
        handles.append(module.register_forward_hook(lambda _m, _x, y: y.roll(1, -1)))
    if recipe["trick"] == "pre-hook":
        handles.append(module.register_forward_pre_hook(lambda _m, x: (x[0] * -1,)))
    if recipe["trick"] == "inner hook":
        handles.append(module.a.register_forward_hook(lambda _m, _x, y: -y))
    if recipe["trick"] == "global hook":
        inner = module.a
        handles.append(nn.modules.module.register_module_forward_hook(lambda m, _x, y: -y if m is inner else None))
    if recipe["trick"] == "parametrised":
        torch.nn.utils.parametrizations.weight_norm(module.a)
    if recipe["trick"] == "instance forward":
        plain = module.plain
        module.forward = lambda x: plain(x).roll(1, -1)  # type: ignore[method-assign]
    return module, handles


def check(recipe: Recipe, *, device: str = "cpu", folder: Path) -> Report:  # noqa: ARG001
    """All findings of a recipe."""
    return reported(lambda report: _Case(recipe, report).run())


class _Case(Asking):
    def __init__(self, recipe: Recipe, report: Report) -> None:
        self.recipe, self.report = recipe, report

    def run(self) -> None:
        """Certify the label that the plain function gives, and what the module gives; then run the module."""
        recipe = self.recipe
        generator = torch.Generator().manual_seed(recipe["seed"] + 7)
        centre = torch.randn(recipe["batch"], recipe["d"], generator=generator).double()
        module, handles = module_of(recipe, centre)
        try:
            self._asked(module, centre, generator)
        finally:
            for handle in handles:
                handle.remove()

    def _asked(self, module: nn.Module, centre: Tensor, generator: torch.Generator) -> None:
        recipe, dtype = self.recipe, next(module.parameters()).dtype
        with torch.no_grad():
            labels = module.plain(centre.to(dtype)).argmax(1)  # type: ignore[operator]
        ball = LinfBall(centre, recipe["eps"])
        where = f"{recipe['trick']}"
        found = self.ask(
            lambda: certify(module, ball, labels, recipe["method"], options=OPTIONS, certificate=recipe["certificate"]),
            f"certify {where}",
        )
        if found is None:
            raise Stop
        worst = torch.full((len(ball),), torch.inf, dtype=torch.float64)
        for number in range(24):
            draws = torch.rand(centre.shape, generator=generator, dtype=torch.float64)
            x = (
                torch.where(draws < 0.5, ball.lower, ball.upper)
                if number % 2
                else ball.lower + draws * (ball.upper - ball.lower)
            )
            for b in range(len(ball)):
                out = module(x[b : b + 1].to(dtype)).detach().double()[0]
                margin = (out[labels[b]] - out)[[k for k in range(3) if k != int(labels[b])]].min()
                worst[b] = torch.minimum(worst[b], margin)
        for b, verdict in enumerate(found.verdicts):
            self.note(f"{verdict} {where}")
            if verdict is Verdict.VERIFIED and float(worst[b]) < -1e-3:
                text = f"input {b} is verified, and the module's own margin is {float(worst[b])!r}"
                self.find("verified but fooled", where, text)
