"""The network, op by op: the range of a node over its inputs' boxes, and what its linear bounds are made of."""

from __future__ import annotations

import copy
import itertools
import math
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import curves, rows, zonotopes
from .file import File, Rejected, place
from .rounding import MORE, TINY, Array, Interval, product, rounding, up

FEW = rows.FEW
STORED = 2.0**-46
MOST_NUMBERS = 1 << 25
"""All nodes together have no more."""
MOST_WORK = 1 << 43
"""Multiplications, roughly, that all passes of a check may take: some hours, and a hundred times what ours have taken.
A file's length does not limit them: each step may ask for a pass over the whole network for each of its numbers."""
LOOK = 100
"""Multiplications in the time that it takes to look at a node."""
Shape = tuple[int, ...]


class Node(NamedTuple):
    """One node: numbers of earlier nodes, its shape, and the arrays of its op."""

    op: str
    inputs: Shape
    shape: Shape
    arrays: dict[str, NDArray[Any]]
    eps: float


ARRAYS = {"Constant": "value", "Move": "index", "Linear": "weight", "Scale": "factor"}
PLAIN = ("Input", "Add", "Relu", "MatMul", "Multiply", "Attention", "Normalize", *curves.CURVES)


def network(file: File) -> list[Node]:
    """The nodes of a certificate, the input first and the output last; every shape is compared."""
    found: list[Node] = []
    total = 0
    for number, entry in enumerate(file.header["graph"]):
        op, inputs, shape, given = entry["op"], tuple(entry["inputs"]), tuple(entry["shape"]), entry["arrays"]
        arrays = {}
        if op in ARRAYS:
            name = ARRAYS[op]
            arrays[name] = file.array(given[name], "i") if op == "Move" else file.numbers(given[name])
        elif op == "Attention" and "mask" in given:
            arrays["mask"] = file.array(given["mask"], "b")
            if "penalty" in given:
                arrays["penalty"] = file.numbers(given["penalty"])
                arrays["replaced"] = file.array(given["replaced"], "b")
        elif op not in PLAIN:
            raise Rejected(f"node {number}: there is no op {op!r}")
        node = Node(op, inputs, shape, arrays, float(entry.get("eps", 0.0)))
        fine = all(type(i) is int and 0 <= i < number for i in inputs) and (op == "Input") == (number == 0)
        fine = fine and all(type(n) is int and n > 0 for n in shape)
        total += math.prod(shape) if fine else 0
        if total > MOST_NUMBERS:
            raise Rejected(f"the network has more than {MOST_NUMBERS} numbers in all its nodes")
        if not fine or not 0 <= node.eps < math.inf or not _fits(node, [found[i].shape for i in inputs]):
            raise Rejected(f"node {number} ({op}) does not fit its inputs, its arrays or its place")
        found.append(node)
    return found


def _fits(node: Node, shapes: list[Shape]) -> bool:
    op, shape, arrays = node.op, node.shape, node.arrays
    if op in ("Input", "Constant"):
        return not shapes and (op == "Input" or arrays["value"].shape == shape)
    if op == "Move":
        index, total = arrays["index"], sum(math.prod(s) for s in shapes)
        return index.shape == shape and bool(((index >= 0) & (index < total)).all())
    if op in ("MatMul", "Attention"):
        x, y = shapes
        fine = len(x) == len(y) >= 2 and x[:-2] == y[:-2] and x[-1] == y[-2] and shape == (*x[:-1], y[-1])
        return fine and ("mask" not in arrays or _masks_fit(arrays, x))
    if op in ("Add", "Multiply"):
        return shapes == [shape, shape]
    if op == "Linear":
        weight = arrays["weight"]
        return (
            weight.ndim == 2
            and len(shapes) == 1
            and shapes[0][-1:] == weight.shape[:1]
            and shape == (*shapes[0][:-1], *weight.shape[1:])
        )
    return shapes == [shape] and len(shape) > 0 and (op != "Scale" or arrays["factor"].shape == shape)


def _masks_fit(arrays: dict[str, NDArray[Any]], shape: Shape) -> bool:
    """Do masks have the scores' shape, and leave a key in every row; are there penalties at masked keys alone?"""
    mask = arrays["mask"]
    if mask.shape != shape or mask.all(-1).any():
        return False
    if "penalty" not in arrays:
        return True
    penalty, replaced = arrays["penalty"], arrays["replaced"]
    fine = penalty.shape == replaced.shape == shape
    return fine and not (penalty[~mask] != 0).any() and not (replaced & (penalty == 0)).any()


