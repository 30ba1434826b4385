"""Proofs in rounds: what they prove is checked again, and a chain of rounds with anything wrong in it is rejected."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.bounds.branching_cases import MARGINS, QUICK, attention, least
from tests.certificate import exact
from tests.certificate.exact import Written
from tests.certificate.made import about
from tests.certificate.tampering import flips, header_flips, judged
from tests.slowly import few
from vertex_softmax.bounds import narrowed_search, narrowing
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Aim, Watchers
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.bounds.record import NarrowedTree, Record
from vertex_softmax.certificate import narrowed_proofs, rest_proofs
from vertex_softmax.certificate.certificate import CertificatePart, Effort, prove
from vertex_softmax.certificate.checker import check, proof
from vertex_softmax.certificate.checker.file import File
from vertex_softmax.certificate.checker.input_sets import CheckedSet
from vertex_softmax.certificate.checker.narrowing import CheckedCut, HalfSpace, half_space, needed
from vertex_softmax.certificate.checker.network import Known
from vertex_softmax.certificate.checker.trees import passed_alone, read_packed
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.narrowed_proofs import Narrowing, by_narrowing, left_over
from vertex_softmax.certificate.planting import Searched
from vertex_softmax.certificate.prove import Prover, written
from vertex_softmax.methods.bab import branch, rules_of
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule

torch.set_num_threads(1)
RADIUS = 0.02
HOW = Narrowing(Ascent(steps=8), 2, None)


def cases(name: str, gap: float, which: tuple[int, ...] = (0, 1, 2)) -> list[ForbiddenCase]:
    """Margins that are at most so far below the least that an attack finds."""
    lowest, _ = least(attention(name, RADIUS), MARGINS)
    rows = MARGINS.numpy()
    return [ForbiddenCase(rows[i : i + 1], np.array([float(lowest[i]) - gap]), np.ones(1)) for i in which]


def prover(name: str, gap: float, which: tuple[int, ...] = (0, 1, 2)) -> Prover:
    whole = attention(name, RADIUS)
    lower, upper = (end[0].numpy() for end in whole.box)
    found = Prover(whole.graph, lower, upper, forward=name == "norm")
    found.state(cases(name, gap, which))
    found.by_rule(RowRule.AFFINE)
    return found


@functools.cache
def certificate(name: str = "gelu", gap: float = 1e-7) -> Written:
    """All of its cases are proved in rounds; the first in several."""
    found = prover(name, gap)
    assert found.open() == [0, 1, 2]
    found.header["proofs"].clear()
    by_narrowing(found, HOW)
    data = written([found], about())
    verdict = check(data)
    assert verdict.accepted, verdict.reason
    assert 0 < verdict.margin <= found.margin * (1 + 1e-6)
    return exact.read(data)


def proofs(file: Written) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = file.header["parts"][0]["proofs"]
    return found


def rejected(file: Written) -> str:
    """Why a changed certificate is rejected, by one process and by two."""
    reasons = {check(file.data(), jobs=jobs).reason for jobs in (1, 2)}
    (reason,) = reasons
    assert reason
    return reason


def with_array(file: Written, entry: dict[str, Any], name: str, value: Any) -> None:
    """Put another array in the place of one that an entry of the header names."""
    file.arrays["changed"] = np.asarray(value)
    entry[name] = "changed"


@pytest.mark.parametrize("name", ["gelu", "gated"])
def test_rounds_prove_what_one_bound_does_not(name: str) -> None:
    file = certificate(name)
    assert [each["cases"] for each in proofs(file)] == [[0], [1], [2]]
    assert all(each["rounds"] for each in proofs(file))


def test_rounds_of_forward_proofs() -> None:
    """With norms every round has a forward proof of its own; several processes have the same answer."""
    found = prover("norm", 1e-6, (0, 2))
    assert found.open() == [0, 1]
    by_narrowing(found, HOW)
    assert not found.open()
    steps = [step["kind"] for one in found.header["proofs"][1:] for each in one["rounds"] for step in each["steps"]]
    assert set(steps) == {"forward"}
    data = written([found], about())
    alone, shared = check(data), check(data, jobs=3)
    assert alone.accepted, alone.reason
    assert (shared.accepted, shared.margin) == (True, alone.margin)


@pytest.mark.parametrize("name", few(["relu", "gelu", "norm", "gated"], lambda name: name in ("relu", "norm")))
def test_nothing_false_is_proved(name: str) -> None:
    """The limits are values that the network has: the same rounds, honestly made, come to no proof."""
    found = prover(name, -1e-9)
    by_narrowing(found, HOW)
    assert not (found.margins > 0).any()


def test_what_narrowing_leaves_open_is_split_over_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrowed_proofs, "ROUNDS", 1)
    found, how = prover("relu", 1e-4), dataclasses.replace(HOW, ascent=Ascent(steps=0))
    by_narrowing(found, how)
    assert found.open() == [0]
    by_narrowing(found, dataclasses.replace(how, search=dataclasses.replace(QUICK, root=Ascent(steps=0))))
    assert not found.open()
    last = found.header["proofs"][-1]
    assert last["cases"] == [0]
    assert last["rounds"]
    assert len(found.arrays[last["tree"]["node"]]) > 1
    assert check(written([found], about())).accepted


def test_a_search_that_narrowed_is_proved_by_rounds() -> None:
    """A part whose search has decided over narrower sets; the proof narrows before it tries anything else."""
    whole = attention("gelu", RADIUS)
    lower, upper = (end[0].numpy() for end in whole.box)
    record = Record()
    goals = torch.tensor([float(case.bound[0]) + 1e-8 for case in cases("gelu", 1e-6)], dtype=torch.float64)
    root = Bound(torch.full((1, 3), -torch.inf, dtype=torch.float64), whole.boxes)
    options = Options(search=QUICK)
    outcome = branch(whole.question, root, Aim(MARGINS, goals), options, Watchers(record=record))
    assert outcome.open.tolist() == [0, 0, 0]
    assert record.narrowed
    assert not {leaf.objective for leaf in record.leaves} & record.narrowed.keys()
    searched = Searched(whole.question.on_parts(), rules_of(options), record, {0: 0, 1: 1, 2: 2})
    part = CertificatePart(lower, upper, cases("gelu", 1e-6), searches=(searched,))
    assert part.was_narrowed
    said: list[str] = []
    found = prove(whole.graph, [part], Effort(ascent=Ascent(steps=8)), about=about(), report=said.append)
    assert found.certificate is not None
    assert found.certificate.check().accepted
    assert said[-1].startswith("narrowed, 0 of 3")


def test_a_file_of_an_older_format_has_no_rounds() -> None:
    file = certificate().copy()
    file.header["format"] = "vertex-certificate-5"
    assert "rounds" in rejected(file)


@pytest.mark.parametrize("change", [0.0, -1e-7, -1.0])
def test_a_level_that_is_not_above_the_limit_proves_nothing(change: float) -> None:
    file = certificate().copy()
    limit = float(file.arrays[file.header["parts"][0]["property"][0]["bound"]][0])
    with_array(file, proofs(file)[0], "level", [limit + change])
    assert "margin" in rejected(file)


def test_a_higher_level_needs_larger_boxes() -> None:
    file = certificate().copy()
    level = float(file.arrays[proofs(file)[0]["level"]][0])
    with_array(file, proofs(file)[0], "level", [level + 1e-4])
    assert "leaves out" in rejected(file)


@pytest.mark.parametrize("level", [[np.nan], [np.inf], [-np.inf], [], [1.0, 2.0], 1.0])
def test_a_level_is_one_finite_number(level: Any) -> None:
    file = certificate().copy()
    with_array(file, proofs(file)[0], "level", level)
    rejected(file)


@pytest.mark.parametrize("number", [0, 1])
def test_a_box_that_is_a_little_too_narrow_is_rejected(number: int) -> None:
    """By one unit in the last place, beyond what the prover has left for other machines' rounding."""
    file = certificate()
    first = prover("gelu", 1e-7)
    entries = proofs(file)[0]["rounds"]
    here, level = first, float(file.arrays[proofs(file)[0]["level"]][0])
    for entry in entries[: number + 1]:
        packed = read_packed(entry["cut"], here.known, 1, File(file.header, file.arrays))
        found = passed_alone(packed, here.known, first.objectives([0])).linear_bound()
        half = half_space(here.known.given, found, level)
        box, given = needed(here.known.given, half), here.known.given
        region = left_over(given, half)
        assert region is not None
        here = here.over(region)
        assert isinstance(here.known.given, CheckedCut)
    binding = {"upper": box.hi < given.upper, "lower": box.lo > given.lower}
    assert any(where.any() for where in binding.values())
    for end, where in binding.items():
        for at in np.argwhere(where)[:4]:
            changed = file.copy()
            entry = proofs(changed)[0]["rounds"][number]
            value = changed.arrays[entry[end]].astype(np.float64)
            exact_end, way = (box.hi, -np.inf) if end == "upper" else (box.lo, np.inf)
            value[tuple(at)] = np.nextafter(exact_end[tuple(at)], way)
            with_array(changed, entry, end, value)
            assert "leaves out" in rejected(changed)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e300, -1e300])
