"""Packed trees: what is written is what is checked, in one process or several; what is left out is missed."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.certificate.exact import Written
from tests.certificate.made import boxed, by_rule, made, with_packed_choices
from tests.certificate.packed import unpacked
from tests.certificate.tampering import certificate
from tests.certificate.test_tampering_proofs import falsified, sharp
from tests.slowly import few
from vertex_softmax.certificate.checker import check, passes, proof, ranges, trees
from vertex_softmax.certificate.checker.cuts import Cut
from vertex_softmax.certificate.checker.file import File, Rejected
from vertex_softmax.certificate.checker.passes import PassOptions

PACKED = "packed tree"


def tree_of(written: Written) -> dict[str, Any]:
    """The packed tree of the first proof."""
    found: dict[str, Any] = written.header["parts"][0]["proofs"][0]["tree"]
    return found


def array(name: str, change: Callable[[Any], Any]) -> Written:
    """The certificate with one array of its tree changed, and with nothing else that shared it."""
    found = certificate(PACKED).copy()
    tree = tree_of(found)
    value = found.arrays[tree[name]]
    found.arrays["changed"] = np.asarray(change(value.astype(np.int64) if value.dtype.kind == "i" else value.copy()))
    tree[name] = "changed"
    return found


def both(written: Written) -> list[str]:
    """The reasons for which one process and two reject a file; they must be the same, and so must the margins."""
    data = written.data()
    findings = [check(data, jobs=jobs) for jobs in (1, 2)]
    assert len({finding.reason for finding in findings}) == 1
    assert len({str(finding.margin) for finding in findings}) == 1
    return [finding.reason for finding in findings]


def quick(name: str, jobs: int) -> bool:
    return (name, jobs) in {("relu attention", 3), ("tree", 2), (PACKED, 3), (PACKED, 5), ("forward", 2)}


@pytest.mark.parametrize(
    ("name", "jobs"), few(itertools.product(["relu attention", "tree", PACKED, "forward"], [2, 3, 5]), quick)
)
def test_jobs_have_the_same_answer(name: str, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "WORK", 1)  # so that there is something to share
    data = certificate(name).data()
    alone, shared = check(data), check(data, jobs=jobs)
    assert alone.accepted
    assert (alone.accepted, alone.reason, alone.margin) == (shared.accepted, shared.reason, shared.margin)


def test_several_parts_are_shared_among_jobs() -> None:
    found = certificate("relu attention").copy()
    parts = found.header["parts"]
    found.header["parts"] = [parts[0], parts[0], parts[0]]
    margins = {check(found.data(), jobs=jobs).margin for jobs in (1, 2, 3, 4)}
    assert margins == {check(certificate("relu attention").data()).margin}
    false = falsified(certificate("relu attention"))
    found.header["parts"] = [parts[0], parts[0], {**false.header["parts"][0]}]
    found.arrays.update(false.arrays)
    assert all(not check(found.data(), jobs=jobs).accepted for jobs in (1, 2, 3, 4))


@pytest.mark.parametrize("name", ["relu attention", PACKED])
def test_a_job_that_dies_is_a_rejection(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever pass it dies in: of a box, of a zonotope, or of the last leaves."""
    monkeypatch.setattr(ranges, "WORK", 1)
    data, real, here = certificate(name).data(), passes.Pass.__init__, os.getpid()
    for fatal in (1, 2):
        count = 0

        def dying(self: Any, *given: Any, fatal: int = fatal) -> None:
            nonlocal count
            count += os.getpid() != here
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            real(self, *given)

        monkeypatch.setattr(passes.Pass, "__init__", dying)
        finding = check(data, jobs=2)
        monkeypatch.setattr(passes.Pass, "__init__", real)
        assert not finding.accepted
        assert "ended without an answer" in finding.reason


def test_jobs_must_be_at_least_one() -> None:
    assert not check(certificate(PACKED).data(), jobs=0).accepted


def test_the_time_limit_holds_for_jobs() -> None:
    finding = check(certificate(PACKED).data(), seconds=1e-9, jobs=2)
    assert not finding.accepted
    assert "time limit" in finding.reason


