"""The kind `tokens`: models of ids, batches of sentences with different padding, embeddings that move.

Truth is the module itself, sentence by sentence, with its embedding replaced by points of the set: by the output of
`get_input_embeddings()` if that is what the set is around, by the rows of its table if those are. What is said of a
sentence in a batch has to be true of it, and the same as what is said of it alone.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_lab.fuzz.asking import Asking, Report, Stop, reported
from vertex_lab.fuzz.case import FLOAT64
from vertex_lab.fuzz.recipe import Recipe
from vertex_lab.fuzz.token_models import FILLS, model_of
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import TokenBall

SIMPLE: dict[str, Any] = {
    "stock": None,
    "d": 2,
    "classes": 2,
    "length": 3,
    "mask": "none",
    "causal": False,
    "gelu": False,
    "positions": "none",
    "scale": "none",
    "table": "one",
    "pool": "mean",
    "moving": "all",
    "method": "ibp",
    "certificate": False,
    "eps": 0.0,
    "labels": "own",
}
OPTIONS = Options(ascent=Ascent(steps=2), search=Search(seconds=None, domains=4, tried=2, root=Ascent(steps=2)))


def draw(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    length = rng.choice((3, 4, 5))
    return {
        "kind": "tokens",
        "seed": seed,
        "model": {
            "stock": rng.choice(("gpt2", "roberta", "gemma3", "bert")) if rng.random() < 0.2 else None,
            "vocab": 11,
            "pad": 0,
            "d": rng.choice((2, 4)),
            "classes": rng.choice((2, 3)),
            "length": length,
            "mask": rng.choice(("none", *FILLS)),
            "causal": rng.random() < 0.3,
            "gelu": rng.random() < 0.3,
            "positions": rng.choice(("none", "learned", "cumsum")),
            "scale": rng.choice(("none", "none", "inside", "outside")),
            "table": rng.choice(("one", "one", "before", "after", "twice")),
            "pool": rng.choice(("mean", "masked", "first", "last")),
        },
        "sentences": [_sentence(rng, length) for _ in range(rng.choice((1, 2, 2, 3, 4)))],
        "eps": rng.choice((0.0, 1e-4, 1e-3, 0.01, 0.05)),
        "moving": rng.choice(("all", "first", "real", "padding")),
        "how": rng.choice(("documented", "documented", "rows", "of", "of", "other ids")),
        "labels": rng.choice(("own", "any")),
        "method": rng.choice(("ibp", "crown", "hybrid", "vertex", "alpha-crown", "joint", "bab")),
        "certificate": rng.random() < 0.2,
    }


def _sentence(rng: random.Random, length: int) -> list[int]:
    """Ids, with the padding (0) on either side."""
    words = [rng.randrange(1, 11) for _ in range(rng.randint(1, length))]
    padding = [0] * (length - len(words))
    return words + padding if rng.random() < 0.7 else padding + words


def check(recipe: Recipe, *, device: str = "cpu", folder: Path) -> Report:  # noqa: ARG001
    """All findings of a recipe."""
    return reported(lambda report: _Case(recipe, report, device).run())


class _Case(Asking):
    def __init__(self, recipe: Recipe, report: Report, device: str) -> None:
        self.recipe, self.report, self.device = recipe, report, device
        length = recipe["model"]["length"]
        rows = [(row + [0] * length)[:length] for row in recipe["sentences"]]
        if not rows:
            raise Stop
        self.ids = torch.tensor(rows)
        self.model = model_of(recipe)
        self.table: nn.Module = self.model.get_input_embeddings()  # type: ignore[operator]

    def run(self) -> None:
        """The batch, then each sentence alone."""
        torch.manual_seed(0)
        ball = self._ball()
        labels = self._labels()
        recipe = self.recipe
        self.name = f"{recipe['method']}{' certificate' if recipe['certificate'] else ''}"
        found = self._certified(ball, labels)
        if found is None:
            raise Stop
        if recipe["how"] == "other ids":
            self.find("not refused", "set of other ids", "the set is around the embeddings of other ids than it names")
            raise Stop
        truths = [self._truth(ball, b) for b in range(len(self.ids))]
        for b, truth in enumerate(truths):
            self._judged(found, b, truth(ball, b), int(labels[b]))
        if len(self.ids) > 1 and recipe["method"] != "bab" and not recipe["certificate"]:
            self._alone(ball, labels, found)

    def _certified(self, ball: TokenBall, labels: Tensor) -> Certification | None:
        recipe = self.recipe
        return self.ask(
            lambda: certify(
                self.model, ball, labels, recipe["method"], options=OPTIONS, certificate=recipe["certificate"]
            ),
            f"certify {self.name}",
        )

    def _ball(self) -> TokenBall:
        how, eps, ids = self.recipe["how"], self.recipe["eps"], self.ids
        real = ids != self.recipe["model"]["pad"]
        moving = {
            "all": torch.ones_like(real),
            "first": torch.zeros_like(real).index_fill(1, torch.tensor([0]), True),
            "real": real,
            "padding": ~real,
        }[self.recipe["moving"]]
        of: Any = getattr(TokenBall, "of", None)
        if how == "of" and of is not None:
            made: TokenBall = self.must(lambda: of(self.model, ids, eps, tokens=moving), "TokenBall.of")
            return made
        with torch.no_grad():
            at = (ids + 1) % self.recipe["model"]["vocab"] if how == "other ids" else ids
            rows = self.table.weight[at] if how == "rows" else self.table(at)  # type: ignore[index]
        return TokenBall(rows, eps, tokens=moving, ids=ids)

    def _labels(self) -> Tensor:
        with torch.no_grad():
            own = torch.cat([_logits(self.model(self.ids[b : b + 1])) for b in range(len(self.ids))]).argmax(1)
        if self.recipe["labels"] == "own":
            return own
        rng = random.Random(self.recipe["seed"] + 1)  # noqa: S311 - no secret
        return torch.tensor([rng.randrange(self.recipe["model"]["classes"]) for _ in own])

    def _truth(self, ball: TokenBall, b: int) -> Callable[[TokenBall, int], tuple[Tensor, float]]:
        """How to run the module at points of a sentence's set."""
        with torch.no_grad():
            out, rows = self.table(self.ids[b]), self.table.weight[self.ids[b]]  # type: ignore[index]
        centre = ball.centre[b]
        if torch.allclose(centre, out, rtol=1e-6, atol=1e-6):
            return lambda ball, b: self._seen(ball, b, _hooked)
        if torch.allclose(centre, rows, rtol=1e-6, atol=1e-6):
            return lambda ball, b: self._seen(ball, b, _patched)
        self.find("not refused", "centre", f"sentence {b}: the set's centre is not the embedding of its ids")
        raise Stop

    def _seen(self, ball: TokenBall, b: int, replaced: Any) -> tuple[Tensor, float]:
        """Logits (points, classes) at points of the set, and what rounding is worth."""
        lower, upper, centre = ball.lower[b], ball.upper[b], ball.centre[b]
        generator = torch.Generator().manual_seed(self.recipe["seed"] + b)

        def logits(x: Tensor) -> Tensor:
            with replaced(self.table, self.ids[b], x):
                return _logits(self.model(self.ids[b][None].expand(len(x), -1)))

        draws = torch.rand((16, *centre.shape), generator=generator, dtype=torch.float64)
        points = [centre[None], torch.where(draws[:10] < 0.5, lower, upper), lower + draws[10:] * (upper - lower)]
        with torch.no_grad():
            outs = [logits(torch.cat(points).clamp(lower, upper))]
        for k in range(outs[0].shape[1]):
            x = centre[None].clone()
            for _ in range(4):
                x.requires_grad_(True)
                with torch.enable_grad():
                    y = logits(x)
                    (slope,) = torch.autograd.grad((y[:, k] * (y.shape[1]) - y.sum(1)).sum(), x)
                outs.append(y.detach())
                x = torch.where(slope > 0, upper, torch.where(slope < 0, lower, x.detach()))
        found = torch.cat(outs)
        relative = 1e-4 if self.recipe["model"]["stock"] else FLOAT64[0]  # some of them compute norms in float32
        return found, relative * (1 + float(found.abs().max()))

    def _judged(self, found: Certification, b: int, seen: tuple[Tensor, float], label: int) -> None:
        outs, slack = seen
        least = (outs[:, [label]] - outs).amin(0)
        others = [k for k in range(outs.shape[1]) if k != label]
        self.note(f"{found.verdicts[b]} {self.name}")
        over = (found.lower[b] - least)[others].nan_to_num(nan=-torch.inf, posinf=torch.inf)
        if found.verdicts[b] is Verdict.VERIFIED and float(least[others].min()) < -slack:
            text = f"sentence {b} is verified as {label}, and the module's margin is {float(least[others].min())!r}"
            self.find("verified but fooled", self._place(b), text)
        elif bool((over > slack).any()):
            text = f"sentence {b}: a bound is {float(over.max())!r} above the module's margin"
            self.find("unsound", self._place(b), text)

    def _place(self, b: int) -> str:
        """What two finds of one cause share: alone or not, and by which set."""
        return f"{'sentence 0' if b == 0 else 'another sentence'} {self.recipe['how']}"

    def _alone(self, ball: TokenBall, labels: Tensor, found: Certification) -> None:
        b = self.recipe["seed"] % len(self.ids)
        alone = self._certified(ball[b], labels[b : b + 1])
        if alone is None:
            return
        a, c = alone.lower[0], found.lower[b]
        both = a.isfinite() & c.isfinite()
        if bool(((a - c).abs()[both] > 1e-6 * (1 + a.abs()[both])).any()):
            self.note("alone is not as in the batch")
            if alone.verdicts[0] is not found.verdicts[b] and min(abs(float(a[both].min())), 1.0) > 1e-6:
                self.find(
                    "batch", self.name, f"sentence {b}: {found.verdicts[b]} in the batch, {alone.verdicts[0]} alone"
                )


def _logits(out: Any) -> Tensor:
    found: Tensor = out.logits if hasattr(out, "logits") else out
    return found


@contextlib.contextmanager
def _hooked(table: nn.Module, _ids: Tensor, x: Tensor) -> Iterator[None]:
    """The table's output is x, whenever it is called."""
    handle = table.register_forward_hook(lambda *_: x)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _patched(table: nn.Module, _ids: Tensor, x: Tensor) -> Iterator[None]:
    """The rows that are looked up in the table are x; what the table's module does to them stays."""
    real = functional.embedding

    def looked_up(ids: Tensor, weight: Tensor, *rest: Any, **more: Any) -> Tensor:
        return x if weight is table.weight else real(ids, weight, *rest, **more)

    with mock.patch.object(functional, "embedding", looked_up):
        yield