@pytest.mark.parametrize("end", ["lower", "upper"])
def test_a_box_of_numbers_that_make_no_sense_is_rejected(end: str, wrong: float) -> None:
    file = certificate().copy()
    for entry in (proofs(file)[0]["rounds"][0], proofs(file)[0]["rounds"][-1]):
        changed = file.copy()
        value = file.arrays[entry[end]].astype(np.float64)
        value.flat[0] = wrong
        changed.arrays["changed"] = value
        mine = proofs(changed)[0]["rounds"][proofs(file)[0]["rounds"].index(entry)]
        mine[end] = "changed"
        rejected(changed)


def test_a_box_beyond_the_input_set_is_harmless() -> None:
    """It says more than is needed: it is accepted if that is true, and then so is the claim."""
    file = certificate()
    for share in (1e-12, 1e-9, 1e-3, 10.0):
        changed = file.copy()
        entry = proofs(changed)[0]["rounds"][0]
        value = changed.arrays[entry["upper"]].astype(np.float64)
        with_array(changed, entry, "upper", value + share)
        judged(changed.data(), changed, file, 0)


def test_rounds_in_another_order_or_fewer_are_rejected() -> None:
    file = certificate()
    count = len(proofs(file)[0]["rounds"])
    assert count > 2
    orders = [[1, 0, *range(2, count)], list(range(count))[::-1], [*range(1, count)], [*range(count - 1)], []]
    orders += [[k for k in range(count) if k != 1]]
    for order in orders:
        changed = file.copy()
        rounds = proofs(changed)[0]["rounds"]
        proofs(changed)[0]["rounds"] = [rounds[k] for k in order]
        verdict = judged(changed.data(), changed, file, 0)
        assert not verdict.accepted, order
    twice = file.copy()
    proofs(twice)[0]["rounds"].insert(0, proofs(file)[0]["rounds"][0])
    assert judged(twice.data(), twice, file, 0).accepted, "the same cut once more leaves nothing else"