# What is left out or added -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:-1], lambda x: x[1:], lambda x: np.concatenate([x, x[-1:]]), lambda x: x[::-1], lambda x: x[:0],
        lambda x: x[None], lambda x: np.where(np.arange(len(x)) == 0, -1, x), lambda x: np.full_like(x, -1),
        lambda x: np.where(x < 0, 10**9, x), lambda x: np.where(np.arange(len(x)) == len(x) - 1, 3, x),
        np.zeros_like, lambda x: x.astype(float),
    ],
)  # fmt: skip
def test_entries_out_of_their_order(change: Callable[[Any], Any]) -> None:
    """A branch without its leaf, a leaf too many, a node that is none: nothing of it is a tree with these arrays."""
    assert all(both(array("node", change)))


def test_a_leaf_cannot_be_left_out() -> None:
    """Nor a branch with all of its leaves: the entries that are left are not a tree, or leave numbers over."""
    whole = certificate(PACKED)
    tree = tree_of(whole)
    node = whole.arrays[tree["node"]]
    for at in range(len(node)):
        found = whole.copy()
        own = tree_of(found)
        for name in ("node", "entry", "point", "inner"):
            found.arrays[f"cut.{name}"] = np.delete(found.arrays[own[name]], at)
            own[name] = f"cut.{name}"
        assert all(both(found)), at


def test_a_branching_that_becomes_a_leaf() -> None:
    """A whole branch as one leaf: its leaves are gone, and so must be their parameters and multipliers."""
    whole = certificate(PACKED)
    node = whole.arrays[tree_of(whole)["node"]]
    for at in np.flatnonzero(node >= 0):
        assert all(both(array("node", lambda x, at=at: np.where(np.arange(len(x)) == at, -1, x))))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("held", lambda x: x[:-1]), ("held", lambda x: np.concatenate([x, [0.0]])), ("held", lambda x: x * np.nan),
        ("held", lambda x: x + 1.0),  # those of a σ have none
        ("entry", lambda x: x + 10**6), ("entry", lambda x: x - 10**6), ("entry", lambda x: x[:-1]),
        ("entry", lambda x: x.astype(float)), ("point", lambda x: x + np.inf), ("point", lambda x: x * np.nan),
        ("point", lambda x: x[:-1]), ("inner", lambda x: x[:-1]), ("inner", lambda x: np.full(x.shape, 2, np.uint8)),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(name: str, change: Callable[[Any], Any]) -> None:
    assert all(both(array(name, change)))


@pytest.mark.parametrize("kind", ["which", "values"])
def test_parameters_of_leaves_that_do_not_fit(kind: str) -> None:
    whole = certificate(PACKED)
    changes: list[Callable[[Any], Any]] = [lambda x: x[:-1], lambda x: np.concatenate([x, x]), lambda x: x[None]]
    if kind == "which":
        changes += [lambda x: x + 2, lambda x: x - 1, lambda x: x + 0.5, lambda x: x + 10**6]
    else:
        changes += [
            lambda x: x[..., :-1],
            lambda x: np.full_like(x, np.inf),
            lambda x: x.astype(np.int64),
            lambda x: x[:, :1],
        ]
    for node, of in tree_of(whole)["chosen"].items():
        for name in of:
            for change in changes:
                found = whole.copy()
                own = tree_of(found)["chosen"][node][name]
                value = found.arrays[own[kind]]
                value = np.asarray(change(value.astype(np.int64) if value.dtype.kind == "i" else value.copy()))
                found.arrays["changed"], own[kind] = value, "changed"
                if kind == "values" and value.shape == (4, *whole.arrays[of[name]["values"]].shape[1:]):
                    continue  # more values than are used
                assert all(both(found)), (node, name)


def test_what_is_fitted_belongs_to_an_attention() -> None:
    whole = certificate(PACKED)
    (node, name), *_ = tree_of(whole)["fitted"].items()
    shape = whole.arrays[name].shape
    for at in ("0", "1", str(int(node) + 1), "-1", "10000", "x"):
        found = whole.copy()
        tree_of(found)["fitted"] = {at: name}
        assert all(both(found)), at
    for other in (shape[1:], (2, *shape), (*shape[:-1], shape[-1] + 1)):
        found = whole.copy()
        found.arrays["other"] = np.zeros(other)
        tree_of(found)["fitted"] = {node: "other"}
        assert all(both(found)), other