class Known:
    """What has been proved of a network so far, and what was made of it."""

    def __init__(
        self,
        nodes: list[Node],
        lower: Array,
        upper: Array,
        spent: list[int] | None = None,
        ends: float = math.inf,
    ) -> None:
        self.nodes = nodes
        self.costs = list(itertools.accumulate(_cost(node, nodes) for node in nodes))
        self.spent = [0] if spent is None else spent
        self.ends = ends
        """by time.monotonic"""
        self.boxes: dict[int, Interval] = {0: Interval(lower, upper)}
        self.zonotopes: dict[int, zonotopes.Zonotope] = {}
        self.centred: dict[int, tuple[Array, Interval]] = {}
        self.sigma: dict[int, Interval] = {}
        self.lines: dict[int, tuple[Array, ...]] = {}
        self.made: dict[Any, Any] = {}

    def charge(self, work: int) -> None:
        """Count what is about to be done."""
        self.spent[0] += work
        if self.spent[0] > MOST_WORK:
            raise Rejected(f"to check it takes more than {MOST_WORK:.0e} multiplications, the most that are done")
        if time.monotonic() > self.ends:
            raise Rejected("to check it takes more time than there is; give more seconds if you trust where it is from")

    def reach(self, number: int) -> None:
        """Boxes of all nodes up to one."""
        for k in range(len(self.boxes), number + 1):
            self.charge(LOOK)
            self.boxes[k] = self.image(k)

    def image(self, number: int) -> Interval:
        """The range of a node from the boxes of its inputs."""
        node = self.nodes[number]
        op, x, a = node.op, [self.boxes[i] for i in node.inputs], node.arrays
        if op == "Constant":
            return _stored(a["value"])
        if op == "Move":
            return Interval(
                *(np.concatenate(end)[a["index"]] for end in zip(*((b.lo.flat, b.hi.flat) for b in x), strict=True))
            )
        if op in ("Linear", "MatMul"):
            return product(x[0], _stored(a["weight"]) if op == "Linear" else x[1])
        if op in ("Scale", "Multiply"):
            return x[0] * (_stored(a["factor"]) if op == "Scale" else x[1])
        if op == "Add":
            return x[0] + x[1]
        if op == "Relu":
            return Interval(np.maximum(x[0].lo, 0), np.maximum(x[0].hi, 0))
        if op == "Attention":  # between the least and the largest value
            ends = x[1].lo.min(-2, keepdims=True), x[1].hi.max(-2, keepdims=True)
            return Interval(*(np.broadcast_to(end, node.shape) for end in ends))
        if op == "Normalize":  # |y_i| / σ ≤ √d, and y / σ lies between y / σ_u and y / σ_l
            root = float(up(np.sqrt(np.array(node.shape[-1]))))
            norm: Norm = self.make(number, "norm")
            return (x[0] / norm.sigma[..., None]).meet(Interval(-root, root))
        return curves.image(op, x[0].lo, x[0].hi)

    def work(self, number: int) -> int:
        """How many numbers a node is for one objective, at its widest."""
        node = self.nodes[number]
        more = self.nodes[node.inputs[0]].shape[-1] if node.op == "Attention" else 1
        return math.prod(node.shape) * more

    def forget(self, number: int) -> None:
        """What was made of a node's box or zonotope."""
        self.charge(LOOK * len(self.nodes))
        users = {k for k, node in enumerate(self.nodes) if number in node.inputs} | {number}
        self.made = {key: value for key, value in self.made.items() if key[0] not in users}

    def part(self, split: tuple[int, int, float, bool], left: bool) -> Known:
        """The inputs for which one number of a node (or of a σ) is at most (left) or at least a point."""
        number, entry, point, inner = split
        found = copy.copy(self)
        box = self.make(number, "norm").sigma if inner else self.boxes[place(number, len(self.nodes))]
        lo, hi = box.lo.copy(), box.hi.copy()
        if not math.isfinite(point) or place(entry, lo.size) < 0 or number == 0:
            raise Rejected(
                "a branching at a number that there is not, or at the input, whose box zonotopes are made of"
            )
        end, best = (hi, min) if left else (lo, max)
        end.flat[entry] = best(end.flat[entry], point)
        narrower = Interval(np.minimum(lo, hi), np.maximum(lo, hi))  # crossed: it is empty, and any box is right
        if inner:
            found.sigma = {**self.sigma, number: narrower}
        else:
            found.boxes = {**self.boxes, number: narrower}
        found.forget(number)
        return found

    def make(self, number: int, what: str, pieces: int = 1) -> Any:
        """What an op needs of its inputs, made once."""
        key = (number, what, pieces)
        if key not in self.made:
            self.made[key] = getattr(self, "_" + what)(number, pieces)
        return self.made[key]

    def _sizes(self, number: int, _: int) -> Array:
        """|W| |x|: what an affine op's terms add up to, at most."""
        node, x = self.nodes[number], self.boxes[self.nodes[number].inputs[0]].size
        if node.op == "Linear":
            return np.asarray((x @ np.abs(node.arrays["weight"])) * (1 + rounding(x.shape[-1])) + TINY)
        return np.asarray(x * np.abs(node.arrays["factor"]) * MORE + TINY)

    def _rows(self, number: int, pieces: int) -> rows.Rows:
        node = self.nodes[number]
        scores = self.boxes[node.inputs[0]]
        there = ~node.arrays["mask"] if "mask" in node.arrays else np.ones(scores.lo.shape, dtype=bool)
        if "penalty" in node.arrays:
            penalty = node.arrays["penalty"]
            most = (Interval(np.where(node.arrays["replaced"], 0.0, scores.hi)) + _stored(penalty)).hi
            rows.negligible(np.where(penalty != 0, most, -np.inf), np.where(there, scores.lo, -np.inf))
        return rows.rows(scores, there, self.centred.get(number), pieces)

    def _norm(self, number: int, _: int) -> Norm:
        found = Norm(self, number)
        if not (found.sigma.lo > 0).all():
            raise Rejected("a normalisation of rows that may all be 0, without eps")
        return found

    def _ellipsoid(self, number: int, _: int) -> zonotopes.Ellipsoid:
        self.charge(self.zonotopes[number].columns.size * self.nodes[number].shape[-1])
        return zonotopes.ellipsoid(self.zonotopes[number])

    def _planes(self, number: int, _: int) -> tuple[Array, Array, Array, Any]:
        """Of a product of matrices: centres of both factors, at least |(x − x_c)(y − y_c)|, and for corners more."""
        i, j = self.nodes[number].inputs
        x, y = self.boxes[i], self.boxes[j]
        both = i in self.zonotopes and j in self.zonotopes
        at_x, at_y = (self.zonotopes[k].centre if both else self.boxes[k].middle() for k in (i, j))
        error = x.reach(at_x) @ y.reach(at_y) * (1 + rounding(at_x.shape[-1])) + TINY * at_x.shape[-1]
        if not both:
            return at_x, at_y, error, None
        left, right = self.zonotopes[i], self.zonotopes[j].turned()
        self.charge(error.size * at_x.shape[-1] * (left.columns.shape[-1] + 8 * at_x.shape[-1] ** 2))
        if left.exact and right.exact and error.size * left.columns.shape[-1] <= MOST_NUMBERS:
            exact, sums = zonotopes.exact_products(left, right)
            return at_x, at_y, np.minimum(error, exact), (left.columns, right.columns, exact, sums)
        return at_x, at_y, np.minimum(error, zonotopes.products(left, right)), None

    def _curve(self, number: int, _: int) -> tuple[Array, ...]:
        """Of a function of one number: slope and intercept below and above, and those of a band."""
        op, box = self.nodes[number].op, self.boxes[self.nodes[number].inputs[0]]
        if op == "Relu":
            return relu_lines(box)
        k, t, h, s, c, below, above = self.lines[number]
        ways = ((1, k, t), (-1, -h, s), (1, c, below), (-1, -c, above))
        low, high, b, top = (curves.floor(op, sign, slope, touch, box.lo, box.hi) for sign, slope, touch in ways)
        return k, low, h, -high, c, b, -top


