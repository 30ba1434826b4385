"""Choices and proofs of something false: none is accepted, whatever is chosen."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from tests.bounds.networks import Config
from tests.certificate import exact
from tests.certificate.exact import Written, inside
from tests.certificate.made import by_form, by_rule, leaf, with_choices
from tests.certificate.packed import packed
from tests.certificate.tampering import (
    NAMES,
    _net,
    _splits,
    certificate,
    flipped,
    flips,
    header_flips,
    input_box,
    other,
    paths,
    replaced,
    wide,
)
from vertex_softmax.certificate.checker import check


def other_shapes(name: str, share: float) -> None:
    """What is chosen, with one more or one less dimension, twice as long, or flat."""
    original, chance = certificate(name), np.random.default_rng(0)
    for which in [n for n in original.arrays if "choice." in n]:
        x = original.arrays[which]
        double, longer = np.concatenate([x, x]), np.concatenate([x, x], -1)
        for y in (x[None], x[0], x[..., None], double, longer, x.ravel(), x[:0], x[:1], x[:, None], x.T):
            if y.shape != x.shape and chance.random() < share:
                verdict = check(Written(original.header, {**original.arrays, which: y}).data())
                assert not verdict.accepted, (which, x.shape, y.shape)


@pytest.mark.parametrize("name", NAMES)
def test_choices_must_have_their_shape(name: str) -> None:
    other_shapes(name, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_choices_must_have_their_shape_all(name: str) -> None:
    other_shapes(name, 1.0)


def shapes_of(nodes: list[dict[str, Any]], number: int, inputs: int) -> dict[str, tuple[int, ...]]:
    """What may be chosen for a node of a graph, and of which shape, for one objective and one piece."""
    entry = nodes[number]
    shape = tuple(entry["shape"])
    keys = tuple(nodes[entry["inputs"][0]]["shape"]) if entry["inputs"] else shape
    found = {"held": shape, "slope": keys, "below": shape, "above": shape, "touch": shape[:-1], "a": keys, "m": keys}
    more = {"touch_below": (2, *shape), "touch_above": (2, *shape), "mu": (*keys[:-1], 1), "corner": (inputs,)}
    more |= {"place": keys, "level": (*keys[:-1], 1)}
    return {name: (1, *rest) for name, rest in {**found, **more}.items()}


def falsified(original: Written, *, alone: bool = True) -> Written:
    """The certificate with a first case whose bound a point of the input box does not keep; `alone`: no other."""
    original = original.copy()
    part = original.header["parts"][0]
    case, *others = part["property"]
    original.arrays.update({rest["bound"]: np.full(1, -1e6) for rest in others})
    if alone:
        part["property"] = [case]
    points = inside(*input_box(original), 256, np.random.default_rng(0))
    seen = exact.floats(original.header, original.arrays, points)[-1].reshape(len(points), -1)
    least = float((seen @ original.arrays[case["rows"]].astype(float).T).min())
    original.arrays[case["bound"]] = np.array([least + 1e-9])
    original.arrays[case["weights"]] = np.ones(1)
    assert exact.counterexample(original, np.random.default_rng(1))
    return original


def random_proofs(name: str, count: int, seed: int) -> None:
    """Proofs with anything chosen anywhere, after any tree, of what is false."""
    original, chance = falsified(certificate(name)), np.random.default_rng(seed)
    graph, part = original.header["graph"], original.header["parts"][0]
    n = original.arrays[part["lower"]].size
    for k in range(count):
        arrays = dict(original.arrays)
        tree: list[dict[str, Any]] = []
        for at in range(2 * int(chance.integers(0, 3)) + 1):
            chosen: dict[str, dict[str, str]] = {}
            for number in range(len(graph)):
                for key, shape in shapes_of(graph, number, n).items():
                    if chance.random() < 0.1:
                        scale = chance.choice([0.0, 1e-3, 1.0, 1e3, 1e12])
                        value = scale * chance.standard_normal(shape)
                        chosen.setdefault(str(number), {})[key] = f"new.{at}.{number}.{key}"
                        arrays[f"new.{at}.{number}.{key}"] = np.abs(value) + 1e-9 if key == "touch" else value
            chosen = {i: of for i, of in chosen.items() if ("a" in of) == ("m" in of) == ("mu" in of)}
            tree.append(leaf(chosen, rule=str(chance.choice(["affine", "affine", "vertex"]))))
        for at in range(len(tree) // 2):  # branchings before leaves
            number = int(chance.integers(1, len(graph)))
            entry = int(chance.integers(int(np.prod(graph[number]["shape"]))))
            split = [number, entry, float(chance.standard_normal()), bool(chance.random() < 0.1)]
            tree[at] = {"split": split, "left": 2 * at + 1, "right": 2 * at + 2}
        part["proofs"] = [{"cases": [0], "tree": tree}]
        if chance.random() < 0.5:
            part["proofs"] = [{"cases": [0], "tree": random_packed(tree, graph, n, arrays, chance)}]
        verdict = check(Written(original.header, arrays).data())
        assert not verdict.accepted, k
        assert verdict.reason


def random_packed(
    tree: list[dict[str, Any]],
    graph: list[dict[str, Any]],
    n: int,
    arrays: dict[str, Any],
    chance: np.random.Generator,
) -> dict[str, Any]:
    """The same tree, packed, with anything chosen for its leaves, and ellipsoids fitted to anything."""
    head, more = packed(tree, held=float(chance.choice([0.0, 1.0, 1e6])), seed=int(chance.integers(1 << 30)))
    leaves = int((more[head["node"]] < 0).sum())
    for number, entry in enumerate(graph):
        for key, shape in shapes_of(graph, number, n).items():
            if chance.random() < 0.1 or (key in ("place", "level", "slope") and entry["op"] == "Attention"):
                own = {kind: f"packed.{number}.{key}.{kind}" for kind in ("values", "which")}
                value = chance.choice([0.0, 1e-3, 1.0, 1e3, 1e12]) * chance.standard_normal((3, *shape))
                more[own["values"]] = np.abs(value) + 1e-9 if key == "touch" else value
                more[own["which"]] = chance.integers(0, 3, leaves)
                head["chosen"].setdefault(str(number), {})[key] = own
        if entry["op"] == "Attention" and chance.random() < 0.5:
            head["fitted"][str(number)] = f"packed.{number}.fitted"
            scale = chance.choice([0.0, 1e-300, 1e-3, 1.0, 1e3, 1e300])
            more[f"packed.{number}.fitted"] = scale * chance.standard_normal(tuple(entry["shape"]))
    arrays.update(more)
    return head


@pytest.mark.parametrize("name", NAMES)
def test_no_choice_proves_what_is_false(name: str) -> None:
    random_proofs(name, 12, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_choice_proves_what_is_false_often(name: str) -> None:
    random_proofs(name, 2000, 1)


@functools.cache
def pointed(name: str) -> Written:
    """A certificate like the named one over a box so small that its bounds are nearly attained, of what is false."""
    plain = Config(tokens=2, width=2, classes=2)
    config = {
        "relu attention": plain,
        "norms and gelu": dataclasses.replace(plain, norm="pre", activation="gelu", seed=1),
        "mask": dataclasses.replace(plain, mask="causal", seed=3),
        "tree": dataclasses.replace(plain, norm="pre", seed=2),
        "packed tree": dataclasses.replace(plain, norm="pre", seed=2),
        "forward": dataclasses.replace(plain, norm="pre", activation="gelu", gain=3.0, seed=1),
        "forward, relu": dataclasses.replace(plain, norm="pre", gain=3.0, seed=3),
    }[name]
    net = _net(config, 1e-7)
    makers = {"forward": by_form, "forward, relu": by_form, "tree": _splits}
    makers["packed tree"] = functools.partial(_splits, pack=True)
    data = makers.get(name, lambda net: with_choices(by_rule(net)[0]))(net)
    found = falsified(exact.read(data), alone=False)
    margin = check(found.data()).margin
    assert -1e-2 < margin < 0
    return found


@functools.cache
def sharp(name: str) -> Written:
    """The same with a bound just below what is proved: nearly every change of the network makes it false."""
    found = pointed(name).copy()
    bound = found.header["parts"][0]["property"][0]["bound"]
    found.arrays[bound] = found.arrays[bound] + check(found.data()).margin - 1e-10
    assert check(found.data()).accepted
    return found


@pytest.mark.parametrize("name", NAMES)
def test_one_number_changed_where_little_is_left(name: str) -> None:
    flips(sharp(name), 10, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_change_where_little_is_left_often(name: str) -> None:
    flips(sharp(name), 1000, 1)
    header_flips(sharp(name), 1000, 1)


def spoilt_proofs(name: str, count: int, seed: int) -> None:
    """One number or one place of the header changed, of what is no part of the statement: it stays false."""
    original, chance = pointed(name), np.random.default_rng(seed)
    part = original.header["parts"][0]
    stated = {part["lower"], part["upper"], *(case[k] for case in part["property"] for k in ("rows", "bound"))}
    stated |= {v for entry in original.header["graph"] for v in entry["arrays"].values()}
    names = sorted(n for n in set(original.arrays) - stated if original.arrays[n].size)
    ways = [way for way in paths(original.header["parts"]) if len(way) > 2 and way[1] in ("steps", "lines", "proofs")]
    for _ in range(count):
        if chance.random() < 0.6:
            which = str(chance.choice(names))
            value, _ = flipped(wide(original).arrays[which], chance)
            changed = Written(original.header, {**original.arrays, which: value})
        else:
            way = ("parts", *ways[int(chance.integers(len(ways)))])
            at: Any = original.header
            for key in way:
                at = at[key]
            changed = Written(replaced(original.header, way, other(at, original, chance)), original.arrays)
        verdict = check(changed.data())
        assert not verdict.accepted
        assert verdict.reason


@pytest.mark.parametrize("name", NAMES)
def test_no_change_of_a_proof_proves_what_is_false(name: str) -> None:
    spoilt_proofs(name, 10, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_change_of_a_proof_proves_what_is_false_often(name: str) -> None:
    spoilt_proofs(name, 2000, 1)


def single_choices(name: str, share: float) -> None:
    """A name for a node alone, with an array of the shape that is wanted there: for a share of all names and nodes."""
    original, chance = falsified(certificate(name)), np.random.default_rng(0)
    graph, part = original.header["graph"], original.header["parts"][0]
    for number in range(len(graph)):
        for key, shape in shapes_of(graph, number, original.arrays[part["lower"]].size).items():
            if chance.random() > share:
                continue
            part["proofs"] = [{"cases": [0], "tree": [leaf({str(number): {key: "new"}})]}]
            changed = Written(original.header, {**original.arrays, "new": chance.standard_normal(shape)})
            assert not check(changed.data()).accepted


@pytest.mark.parametrize("name", NAMES)
def test_no_single_choice_proves_what_is_false(name: str) -> None:
    single_choices(name, 0.025)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_single_choice_of_all_proves_what_is_false(name: str) -> None:
    single_choices(name, 1.0)