def test_older_formats_have_no_packed_trees() -> None:
    for name in ("vertex-certificate-2", "vertex-certificate-3", "vertex-certificate-4"):
        found = certificate(PACKED).copy()
        found.header["format"] = name
        if not name.endswith("4"):
            found.header["statement"] = proof.OLDER_STATEMENT
        reasons = both(found)
        assert all("format" in reason for reason in reasons)
        found.header["parts"][0]["steps"] = [s for s in found.header["parts"][0]["steps"] if "chosen" not in s]
        assert all("packed tree" in reason for reason in both(found))


def test_exchanged_sides_prove_nothing_false() -> None:
    """A tree with x ≥ t for x ≤ t covers as well; bounds that belong to the other side must not be accepted for it."""
    false = falsified(certificate(PACKED), alone=False)
    tree = tree_of(false)
    node = false.arrays[tree["node"]]
    for seed in range(20):
        chance, found = np.random.default_rng(seed), false.copy()
        own = tree_of(found)
        found.arrays["point"] = found.arrays[own["point"]] + (node >= 0) * chance.standard_normal(len(node))
        found.arrays["held"] = 10 * chance.standard_normal(len(found.arrays[own["held"]]))
        own |= {"point": "point", "held": "held"}
        assert all(both(found))


def test_a_step_with_chosen_parameters_must_hold_what_it_proves() -> None:
    whole = certificate(PACKED)
    at = next(k for k, step in enumerate(whole.header["parts"][0]["steps"]) if "chosen" in step)
    for end, sign in (("lower", 1), ("upper", -1)):
        found = whole.copy()
        step = found.header["parts"][0]["steps"][at]
        found.arrays["narrower"] = found.arrays[step[end]].astype(float) + sign * 1e-6
        step[end] = "narrower"
        assert all("does not contain" in reason for reason in both(found))
    for pieces in (0, 3, -1, True, 65, "2"):
        found = whole.copy()
        found.header["parts"][0]["steps"][at]["pieces"] = pieces
        assert all(both(found)), pieces


def test_little_is_left_with_jobs_too() -> None:
    """Where nearly every change makes a certificate false, jobs find it as well."""
    original = sharp(PACKED)
    assert check(original.data(), jobs=2).accepted
    bound = original.header["parts"][0]["property"][0]["bound"]
    found = original.copy()
    found.arrays[bound] = found.arrays[bound] + 1e-8
    assert all(both(found))


# Batches -------------------------------------------------------------------------------------------------------------


@functools.cache
def relu_net() -> Any:
    return boxed(made("relu").graph, 0.6, 3)


def relu_tree(depth: int, seed: int) -> list[dict[str, Any]]:
    """A tree of cuts at numbers that ReLUs alone read, each number several times."""
    prover, _ = by_rule(relu_net())
    known, chance = prover.known, np.random.default_rng(seed)
    known.reach(len(known.nodes) - 1)
    relus = [k for k in range(1, len(known.nodes)) if trees._is_for_relus(known, k)]
    tree: list[dict[str, Any]] = []

    def grow(level: int) -> int:
        at = len(tree)
        tree.append({})
        if level < depth and (level < 2 or chance.random() < 0.8):
            number = int(chance.choice(relus))
            box = known.boxes[number]
            entry = int(chance.integers(min(3, box.lo.size)))
            low, high = (float(end.flat[entry]) for end in (box.lo, box.hi))
            point = 0.0 if low < 0 < high and chance.random() < 0.5 else low + (high - low) * chance.random()
            tree[at] = {"split": [number, entry, point, False]}
            for side in ("left", "right"):
                tree[at][side] = grow(level + 1)
        return at

    grow(0)
    return tree