def test_the_rounds_of_one_case_are_not_those_of_another() -> None:
    file = certificate()
    for k, other in ((0, 1), (1, 2), (2, 0)):
        changed = file.copy()
        proofs(changed)[k]["cases"] = [other]
        rejected(changed)
        changed = file.copy()
        for name in ("rounds", "tree", "level"):
            proofs(changed)[k][name] = proofs(file)[other][name]
        rejected(changed)
        changed = file.copy()
        for mine, theirs in zip(proofs(changed)[k]["rounds"], proofs(file)[other]["rounds"], strict=False):
            mine["cut"] = theirs["cut"]
        judged(changed.data(), changed, file, 0)


def test_rounds_are_of_one_case_alone() -> None:
    file = certificate().copy()
    proofs(file)[0]["cases"] = [0, 0]
    assert "one alone" in rejected(file) or "fit" in rejected(file)


def test_a_cut_is_by_one_bound_over_the_whole_set() -> None:
    """A tree with a branching has a bound for each leaf, and none of them is one over the set."""
    file = certificate().copy()
    tree = proofs(file)[0]["rounds"][0]["cut"]
    for name, value in (("node", [3, -1, -1]), ("entry", [0, 0, 0]), ("point", [0.0] * 3), ("inner", [False] * 3)):
        file.arrays[f"changed.{name}"] = np.array(value)
        tree[name] = f"changed.{name}"
    for names in tree["chosen"].values():
        for one in names.values():
            one["which"] = "changed.which"
    file.arrays["changed.which"] = np.zeros(2, dtype=np.int64)
    file.arrays["changed.held"] = np.zeros(2)
    tree["held"] = "changed.held"
    assert "one leaf alone" in rejected(file)


@pytest.mark.parametrize("name", ["cut", "lower", "upper", "lines", "steps"])
def test_a_round_has_all_of_its_entries(name: str) -> None:
    file = certificate().copy()
    del proofs(file)[0]["rounds"][0][name]
    rejected(file)


