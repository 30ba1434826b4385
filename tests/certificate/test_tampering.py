"""Certificates that were changed, spoilt or written by hand: each is rejected with a reason, or what it says is true.

What a changed file says is judged by `exact.counterexample`, which reads the network, the input box and the cases from
that file and searches an input at which a case happens; a change of anything else changes nothing that is said.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bounds.networks import Config, transformer
from tests.certificate import exact
from tests.certificate.exact import Array, Network, Written, broken_claims, inside, write
from tests.certificate.false import FALSE, GOOD, ONE, attention, nothing_special
from tests.certificate.made import Net, about, boxed, by_hand, by_rule, leaf, node, with_choices

from vertex_softmax.certificate import checker
from vertex_softmax.certificate.checker import Verdict, check, network
from vertex_softmax.certificate.prove import written

CHECKER = Path(checker.__file__).parent
FLIPS = 40
"""Of each certificate, in the default run."""


# Three certificates --------------------------------------------------------------------------------------------------


def _net(config: Config, radius: float) -> Net:
    return boxed(transformer(config), radius, config.seed)


def _splits(net: Net) -> bytes:
    """A tree with a split at a ReLU, at a score and at a σ."""
    prover, _ = by_rule(net)
    nodes = prover.nodes
    relu = next(n.inputs[0] for n in nodes if n.op == "Relu")
    scores = next(n.inputs[0] for n in nodes if n.op == "Attention")
    norm = next(k for k, n in enumerate(nodes) if n.op == "Normalize")
    prover.known.reach(len(nodes) - 1)
    middle = {k: float(prover.known.boxes[k].middle().flat[1]) for k in (relu, scores)}
    sigma = float(prover.known.make(norm, "norm").sigma.middle().flat[0])
    tree: list[dict[str, Any]] = [
        {"split": [scores, 1, middle[scores], False], "left": 1, "right": 2},
        {},
        {"split": [relu, 1, middle[relu], False], "left": 3, "right": 4},
        {"split": [norm, 0, sigma, True], "left": 5, "right": 6},
        {}, {}, {},
    ]  # fmt: skip
    return with_choices(prover, tree)


@functools.cache
def certificate(name: str) -> Written:
    plain = Config(tokens=2, width=2, classes=2)
    data = {
        "relu attention": lambda: with_choices(by_rule(_net(plain, 0.1))[0]),
        "norms and gelu": lambda: with_choices(
            by_rule(_net(dataclasses.replace(plain, norm="pre", activation="gelu", seed=1), 0.05))[0]
        ),
        "mask": lambda: with_choices(by_rule(_net(dataclasses.replace(plain, mask="causal", seed=3), 0.05))[0]),
        "tree": lambda: _splits(_net(dataclasses.replace(plain, norm="pre", seed=2), 0.1)),
    }[name]()
    verdict = check(data)
    assert verdict.accepted, verdict.reason
    return exact.read(data)


NAMES = ["relu attention", "norms and gelu", "mask", "tree"]


def input_box(written: Written) -> tuple[Array, Array]:
    """Of the first part."""
    lower, upper = (written.arrays[written.header["parts"][0][end]].astype(float) for end in ("lower", "upper"))
    return lower, upper


def said(header: dict[str, Any], arrays: dict[str, Array]) -> str:
    """What a file states: its network, its input boxes and its cases."""
    parts = [
        [part["lower"], part["upper"], [[case["rows"], case["bound"]] for case in part["property"]]]
        for part in header["parts"]
    ]
    names = [v for entry in header["graph"] for v in entry["arrays"].values()]
    names += [n for part in parts for n in (*part[:2], *(n for case in part[2] for n in case))]
    numbers = {n: (arrays[n].dtype.kind, arrays[n].shape, arrays[n].tobytes()) for n in names if n in arrays}
    return repr((header["graph"], parts, sorted(numbers.items())))


def judged(data: bytes, changed: Written, original: Written, seed: int) -> Verdict:
    """The verdict on a changed file, which must be a rejection with a reason unless the file says what is true."""
    verdict = check(data)
    assert isinstance(verdict, Verdict)
    assert math.isfinite(verdict.seconds)
    if not verdict.accepted:
        assert verdict.reason
        assert verdict.statement == ""
        return verdict
    assert verdict.margin > 0
    try:
        same = said(changed.header, changed.arrays) == said(original.header, original.arrays)
    except (KeyError, TypeError, AttributeError):
        same = False
    if not same:
        assert not exact.counterexample(changed, np.random.default_rng(seed))
    return verdict


# Numbers -------------------------------------------------------------------------------------------------------------


def flipped(x: Array, chance: np.random.Generator) -> tuple[Array, str]:
    """One number of an array, changed."""
    x = x.copy()
    flat = x.reshape(-1)
    at = int(chance.integers(flat.size))
    if x.dtype.kind == "b":
        raw = flat.view(np.uint8)
        raw[at] = chance.choice([1 - raw[at], 1 - raw[at], 1 - raw[at], 2, 255])
        return x, "truth value"
    if x.dtype.kind == "i":
        kind = str(chance.choice(["+1", "-1", "sign", "huge", "swap"]))
        new = {"+1": flat[at] + 1, "-1": flat[at] - 1, "sign": -flat[at] - 1, "huge": 1 << 62, "swap": flat[at - 1]}
        flat[at], flat[at - 1] = new[kind], (flat[at] if kind == "swap" else flat[at - 1])
        return x, kind
    kinds = ["sign", "bit", "bit", "bit", "more", "less", "+1", "swap", "nan", "inf", "-inf", "1e308", "denormal", "0"]
    kind = str(chance.choice(kinds))
    value = flat[at]
    with np.errstate(all="ignore"):
        if kind == "bit":
            bits = flat.view(np.uint64 if x.dtype.itemsize == 8 else np.uint32)
            bits[at] ^= bits.dtype.type(1 << int(chance.integers(8 * x.dtype.itemsize)))
        elif kind == "swap":
            flat[at], flat[at - 1] = flat[at - 1], value
        else:
            flat[at] = {
                "sign": -value, "more": value * 1.001, "less": value * 0.999, "+1": value + 1, "nan": np.nan,
                "inf": np.inf, "-inf": -np.inf, "1e308": 1e308, "denormal": 5e-324, "0": 0.0,
            }[kind]  # fmt: skip
    return x, kind


def wide(written: Written) -> Written:
    """The same with all floats in double precision, so that every bit can be flipped."""
    return Written(
        written.header, {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in written.arrays.items()}
    )


def flips(original: Written, count: int, seed: int) -> dict[str, int]:
    chance, found = np.random.default_rng(seed), {"accepted": 0, "rejected": 0}
    groups: dict[str, list[str]] = {}
    for n, value in original.arrays.items():
        if value.size:
            groups.setdefault(".".join(n.replace("part.0.", "").split(".")[:1]), []).append(n)
    for k in range(count):
        base = wide(original) if k % 2 else original
        group = groups[str(chance.choice(sorted(groups)))]
        which = str(chance.choice(group))
        value, _ = flipped(base.arrays[which], chance)
        changed = Written(base.header, {**base.arrays, which: value})
        verdict = judged(changed.data(), changed, original, k)
        found["accepted" if verdict.accepted else "rejected"] += 1
    return found


@pytest.mark.parametrize("name", NAMES)
def test_one_number_changed(name: str) -> None:
    found = flips(certificate(name), FLIPS, 0)
    assert min(found.values()) > FLIPS // 20  # both happen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", NAMES)
def test_one_number_changed_a_thousand_times(name: str, seed: int) -> None:
    flips(certificate(name), 1000, seed)


# Headers -------------------------------------------------------------------------------------------------------------


def paths(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in a header."""
    if way:
        yield way
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(item, (*way, key))


