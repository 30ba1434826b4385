"""What is claimed of the instances holds: by every corner, by attacks, by the network itself."""

from __future__ import annotations

import collections
import itertools

import pytest
import torch

from vertex_lab.soundness import backs
from vertex_lab.soundness.features import FEATURES
from vertex_lab.soundness.hats import LAYERS, SHARE, hat
from vertex_lab.soundness.networks import BACKS, DEPTHS, INPUTS, Key, exact, keys
from vertex_lab.soundness.openings import opened
from vertex_softmax.search.attack import pgd

torch.set_num_threads(1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("seed", range(4))
def test_the_numbers_of_an_opening_move_on_their_own(kind: str, seed: int) -> None:
    opening = opened(kind, 3, 4, 0.2, generator(seed))
    low, high = opening.lower - 1.0, opening.upper + 2.0
    opening.move(torch.where(opening.upper > opening.lower, low, opening.lower), high)
    g = generator(seed + 10)
    for t in (
        torch.zeros(4, 3),
        torch.ones(4, 3),
        torch.rand(4, 3, generator=g),
        torch.rand(4, 3, generator=g).round(),
    ):
        x = opening.point(t.double())
        assert opening.input_set.contains(x).all()
        wanted = opening.lower + t * (opening.upper - opening.lower)
        assert torch.allclose(opening.module(x)[0], wanted, rtol=0, atol=1e-12)
    ends = opening.input_set.lower, opening.input_set.upper
    share = torch.rand(500, *ends[0].shape[1:], generator=g, dtype=torch.float64).round()
    numbers = opening.module(torch.where(share > 0, ends[1], ends[0]))
    assert (numbers >= opening.lower - 1e-12).all()
    assert (numbers <= opening.upper + 1e-12).all()


@pytest.mark.parametrize("style", backs.STYLES)
@pytest.mark.parametrize(("blocks", "heads"), [(1, 2), (2, 1), (2, 2), (3, 1)])
def test_a_hull_is_least_at_its_corner(style: str, blocks: int, heads: int) -> None:
    for seed, act in enumerate(backs.GROWING):
        back = backs.Hull(blocks, 3, heads, style, act, generator(seed))
        _least_of_all_corners(back, blocks * heads, seed)


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_a_monotone_one_is_least_at_its_corner(pool: str) -> None:
    for seed, act in enumerate(backs.GROWING):
        back = backs.Monotone(2, 3, 3, 3.0, act, pool, generator(seed))
        _least_of_all_corners(back, 3, seed)


def _least_of_all_corners(back: backs.Hull | backs.Monotone, n: int, seed: int) -> None:
    g = generator(seed + 100)
    ends = torch.randn(2, 3, n, generator=g, dtype=torch.float64).sort(0).values
    corners = torch.tensor(list(itertools.product([False, True], repeat=3 * n))).reshape(-1, 3, n)
    corners = corners[torch.randperm(len(corners), generator=g)[:600]]
    inside = ends[0] + torch.rand(600, 3, n, generator=g, dtype=torch.float64) * (ends[1] - ends[0])
    with torch.no_grad():
        claimed = back(torch.where(back.corner(*ends), ends[1], ends[0])[None])
        assert back(torch.where(corners, ends[1], ends[0])).min() >= claimed - 1e-12
        assert back(inside).min() >= claimed - 1e-12


@pytest.mark.parametrize("op", FEATURES)
def test_no_attack_is_below_an_exact_minimum(op: str) -> None:
    for i, opening in enumerate(INPUTS):
        network = exact(Key("exact", opening, op, DEPTHS[(len(op) + i) % 3], 20 + i + len(op)))
        assert network.input_set.contains(network.witness).all()
        found = pgd(network.module, network.input_set, 0, steps=10, restarts=2)
        assert network.margins is not None
        assert (found.margins[0, 1:] >= network.margins[1:] - 1e-9).all()
        assert network.robust == (float(network.margins.amin()) > 0)


@pytest.mark.parametrize(("opening", "op"), [(INPUTS[i % 2], op) for i, op in enumerate(list(LAYERS)[::7])])
def test_a_hat_is_only_where_it_is(opening: str, op: str) -> None:
    network = hat(Key("hat", opening, op, 1 + len(op) % 3, 2 + 4 * (len(op) % 3)))
    assert network.input_set.contains(network.witness).all()
    there = network.outputs(network.witness)[0]
    assert there[0] < there[1:].max()
    assert float(network.facts["share"]) <= SHARE  # type: ignore[arg-type]
    found = pgd(network.module, network.input_set, 0, steps=10, restarts=2)
    assert found.worst > 0, "an attack found it; that is no mistake, but should not be so for these seeds"


def test_both_truths_both_backs_and_every_place() -> None:
    rows = keys(4)
    assert len(rows) == len({key.name for key in rows}) == 4 * 6 * (len(FEATURES) + len(LAYERS))
    truths = collections.Counter()
    for key in rows[: 12 * len(FEATURES) : 5]:
        network = exact(key)
        truths[str(network.facts["back"]), network.robust] += 1
    assert set(truths) == set(itertools.product(BACKS, (True, False)))
    assert min(truths.values()) > 8


def test_a_key_is_an_instance() -> None:
    for key in (Key("exact", "vision", "gelu", 2, 3), Key("hat", "tokens", "norm-layer", 1, 3)):
        first, second = (exact(key) if key.family == "exact" else hat(key) for _ in range(2))
        assert torch.equal(first.outputs(first.witness), second.outputs(first.witness))
        assert torch.equal(first.witness, second.witness)
