"""The example that proves an accuracy over all inputs: its search, its certificate, and a checker that can say no."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flint
import numpy as np
import pytest
import torch
from examples.max_of_k import checker
from examples.max_of_k.__main__ import main, measured
from examples.max_of_k.certificate import write
from examples.max_of_k.checker import Accepted, RejectedError, check
from examples.max_of_k.network import NAMES, Weights, brute_force, digest, load, save, trained
from examples.max_of_k.search import Found, label, labelled, search, size, split_by_label
from flint import arb

from tests.tiny_files import vertex
from vertex_softmax.runs.accuracy import read_accuracy

VOCABULARY, K = 6, 3
Claim = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def network() -> Weights:
    return trained(VOCABULARY, K, d=8, steps=300)


def random_network(seed: int, scale: float = 1.0) -> Weights:
    """Not trained, with biases, a head of another width, and weights that are mostly wrong."""
    rng = np.random.default_rng(seed)
    v, k, d, h = 5, 3, 4, 3
    sizes = {"v": v, "k": k, "d": d, "h": h}
    return {name: scale * rng.normal(size=tuple(sizes[axis] for axis in checker.SHAPES[name])) for name in NAMES}


def exact_margins(w: Weights, sequence: tuple[int, ...]) -> list[arb]:
    """The margins of the largest token over the other classes in balls: the network's definition, number by number."""
    with flint.ctx.workprec(300):

        def times(x: list[arb], matrix: Any) -> list[arb]:
            return [sum((a * arb(float(b)) for a, b in zip(x, col, strict=True)), arb(0)) for col in matrix.T]

        def plus(x: list[arb], y: Any) -> list[arb]:
            return [a + (b if isinstance(b, arb) else arb(float(b))) for a, b in zip(x, y, strict=True)]

        x = [plus([arb(float(e)) for e in w["E"][token]], w["P"][j]) for j, token in enumerate(sequence)]
        query = plus(times(x[-1], w["W_Q"]), w["b_Q"])
        keys = [plus(times(one, w["W_K"]), w["b_K"]) for one in x]
        scores = [sum((a * b for a, b in zip(query, k, strict=True)), arb(0)) / arb(len(query)).sqrt() for k in keys]
        top = arb(max(float(s.mid()) for s in scores))
        weights = [(s - top).exp() for s in scores]
        total = sum(weights, arb(0))
        values = [plus(times(one, w["W_V"]), w["b_V"]) for one in x]
        mixed = [
            sum((y * v[i] for y, v in zip(weights, values, strict=True)), arb(0)) / total for i in range(len(query))
        ]
        logits = plus(times(plus(plus(x[-1], times(mixed, w["W_O"])), w["b_O"]), w["W_U"]), w["b_U"])
        best = max(sequence)
        return [logits[best] - other for i, other in enumerate(logits) if i != best]


def certified(weights: Weights, folder: Path, **options: Any) -> tuple[Found, Path, Path]:
    found = search(weights, **options)
    paths = folder / "certificate.json", folder / "weights.npz"
    save(weights, paths[1])
    write(paths[0], weights, found.proved)
    return found, *paths


def test_the_example(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["--quick", "--out", str(tmp_path)])
    rows = {
        name: numbers
        for name, *numbers in re.findall(r"│ ([a-z ]+?) +│ (\d+) +│ [\d.]+% +│ (\d+)", capsys.readouterr().out)
    }
    assert rows["proved"][0] == rows["checked"][0] == rows["brute force"][0]
    assert 0 < int(rows["checked"][1]) < int(rows["proved"][1]) < int(rows["brute force"][1]) == 512
    assert check(tmp_path / "certificate.json", tmp_path / "weights.npz").proved == int(rows["proved"][0])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_what_is_proved_is_right_and_nothing_is_missed(seed: int, scale: float, tmp_path: Path) -> None:
    """Against the definition of the network in balls, one sequence at a time: zero tolerance.

    At scale 3 scores differ by more than 700, and weights e^s of such tokens are not told from 0: some are missed.
    """
    weights = random_network(seed, scale)
    found, *paths = certified(weights, tmp_path)
    accepted = check(*paths)
    proved = np.zeros((5,) * 3, dtype=int)
    for part in found.proved:
        proved[np.ix_(*part)] += 1
    assert proved.max() <= 1
    right = 0
    for sequence in itertools.product(range(5), repeat=3):
        sure = all(margin > 0 for margin in exact_margins(weights, sequence))
        right += sure
        assert proved[sequence] <= sure, sequence
        assert proved[sequence] == sure or scale == 3, sequence
    assert accepted == Accepted(found.sequences(), 125, len(found.proved))
    assert brute_force(weights).sum() == right >= accepted.proved


