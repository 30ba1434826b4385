"""Unions of sets: their points, and that every answer is about all members."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from tests.sets.product_cases import Crossed, inputs, made, product
from tests.slowly import few
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.runs.attack import attack
from vertex_softmax.runs.certify import bound, certify
from vertex_softmax.sets import Box, InputSet, LinfBall, LpBall, Product, TokenBall, TokenChoices, Union
from vertex_softmax.sets.loading import load, read


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def members(size: float = 1.0) -> list[InputSet]:
    far = X + 0.3
    return [LinfBall(X, 0.1 * size), LpBall(X, 0.3 * size, 2), LpBall(far, 0.2 * size, 1)]


# The set --------------------------------------------------------------------------------------------------------------


def test_the_points_of_a_union_are_those_of_its_members() -> None:
    either, each = Union(*members()), members()
    some = either.sample(12, torch.Generator().manual_seed(0))
    moved = either.step(some, torch.randn(some.shape, dtype=torch.float64), 0.5)
    pulled = either.project(some + torch.randn(some.shape, dtype=torch.float64))
    for points in (some, moved, pulled, either.centre.unsqueeze(1)):
        for k in range(points.shape[1]):
            inside = torch.stack([one.contains(points[:, k]) for one in each])
            assert torch.equal(either.contains(points[:, k]), inside.any(0))
            assert bool(inside.any(0).all())
    assert torch.equal(either.project(some), some)
    assert all(bool(one.contains(some[:, k]).any()) for k, one in ((0, each[0]), (2, each[1]), (4, each[2])))
    assert not bool(either.contains(X + 5).any())
    assert torch.equal(either.lower, torch.stack([one.lower for one in each]).amin(0))
    assert torch.equal(either.upper, torch.stack([one.upper for one in each]).amax(0))
    assert torch.equal(either.centre, X)
    assert either[1:].shape == (2, 4)
    assert [type(one) for one in either[0].members] == [type(one) for one in each]
    assert "∪" in repr(either)
    A = torch.randn(3, 5, 4, dtype=torch.float64)
    assert torch.equal(either.support(A), torch.stack([one.support(A) for one in each]).amin(0))


def test_a_projection_is_onto_the_nearest_member() -> None:
    either = Union(Box(X, X), Box(X + 10, X + 10))
    near = either.project(torch.stack([X + 1, X + 9], 1))
    assert torch.equal(near, torch.stack([X, X + 10], 1))


# Answers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", few(METHODS, lambda method: method in ("crown", "joint")))
def test_verified_if_every_member_is(method: str) -> None:
    model, each = network(), members(0.5)
    loaded = read(model)
    label = model(X).argmax(-1)
    found = certify(loaded, Union(*each), label, method)
    apart = [certify(loaded, one, label, method) for one in each]
    assert torch.equal(found.lower, torch.stack([one.lower for one in apart]).amin(0))
    for i in range(3):
        verdicts = [str(one.verdicts[i]) for one in apart]
        if "falsified" in verdicts:
            k = verdicts.index("falsified")
            assert found.verdicts[i] == "falsified"
            assert torch.equal(found.counterexamples[i], apart[k].counterexamples[i])
            assert found.reasons[i] == f"set {k} of the union: {apart[k].reasons[i]}"
        else:
            assert (found.verdicts[i] == "verified") == (set(verdicts) == {"verified"})
        assert (found.reasons[i] == "") == (found.verdicts[i] == "verified")


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("options", [Options(), Options(goal=0.0)])
def test_one_bad_member_is_enough(place: int, options: Options) -> None:
    """Whichever it is, and although another is verified with a large margin."""
    model = network()
    label = model(X).argmax(-1)
    good: InputSet = LinfBall(X, 1e-6)
    bad: InputSet = LpBall(X, 50.0, 2)
    pair = (bad, good) if place == 0 else (good, bad)
    found = certify(model, Union(*pair), label, "crown", options=options)
    assert set(found.verdicts) == {"falsified"}
    assert bool(bad.contains(found.counterexamples).all())
    assert bool((model(found.counterexamples).argmax(-1) != label).all())
    alone = certify(model, Union(*pair), label, "ibp", attack=None)
    assert not bool(alone.certified.any())


def test_members_of_which_different_ones_fail_for_different_inputs() -> None:
    model = network()
    label = model(X).argmax(-1)
    size = torch.tensor([1e-6, 50.0, 1e-6], dtype=torch.float64)
    other = torch.tensor([50.0, 1e-6, 1e-6], dtype=torch.float64)
    found = certify(model, Union(LinfBall(X, size), LinfBall(X, other)), label, "crown")
    assert found.verdicts == ("falsified", "falsified", "verified")
    assert "set 1" in found.reasons[0]
    assert "set 0" in found.reasons[1]
    assert bool(found.counterexamples[2].isnan().all())


def test_an_interval_and_an_attack_are_about_all_members() -> None:
    model, each = network(), members()
    label = model(X).argmax(-1)
    found = bound(model, Union(*each), "crown")
    apart = [bound(model, one, "crown") for one in each]
    assert torch.equal(found.lower, torch.stack([one.lower for one in apart]).amin(0))
    assert torch.equal(found.upper, torch.stack([one.upper for one in apart]).amax(0))
    reached = attack(model, Union(*each), label, steps=8)
    alone = [attack(model, one, label, steps=8) for one in each]
    assert torch.equal(reached.margins, torch.stack([one.margins for one in alone]).amin(0))
    points = reached.inputs.flatten(0, 1)
    logits = model(points).unflatten(0, (3, 3))
    again = logits.gather(2, label[:, None, None].expand(-1, 3, 1)) - logits
    for b in range(3):
        for t in range(3):
            if t != int(label[b]):
                assert float(again[b, t, t].detach()) == pytest.approx(float(reached.margins[b, t]), abs=1e-9)
                assert any(bool(one[b].contains(reached.inputs[b : b + 1, t])) for one in each)
    assert load(model, Union(*each)).output.shape == (1, 3)


def test_a_union_of_one_set_is_the_set() -> None:
    model = network()
    label = model(X).argmax(-1)
    for one in members():
        mine, theirs = certify(model, Union(one), label, "crown"), certify(model, one, label, "crown")
        assert torch.equal(mine.lower, theirs.lower)
        assert mine.reasons == theirs.reasons


class Words(nn.Module):
    """Words, padding masked: the graph differs with the ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        kept = (ids != 0).unsqueeze(-1)
        found: Tensor = self.head((x * kept).sum(1))
        return found


