"""Trees of a certificate come from the search that decided: its leaves, its parameters, and no second search."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from tests.bounds.networks import Config, transformer
from tests.certificate import exact
from tests.certificate.claims import everything_holds
from tests.certificate.exact import Written
from tests.certificate.made import Net, accepted, boxed, made, outputs, rows_of
from tests.certificate.packed import unpacked
from tests.search.cascade_cases import BLIND
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.choice import Choice, Multipliers
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.splits import Split
from vertex_softmax.certificate import certificate, planting, prove
from vertex_softmax.certificate.certificate import CertificatePart, Effort
from vertex_softmax.certificate.checker import proof
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.planting import Searched
from vertex_softmax.graph import build
from vertex_softmax.methods.options import Options
from vertex_softmax.search.answers import Answer
from vertex_softmax.search.cascade import verify
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property

torch.set_num_threads(1)
NODE, OTHER = build.source((5,)), build.source((4,))


# Preorder ------------------------------------------------------------------------------------------------------------


def random_leaves(chance: random.Random, most: int) -> list[Part]:
    """The leaves of a random tree."""
    leaves, waiting = [], [Part(0)]
    while waiting:
        part = waiting.pop()
        if len(part.splits) < most and (not part.splits or chance.random() < 0.7):
            node = chance.choice((NODE, OTHER))
            at, point = chance.randrange(4), chance.random()
            sides = [Split(node, at, point, at_least=side) for side in (True, False)]
            waiting += [dataclasses.replace(part, splits=(*part.splits, side)) for side in sides]
        else:
            leaves.append(part)
    chance.shuffle(leaves)
    return leaves


@pytest.mark.parametrize("seed", range(8))
def test_every_leaf_is_written_once_with_its_own_cuts(seed: int) -> None:
    leaves = random_leaves(random.Random(seed), 6)
    entries, ordered = planting.preorder(leaves)
    assert sorted(map(id, ordered)) == sorted(map(id, leaves))
    assert len(entries) == 2 * len(leaves) - 1
    arrays: dict[str, Any] = {
        "node": np.array([-1 if e is None else 1 + (e.node is OTHER) for e in entries]),
        "entry": np.array([0 if e is None else e.place for e in entries]),
        "point": np.array([0.0 if e is None else e.point for e in entries]),
        "inner": np.zeros(len(entries), dtype=bool),
    }
    tree = unpacked(Written({}, arrays), {name: name for name in arrays})

    def ways(at: int, way: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        split = tree[at].split
        if split is None:
            return [way]
        return ways(tree[at].left, (*way, (*split, False))) + ways(tree[at].right, (*way, (*split, True)))

    expected = [
        tuple((1 + (s.node is OTHER), s.place, s.point, False, s.at_least) for s in leaf.splits) for leaf in ordered
    ]
    assert ways(0, ()) == expected


def test_multipliers_of_the_cuts_on_the_way() -> None:
    """Above is the multiplier of ≥, below that of ≤; of a number that is cut twice the last cut has both."""
    sides = Multipliers(torch.tensor([[[1.0, 0.0, 3.0, -7.0, 0.0]]]), torch.tensor([[[0.0, 2.0, 0.5, 4.0, 0.0]]]))
    way = [(0, True), (1, False), (2, True), (2, False), (3, False)]
    splits = [Split(NODE, place, 0.0, at_least=side) for place, side in way]
    inner = Split(OTHER, 0, 1.0, at_least=True, inner=True)
    leaf = Part(0, (*splits, inner, Split(OTHER, 1, 0.0, at_least=True)), choice=Choice({}, {NODE: sides}))
    assert planting._held(leaf).tolist() == [-1.0, 2.0, 0.0, -2.5, 4.0, 0.0, 0.0]


def test_values_that_are_the_same_are_written_once() -> None:
    one, same, other = np.ones((1, 2)), np.ones((1, 2)), np.zeros((1, 2))
    found = planting._unique(
        [{(3, "slope"): one}, {(3, "slope"): other}, {(3, "slope"): same}, {(3, "slope"): one}, {}]
    )
    values, which = found[3, "slope"]
    assert values.tolist() == [[[1.0, 1.0]], [[0.0, 0.0]]]
    assert which.tolist() == [0, 1, 0, 0, 1]  # what is missing is 0


def test_parameters_are_rounded_to_what_is_small() -> None:
    assert planting._small(np.array([0.1, 1.0])).dtype == np.float16
    assert planting._small(np.array([1e5, 1.0])).dtype == np.float32


# One search, one proof -----------------------------------------------------------------------------------------------


def question(name: str, radius: float, share: float, seed: int = 3) -> tuple[Net, ForbiddenCase]:
    """A network, and a case whose bound lies between that of the whole set and what is seen: a tree is needed."""
    return between(boxed(made(name).graph, radius, seed), share)


def between(net: Net, share: float) -> tuple[Net, ForbiddenCase]:
    """The same of any network."""
    row = rows_of(net, 1, 4)
    points = exact.inside(net.lower, net.upper, 512, np.random.default_rng(0))
    seen = float((outputs(net, points) @ row.T).min())
    whole = answered(net, ForbiddenCase(row, np.full(1, seen), np.ones(1)), Search(domains=1)).bounds[0][0]
    return net, ForbiddenCase(row, np.array([seen + (1 - share) * whole]), np.ones(1))


def answered(net: Net, case: ForbiddenCase, search: Search, *, narrowing: float = 0.0, early: float = 0.0) -> Answer:
    """The cascade's answer, with its searches: trees over the whole set, unless that may be narrowed.

    early: the share of the time for a tree over the boxes of crown.
    """
    search = dataclasses.replace(search, narrowing=narrowing, early=early, halving=0.0)
    row = {k: Fraction(float(c)) for k, c in enumerate(case.rows[0])}
    conjunction = Conjunction((Inequality(row, Fraction(float(case.bound[0]))),))
    lower, upper = net.lower.ravel(), net.upper.ravel()
    spec = Property((Case(lower, upper, lower, upper, (conjunction,)),), lower.size, case.rows.shape[1])
    return verify(net.graph, spec, lambda _: None, budget=BLIND, options=Options(search=search), recorded=True)


def searched_of(answer: Answer) -> Searched:
    (found,) = answer.searched
    return Searched(found.question, found.rules, found.record, {k: number for k, (number, _) in found.excluded.items()})


@pytest.mark.parametrize("lean", [False, True])
def test_the_tree_over_the_boxes_of_crown_is_the_proof(lean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is searched or optimised again, and the ellipsoids of values are fitted to what the tree asks."""
    monkeypatch.setattr(planting, "FITTED", 0)
    net, case = between(boxed(transformer(Config(depth=2, tokens=2, seed=8)), 0.02, 3), -0.1)
    answer = answered(net, case, Search(seconds=60.0, domains=300, root=Ascent(steps=0)), early=1.0)
    assert (answer.verdict, "joint" in answer.seconds) == ("verified", False), answer.reason
    (leaves,) = (found.record.leaves for found in answer.searched)
    assert len(leaves) > 1
    for name in ("by_ascent", "by_branching"):
        monkeypatch.setattr(prove.Prover, name, lambda *_, **__: pytest.fail("a second search"))
    part = CertificatePart(net.lower, net.upper, [case], searches=(searched_of(answer),))
    found = certificate.prove(net.graph, [part], Effort(lean=lean), about={"model": {"sha256": "0" * 64}})
    assert found.certificate is not None, found.margins
    (part_header,) = exact.read(found.certificate.data).header["parts"]
    assert part_header["proofs"][-1]["tree"]["fitted"]
    accepted(found.certificate.data)
    everything_holds(net, found.certificate.data, 12)


