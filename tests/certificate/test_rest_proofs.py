"""Narrowed parts: the tree of a search is its proof, boxes hold in every rest, and nothing false is accepted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.bounds.branching_cases import MARGINS, QUICK, attention, least
from tests.bounds.networks import samples
from tests.certificate import exact
from tests.certificate.exact import Written
from tests.certificate.made import about
from tests.certificate.tampering import flips, header_flips, judged
from tests.slowly import few
from vertex_softmax.bounds import narrowed_parts, narrowing
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Aim, Watchers
from vertex_softmax.bounds.choice import Choice
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.narrowed_parts import TreeSize
from vertex_softmax.bounds.record import Record, RestRecord
from vertex_softmax.bounds.splits import Split
from vertex_softmax.certificate.certificate import CertificatePart, Effort, prove
from vertex_softmax.certificate.checker import check, proof
from vertex_softmax.certificate.checker.file import File, Rejected
from vertex_softmax.certificate.checker.narrowing import CheckedCut
from vertex_softmax.certificate.checker.network import Known
from vertex_softmax.certificate.checker.trees import leaves_of, read_packed
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.narrowed_proofs import Narrowing, by_narrowing
from vertex_softmax.certificate.planting import Searched
from vertex_softmax.certificate.prove import Prover, written
from vertex_softmax.graph.ir import Node
from vertex_softmax.methods.bab import branch, rules_of
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.elementwise import Elementwise
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rules import Rules

torch.set_num_threads(1)
RADIUS = {"relu": 0.4, "gelu": 0.4, "norm": 0.1}
GAP = {"relu": 0.007, "gelu": 0.05, "norm": 0.001}
"""How far the limit is below the least value that an attack finds."""
Header = dict[str, Any]


def limit_of(name: str, gap: float) -> float:
    lowest, _ = least(attention(name, RADIUS[name]), MARGINS[:1])
    return float(lowest[0]) - gap


def bent(name: str) -> list[Node]:
    """What curves, scores and norms read, in this order, of a small network."""
    nodes = attention(name, RADIUS[name]).graph.nodes()
    kinds: tuple[type, ...] = (Elementwise, Attention)
    return [node.inputs[0] for kind in kinds for node in nodes if isinstance(node.op, kind)]


def split(name: str, k: int, place: int) -> Split:
    """At the middle of a range of the whole set."""
    whole, node = attention(name, RADIUS[name]), bent(name)[k]
    box = whole.boxes[node]
    point = float((box.lower.flatten()[place] + box.upper.flatten()[place]) / 2)
    return Split(node, place, point, at_least=True)


def sigma_split(name: str) -> Split:
    """At one σ of the first norm."""
    whole = attention(name, RADIUS[name])
    node = next(node for node in whole.graph.nodes() if isinstance(node.op, Normalize))
    values = whole.graph.values(torch.stack([(whole.box[0] + whole.box[1])[0] / 2]))
    y = values[node.inputs[0]][0]
    return Split(node, 0, float((y[0].square().mean() + node.op.eps).sqrt()), at_least=True, inner=True)


def other(side: Split) -> Split:
    return dataclasses.replace(side, at_least=not side.at_least)


def planted(name: str) -> RestRecord:
    """Cuts, then a tree with a leaf and two rests, one of which is split again; all parameters have their defaults."""
    first, second, third = split(name, 0, 1), split(name, 0, 2), split(name, 1, 0)
    if name == "norm":
        third = sigma_split(name)
    deep = RestRecord((first, other(second)), [Choice()], tree=Record())
    assert deep.tree is not None
    deep.tree.leaves = [Part(0, (*deep.splits, side)) for side in (third, other(third))]
    whole = RestRecord((), [Choice()], tree=Record())
    assert whole.tree is not None
    whole.tree.leaves = [Part(0, (first, second))]
    whole.pieces = [deep, RestRecord((other(first),), [Choice(), Choice()])]
    return whole


def proved(name: str, record: RestRecord, limit: float) -> Prover:
    """What the prover makes of a record."""
    whole = attention(name, RADIUS[name])
    lower, upper = (end[0].numpy() for end in whole.box)
    prover = Prover(whole.graph, lower, upper, forward=name == "norm")
    prover.state([ForbiddenCase(MARGINS[:1].numpy(), np.array([limit]), np.ones(1))])
    found = Record()
    found.narrowed[0] = record
    searched = Searched(whole.question.on_parts(), Rules(), found, {0: 0})
    by_narrowing(prover, Narrowing(Ascent(steps=2), 2, None, searches=(searched,)))
    return prover


@functools.cache
def certificate(name: str = "relu") -> Written:
    prover = proved(name, planted(name), limit_of(name, GAP[name]))
    assert not prover.open()
    data = written([prover], about())
    verdict = check(data)
    assert verdict.accepted, verdict.reason
    return exact.read(data)


@functools.cache
def proved_known() -> Known:
    """What is known of the whole set, without a proof."""
    whole = attention("relu", RADIUS["relu"])
    return Prover(whole.graph, *(end[0].numpy() for end in whole.box)).known


def top(file: Written) -> Header:
    (found,) = file.header["parts"][0]["proofs"]
    assert isinstance(found, dict)
    return found


def rests(entry: Header) -> Iterator[Header]:
    """All rests of an entry, those of rests behind them."""
    for rest in entry["rests"]:
        yield rest
        yield from rests(rest)


def rejected(file: Written, jobs: int = 1) -> str:
    """Why a changed certificate is rejected."""
    reason = check(file.data(), jobs=jobs).reason
    assert reason
    return reason


def with_array(file: Written, entry: Header, name: str, value: Any) -> None:
    file.arrays[f"changed.{name}"] = np.asarray(value)
    entry[name] = f"changed.{name}"


def false(file: Written, above: float = 1e-4) -> Written:
    """The same proof of a limit that the network does not keep; the level is as far above it as it was."""
    found = file.copy()
    case, entry = found.header["parts"][0]["property"][0], top(found)
    old, level = (float(found.arrays[name].astype(float)[0]) for name in (case["bound"], entry["level"]))
    name = next(name for name in RADIUS if np.isclose(limit_of(name, GAP[name]), old))
    wrong = limit_of(name, -above)
    with_array(found, case, "bound", [wrong])
    with_array(found, entry, "level", [wrong + (level - old)])
    return found


# What is proved ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RADIUS)
def test_planted_rests_are_a_proof(name: str) -> None:
    """Rests in rests, splits of curves, of scores and of σ; several processes have the same answer."""
    file = certificate(name)
    assert len(top(file)["rests"]) >= 2
    assert any(rest["rests"] or len(file.arrays[rest["tree"]["node"]]) > 1 for rest in rests(top(file)))
    one, several = check(file.data()), check(file.data(), jobs=3)
    assert one.accepted
    assert (several.accepted, several.margin) == (True, one.margin)
    assert 0 < one.margin < 1e-7, "it is never more than the level's distance from the limit"


@functools.cache
def searched(name: str, gap: float) -> tuple[Record, CertificatePart]:
    """A search whose trees are so small that parts of parts are narrowed, and what is to be proved of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(narrowed_parts, "WHOLE", TreeSize(pieces=4, first=8, most=8))
        patch.setattr(narrowed_parts, "DEEPER", TreeSize(pieces=2, first=4, most=8))
        patch.setattr(narrowing, "ROUNDS", 1)
        return _searched(name, gap)


