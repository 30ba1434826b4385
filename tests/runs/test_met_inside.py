"""`certify` by branch and bound: the search of `vertex verify`, with the counterexamples that it meets."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import vertex_softmax as vx
from tests.search.cascade_cases import BLIND, VALLEY
from tests.search.small import case, conjunction, prop
from tests.slowly import few
from vertex_softmax.bounds import tree_attack
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.methods import bab as module
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.met_inside import REFUSALS, MetInside
from vertex_softmax.search.answers import Answer
from vertex_softmax.search.cascade import verify
from vertex_softmax.search.replay import Replay
from vertex_softmax.sets.loading import read

torch.set_num_threads(1)


class Block(nn.Module):
    """Attention and an MLP with residuals over three tokens, and three classes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.up, self.down, self.head = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 3)
        self.x = torch.randn(1, 3, 4).double()
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1) @ self.v(x)
        y: Tensor = self.head((x + self.down(torch.relu(self.up(x)))).mean(1))
        return y


class Valley(nn.Module):
    """(y, 0) for the y of `cascade_cases.valley`, and `lift` more; s are the signs of the corner in the valley."""

    def __init__(self, lift: float = 0.0) -> None:
        super().__init__()
        s = torch.where(torch.arange(VALLEY) % 3 == 1, -1.0, 1.0).double()
        self.register_buffer("s", s)
        self.lift = lift

    def forward(self, x: Tensor) -> Tensor:
        far = torch.relu(x - 0.9 * self.s) + torch.relu(0.9 * self.s - x)
        hat = torch.relu(1 - 0.75 / (0.1 * VALLEY) * far.sum(-1, keepdim=True))
        y = 0.64 + 0.36 + 0.015 * (x * self.s).sum(-1, keepdim=True) - 2 * hat + self.lift
        return torch.cat([y, torch.zeros_like(y)], -1)


def by_verify(model: nn.Module, ball: vx.LinfBall, label: int, options: Options) -> Answer:
    ends = list(zip(ball.lower.flatten().tolist(), ball.upper.flatten().tolist(), strict=True))
    rows = [conjunction(({label: 1, k: -1}, 0)) for k in range(3) if k != label]
    spec = prop(3, case(ends, *rows))
    replay = Replay.of_function(model, ball.shape, dtype=torch.float64)
    graph = read(model).graph(ball)
    return verify(graph, spec, lambda x: replay.confirms(spec, x), budget=BLIND, options=options)


SEARCHED = [(2, 0.4, "verified"), (6, 0.15, "verified"), (6, 0.2, "falsified")]


@pytest.mark.parametrize(
    ("seed", "radius", "verdict", "narrowing"),
    few(
        [(*case, share) for case in SEARCHED for share in (0.0, 0.3)], lambda seed, *rest: (seed == 2) == (rest[-1] > 0)
    ),
)
def test_it_is_the_search_of_verify(seed: int, radius: float, verdict: str, narrowing: float) -> None:
    """The same verdict, the same number of parts, none after narrowing, and the same bounds of what was branched on."""
    model = Block(seed)
    ball, label = vx.LinfBall(model.x, radius), int(model(model.x).argmax())
    options = Options(search=Search(seconds=None, domains=150, narrowing=narrowing, halving=0.0))
    mine, theirs = vx.certify(model, ball, label, "bab", options=options), by_verify(model, ball, label, options)
    assert mine.verdict == theirs.verdict == verdict
    assert theirs.stage == "bab"
    if verdict == "verified":
        assert mine.effort["parts"] == theirs.domains
        assert (theirs.domains > 1) == (narrowing == 0)
        assert set(theirs.rates) == {name for name in mine.effort if name.endswith("_per_second")}
        assert len(theirs.rates) == (2 if narrowing == 0 else 0)
        alone = vx.certify(model, ball, label, "bab", options=options, attack=None)
        assert all(alone.effort[name] == mine.effort[name] for name in ("parts", "bounds"))
        least = min(theirs.bounds[0])
        assert float(mine.worst[0]) == pytest.approx(least, abs=1e-9)
    else:
        point = mine.counterexamples[0]
        assert bool(ball.contains(point[None]).all())
        assert int(model(point[None]).argmax()) != label