@pytest.mark.parametrize(("name", "radius"), [("relu", 0.6), ("causal mask", 0.3)])
def test_a_search_that_may_narrow_is_proved(name: str, radius: float) -> None:
    """The set is narrowed, the rest is split: the proof has rounds, and a tree over what they leave."""
    net, case = question(name, radius, 0.4)
    answer = answered(net, case, Search(seconds=60.0, domains=4000), narrowing=0.8)
    assert answer.verdict == "verified"
    searched = searched_of(answer)
    assert 0 in searched.record.narrowed
    part = CertificatePart(net.lower, net.upper, [case], searches=(searched,))
    assert part.was_narrowed
    found = certificate.prove(net.graph, [part], Effort(), about={"model": {"sha256": "0" * 64}})
    assert found.certificate is not None, found.margins
    accepted(found.certificate.data)
    last = exact.read(found.certificate.data).header["parts"][0]["proofs"][-1]
    assert last["rounds"]


@pytest.mark.parametrize(("name", "radius"), [("relu", 0.6), ("causal mask", 0.3)])
def test_the_tree_that_decided_is_the_proof(name: str, radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is searched or optimised again."""
    net, case = question(name, radius, 0.3)
    answer = answered(net, case, Search(seconds=60.0, domains=4000))
    assert answer.verdict == "verified", answer.reason
    assert len(answer.searched[0].record.leaves) > 1

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a second search")

    for again in ("branch", "ascend"):
        monkeypatch.setattr(prove, again, never)
    part = CertificatePart(net.lower, net.upper, [case], searches=(searched_of(answer),))
    found = certificate.prove(net.graph, [part], Effort(), about={"model": {"sha256": "0" * 64}})
    assert found.certificate is not None, found.margins
    verdict = accepted(found.certificate.data)
    assert verdict.margin == pytest.approx(found.certificate.margin, rel=1e-9)
    everything_holds(net, found.certificate.data, 12)
    leaves = len(answer.searched[0].record.leaves)
    written = exact.read(found.certificate.data)
    entries = unpacked(written, written.header["parts"][0]["proofs"][-1]["tree"])
    assert len(entries) == 2 * leaves - 1


@pytest.mark.parametrize(("name", "radius", "off"), [("relu", 0.6, 1e-4), ("causal mask", 0.3, 1e-3)])
def test_the_checker_bounds_leaves_as_the_search_did(name: str, radius: float, off: float) -> None:
    """With the same parameters, rounded to half precision, over boxes made in the same way: nearly the same bounds."""
    net, case = question(name, radius, 0.3)
    answer = answered(net, case, Search(seconds=60.0, domains=4000))
    searched, prover = searched_of(answer), prove.Prover(net.graph, net.lower, net.upper)
    prover.state([case])
    leaves = searched.record.leaves
    tree, arrays = prover.planter.tree(searched, leaves, "t")
    bounds = prover.leaf_bounds(tree, arrays, 0, [None] * len(leaves))
    ordered = planting.preorder(leaves)[1]
    assert max(abs(bound - leaf.bound) for bound, leaf in zip(bounds, ordered, strict=True)) < off


def test_a_late_box_and_fitted_ellipsoids_are_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that has optimised a box on its way: a step with chosen parameters proves it again."""
    net, case = question("three blocks", 0.08, 0.02)
    monkeypatch.setattr(planting, "FITTED", 0)
    answer = answered(net, case, Search(seconds=60.0, domains=6000, late=2, tried=2))
    assert answer.verdict == "verified", answer.reason
    record = answer.searched[0].record
    assert record.late is not None
    assert record.functionals
    part = CertificatePart(net.lower, net.upper, [case], searches=(searched_of(answer),))
    found = certificate.prove(net.graph, [part], Effort(), about={"model": {"sha256": "0" * 64}})
    assert found.certificate is not None, found.margins
    written = exact.read(found.certificate.data)
    (part_header,) = written.header["parts"]
    assert [step for step in part_header["steps"] if "chosen" in step]
    assert part_header["proofs"][-1]["tree"]["fitted"]
    accepted(found.certificate.data)
    everything_holds(net, found.certificate.data, 12)


@pytest.mark.parametrize("share", [0.4, -0.01])
def test_where_a_leaf_does_not_prove_the_search_goes_on(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some leaves (or the one of the whole set) are said to prove too little at first; what replaces them proves."""
    net, case = question("relu", 0.6, share)
    answer = answered(net, case, Search(seconds=60.0, domains=4000))
    assert answer.verdict == "verified"
    record = answer.searched[0].record
    before, real, asked = list(record.leaves), proof.leaf_bounds, []

    def weaker(known: Any, A: Any, tree: Any, only: Any = None) -> Any:
        found = real(known, A, tree, only)
        asked.append(only)
        if len(asked) == 1:
            found[::3] = case.bound[0] - 1e-3
        return found

    monkeypatch.setattr(proof, "leaf_bounds", weaker)
    part = CertificatePart(net.lower, net.upper, [case], searches=(searched_of(answer),))
    found = certificate.prove(net.graph, [part], Effort(), about={"model": {"sha256": "0" * 64}})
    monkeypatch.setattr(proof, "leaf_bounds", real)
    assert found.certificate is not None, found.margins
    assert len(asked) == 2
    new = [leaf for leaf in record.leaves if not any(leaf is old for old in before)]
    assert len(new) == len(asked[1])  # the leaves that stayed are not bounded again
    assert len(record.leaves) - len(new) < len(before)
    accepted(found.certificate.data)
    everything_holds(net, found.certificate.data, 12)


def test_a_tree_that_becomes_large_is_bounded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fitted ellipsoids its leaves have other bounds than without: none of these is kept."""
    net, case = question("relu", 0.6, 0.4)
    answer = answered(net, case, Search(seconds=60.0, domains=4000))
    searched = searched_of(answer)
    monkeypatch.setattr(planting, "FITTED", 1e3)
    real, asked = proof.leaf_bounds, list[Any]()

    def weaker(known: Any, A: Any, tree: Any, only: Any = None) -> Any:
        found = real(known, A, tree, only)
        asked.append((only, bool(tree.fitted)))
        if len(asked) == 1:
            found[0] = case.bound[0] - 1e-3
            monkeypatch.setattr(planting, "FITTED", 0)  # as if there were many leaves from now on
        return found

    monkeypatch.setattr(proof, "leaf_bounds", weaker)
    prover = prove.Prover(net.graph, net.lower, net.upper)
    prover.state([case])
    prover.by_search(searched)
    assert [fitted for _, fitted in asked] == [False, True]
    assert len(asked[1][0]) == len(searched.record.leaves) > 1


def test_a_search_that_has_not_ended_proves_nothing() -> None:
    """Its leaves do not cover the set, whatever is asked."""
    net, case = question("peaked", 0.3, 0.3)
    answer = answered(net, case, Search(seconds=60.0, domains=60))
    assert (answer.verdict, answer.searched) == ("unknown", ())
    net, case = question("relu", 0.6, 0.4)
    searched = searched_of(answered(net, case, Search(seconds=60.0, domains=4000)))
    searched.record.open = {0}
    prover = prove.Prover(net.graph, net.lower, net.upper)
    prover.state([case])
    prover.by_search(searched)
    assert not prover.header["proofs"]
    assert prover.open() == [0]


def test_a_search_about_another_network_is_refused() -> None:
    net, case = question("relu", 0.6, 0.4)
    answer = answered(net, case, Search(seconds=60.0, domains=4000))
    other = made("one token")
    with pytest.raises(Exception, match="another network"):
        certificate.prove(
            other.graph,
            [CertificatePart(other.lower, other.upper, [ForbiddenCase(rows_of(other, 1), np.full(1, 1e9), np.ones(1))],
                             searches=(searched_of(answer),))],
            Effort(),
        )  # fmt: skip