def test_members_around_token_ids_need_the_same_graph() -> None:
    torch.manual_seed(0)
    model = Words().double().eval()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    near, far = TokenBall.of(model, ids, 0.01), TokenBall.of(model, ids, 0.1, tokens=[1])
    label = model(ids).argmax(-1)
    found = certify(model, Union(near, far), label, "crown")
    assert torch.equal(
        found.lower, torch.stack([certify(model, one, label, "crown").lower for one in (near, far)]).amin(0)
    )
    padded = TokenBall.of(model, torch.tensor([[1, 2, 0], [4, 5, 6]]), 0.01)
    with pytest.raises(InvalidValueError, match="input 0 of set 1 needs another graph"):
        certify(model, Union(near, padded), label, "crown")
    words = TokenChoices(model, ids, [{1: [2, 5, 7]}, {1: [5, 7]}])
    both = certify(model, Union(near, words), label, "bab")
    assert torch.equal(both.lower[:, 0] <= certify(model, near, label, "bab").lower[:, 0], torch.tensor([True, True]))


# What is refused ------------------------------------------------------------------------------------------------------


def test_sets_that_make_no_union() -> None:
    def refused(error: type[Exception], said: str, *sets: object) -> None:
        with pytest.raises(error, match=re.escape(said)):
            Union(*sets)  # type: ignore[arg-type]

    ball = LinfBall(X, 0.1)
    refused(InvalidValueError, "none was given")
    refused(InvalidTypeError, "set 1 is a Tensor", ball, X)
    refused(InvalidTypeError, "set 1 is a Union", ball, Union(ball))
    refused(InvalidValueError, "set 0 has shape (3, 4) and set 1 (2, 4)", ball, ball[:2])
    refused(InvalidValueError, "set 0 has shape (3, 4) and set 1 (3, 5)", ball, LinfBall(torch.zeros(3, 5), 0.1))
    refused(InvalidValueError, "other inputs of the model", ball, Product(ball))
    with pytest.raises(InvalidTypeError, match="member by member"):
        Union(ball).region((4,), torch.float64, torch.device("cpu"))
    with pytest.raises(InvalidTypeError, match="no products"):
        Union(ball).split(X)
    with pytest.raises(AttributeError):
        Union(ball).members = ()  # type: ignore[misc]


def test_a_union_of_products_splits_its_points() -> None:
    model = made(Crossed)
    either = Union(product("boxes", 20.0), product("l2 and box", 20.0))
    label = model(*inputs()).argmax(-1)
    found = certify(model, either, label, "ibp")
    assert set(found.verdicts) == {"falsified"}
    assert bool((model(*either.split(found.counterexamples)).argmax(-1) != label).all())
