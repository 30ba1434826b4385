"""The checker: whether a certificate proves its claim about a network; it imports nothing of the search.

The claim: at least `proved` of all sequences of k tokens are classified right by the network with these weights, read
as exact reals, in exact arithmetic. The certificate is a list of parts, products of token sets S_1 × … × S_k. The
checker verifies that

1. the weights are those whose hash the certificate has;
2. every part has one label, the largest token, and one query token; the parts are disjoint, and have `proved` sequences
   together;
3. in every part, for every other class, Σ_j min over S_j of e^{s_jc} m_jc > 0, where s_jc is the score of token c at
   position j and m_jc the margin that attending to it alone would give. The sum of the minima is the least of
   Σ_j e^{s_{j c_j}} m_{j c_j} over all sequences of the part; divided by Σ_j e^{s_{j c_j}} > 0, that is the network's
   margin, so all of them are positive.

Arithmetic: scores (but for the factor 1/√d_head) and logits are sums of products of floats, which are computed exactly,
in integers times a power of two; then they are written as two floats around them, and e^s as two floats around a ball
of Arb. What is rounded after that, differences, one product and k sums, is rounded downward by moving every result to
the float below. A sum has to exceed 1e-300, so that a processor that flushes subnormal numbers to 0 changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

FORMAT = "max-of-k certificate 1"
SHAPES = {
    "E": "vd", "P": "kd", "W_Q": "dh", "W_K": "dh", "W_V": "dh", "W_O": "hd", "W_U": "dv",
    "b_Q": "h", "b_K": "h", "b_V": "h", "b_O": "d", "b_U": "v",
}  # fmt: skip
"""The axes of the weights: vocabulary, k positions, d numbers of an embedding, h of the head."""
MOST_BYTES = 1 << 28
ROWS = 1024
LEAST = 1e-300
Integers = NDArray[np.object_]
Floats = NDArray[np.float64]


class RejectedError(Exception):
    """The certificate does not prove what it says; the message says why."""


def reject(why: str) -> NoReturn:
    """Raise."""
    raise RejectedError(why)


@dataclass(frozen=True)
class Accepted:
    """What was checked."""

    proved: int
    """So many sequences are certainly classified right."""
    sequences: int
    """of so many."""
    parts: int


def check(certificate: Path, weights: Path) -> Accepted:
    """Check a certificate of the network in an .npz file; raises RejectedError."""
    w, claim = read(certificate, weights)
    sizes = checked_sizes(w)
    if not isinstance(claim, dict) or set(claim) != {"format", "weights", "vocabulary", "k", "proved", "parts"}:
        reject("the certificate does not have the fields of the format")
    if claim["format"] != FORMAT:
        reject(f"the format is not {FORMAT!r}")
    if claim["weights"] != digest(w):
        reject("the certificate is about other weights: their hash differs")
    k, vocabulary = sizes["k"], sizes["v"]
    if (claim["k"], claim["vocabulary"]) != (k, vocabulary):
        reject("k or the vocabulary is not that of the weights")
    parts = read_parts(claim["parts"], k, vocabulary)
    count = count_disjoint(parts)
    if type(claim["proved"]) is not int or count != claim["proved"]:
        reject(f"the parts have {count} sequences, the certificate says {claim['proved']}")
    check_margins(parts, Network(w))
    return Accepted(count, vocabulary**k, len(parts))


def read(certificate: Path, weights: Path) -> tuple[dict[str, Any], Any]:
    """The arrays and the claim; rejects files that cannot be read."""
    if max(certificate.stat().st_size, weights.stat().st_size) > MOST_BYTES:
        reject(f"a file has more than {MOST_BYTES} bytes")
    try:
        with np.load(weights, allow_pickle=False) as file:
            arrays = {name: file[name] for name in SHAPES}
        return arrays, json.loads(certificate.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zipfile.BadZipFile) as error:
        raise RejectedError(f"a file cannot be read: {error}") from error


def checked_sizes(w: dict[str, Any]) -> dict[str, int]:
    """The sizes of the axes; rejects arrays that are not finite float64 of fitting shapes."""
    sizes: dict[str, int] = {}
    for name, axes in SHAPES.items():
        value = w[name]
        if value.dtype != np.float64 or value.ndim != len(axes) or not np.isfinite(value).all():
            reject(f"{name} is not an array of {len(axes)} axes of finite float64")
        for axis, length in zip(axes, value.shape, strict=True):
            if length < 1 or sizes.setdefault(axis, length) != length:
                reject(f"{name} has the shape {value.shape}, which does not fit the other weights")
    return sizes


def digest(w: dict[str, Floats]) -> str:
    """SHA-256 of all weights, by name, shape and the bytes of their float64 values."""
    found = hashlib.sha256()
    for name in SHAPES:
        value = np.ascontiguousarray(w[name], dtype="<f8")
        found.update(f"{name}{value.shape}".encode() + value.tobytes())
    return found.hexdigest()


def read_parts(listed: object, k: int, vocabulary: int) -> NDArray[np.bool_]:
    """The parts (parts, k, vocabulary); each is written as k hexadecimal numbers whose bit c says that c is allowed."""
    if not isinstance(listed, list):
        reject("parts is not a list")
    parts = np.zeros((len(listed), k, vocabulary), dtype=np.bool_)
    for i, part in enumerate(listed):
        if not isinstance(part, list) or len(part) != k or not all(isinstance(one, str) for one in part):
            reject(f"part {i} is not a list of {k} texts")
        for j, text in enumerate(part):
            if not text or set(text) - set("0123456789abcdef") or not 0 < int(text, 16) < 1 << vocabulary:
                reject(f"part {i}: {text!r} is no set of tokens")
            bits = int(text, 16)
            parts[i, j] = [bits >> c & 1 for c in range(vocabulary)]
    return parts


def count_disjoint(parts: NDArray[np.bool_]) -> int:
    """How many sequences the parts have together; rejects parts of several query tokens or that are not disjoint.

    Two parts are disjoint if they have no token in common at some position.
    """
    if (parts[:, -1].sum(-1) != 1).any():
        reject("a part has several query tokens")
    query = parts[:, -1].argmax(-1)
    for q in np.unique(query):
        at = (query == q).nonzero()[0]
        sets = parts[at].astype(np.float32)  # common tokens are counted by products: exact, the counts are small
        for first in range(0, len(at), ROWS):
            rows = np.arange(first, min(first + ROWS, len(at)))
            meet = rows[:, None] != np.arange(len(at))
            for j in range(parts.shape[1]):
                meet &= sets[rows, j] @ sets[:, j].T > 0
            if meet.any():
                one, other = np.argwhere(meet)[0]
                reject(f"parts {at[first + one]} and {at[other]} have a sequence in common")
    total = 0
    for sizes in parts.sum(-1).tolist():
        count = 1
        for n in sizes:
            count *= int(n)
        total += count
    return total


class Network:
    """Weights e^s and logits of every token at every position, as exact integers or as floats around them."""

    def __init__(self, w: dict[str, Floats]) -> None:
        exact = {name: Fixed.of(value) for name, value in w.items()}
        x = exact["E"].rows_plus(exact["P"])  # (k, vocabulary, d)
        self.query = x[-1] @ exact["W_Q"] + exact["b_Q"]
        self.key = [one @ exact["W_K"] + exact["b_K"] for one in x]
        attended = [(one @ exact["W_V"] + exact["b_V"]) @ exact["W_O"] @ exact["W_U"] for one in x]
        direct = (x[-1] + exact["b_O"]) @ exact["W_U"] + exact["b_U"]
        self.attended = [np.stack(ends) for ends in zip(*(one.around() for one in attended), strict=True)]
        self.direct = direct.around()
        self.head = w["W_Q"].shape[1]

    def weights(self, query: int) -> tuple[Floats, Floats]:
        """Floats below and above e^{s − a}, (k, vocabulary), of every key token; a is one number for all of them."""
        row = Fixed(self.query.integers[query], self.query.exponent)
        products = [key @ row for key in self.key]
        with ctx.workprec(128):
            root = arb(self.head).sqrt()
            scores = [[scaled(n, p.exponent) / root for n in p.integers] for p in products]
            shift = max(float(s.mid()) for one in scores for s in one)
            if not abs(shift) < np.inf:
                reject("a score is not finite")
            balls = [[(s - arb(shift)).exp() for s in one] for one in scores]
            low = np.array([[max(0.0, below(y)) for y in one] for one in balls])
            return low, np.array([[-below(-y) for y in one] for one in balls])

    def margins(self, query: int, label: int) -> Floats:
        """Floats below the margins of the label over every other class, (classes − 1, k, vocabulary)."""
        low, high = self.attended  # (k, tokens, classes)
        attended = down(low[..., label, None] - high)
        direct = down(self.direct[0][query, label] - self.direct[1][query])
        return np.moveaxis(np.delete(down(attended + direct), label, -1), -1, 0)


def check_margins(parts: NDArray[np.bool_], network: Network) -> None:
    """Reject if a part has several labels, or a margin that is not proved to be positive."""
    tokens = np.arange(parts.shape[-1])
    most = np.where(parts, tokens, -1).max(-1)
    least = np.where(parts, tokens, len(tokens)).min(-1)
    label = most.max(-1)
    if (least.max(-1) != label).any():
        reject(f"part {int((least.max(-1) != label).argmax())} has several labels")
    query = parts[:, -1].argmax(-1)
    for q in np.unique(query):
        low, high = network.weights(int(q))
        for target in np.unique(label[query == q]):
            margin = network.margins(int(q), int(target))
            terms = down(margin * np.where(margin >= 0, low, high))
            for i in ((query == q) & (label == target)).nonzero()[0]:
                if not positive(terms, parts[i]):
                    reject(f"part {int(i)}: a margin is not proved to be positive")


def positive(terms: Floats, part: NDArray[np.bool_]) -> bool:
    """Whether Σ_j min over S_j of the terms is certainly positive, for every class."""
    least = np.where(part, terms, np.inf).min(-1)  # (classes − 1, k)
    total = least[:, 0]
    for j in range(1, least.shape[1]):
        total = down(total + least[:, j])
    return bool((total > LEAST).all())


@dataclass(frozen=True)
class Fixed:
    """The exact numbers integers · 2^exponent."""

    integers: Integers
    exponent: int

    @staticmethod
    def of(floats: Floats) -> Fixed:
        """Floats, exactly."""
        fractions = [Fraction(value) for value in floats.ravel().tolist()]
        bits = max(f.denominator.bit_length() - 1 for f in fractions)
        integers = np.empty(len(fractions), dtype=object)
        integers[:] = [f.numerator << bits - (f.denominator.bit_length() - 1) for f in fractions]
        return Fixed(integers.reshape(floats.shape), -bits)

    @staticmethod
    def common(numbers: list[Fixed]) -> list[Fixed]:
        """The same numbers with one exponent."""
        least = min(one.exponent for one in numbers)
        return [Fixed(one.integers * (1 << one.exponent - least), least) for one in numbers]

    def __add__(self, other: Fixed) -> Fixed:
        """The sum, by numpy's rules of broadcasting."""
        a, b = Fixed.common([self, other])
        return Fixed(a.integers + b.integers, a.exponent)

    def __matmul__(self, other: Fixed) -> Fixed:
        """The product of matrices."""
        return Fixed(self.integers @ other.integers, self.exponent + other.exponent)

    def around(self) -> tuple[Floats, Floats]:
        """Floats below and above: what Python rounds to nearest, moved by one float."""
        one = Fraction(2) ** self.exponent
        try:
            near = np.array([float(n * one) for n in self.integers.ravel().tolist()]).reshape(self.integers.shape)
        except OverflowError:
            reject("a logit is too large for a float")
        return down(near), -down(-near)

    def rows_plus(self, other: Fixed) -> list[Fixed]:
        """These rows plus one row of the other: one matrix for each row of the other."""
        return [self + Fixed(row, other.exponent) for row in other.integers]


def scaled(integer: int, exponent: int) -> arb:
    """A ball around integer · 2^exponent."""
    return arb(integer) * arb(2) ** exponent


def below(ball: arb) -> float:
    """A float that is certainly not above the ball."""
    if not ball.is_finite():
        reject("a weight is not finite")
    value = float(ball.lower())
    while not arb(value) <= ball:
        value = float(np.nextafter(value, -np.inf))
    return value


def down(value: Floats) -> Floats:
    """The float below: not above the exact result, if `value` is that result rounded to nearest."""
    return np.nextafter(value, -np.inf)