OPS = ["Relu", "Tanh", "Gelu", "Square", "Sqrt", "Add", "Multiply", "MatMul", "Attention", "Normalize", "Move", "Scale",
       "Linear", "Constant", "Input", "GeluTanh", "Exp", "Max"]  # fmt: skip


def other(value: Any, written: Written, chance: np.random.Generator) -> Any:
    """Another value for one place of a header."""
    odd = [None, True, False, -1, 0, 1, 10**30, 1.0, 0.5, -0.5, 1e308, 5e-324, "", "0", "\ud800", [], {}, [0], [[]]]
    if isinstance(value, bool):
        return chance.choice([not value, None, 0, 1, "x"])
    if isinstance(value, int):
        options: list[Any] = [value + 1, value - 1, -value, value + 1.0, float(value), *odd]
    elif isinstance(value, float):
        options = [value + 1, -value, value * 1.001, value * 0.999, 1e400, math.nextafter(value, 9), *odd]
    elif isinstance(value, str):
        names = list(written.arrays)
        words = ["affine", "vertex", "box", "zonotope", "centred"]
        options = [*(str(chance.choice(names)) for _ in range(8)), *OPS, *words, *odd]
    elif isinstance(value, list):
        longer = [[*value, *value[-1:]], [*value, 0]]
        options = [value[:-1], value[1:], value[::-1], *longer, value[0] if value else 0, *odd]
    else:
        fewer = {k: v for k, v in value.items() if k != str(chance.choice(list(value)))} if value else {"0": 0}
        options = [fewer, {}, [], None, list(value.values())]
    return options[int(chance.integers(len(options)))]