def test_giving_up_only_lowers_the_bound(network: Weights, tmp_path: Path) -> None:
    right = brute_force(network)
    before = 0
    for smallest in (64, 8, 1):
        found, *paths = certified(network, tmp_path, smallest=smallest)
        assert check(*paths).proved == found.sequences() >= before
        assert all(right[np.ix_(*part)].all() for part in found.proved)
        before = found.sequences()
    assert before == right.sum()


def test_splitting_by_label_is_a_partition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        whole = rng.random((3, 5)) < 0.6
        whole[:, 2] |= ~whole.any(1)
        counted = np.zeros((5,) * 3, dtype=int)
        for target, parts in labelled(whole, Found()).items():
            for part in parts:
                counted[np.ix_(*part)] += 1
                assert {max(s) for s in itertools.product(*(one.nonzero()[0].tolist() for one in part))} == {target}
                assert label(part[None])[0] == target
        assert (counted == (whole[0][:, None, None] & whole[1][:, None] & whole[2])).all()
        if label(whole[None])[0] < 0:
            assert sum(map(size, split_by_label(whole))) == size(whole)


# The checker


def test_the_checker_stands_alone() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert imported <= {
        "__future__",
        "dataclasses",
        "flint",
        "fractions",
        "hashlib",
        "json",
        "numpy",
        "pathlib",
        "typing",
        "zipfile",
    }


def bits(*tokens: int) -> str:
    return f"{sum(1 << c for c in tokens):x}"


def widened(claim: Claim) -> None:
    """One more token at the first position of the first part that leaves its label alone; the count is adapted."""
    for part in claim["parts"]:
        most = max(int(text, 16) for text in part).bit_length()
        for j in range(K - 1):
            for c in range(most):
                if not int(part[j], 16) >> c & 1:
                    others = np.prod([int(text, 16).bit_count() for i, text in enumerate(part) if i != j])
                    part[j] = f"{int(part[j], 16) | 1 << c:x}"
                    claim["proved"] += int(others)
                    return
    raise AssertionError


def duplicated(claim: Claim) -> None:
    part = claim["parts"][0]
    claim["parts"].append(part)
    claim["proved"] += int(np.prod([int(text, 16).bit_count() for text in part]))


def overlapping(claim: Claim) -> None:
    part = next(p for p in claim["parts"] if int(p[0], 16).bit_count() > 1)
    one = int(part[0], 16)
    claim["parts"].append([f"{one & -one:x}", *part[1:]])
    claim["proved"] += int(np.prod([int(text, 16).bit_count() for text in part[1:]]))


def several_labels(claim: Claim) -> None:
    claim["parts"] = [[bits(0, 1), bits(0), bits(0)]]
    claim["proved"] = 2


def several_queries(claim: Claim) -> None:
    claim["parts"] = [[bits(3), bits(0), bits(0, 1)]]
    claim["proved"] = 2


def replaced(name: str, value: Any) -> Callable[[Claim], None]:
    def tamper(claim: Claim) -> None:
        claim[name] = value

    return tamper


def part_of(*texts: Any) -> Callable[[Claim], None]:
    return replaced("parts", [list(texts)])