@pytest.mark.parametrize("seed", range(3))
def test_batches_bound_as_leaves_alone_do(seed: int) -> None:
    """All leaves of a tree of cuts at once, and each over its own boxes: the same bounds, but for rounding."""
    prover, _ = by_rule(relu_net())
    known = prover.known
    known.reach(len(known.nodes) - 1)
    tree = relu_tree(4, seed)
    data = with_packed_choices(prover, tree, seed)
    assert check(data).reason in ("", check(data, jobs=2).reason)
    written = Written(prover.header, prover.arrays)
    head = tree_of(Written({"parts": [prover.header]}, prover.arrays))
    A = prover.objectives([0, 1])
    with np.errstate(all="ignore"):
        read = trees.read_packed(head, known, 2, File({}, prover.arrays))
        together = proof.leaf_bounds(known, A, read)
        bounds = trees.TreeBounds(read, known, A)
        for leaf in trees.leaves_of(read, known):
            alone = bounds.of([leaf])[0]
            assert np.allclose(alone, together[leaf.number], rtol=1e-9, atol=1e-9)
            chosen = {k: {n: p.values[p.which[leaf.number]] for n, p in of.items()} for k, of in read.chosen.items()}
            here, held = known, {}
            for (number, entry), (lo, hi, h) in leaf.cuts.items():
                here = here.part((number, entry, hi, False), True).part((number, entry, lo, False), False)
                held.setdefault(number, np.zeros((2, *known.nodes[number].shape)))[..., :].reshape(2, -1)[:, entry] = h
            for number, h in held.items():
                chosen.setdefault(number, {})["held"] = h
            how = PassOptions(chosen=chosen, fitted=bounds.fitted, alone=True)
            own = proof.bounds(here, len(known.nodes) - 1, A, how)
            assert np.allclose(own, together[leaf.number], rtol=1e-9, atol=1e-9)
    entries = unpacked(Written({}, written.arrays), head)
    assert sum(entry.split is None for entry in entries) == len(together)


def test_a_few_leaves_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    prover, _ = by_rule(relu_net())
    data = with_packed_choices(prover, relu_tree(5, 7))
    whole = check(data)
    for work, window in ((64, 1), (300, 2), (1, 3)):
        monkeypatch.setattr(ranges, "WORK", work)
        monkeypatch.setattr(proof, "WINDOW", window)
        parts = check(data, jobs=2)
        assert parts.accepted == whole.accepted
        assert parts.margin == pytest.approx(whole.margin, rel=1e-6, abs=1e-6)


def test_deep_trees_are_read_without_recursion() -> None:
    """A comb of many cuts of one number; and one that is too long for its time is rejected."""
    prover, _ = by_rule(relu_net())
    known = prover.known
    known.reach(len(known.nodes) - 1)
    number = next(k for k in range(1, len(known.nodes)) if trees._is_for_relus(known, k))
    depth = sys.getrecursionlimit() + 100
    splits = [(number, 0, float(k), False) for k in range(depth)]
    rows = [row for split in splits for row in (split, (-1, 0, 0.0, False))] + [(-1, 0, 0.0, False)]
    held = np.zeros(sum(range(1, depth + 1)) + depth)
    tree = trees.PackedTree(splits=rows, rule="affine", chosen={}, held=held, fitted={})
    found = sum(1 for _ in trees.leaves_of(tree, known))
    assert found == depth + 1 == tree.leaves
    known.ends = 0.0
    with pytest.raises(Rejected, match="time limit"):
        next(trees.leaves_of(tree, known))


def test_cuts_of_one_number_meet() -> None:
    """Of the cuts on a path the narrowest counts, and of a σ there is no multiplier."""
    prover, _ = by_rule(relu_net())
    known = prover.known
    known.reach(len(known.nodes) - 1)
    number = next(k for k in range(1, len(known.nodes)) if trees._is_for_relus(known, k))
    low, high = (float(end.flat[0]) for end in (known.boxes[number].lo, known.boxes[number].hi))
    third = (high - low) / 3
    path = [Cut(number, 0, high - third, False, True), Cut(number, 0, low + third, False, False)]
    leaf = trees._leaf(0, known, path, [0.5, 0.25], {number})
    assert leaf.cuts == {(number, 0): (low + third, high - third, 0.75)}
    with pytest.raises(Rejected, match="σ"):
        trees._leaf(0, known, [Cut(number, 0, 0.0, True, True)], [1.0], {number})


def test_nodes_that_others_read_are_not_cut_in_batches() -> None:
    prover, _ = by_rule(made("relu"))
    nodes = prover.known.nodes
    for k in range(len(nodes)):
        users = {node.op for node in nodes if k in node.inputs}
        assert trees._is_for_relus(prover.known, k) == (users == {"Relu"})
    assert not trees._is_for_relus(prover.known, len(nodes) - 1)