def replaced(header: Any, way: tuple[Any, ...], value: Any) -> Any:
    found = json.loads(json.dumps(header))
    at = found
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = value
    return found


def header_flips(original: Written, count: int, seed: int) -> dict[str, int]:
    chance, found = np.random.default_rng(seed), {"accepted": 0, "rejected": 0}
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for way in paths(original.header):
        if way[0] in ("graph", "parts", "format") and len(way) > 1:
            groups.setdefault(str(way[2]) if way[0] == "parts" and len(way) > 2 else str(way[0]), []).append(way)
    for k in range(count):
        group = groups[str(chance.choice(sorted(groups)))]
        way = group[int(chance.integers(len(group)))]
        at: Any = original.header
        for key in way:
            at = at[key]
        changed = Written(replaced(original.header, way, other(at, original, chance)), original.arrays)
        verdict = judged(changed.data(), changed, original, k)
        found["accepted" if verdict.accepted else "rejected"] += 1
    return found


@pytest.mark.parametrize("name", NAMES)
def test_one_place_of_the_header_changed(name: str) -> None:
    found = header_flips(certificate(name), 2 * FLIPS, 0)
    assert found["rejected"] > FLIPS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", NAMES)
def test_one_place_of_the_header_changed_a_thousand_times(name: str, seed: int) -> None:
    header_flips(certificate(name), 1000, seed)


# Claims --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_boxes_that_do_not_hold_are_rejected(name: str) -> None:
    """Each step's box, made smaller around its middle or moved: if a true value is outside, it is rejected."""
    original = certificate(name)
    part = original.header["parts"][0]
    points = inside(*input_box(original), 12, np.random.default_rng(0))
    exactly = Network(original.header, original.arrays)
    values = [exactly.values(x) for x in points]
    false = 0
    for step in part["steps"]:
        lower, upper = (original.arrays[step[end]].astype(float) for end in ("lower", "upper"))
        for less in (1e-6, 0.01, 0.3, 0.9, 1.5):
            middle, half = lower / 2 + upper / 2, (upper - lower) / 2
            new = {step["lower"]: middle - (1 - less) * half, step["upper"]: middle + (1 - less) * half}
            changed = Written(original.header, {**original.arrays, **new})
            verdict = judged(changed.data(), changed, original, 0)
            if any(broken_claims(changed, part, value) for value in values):
                false += 1
                assert not verdict.accepted
        for end in ("lower", "upper"):  # one number far beyond the truth
            moved = {step[end]: (upper + 1 if end == "lower" else lower - 1)}
            assert not check(Written(original.header, {**original.arrays, **moved}).data()).accepted
    assert false


