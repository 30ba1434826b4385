"""Files that are no certificates, or too large ones: rejected, with little memory and little work."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bounds.networks import Config
from tests.certificate.exact import Written, write
from tests.certificate.false import FALSE, GOOD, ONE, attention, nothing_special
from tests.certificate.made import about, by_hand, by_rule, leaf, node
from tests.certificate.tampering import (
    _net,
    alone,
    certificate,
)
from vertex_softmax.certificate.checker import check, network
from vertex_softmax.certificate.checker.file import FORMAT
from vertex_softmax.certificate.prove import written


def test_the_statement_is_the_checkers() -> None:
    """What the verdict says was proved is not whatever the file says."""
    found = by_hand(ONE, [0], [1], [1], -0.5)
    found.header["statement"] = "Every input of every network is classified correctly."
    verdict = check(found.data())
    assert not verdict.accepted or "every network" not in verdict.statement


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
    texts = ["{}", "[]", "null", f'"{FORMAT}"', "", "[" * 100_000 + "]" * 100_000]
    texts += [
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        text[:-1],
        text + "}",
        text.replace(FORMAT, "vertex-certificate-1"),
        text.replace(FORMAT, "vertex-certificate-9"),
    ]
    texts += [f'{{"format": "{FORMAT}", "graph": {inner}}}' for inner in ("[" * 900 + "]" * 900, "9" * 10_000)]
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
    assert "multiplications, which is the limit" in refused.reason


def test_all_parts_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    prover, data = by_rule(_net(Config(), 0.05))
    monkeypatch.setattr(network, "MOST_WORK", 3 * prover.known.spent[0])
    assert check(data).accepted
    assert "multiplications" in check(written([prover] * 9, about())).reason