def _cost(node: Node, nodes: list[Node]) -> int:
    """Multiplications, roughly, that a pass of one objective takes at a node."""
    inner = nodes[node.inputs[0]].shape[-1] if node.op in ("Linear", "MatMul", "Attention") else 8
    return math.prod(node.shape) * (2 * inner + 8)


def _stored(value: Array) -> Interval:
    """A stored number stands for all reals within 2⁻⁴⁶ of it, relatively."""
    return Interval(value) * Interval(1 - STORED, 1 + STORED)


def relu_lines(box: Interval, k: Array | None = None) -> tuple[Array, ...]:
    """Below by a slope k, above by the chord; the band along the chord. max(x, 0) − k x is least at an end or at 0."""
    on, off = box.lo >= 0, box.hi <= 0
    chord = np.where(on, 1.0, np.where(off, 0.0, box.hi / np.where(on | off, 1.0, box.hi - box.lo)))
    k = np.where(on | off, chord, (box.hi > -box.lo) * 1.0) if k is None else k

    def extreme(slope: Array, side: int) -> Array:
        """side · the least of side · (max(x, 0) − slope·x)."""
        exact = (on & (slope == 1)) | (off & (slope == 0))
        ends = [side * (np.maximum(x, 0) - slope * x) for x in (box.lo, box.hi)]
        least = np.minimum(np.minimum(*ends), np.where(on | off, np.inf, 0.0))
        return np.asarray(np.where(exact, 0.0, side * (least - FEW * (1 + np.abs(slope)) * box.size)))

    high = extreme(chord, -1)
    return k, extreme(k, 1), chord, high, chord, extreme(chord, 1), high