def test_targets_exchanged_are_judged_by_what_they_say() -> None:
    original = certificate("relu attention")
    part = original.header["parts"][0]
    a, b = (case["bound"] for case in part["property"])
    for first, second in ((a, b), *(((part["property"][0][k], part["property"][1][k])) for k in ("rows", "bound"))):
        swapped = {first: original.arrays[second], second: original.arrays[first]}
        changed = Written(original.header, {**original.arrays, **swapped})
        judged(changed.data(), changed, original, 0)
    above = Written(original.header, {**original.arrays, a: original.arrays[a] + 1e3})
    assert not check(above.data()).accepted
    rows = part["property"][0]["rows"]
    minus = Written(original.header, {**original.arrays, rows: -original.arrays[rows], a: -original.arrays[a]})
    assert not check(minus.data()).accepted


def test_only_the_model_it_was_made_for(tmp_path: Path) -> None:
    import gzip
    import hashlib

    original = certificate("relu attention")
    model = tmp_path / "model.onnx"
    model.write_bytes(b"these are the weights")
    named = {**original.header, "model": {"sha256": hashlib.sha256(model.read_bytes()).hexdigest()}}
    data = write(named, original.arrays)
    path = tmp_path / "proof.vertex"
    path.write_bytes(data)
    assert check(path, model=model).accepted
    packed = tmp_path / "model.onnx.gz"
    packed.write_bytes(gzip.compress(model.read_bytes()))
    assert check(path, model=packed).accepted
    assert check(data, model=str(model)).accepted
    model.write_bytes(b"these are other weights")
    assert "another model" in check(path, model=model).reason
    for odd in ({}, {"model": None}, {"model": {"sha256": None}}, {"model": {"sha256": ""}}, {"model": []}):
        assert not check(write({**original.header, "model": {}, **odd}, original.arrays), model=model).accepted
    for missing in (tmp_path / "none", tmp_path):
        verdict = check(path, model=missing)
        assert not verdict.accepted
        assert verdict.reason
    packed.write_bytes(packed.read_bytes()[:-5])
    assert not check(path, model=packed).accepted


# Written by hand ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FALSE)
def test_what_is_false_is_never_accepted(name: str) -> None:
    verdict = check(FALSE[name]().data())
    assert not verdict.accepted
    assert verdict.reason


ONCE_ACCEPTED = [
    "a_slope_of_relu_for_tanh", "a_slope_of_relu_for_gelu", "a_slope_of_relu_for_square_root",
    "held_without_objectives",
    "coefficients_that_underflow", "coefficients_of_a_scale_that_underflow", "a_slope_that_underflows",
    "a_product_that_underflows", "weights_of_a_case_that_underflow", "nothing_divided_by_nothing",
    "a_row_that_is_all_masked", "masked_keys_with_weights", "entries_of_two_dimensions", "held_in_two_copies",
    "proof_of_cases_(True,)",
]  # fmt: skip