def _searched(name: str, gap: float) -> tuple[Record, CertificatePart]:
    whole, record = attention(name, RADIUS[name]), Record()
    limit = limit_of(name, gap)
    root = Bound(torch.full((1, 1), -torch.inf, dtype=torch.float64), whole.boxes)
    options = Options(search=dataclasses.replace(QUICK, domains=400, root=Ascent(steps=1)))
    goals = torch.tensor([limit + 1e-8], dtype=torch.float64)
    watchers = Watchers(accept=lambda *_: False, record=record)
    outcome = branch(whole.question, root, Aim(MARGINS[:1], goals), options, watchers)
    assert outcome.open.tolist() == [0]
    case = ForbiddenCase(MARGINS[:1].numpy(), np.array([limit]), np.ones(1))
    lower, upper = (end[0].numpy() for end in whole.box)
    found = Searched(whole.question.on_parts(), rules_of(options), record, {0: 0})
    return record, CertificatePart(lower, upper, [case], searches=(found,))


@pytest.mark.parametrize(("name", "gap"), few([("relu", 0.002), ("gelu", 0.006)], lambda name, _: name == "relu"))
def test_the_tree_of_a_search_is_the_proof(name: str, gap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is searched again: the rests of the file are the pieces that the search has narrowed."""
    record, part = searched(name, gap)
    noted = record.narrowed[0]
    assert isinstance(noted, RestRecord)
    assert noted.pieces
    assert not record.leaves
    effort = Effort(ascent=Ascent(steps=2), search=QUICK)
    monkeypatch.setattr(Prover, "by_branching", lambda *_: pytest.fail("a second search"))
    found = prove(attention(name, RADIUS[name]).graph, [part], effort, about=about())
    assert found.certificate is not None
    assert found.certificate.check().accepted
    entry = exact.read(found.certificate.data).header["parts"][0]["proofs"][-1]
    assert len(entry["rests"]) >= len(noted.pieces)


def test_a_record_has_every_leaf_once() -> None:
    """The leaves and the pieces of every tree of a search are one tree, from the splits of its rest on."""
    record, _ = searched("relu", 0.002)
    waiting = [record.narrowed[0]]
    while waiting:
        rest = waiting.pop()
        assert isinstance(rest, RestRecord)
        waiting += rest.pieces
        if rest.tree is not None:
            parts = [leaf.splits for leaf in rest.tree.leaves] + [piece.splits for piece in rest.pieces]
            own = [splits[len(rest.splits) :] for splits in parts]
            assert all(splits[: len(rest.splits)] == rest.splits for splits in parts)
            assert sum(0.5 ** len(splits) for splits in own) == 1
            assert len(set(own)) == len(own)


@pytest.mark.parametrize("name", few(RADIUS, lambda name: name == "relu"))
def test_nothing_false_is_proved(name: str) -> None:
    """The limit is a value that the network has: the same record, honestly proved, comes to no proof."""
    assert proved(name, planted(name), limit_of(name, -1e-9)).open() == [0]


@pytest.mark.parametrize("name", RADIUS)
def test_what_is_known_in_a_rest_holds_at_its_inputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every input of a rest's set at which all that was known before holds, all that is known there holds."""
    whole, seen, real = attention(name, RADIUS[name]), list[Known](), proof._prove_steps

    def watched(known: Known, *rest: Any) -> None:
        real(known, *rest)
        if isinstance(known.given, CheckedCut) and known.within:
            seen.append(known)

    monkeypatch.setattr(proof, "_prove_steps", watched)
    file = certificate(name)
    assert check(file.data()).accepted
    assert len(seen) > 3
    points = samples(*whole.box, 4000)[:, 0].double().numpy()
    met = 0
    for known in seen:
        lower, upper, half = known.given.box.lo, known.given.box.hi, known.given.half  # type: ignore[attr-defined]
        inside = [x for x in np.clip(points, lower, upper) if half.slope @ x.ravel() <= half.limit][:60]
        for x in inside:
            values = exact.floats(file.header, file.arrays, x[None])
            if all(_in(box, values[k][0]) for k, box in known.within.items()):
                met += 1
                assert all(_in(box, values[k][0]) for k, box in known.boxes.items())
    assert met > 50


def test_every_input_lies_in_the_part_of_a_leaf() -> None:
    """What is known at the leaves of a tree, cuts of what ReLUs alone read among it, covers the set."""
    file, known = certificate(), proved_known()
    with np.errstate(all="ignore"):
        known.reach(len(known.nodes) - 1)
        parts = [leaf.part() for leaf in leaves_of(read_packed(top(file)["tree"], known, 1, File(*file)), known)]
    narrower = {k for part in parts for k, box in part.boxes.items() if box is not known.boxes[k]}
    assert narrower
    points = samples(*attention("relu", RADIUS["relu"]).box, 100)[:, 0].double().numpy()
    values = exact.floats(file.header, file.arrays, points)
    in_leaf = [[all(_in(part.boxes[k], values[k][i]) for k in narrower) for part in parts] for i in range(len(points))]
    assert all(any(each) for each in in_leaf)
    assert not any(all(each) for each in in_leaf), "the parts are smaller than the set"


def _in(box: Any, value: Any) -> bool:
    off = 1e-9 * (1 + np.abs(value))
    return bool(((box.lo <= value + off) & (value - off <= box.hi)).all())


# What is rejected ----------------------------------------------------------------------------------------------------


def test_a_leaf_whose_rest_is_missing_is_rejected() -> None:
    for depth, entry in enumerate([top(certificate()), *rests(top(certificate()))]):
        for k in range(len(entry["rests"])):
            changed = certificate().copy()
            mine = [top(changed), *rests(top(changed))][depth]
            del mine["rests"][k]
            assert "margin" in rejected(changed, jobs=2)


def test_two_sides_that_change_places_are_rejected() -> None:
    """The rests of the two sides of a split: each is about the other's inputs."""
    changed = false(certificate())
    first, second = top(changed)["rests"][:2]
    first["leaf"], second["leaf"] = second["leaf"], first["leaf"]
    rejected(changed)
    changed = certificate().copy()
    first, second = top(changed)["rests"][:2]
    first["leaf"], second["leaf"] = second["leaf"], first["leaf"]
    judged(changed.data(), changed, certificate(), 0)


def test_two_rests_of_one_leaf_are_rejected() -> None:
    changed = certificate().copy()
    first, second = top(changed)["rests"][:2]
    second["leaf"] = first["leaf"]
    assert "two of one leaf" in rejected(changed)


@pytest.mark.parametrize("leaf", [-1, 3, 10**9, True, 0.0, "0", None, [0]])
def test_a_leaf_is_one_of_the_tree(leaf: Any) -> None:
    changed = certificate().copy()
    top(changed)["rests"][0]["leaf"] = leaf
    rejected(changed)


@pytest.mark.parametrize("wrong", [None, {}, "", 0, [None], [[]], [{}], ["leaf"], [0], True])
def test_rests_are_a_list_of_rests(wrong: Any) -> None:
    changed = certificate().copy()
    top(changed)["rests"] = wrong
    rejected(changed)


@pytest.mark.parametrize("name", ["rounds", "tree", "rests", "leaf"])
def test_a_rest_has_all_of_its_entries(name: str) -> None:
    changed = certificate().copy()
    del top(changed)["rests"][0][name]
    rejected(changed)


@pytest.mark.parametrize("change", [-1.0, -1e-3])
def test_a_lie_that_the_level_alone_catches(change: float) -> None:
    """Far below the limit rounds leave almost everything out, and nothing is shown of that."""
    changed = false(certificate())
    limit = float(changed.arrays[changed.header["parts"][0]["property"][0]["bound"]][0])
    with_array(changed, top(changed), "level", [limit + change])
    assert "margin" in rejected(changed)
    del top(changed)["rounds"]
    assert "margin" in rejected(changed)


def test_no_bound_over_rests_is_above_the_level() -> None:
    """Whoever asks: what a round has left out is above the level, and more is not known of it."""
    file = certificate()
    limit = limit_of("relu", GAP["relu"])
    A = MARGINS[:1].numpy().reshape(1, *file.header["graph"][-1]["shape"])
    for level in (limit - 0.1, limit - 1.0):
        with np.errstate(all="ignore"):
            found = proof._with_rests(proved_known(), A, top(file), level, File(*file))
        assert float(found[0]) <= level


@pytest.mark.parametrize("level", [[np.nan], [np.inf], [], [1.0, 2.0], 1.0])
def test_a_level_is_one_finite_number(level: Any) -> None:
    changed = certificate().copy()
    with_array(changed, top(changed), "level", level)
    rejected(changed)
    del top(changed)["level"]
    rejected(changed)


def test_rests_need_all_of_their_rounds() -> None:
    """Fewer rounds, in another order, or those of another rest: accepted only if what is said is true."""
    count = 0
    for depth, entry in enumerate([top(certificate()), *rests(top(certificate()))][:3]):
        for rounds in ([], entry["rounds"][::-1], top(certificate())["rounds"]):
            if rounds != entry["rounds"]:
                for base in (certificate(), false(certificate())):
                    changed = base.copy()
                    [top(changed), *rests(top(changed))][depth]["rounds"] = rounds
                    verdict = judged(changed.data(), changed, certificate(), 0)
                    assert not (verdict.accepted and base is not certificate())
                    count += not verdict.accepted
    assert count > 3


def test_a_box_that_is_claimed_is_compared() -> None:
    """A rest may say which box its rounds leave: a box that leaves something out is rejected, a larger one is not."""
    changed = certificate().copy()
    part = changed.header["parts"][0]
    lower, upper = (changed.arrays[part[end]].astype(float) for end in ("lower", "upper"))
    entry = top(changed)["rests"][-1]["rounds"][-1]
    with_array(changed, entry, "lower", (lower + upper) / 2)
    with_array(changed, entry, "upper", (lower + upper) / 2)
    assert "leaves out" in rejected(changed)
    with_array(changed, entry, "lower", lower - 1)
    with_array(changed, entry, "upper", upper + 1)
    judged(changed.data(), changed, certificate(), 0)
    del entry["lower"]
    rejected(changed)


def test_a_claim_of_a_step_is_compared() -> None:
    changed = certificate().copy()
    step = next(step for step in top(changed)["rests"][-1]["rounds"][-1]["steps"] if step["kind"] == "box")
    shape = changed.header["graph"][step["node"]]["shape"]
    with_array(changed, step, "lower", np.zeros(shape))
    with_array(changed, step, "upper", np.zeros(shape))
    assert "does not contain" in rejected(changed)
    del step["upper"]
    rejected(changed)


OUTER: dict[str, Callable[[Any], Any]] = {
    "node": lambda x: x + 10**4,
    "entry": lambda x: x + 10**4,
    "held": lambda x: x[:, :-1],
}


@pytest.mark.parametrize("name", OUTER)
def test_multipliers_of_outer_cuts_fit_the_network(name: str) -> None:
    for change in (OUTER[name], lambda x: x - 10**4 if x.dtype.kind == "i" else x * np.nan, lambda x: x[..., None]):
        changed = certificate().copy()
        outer = next(rest["tree"]["outer"] for rest in rests(top(changed)) if "outer" in rest["tree"])
        with_array(
            changed, outer, name, change(changed.arrays[outer[name]].astype(np.int64 if name != "held" else float))
        )
        rejected(changed)


def test_whatever_the_multipliers_are_nothing_false_is_accepted() -> None:
    for scale in (-10.0, 1.0):
        for base in (certificate(), false(certificate())):
            changed = base.copy()
            for k, rest in enumerate(rests(top(changed))):
                for tree in [rest["tree"], *(entry["cut"] for entry in rest["rounds"])]:
                    if "outer" in tree:
                        value = changed.arrays[tree["outer"]["held"]].astype(float)
                        changed.arrays[f"held.{k}"] = value + scale
                        tree["outer"]["held"] = f"held.{k}" if value.shape == changed.arrays[f"held.{k}"].shape else ""
            assert not (judged(changed.data(), changed, certificate(), 0).accepted and base is not certificate())


@pytest.mark.parametrize("number", [5, 6])
def test_older_formats_have_no_rests(number: int) -> None:
    changed = certificate().copy()
    changed.header["format"] = f"vertex-certificate-{number}"
    assert "format" in rejected(changed)
    with pytest.raises(Rejected, match="rests of leaves"):
        proof._with_rests(proved_known(), np.zeros((1, 3)), top(changed), 0.0, File(*changed))
    said = {"rests": "rests of", "box": "without a box", "claim": "without a claim", "outer": "outer cuts"}
    for spoil, reason in said.items():
        changed = certificate().copy()
        changed.header["format"] = "vertex-certificate-6"
        entry = top(changed)
        rest = entry["rests"][-1]
        if spoil != "rests":
            entry["tree"] = rest["tree"] if spoil == "outer" else entry["rounds"][0]["cut"]
            del entry["rests"]
        if spoil in ("rests", "outer"):
            entry["rounds"] = []
        if spoil == "claim":
            part = changed.header["parts"][0]
            entry["rounds"] = [{**entry["rounds"][0], "lower": part["lower"], "upper": part["upper"]}]
        assert reason in rejected(changed)


def test_rests_are_of_one_case_alone() -> None:
    changed = certificate().copy()
    top(changed)["cases"] = [0, 0]
    rejected(changed)


@pytest.mark.parametrize(
    ("name", "count"), [("relu", 10), *(pytest.param(name, 400, marks=pytest.mark.slow) for name in RADIUS)]
)
def test_whatever_is_changed_nothing_false_is_accepted(name: str, count: int) -> None:
    """Numbers and entries of the header at random; what is accepted is true."""
    for file in (certificate(name), false(certificate(name))):
        for found in (flips(file, count, count), header_flips(file, count, count)):
            assert found["rejected"] > 0