def test_a_set_that_is_no_box_is_not_narrowed() -> None:
    """A ball that holds the box of the part: the same file with it says more than was proved."""
    file = certificate().copy()
    part = file.header["parts"][0]
    lower, upper = (file.arrays[part[end]].astype(np.float64) for end in ("lower", "upper"))
    file.arrays["ball.centre"], file.arrays["ball.radius"] = lower / 2 + upper / 2, np.full(lower.shape, 1e-6)
    file.arrays["ball.members"] = np.zeros(lower.shape, dtype=np.int64)
    names = {name: f"ball.{name}" for name in ("centre", "radius", "members")}
    part["set"] = {"kind": "balls", "norm": 2, **names}
    assert "no box" in rejected(file)


def over_what_is_left(monkeypatch: pytest.MonkeyPatch) -> tuple[Prover, Searched, NarrowedTree]:
    """A search that has decided by a tree over what one round has left, and the prover that is to prove it."""
    monkeypatch.setattr(narrowing, "ROUNDS", 1)
    monkeypatch.setattr(narrowed_proofs, "ROUNDS", 1)
    monkeypatch.setattr(narrowed_search._Timed, "allows", lambda *_: False)  # there is no time to narrow parts
    found, record = prover("gelu", 2e-5), Record()
    goals = torch.from_numpy(found.limits_of([0])) + 2e-6
    quick = dataclasses.replace(QUICK, root=Ascent(steps=0), domains=300, seconds=None)
    question, boxes = found.proved()
    aim, options = Aim(MARGINS[:1], goals), Options(search=quick)
    root = Bound(torch.full((1, 1), -torch.inf, dtype=torch.float64), boxes)
    outcome = branch(question, root, aim, options, Watchers(record=record))
    assert outcome.open.tolist() == [0]
    tree = record.narrowed[0]
    assert isinstance(tree, NarrowedTree)
    assert tree.cuts
    assert len(tree.record.leaves) > 1
    assert not record.leaves
    return found, Searched(question.on_parts(), rules_of(options), record, {0: 0}), tree


def test_where_leaves_over_what_is_left_do_not_prove_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst are said to prove too little at first: what replaces them proves, and no rest has boxes of its own."""
    found, searched, tree = over_what_is_left(monkeypatch)
    monkeypatch.setattr(rest_proofs, "FEW", 0)
    before, real, asked = list(tree.record.leaves), proof.leaf_bounds, list[Any]()

    def go_on(parts: Sequence[Part], goals: Sequence[float], _seconds: float) -> bool:
        """As if the same bounds were found again."""
        assert goals[0] > max(part.bound for part in parts)
        again = {id(part): dataclasses.replace(part) for part in parts}
        tree.record.leaves = [again.get(id(leaf), leaf) for leaf in tree.record.leaves]
        return True

    def weaker(known: Any, A: Any, packed: Any, only: Any = None) -> Any:
        asked.append(only)
        bounds = real(known, A, packed, only)
        if len(asked) == 1:
            bounds[bounds[:, 0].argsort()[:2]] = found.limits_of([0])[0] - 1e-9
        return bounds

    monkeypatch.setattr(proof, "leaf_bounds", weaker)
    monkeypatch.setattr(tree.record, "resume", go_on)
    by_narrowing(found, Narrowing(Ascent(steps=0), 2, None, searches=(searched,), again=False))
    monkeypatch.setattr(proof, "leaf_bounds", real)
    last = found.header["proofs"][-1]
    assert last["cases"] == [0]
    assert last["rests"] == []
    assert len({id(leaf) for leaf in before} - {id(leaf) for leaf in tree.record.leaves}) == 2
    assert len(asked[1]) == 2, "those that stayed are not bounded again"
    by_narrowing(found, HOW)
    assert check(written([found], about())).accepted


def test_the_tree_of_a_search_over_what_is_left_is_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is searched again: the tree that is written has the leaves of the search that decided."""
    found, searched, tree = over_what_is_left(monkeypatch)
    found.by_search(searched)
    assert 0 in found.open(), "a tree over a part of the set is no tree over the whole"
    how = Narrowing(Ascent(steps=0), 2, None, searched.narrowed_trees())
    by_narrowing(found, how)
    (last,) = (each for each in found.header["proofs"] if each["cases"] == [0] and "rounds" in each)
    assert int((found.arrays[last["tree"]["node"]] < 0).sum()) == len(tree.record.leaves)
    by_narrowing(found, HOW)
    assert check(written([found], about())).accepted
    found.margins[0] = -np.inf
    by_narrowing(found, dataclasses.replace(how, searches=(searched,)))
    last = found.header["proofs"][-1]
    assert last["cases"] == [0], "with the cuts of the search too"
    assert int((found.arrays[last["tree"]["node"]] < 0).sum()) == len(tree.record.leaves)
    assert check(written([found], about())).accepted