TAMPERED: dict[str, tuple[Callable[[Claim], None], str]] = {
    "widened": (widened, "have a sequence in common|not proved to be positive"),
    "duplicated": (duplicated, "have a sequence in common"),
    "overlapping": (overlapping, "have a sequence in common"),
    "several labels": (several_labels, "several labels"),
    "several queries": (several_queries, "several query tokens"),
    "count higher": (lambda claim: claim.update(proved=claim["proved"] + 1), "the certificate says"),
    "count lower": (lambda claim: claim.update(proved=claim["proved"] - 1), "the certificate says"),
    "count not an integer": (lambda claim: claim.update(proved=float(claim["proved"])), "the certificate says"),
    "part left out": (lambda claim: claim["parts"].pop(), "the certificate says"),
    "other weights": (replaced("weights", "0" * 64), "other weights"),
    "other k": (replaced("k", K + 1), "k or the vocabulary"),
    "other vocabulary": (replaced("vocabulary", VOCABULARY + 1), "k or the vocabulary"),
    "other format": (replaced("format", "max-of-k certificate 2"), "the format is not"),
    "no list": (replaced("parts", {}), "parts is not a list"),
    "missing position": (part_of("1", "1"), "is not a list of 3"),
    "numbers": (part_of(1, 1, 1), "is not a list of 3"),
    "empty set": (part_of("0", "1", "1"), "is no set of tokens"),
    "empty text": (part_of("", "1", "1"), "is no set of tokens"),
    "sign": (part_of("-1", "1", "1"), "is no set of tokens"),
    "underscore": (part_of("1_1", "1", "1"), "is no set of tokens"),
    "unknown token": (part_of(bits(VOCABULARY), "1", "1"), "is no set of tokens"),
    "missing field": (lambda claim: claim.pop("proved"), "fields of the format"),
    "other field": (replaced("more", 1), "fields of the format"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampered_certificates_are_rejected(name: str, network: Weights, tmp_path: Path) -> None:
    _, path, weights = certified(network, tmp_path)
    check(path, weights)
    tamper, message = TAMPERED[name]
    claim = json.loads(path.read_text())
    tamper(claim)
    path.write_text(json.dumps(claim))
    with pytest.raises(RejectedError, match=message):
        check(path, weights)


def test_every_wrong_sequence_is_rejected(tmp_path: Path) -> None:
    """A certificate that claims one sequence that the network gets wrong, each of them in turn."""
    weights = random_network(1)
    save(weights, tmp_path / "weights.npz")
    right = brute_force(weights)
    path, tried = tmp_path / "certificate.json", 0
    for sequence in np.argwhere(~right)[:40]:
        part = np.zeros((3, 5), dtype=bool)
        part[np.arange(3), sequence] = True
        write(path, weights, [part])
        with pytest.raises(RejectedError, match="not proved to be positive"):
            check(path, tmp_path / "weights.npz")
        tried += 1
    assert tried == 40


def test_a_part_that_contains_one_wrong_sequence_is_rejected(tmp_path: Path) -> None:
    weights = random_network(2)
    found, path, file = certified(weights, tmp_path)
    right, tried = brute_force(weights), 0
    for part in found.proved:
        for j, c in itertools.product(range(2), range(5)):
            wider = part.copy()
            wider[j, c] = True
            if label(wider[None])[0] >= 0 and not right[np.ix_(*wider)].all():
                write(path, weights, [wider])
                with pytest.raises(RejectedError, match="not proved to be positive"):
                    check(path, file)
                tried += 1
    assert tried >= 8


@pytest.mark.parametrize("name", NAMES)
def test_changed_weights_are_rejected(name: str, network: Weights, tmp_path: Path) -> None:
    _, path, file = certified(network, tmp_path)
    other = {key: value.copy() for key, value in network.items()}
    other[name].flat[0] = np.nextafter(other[name].flat[0], 9)
    save(other, file)
    with pytest.raises(RejectedError, match="other weights"):
        check(path, file)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_rejected(bad: float, network: Weights, tmp_path: Path) -> None:
    other = {key: value.copy() for key, value in network.items()}
    other["b_U"][0] = bad
    save(other, tmp_path / "weights.npz")
    write(tmp_path / "certificate.json", other, [])
    with pytest.raises(RejectedError, match="finite"):
        check(tmp_path / "certificate.json", tmp_path / "weights.npz")


def test_weights_of_shapes_that_do_not_fit_are_rejected(network: Weights, tmp_path: Path) -> None:
    other = network | {"b_Q": np.zeros(9)}
    save(other, tmp_path / "weights.npz")
    write(tmp_path / "certificate.json", other, [])
    with pytest.raises(RejectedError, match="does not fit"):
        check(tmp_path / "certificate.json", tmp_path / "weights.npz")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\xff"])
def test_files_that_are_no_certificates_are_rejected(text: str, network: Weights, tmp_path: Path) -> None:
    _, path, file = certified(network, tmp_path)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RejectedError):
        check(path, file)
    path.write_text("{}")
    file.write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(RejectedError):
        check(path, file)


@pytest.mark.parametrize("scale", [1e3, 1e60, 1e90])
def test_large_weights_are_checked_or_rejected(scale: float, tmp_path: Path) -> None:
    weights = random_network(3, scale)
    right = brute_force(weights)
    save(weights, tmp_path / "weights.npz")
    for sequence in itertools.islice(np.ndindex(*right.shape), 0, None, 9):
        part = np.zeros((3, 5), dtype=bool)
        part[np.arange(3), sequence] = True
        write(tmp_path / "certificate.json", weights, [part])
        try:
            check(tmp_path / "certificate.json", tmp_path / "weights.npz")
        except RejectedError:
            continue
        assert all(margin > 0 for margin in exact_margins(weights, sequence)), sequence


def test_weights_are_taken_at_their_worst_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With wide ends around e^s, a sequence is accepted if and only if its margins are positive at every corner."""
    weights, paths = random_network(4, 0.5), (tmp_path / "certificate.json", tmp_path / "weights.npz")
    save(weights, paths[1])
    network = checker.Network(weights)
    ends = {query: network.weights(query) for query in range(5)}
    wide = {query: (low / 2, high * 2) for query, (low, high) in ends.items()}
    monkeypatch.setattr(checker.Network, "weights", lambda _, query: wide[query])
    answers = []
    for sequence in itertools.product(range(5), repeat=3):
        margins = network.margins(sequence[-1], max(sequence))[:, np.arange(3), sequence]
        corners = itertools.product(*(ends_of for ends_of in np.stack(wide[sequence[-1]], -1)[np.arange(3), sequence]))
        expected = all((margins @ np.array(corner) > 0).all() for corner in corners)
        part = np.zeros((3, 5), dtype=bool)
        part[np.arange(3), sequence] = True
        write(paths[0], weights, [part])
        try:
            accepted = check(*paths).proved == 1
        except RejectedError:
            accepted = False
        assert accepted == expected, sequence
        answers.append(accepted)
    certain = sum(
        all(margin > 0 for margin in exact_margins(weights, s)) for s in itertools.product(range(5), repeat=3)
    )
    assert 0 < sum(answers) < certain


def test_an_empty_certificate_proves_nothing(network: Weights, tmp_path: Path) -> None:
    save(network, tmp_path / "weights.npz")
    write(tmp_path / "certificate.json", network, [])
    assert check(tmp_path / "certificate.json", tmp_path / "weights.npz") == Accepted(0, VOCABULARY**K, 0)


def test_weights_are_kept_exactly_and_both_hashes_agree(network: Weights, tmp_path: Path) -> None:
    save(network, tmp_path / "weights.npz")
    again = load(tmp_path / "weights.npz")
    assert digest(again) == digest(network) == checker.digest(again)


def test_exact_numbers_are_exact() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=s) * 10.0 ** rng.integers(-20, 20, s) for s in ((3, 4), (4, 2), (2,)))
    found = checker.Fixed.of(a) @ checker.Fixed.of(b) + checker.Fixed.of(c)
    low, high = found.around()
    with flint.ctx.workprec(2000):
        for i, j in np.ndindex(3, 2):
            exactly = sum((arb(a[i, n]) * arb(b[n, j]) for n in range(4)), arb(c[j]))
            assert checker.scaled(found.integers[i, j], found.exponent) == exactly
            assert arb(low[i, j]) < exactly < arb(high[i, j])


def test_the_record_counts_every_sequence(tmp_path: Path) -> None:
    weights = random_network(5)
    row = measured(weights, tmp_path, smallest=4)
    record, right = read_accuracy(tmp_path), brute_force(weights)
    found = search(weights, smallest=4)
    proved = np.zeros(right.shape, dtype=bool)
    for part in found.proved:
        proved[np.ix_(*part)] = True
    counted = {name: np.zeros((5, 5), dtype=int) for name in ("inputs", "proved", "right")}
    for sequence in itertools.product(range(5), repeat=3):
        place = sequence[-1], max(sequence)
        counted["inputs"][place] += 1
        counted["proved"][place] += proved[sequence]
        counted["right"][place] += right[sequence]
    for name, table in counted.items():
        assert np.array_equal(getattr(record.groups, name), table), name
    assert (record.inputs, record.proved, record.right) == (125, row["proved"], row["right"])
    assert row["proved"] < row["right"]  # parts of at most four sequences were given up
    assert all(not right[sequence] for sequence in record.wrong)
    assert all(right[sequence] and not proved[sequence] for sequence in record.open)
    assert len(record.open) == row["right"] - row["proved"]
    assert [stage.name for stage in record.stages] == ["search", "check", "brute force"]
    assert vertex("report", str(tmp_path)).exit_code == 0
    assert (tmp_path / "report.html").stat().st_size > 0