@pytest.mark.parametrize("name", ONCE_ACCEPTED)
def test_what_is_called_false_is_false(name: str) -> None:
    """So that the list itself is not mistaken."""
    assert exact.counterexample(FALSE[name](), np.random.default_rng(0))


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
    other_shapes(name, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_choices_must_have_their_shape_all(name: str) -> None:
    other_shapes(name, 1.0)


def shapes_of(nodes: list[dict[str, Any]], number: int, inputs: int) -> dict[str, tuple[int, ...]]:
    """What may be chosen for a node of a graph, and of which shape, for one objective and one piece."""
    entry = nodes[number]
    shape = tuple(entry["shape"])
    keys = tuple(nodes[entry["inputs"][0]]["shape"]) if entry["inputs"] else shape
    found = {"held": shape, "slope": shape, "below": shape, "above": shape, "touch": shape[:-1], "a": keys, "m": keys}
    more = {"touch_below": (2, *shape), "touch_above": (2, *shape), "mu": (*keys[:-1], 1), "corner": (inputs,)}
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
        verdict = check(Written(original.header, arrays).data())
        assert not verdict.accepted, k
        assert verdict.reason


@pytest.mark.parametrize("name", NAMES)
def test_no_choice_proves_what_is_false(name: str) -> None:
    random_proofs(name, 25, 0)


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
    }[name]
    net = _net(config, 1e-7)
    data = _splits(net) if name == "tree" else with_choices(by_rule(net)[0])
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
    flips(sharp(name), 20, 0)


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
    spoilt_proofs(name, 20, 0)


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
    single_choices(name, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_single_choice_of_all_proves_what_is_false(name: str) -> None:
    single_choices(name, 1.0)


def test_the_statement_is_the_checkers() -> None:
    """What the verdict says was proved is not whatever the file says."""
    found = by_hand(ONE, [0], [1], [1], -0.5)
    found.header["statement"] = "Every input of every network is classified correctly."
    verdict = check(found.data())
    assert not verdict.accepted or "every network" not in verdict.statement


# Bytes ---------------------------------------------------------------------------------------------------------------


def test_files_that_are_cut_short() -> None:
    data = certificate("relu attention").data()
    chance = np.random.default_rng(0)
    for n in {0, 1, 7, 8, 9, len(data) - 1, *(int(k) for k in chance.integers(0, len(data), 50))}:
        verdict = check(data[:n])
        assert not verdict.accepted
        assert verdict.reason


def test_garbage() -> None:
    chance = np.random.default_rng(0)
    for n in (0, 1, 8, 9, 100, 10_000):
        raw = chance.bytes(n)
        for data in (raw, (n - 8).to_bytes(8, "little", signed=True) + raw[8:], bytes(n), b"\xff" * n):
            verdict = check(data)
            assert not verdict.accepted
            assert verdict.reason


def test_bytes_added_or_moved() -> None:
    original = certificate("relu attention")
    assert not check(original.data(tail=b"\0")).accepted
    assert not check(original.data(tail=b"\0" * 1024)).accepted

    first = next(iter(original.arrays))
    shape = list(original.arrays[first].shape)
    text = json.dumps(original.header)
    wrong = {"F64": "F32"}.get("F64" if original.arrays[first].dtype.itemsize == 8 else "F32", "F64")
    places: list[Any] = [
        [-8, 8], [0, 1 << 62], [True, 8], [0.0, 8.0], [None, None], ["0", "8"], [1e400, 8], [8, 0], [0], {}, [0, 8, 16],
        None, "08",
    ]  # fmt: skip
    shapes: list[Any] = [
        [-1], [1 << 40], [-1, -1, *shape], [True, *shape], [0, 1 << 70], [1] * 65 + shape, "2", None, {}, [None],
    ]  # fmt: skip
    entries: list[Any] = [{"data_offsets": x} for x in places] + [{"shape": x} for x in shapes]
    entries += [{"dtype": x} for x in ("F16", wrong, ["F64"], None, "", "<f8")]
    metadata: list[Any] = [{}, [], None, "x", {"certificate": None}, {"certificate": {}}]
    texts = ["{}", "[]", "null", '"vertex-certificate-1"', "", "[" * 100_000 + "]" * 100_000]
    texts += [
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        text[:-1],
        text + "}",
        text.replace("certificate-1", "certificate-2"),
    ]
    texts += [
        f'{{"format": "vertex-certificate-1", "graph": {inner}}}' for inner in ("[" * 900 + "]" * 900, "9" * 10_000)
    ]
    metadata += [{"certificate": text} for text in texts]
    whole: list[Any] = [[], b"null", b"", b"\xff\xfe{}", b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000]
    tables: list[Callable[[dict[str, Any]], Any]] = [
        *(lambda t, x=x: {**t, first: {**t[first], **x}} for x in entries),
        *(lambda t, x=x: {**t, first: x} for x in ([], None, "x", {}, 3)),
        *(lambda t, x=x: {**t, "__metadata__": x} for x in metadata),
        *(lambda _, x=x: x for x in whole),
        lambda t: {k: v for k, v in t.items() if k != "__metadata__"},
        lambda t: {k: v for k, v in t.items() if k != first},
        lambda t: {**t, "ünïcødé 🎲 \ud800": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}},
    ]
    for k, table in enumerate(tables):
        verdict = check(original.data(table=table))
        assert not verdict.accepted, k
        assert verdict.reason