class Norm:
    """Of y / σ, σ² = mean y² + eps: bounds of ρ = 1/σ that are linear in y (rows of d numbers)."""

    def __init__(self, known: Known, number: int) -> None:
        node = known.nodes[number]
        source = node.inputs[0]
        self.box, self.eps, self.d = known.boxes[source], _stored(np.array(node.eps)), node.shape[-1]
        self.ellipsoid: zonotopes.Ellipsoid | None = None
        self.c, far, along = self.box.middle(), np.array(np.inf), np.array(np.inf)
        if source in known.zonotopes and self.box.lo.size * self.d <= zonotopes.MOST_SHAPES:
            z = known.zonotopes[source]
            known.charge(z.columns.size * self.d)
            one = zonotopes.Zonotope(z.centre[..., None, :], z.columns[..., None, :, :], z.error[..., None, :], z.exact)
            self.ellipsoid, self.c = zonotopes.ellipsoid(one), z.centre
            far = ((zonotopes.spectral(self.ellipsoid.L) * self.ellipsoid.root) ** 2 * MORE)[..., 0]
            along = zonotopes.by_columns(z.centre[None, ..., None, :], one)[0, ..., 0, 0]
        self.reach = self.box.reach(self.c)
        self.far = np.minimum(far, (self.reach**2).sum(-1) * (1 + rounding(self.d)))
        self.along = np.minimum(along, (np.abs(self.c) * self.reach).sum(-1) * (1 + rounding(self.d)))
        self.square = Interval(self.c).square().sum() / self.d
        self.middle = (self.square + self.eps).sqrt()
        plane = (self.square - Interval(self.along) / self.d + self.eps) / self.middle
        least = self.box.square().sum() / self.d + self.eps
        most = np.minimum(least.hi, (self.square + self.eps + (Interval(2 * self.along) + self.far) / self.d).hi)
        sigma = Interval(np.maximum(least.sqrt().lo, plane.lo), up(np.sqrt(most)))
        self.sigma = sigma.meet(known.sigma[number]) if number in known.sigma else sigma

    def below(self, touch: Array | None = None) -> tuple[Array, Array]:
        """ρ ≥ k·y + b: the tangent of x^{−1/2} at σ₀², and σ² under chords or about c. σ₀ (S, ...) → (S, ..., d)."""
        d, eps, box = self.d, self.eps, self.box
        chords = (Interval(box.lo) + box.hi) / d, eps - (Interval(box.lo) * box.hi).sum() / d
        about = Interval(2 * self.c) / d, eps - self.square + Interval(self.far) / d
        at = [(s.middle() * self.c).sum(-1) + b.middle() for s, b in (about, chords)]
        slope, square = (x.where(at[0] < at[1], y) for x, y in zip(about, chords, strict=True))
        if touch is None:
            inside = np.clip(self.c, box.lo, box.hi)
            touch = np.sqrt(np.maximum((slope.middle() * inside).sum(-1) + square.hi, self.sigma.lo**2))[None]
        if not (touch > 0).all():
            raise Rejected("a tangent of the inverse root at a number that is not positive")
        T = 1 / (2 * (Interval(touch) * touch * touch))
        return self._floats(-slope * T[..., None], 1.5 / Interval(touch) - T * square, -1)

    def above(self) -> tuple[Array, Array]:
        """ρ ≤ k·y + b: the chord of 1/σ, and σ above its tangent plane at c, (c·y/d + eps)/σ(c)."""
        low, high = Interval(self.sigma.lo), Interval(self.sigma.hi)
        both = low * high
        k = -Interval(self.c) / (both * self.middle * self.d)[..., None]
        return self._floats(k, (low + high - self.eps / self.middle) / both, 1)

    def _floats(self, k: Interval, b: Interval, side: int) -> tuple[Array, Array]:
        """Float slopes, and a constant that pays for what they are not."""
        slope = k.middle()
        paid = (Interval(k.reach(slope)) * self.box.size).sum().hi
        return slope, (b + paid).hi if side > 0 else (b - paid).lo

    def apart(self, k: Array, b: Array) -> Array:
        """At most k·y + b over the rows: k = times c + rest, and |c·(y − c)| is known. k (S, ..., d)."""
        length = (self.c**2).sum(-1)
        times = (k * self.c).sum(-1) / np.where(length > 0, length, 1.0)
        rest = Interval(k) - Interval(times[..., None]) * self.c
        off = ((rest.size * self.reach).sum(-1) + np.abs(times) * self.along) * (1 + rounding(self.d))
        off = np.minimum(off, (np.abs(k) * self.reach).sum(-1) * (1 + rounding(self.d)))
        return np.asarray(((Interval(k) * self.c).sum() + b - off).lo)