@pytest.mark.parametrize(
    ("name", "count"), [("gelu", 12), *(pytest.param(name, 400, marks=pytest.mark.slow) for name in ("gelu", "gated"))]
)
def test_whatever_is_changed_nothing_false_is_accepted(name: str, count: int) -> None:
    """Numbers and entries of the header at random; what is accepted is true."""
    file = certificate(name)
    for found in (flips(file, count, count), header_flips(file, count, count)):
        assert found["rejected"] > 0


@pytest.mark.parametrize("wrong", [None, {}, "", 0, [None], [[]], [{}], ["cut"], [0]])
def test_rounds_are_a_list_of_rounds(wrong: Any) -> None:
    """An empty list of them is none, and the proof is the tree's alone."""
    file = certificate().copy()
    proofs(file)[0]["rounds"] = wrong
    rejected(file)


def test_a_lie_that_the_comparison_of_boxes_alone_catches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that the network does not keep, and a round whose box is one point at which it does."""
    file = certificate().copy()
    case, first = file.header["parts"][0]["property"][0], proofs(file)[0]["rounds"][0]
    lowest, _ = least(attention("gelu", RADIUS), MARGINS)
    point = (file.arrays[first["lower"]].astype(np.float64) + file.arrays[first["upper"]].astype(np.float64)) / 2
    value = float(attention("gelu", RADIUS).graph.evaluate(torch.from_numpy(point)[None]).flatten() @ MARGINS[0])
    wrong = float(lowest[0]) + 0.1 * (value - float(lowest[0]))
    assert value > wrong > float(lowest[0])
    file.arrays.update({"wrong": np.array([wrong]), "level": np.array([wrong + 1e-8]), "point": point})
    case["bound"], proofs(file)[0]["level"] = "wrong", "level"
    proofs(file)[0]["rounds"] = [{**first, "lower": "point", "upper": "point"}]
    assert "leaves out" in rejected(file)

    def careless(_given: CheckedSet, half: HalfSpace, lower: Any, upper: Any) -> CheckedCut:
        return CheckedCut(lower=lower, upper=upper, half=half)

    monkeypatch.setattr(proof, "narrower", careless)
    assert check(file.data()).accepted


def test_a_lie_that_the_level_alone_catches() -> None:
    """Far below the limit all of the set is left out, and nothing is shown of it."""
    file = certificate().copy()
    with_array(file, proofs(file)[0], "level", [-1e6])
    finding = check(file.data())
    assert not finding.accepted
    assert finding.margin < -1e5


@pytest.mark.parametrize("name", ["gelu", "gated"])
def test_what_is_known_in_a_round_holds_at_every_input_that_is_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs from the corner where a cut is deepest on, as far as it goes: all boxes of all rounds hold there."""
    file, seen, real = certificate(name), list[Known](), proof._prove_steps

    def watched(known: Known, *rest: Any) -> None:
        real(known, *rest)
        if isinstance(known.given, CheckedCut):
            seen.append(known)

    monkeypatch.setattr(proof, "_prove_steps", watched)
    assert check(file.data()).accepted
    assert len(seen) == sum(len(each["rounds"]) for each in proofs(file))
    chance = np.random.default_rng(0)
    for known in seen:
        given = known.given
        assert isinstance(given, CheckedCut)
        lower, upper = given.lower.ravel(), given.upper.ravel()
        deepest = np.where(given.half.slope > 0, lower, upper)
        points = lower + chance.random((60, lower.size)) * (upper - lower)
        points = deepest + 10.0 ** chance.uniform(-4, 0, (60, 1)) * (points - deepest)
        points = points[points @ given.half.slope <= given.half.limit]
        assert len(points)
        values = exact.floats(file.header, file.arrays, points.reshape(-1, *given.lower.shape))
        for number, box in known.boxes.items():
            spare = 1e-12 * (1 + box.size)
            found = values[number].reshape(-1, *box.lo.shape)
            assert ((found >= box.lo - spare) & (found <= box.hi + spare)).all(), number