@pytest.mark.parametrize("where", ["header", "table"])
def test_a_key_that_occurs_twice(where: str) -> None:
    """Readers differ in which they take: whoever reads the first would be told something else."""
    true, wrong = by_hand(ONE, [0], [1], [1], -0.5), by_hand(ONE, [0], [1], [1], 0.5)
    if where == "header":
        text = json.dumps(true.header)
        both = '{"parts": [{"lower": "lower", "upper": "upper", "property": []}], ' + text[1:]
        verdict = check(write(both, true.arrays))
    else:

        def table(found: dict[str, Any]) -> bytes:
            text = json.dumps(found)
            return ('{"bound": ' + json.dumps(found["rows"]) + ", " + text[1:]).encode()

        verdict = check(write(true.header, {**true.arrays, "other": wrong.arrays["bound"]}, table=table))
    assert not verdict.accepted


def test_an_unused_array_may_be_anything() -> None:
    found = by_hand(ONE, [0], [1], [1], -0.5, arrays={"π 🎲": np.array([np.nan]), "empty": np.zeros((0, 5))})
    assert check(found.data()).accepted


def test_places_that_are_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "link")
    (tmp_path / "empty").write_bytes(b"")
    odd: list[Any] = [tmp_path, *(tmp_path / name for name in ("fifo", "link", "empty", "none", "x" * 300))]
    odd += ["/dev/zero", "/dev/null", "a\0b", ""]
    for place in odd:
        verdict = check(place)
        assert not verdict.accepted
        assert verdict.reason


# With little memory --------------------------------------------------------------------------------------------------

ALONE = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
import checker
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
for place in sys.argv[2:]:
    begin = time.perf_counter()
    verdict = checker.check(place)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    row = [verdict.accepted, verdict.reason, round(time.perf_counter() - begin, 2), peak]
    print(json.dumps(row), flush=True)