def test_goals_pay_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is closed only where the verdict can be `verified`: at a goal above 0, as in verify."""
    seen: list[Tensor] = []
    real = module.branch

    def noted(*given: object) -> object:
        seen.append(given[2].goals)
        return real(*given)

    monkeypatch.setattr(module, "branch", noted)
    model = Block(6)
    options = Options(search=Search(seconds=None, domains=150))
    assert vx.certify(model, vx.LinfBall(model.x, 0.15), 0, "bab", options=options).verdict == "verified"
    assert bool(((seen[0] > 0) & (seen[0] < 1e-8)).all())
    options = Options(goal=0.25, search=Search(seconds=None, domains=5))
    vx.certify(model, vx.LinfBall(model.x, 0.15), 0, "bab", options=options)
    assert bool((seen[1] > 0.25).all())


def test_every_input_of_a_batch_has_its_own_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box in the middle is robust; the two that reach the valley are falsified, at points of their own sets."""
    monkeypatch.setattr(tree_attack, "LEAST", 0.0)
    model, radius = Valley().eval(), [1.0, 0.2, 0.95]
    boxes = torch.tensor(radius)[:, None].double().expand(-1, VALLEY)
    options = Options(search=Search(attack=1.0, seconds=None, domains=200))
    found = vx.certify(model, vx.Box(-boxes, boxes), 0, "bab", options=options)
    assert found.verdicts == ("falsified", "verified", "falsified")
    assert found.counterexamples[1].isnan().all()
    for i in (0, 2):
        point = found.counterexamples[i]
        assert float(point.abs().max()) <= radius[i]
        assert bool((point.sign() == model.s).all())
        logits = model(point[None])[0]
        assert float(logits[0]) < float(logits[1])
        assert "classified as 1" in found.reasons[i]
    alone = [vx.certify(model, vx.Box(-b[None], b[None]), 0, "bab", options=options).verdict for b in boxes]
    assert tuple(alone) == found.verdicts
    first = vx.certify(model, vx.Box(-boxes, boxes), 0, "bab", options=Options(goal=0.0, search=options.search))
    assert first.verdicts == found.verdicts  # the attack came first, and missed; the search still counts


@pytest.mark.parametrize("off", [{"attack": None}, {"attack": vx.Attacking(targets=0)}, {}])
def test_it_can_be_switched_off(off: dict[str, object]) -> None:
    """Without an attack only a centre falsifies; without the attack inside the short attacks miss the valley."""
    one = torch.ones(1, VALLEY).double()
    options = Options(search=Search(attack=0.0, seconds=None, domains=100))
    assert vx.certify(Valley().eval(), vx.Box(-one, one), 0, "bab", options=options, **off).verdict == "unknown"


def test_a_tie_is_no_counterexample_and_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both outputs are equal everywhere; after a few refusals there is nothing to look for."""
    asked: list[int] = []
    real = MetInside.accept

    def noted(self: MetInside, point: Tensor, objective: int) -> bool:
        asked.append(objective)
        return real(self, point, objective)

    monkeypatch.setattr(MetInside, "accept", noted)

    class Equal(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(x).sum(-1, keepdim=True) - torch.relu(x - 0.5).sum(-1, keepdim=True)
            return torch.cat([y, y], -1)

    one = torch.ones(1, 4).double()
    found = vx.certify(Equal().eval(), vx.Box(-one, one), 0, "bab", options=Options(search=Search(seconds=None)))
    assert found.verdict == "unknown"
    assert found.counterexamples.isnan().all()
    assert 0 < len(asked) <= REFUSALS


@pytest.mark.parametrize("p", [1, 2])
def test_minimisers_over_balls_are_moved_into_them(p: int) -> None:
    """A point of the rim is one only to rounding: what is found lies in the ball, without tolerance."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).double().eval()
    x = torch.randn(6, 5).double() / 3
    labels = model(x).argmax(-1)
    ball = vx.LpBall(x, 1.0, p=p)
    found = vx.certify(
        model, ball, labels, "bab", options=Options(search=Search(attack=1.0, seconds=None, domains=100))
    )
    wrong = [i for i, verdict in enumerate(found.verdicts) if verdict == "falsified"]
    assert wrong
    for i in wrong:
        point = found.counterexamples[i : i + 1]
        assert bool(ball[i].contains(point).all())
        assert int(model(point).argmax()) != int(labels[i])


def test_descents_are_to_the_target_of_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three classes the label is 1: objective 0 is the margin to class 0, objective 1 that to class 2."""
    seen: list[int] = []

    class Noted(MetInside):
        def attack(self, points: Tensor, objectives: Sequence[int], until: float) -> tuple[Tensor, int] | None:
            outside = points + 1e-9 * points.sign()
            found = super().attack(outside, objectives, until)
            if found is not None:
                seen.append(found[1])
            return found

    monkeypatch.setattr(tree_attack, "LEAST", 0.0)
    monkeypatch.setattr(MetInside, "accept", lambda *_: False)
    monkeypatch.setattr("vertex_softmax.runs.certify.MetInside", Noted)
    for bad, objective in ((0, 0), (2, 1)):
        bias = torch.full((3,), -9.0).double()
        bias[1], bias[bad] = 0.0, -0.5
        model = nn.Linear(2, 3).double().eval()
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]))
            model.bias.copy_(bias)
        one = torch.ones(1, 2).double()
        found = vx.certify(model, vx.Box(-one, one), 1, "bab", options=Options(search=Search(attack=1.0)))
        assert found.verdict == "falsified"
        assert seen.pop() == objective
        assert int(model(found.counterexamples).argmax()) == bad