"""


def alone(places: list[Path], seconds: float) -> list[tuple[bool, str, float, int]]:
    """Verdicts of a process of its own, with at most 3 GiB; the last number is its most MiB so far."""
    run = subprocess.run(
        [sys.executable, "-c", ALONE, str(CHECKER.parent), *map(str, places)],
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return [tuple(json.loads(line)) for line in run.stdout.splitlines()]


def sparse(path: Path, size: int, head: bytes = b"") -> Path:
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(size)
    return path


def _large(rounds: int) -> Written:
    """Nodes of 2²⁶ numbers each, from a file of a few kilobytes."""
    graph = [
        node("Input", shape=[1 << 13, 1]), node("Linear", [0], [1 << 13, 1 << 13], weight="w"),
        *(node("Relu", [k], [1 << 13, 1 << 13]) for k in range(1, rounds)),
    ]  # fmt: skip
    zeros = np.zeros((1 << 13, 1))
    return by_hand(graph, zeros, zeros, [1.0], 0.5, arrays={"w": np.ones((1, 1 << 13))})


def test_little_memory_is_enough_to_reject(tmp_path: Path) -> None:
    places: list[Path] = []

    def put(name: str, data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        places.append(tmp_path / name)

    put("length", (1 << 63).to_bytes(8, "little") + b"{}")
    put("most", b"\xff" * 8 + b"{}")
    terabytes = {"dtype": "F64", "shape": [1 << 20, 1 << 20], "data_offsets": [0, 1 << 43]}
    put("terabytes", nothing_special().data(table=lambda t: {**t, "rows": terabytes}))
    places.append(sparse(tmp_path / "ten", 10 << 30))
    put("shape", FALSE["billions_of_tokens"]().data())
    put("pieces", FALSE[f"pieces_{1 << 40}"]().data())
    for place, (accepted, reason, _, _) in zip(places, alone(places, 120), strict=True):
        assert not accepted, place.name
        assert reason, place.name


@pytest.mark.slow
def test_little_memory_is_enough_to_reject_what_is_large(tmp_path: Path) -> None:
    (tmp_path / "pieces").write_bytes(attention({"a": GOOD["a"], "m": GOOD["m"]}, pieces=1 << 30).data())
    (tmp_path / "large").write_bytes(_large(12).data())
    sparse(tmp_path / "zeros", 6 << 30)
    sparse(tmp_path / "header", 6 << 30, (2).to_bytes(8, "little") + b"{}")
    for accepted, reason, _, _ in alone(sorted(tmp_path.iterdir()), 300):
        assert not accepted
        assert reason


def test_memory_in_proportion_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(_large(3).data())
    ((accepted, _, _, peak),) = alone([path], 120)
    assert not accepted
    assert peak < 1024


def test_a_file_of_zeros_is_not_read_whole(tmp_path: Path) -> None:
    ((accepted, _, _, peak),) = alone([sparse(tmp_path / "zeros", 2 << 30)], 120)
    assert not accepted
    assert peak < 1024


@pytest.mark.slow
def test_pieces_are_not_allocated_before_they_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "pieces"
    path.write_bytes(attention({"a": GOOD["a"], "m": GOOD["m"]}, pieces=1 << 25).data())
    ((accepted, _, seconds, peak),) = alone([path], 300)
    assert not accepted
    assert peak < 512
    assert seconds < 5


def _thicket(levels: int) -> Written:
    """A tree of a few entries whose both branches are the same one: 2^levels ways."""
    tree = [{"split": [1, 0, 0.5, False], "left": k + 1, "right": k + 1} for k in range(levels)]
    return by_hand([*ONE, node("Relu", [0], [1])], [-1], [1], [1], -0.5, tree=[*tree, leaf()])


def test_a_tree_is_walked_once(tmp_path: Path) -> None:
    path = tmp_path / "thicket"
    path.write_bytes(_thicket(60).data())
    try:
        alone([path], 3)
    except subprocess.TimeoutExpired:
        pytest.fail("the checker does not come to an end")


# Work ----------------------------------------------------------------------------------------------------------------


def test_a_small_file_cannot_ask_for_endless_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step may ask for passes over the whole network: what they take is counted before it is done."""
    net = _net(Config(), 0.05)
    prover, data = by_rule(net)
    verdict = check(data)
    assert verdict.accepted
    assert 0 < prover.known.spent[0] < network.MOST_WORK / 1000
    prover.header["steps"] = prover.header["steps"] * 50
    again = written([prover], about())
    assert check(again).accepted
    monkeypatch.setattr(network, "MOST_WORK", 10 * prover.known.spent[0])
    assert check(data).accepted
    refused = check(again)
    assert not refused.accepted
    assert "multiplications, the most that are done" in refused.reason


def test_all_parts_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    prover, data = by_rule(_net(Config(), 0.05))
    monkeypatch.setattr(network, "MOST_WORK", 3 * prover.known.spent[0])
    assert check(data).accepted
    assert "multiplications" in check(written([prover] * 9, about())).reason
