"""The network, op by op: the range of a node over the boxes of its inputs, and the ingredients of its linear bounds."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import curves, rows, zonotopes
from .file import File, Rejected, checked_index
from .forward.forms import Form
from .input_sets import CheckedBox, CheckedSet
from .jobs import Jobs
from .lines import LinearBounds, relu_lines
from .moves import Moved, moved
from .rounding import MORE, TINY, Array, ProvedInterval, product, rounding, up

FEW = rows.FEW
STORED = 2.0**-46
"""A stored number x stands for every real number within STORED · |x| of it."""
MOST_NUMBERS = 1 << 25
"""The most entries that all nodes of a network have together."""
MOST_WORK = 1 << 43
"""The most multiplications, roughly, of all passes of a check: some hours, a hundred times our largest check.
A file's length does not limit them: each step may ask for a pass over the whole network for each of its numbers."""
OF_INPUTS = ("sizes", "rows", "planes", "lines")
"""What is derived for a node from its inputs alone, and not from its own box or zonotope."""
LOOK = 100
"""The cost of visiting one node, in multiplications."""
Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckerNode:
    """One node of a certificate's network."""

    op: str
    inputs: tuple[int, ...]
    """the numbers of the nodes it is computed from, all of them smaller than its own"""
    shape: Shape
    arrays: dict[str, NDArray[Any]]
    """the constants of its op, by their names"""
    eps: float
    """of a normalisation; 0 for other ops"""

    def move(self, total: int) -> Moved:
        """Of a Move whose inputs have `total` entries together: how coefficients go back; found on first use."""
        if "moved" not in self.__dict__:
            self.__dict__["moved"] = moved(self.arrays["index"], total)
        found: Moved = self.__dict__["moved"]
        return found


ARRAYS = {"Constant": "value", "Move": "index", "Linear": "weight", "Scale": "factor"}
"""The ops with one constant array, and its name."""
PLAIN = ("Input", "Add", "Relu", "MatMul", "Multiply", "Attention", "Normalize", *curves.FUNCTIONS)
"""The other ops."""


def network(file: File) -> list[CheckerNode]:
    """The nodes of a certificate, the input first and the output last; rejected unless all shapes fit each other."""
    nodes: list[CheckerNode] = []
    total = 0
    for number, entry in enumerate(file.header["graph"]):
        op, inputs, shape, given = entry["op"], tuple(entry["inputs"]), tuple(entry["shape"]), entry["arrays"]
        arrays = {}
        if type(given) is not dict:
            raise Rejected(f"node {number}: its arrays are not listed by their names")
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
        node = CheckerNode(op=op, inputs=inputs, shape=shape, arrays=arrays, eps=float(entry.get("eps", 0.0)))
        valid = all(type(i) is int and 0 <= i < number for i in inputs) and (op == "Input") == (number == 0)
        valid = valid and all(type(n) is int and n > 0 for n in shape)
        total += math.prod(shape) if valid else 0
        if total > MOST_NUMBERS:
            raise Rejected(f"the network has more than {MOST_NUMBERS} numbers in all its nodes")
        if not valid or not 0 <= node.eps < math.inf or not _fits(node, [nodes[i].shape for i in inputs]):
            raise Rejected(f"node {number} ({op}) does not fit its inputs, its arrays or its position in the network")
        nodes.append(node)
    return nodes


def _fits(node: CheckerNode, shapes: list[Shape]) -> bool:
    """Whether the shape and the arrays of a node fit the shapes of its inputs."""
    op, shape, arrays = node.op, node.shape, node.arrays
    if op in ("Input", "Constant"):
        return not shapes and (op == "Input" or arrays["value"].shape == shape)
    if op == "Move":
        index, total = arrays["index"], sum(math.prod(s) for s in shapes)
        return index.shape == shape and bool(((index >= 0) & (index < total)).all())
    if op in ("MatMul", "Attention"):
        x, y = shapes
        product_fits = len(x) == len(y) >= 2 and x[:-2] == y[:-2] and x[-1] == y[-2] and shape == (*x[:-1], y[-1])
        return product_fits and ("mask" not in arrays or _masks_fit(arrays, x))
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
    """Whether masks have the scores' shape and leave a key in every row, and only masked keys have penalties."""
    mask = arrays["mask"]
    if mask.shape != shape or mask.all(-1).any():
        return False
    if "penalty" not in arrays:
        return True
    penalty, replaced = arrays["penalty"], arrays["replaced"]
    same_shape = penalty.shape == replaced.shape == shape
    return same_shape and not (penalty[~mask] != 0).any() and not (replaced & (penalty == 0)).any()


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactFactors:
    """The factors of a matrix product whose generators are those of the input alone (`zonotopes.exact_products`)."""

    columns_x: Array
    """(..., n, d, P)"""
    columns_y: Array
    """(..., m, d, P): of the transposed second factor"""
    error: Array
    """(..., n, m): an upper bound of |(x − centre_x)(y − centre_y)|"""
    sums: Array
    """(..., n, m, P)"""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProductPlanes:
    """The planes of a matrix product x y at the centres of its factors, and the bound of the second-order term."""

    centre_x: Array
    """(..., n, d)"""
    centre_y: Array
    """(..., d, m)"""
    error: Array
    """(..., n, m): an upper bound of |(x − centre_x)(y − centre_y)|"""
    exact: ExactFactors | None
    """for planes at corners of the input box; None if they are not available"""


class Known:
    """What has been proved about the nodes of a network over one box of inputs, and what was derived from it.

    Invariant: every box, zonotope and centred box holds for every input of the set. Derived objects are cached until
    `forget` is called for a node that they depend on.
    """

    # Seven: the set may be given by its box alone, and the rest has defaults.
    def __init__(
        self,
        nodes: list[CheckerNode],
        lower: Array,
        upper: Array,
        spent: list[int] | None = None,
        ends: float = math.inf,
        given: CheckedSet | None = None,
        jobs: Jobs | None = None,
    ) -> None:
        self.nodes = nodes
        self.within: dict[int, ProvedInterval] = {}
        """Node → a range that is known beforehand: that of a larger set (`over`)."""
        self.jobs = jobs or Jobs()
        """Where independent tasks are run."""
        self.given = CheckedBox(lower=lower, upper=upper) if given is None else given
        """The set of inputs; its box is that of node 0."""
        self.costs = list(itertools.accumulate(_cost(node, nodes) for node in nodes))
        """The work of a pass of one objective from each node to the input, in multiplications."""
        self.spent = [0] if spent is None else spent
        """The work done so far: a list of one number, shared by all parts of a certificate."""
        self.ends = ends
        """When the check must end, on the clock of time.monotonic."""
        self.boxes: dict[int, ProvedInterval] = {0: self.given.box}
        """Node → range of its entries."""
        self.zonotopes: dict[int, zonotopes.ProvedZonotope] = {}
        """Node → zonotope of its entries."""
        self.centred: dict[int, tuple[Array, ProvedInterval]] = {}
        """Attention node → weights ω, and the range of s − ω·s for its scores s."""
        self.sigma: dict[int, ProvedInterval] = {}
        """Normalisation node → range of the σ of its rows, where branching has narrowed it."""
        self.lines: dict[int, tuple[Array, ...]] = {}
        """Node of a curve → the seven arrays of the certificate: for the line below, the line above and the band, a
        slope and points of tangency; the band has two sets of points, below and above."""
        self.forward: Form | None = None
        """The form of the output, where a forward proof gave one."""
        self.before_norm: tuple[int, Form] | None = None
        """Of a forward proof: the last norm, if the output is an affine function of it, and the form of its input."""
        self._derived: dict[tuple[int, str, int], object] = {}

    def charge(self, work: int) -> None:
        """Count work that is about to be done, in multiplications; reject where the limit of work or time is passed."""
        self.spent[0] += work
        if self.spent[0] > MOST_WORK:
            raise Rejected(f"the check takes more than {MOST_WORK:.0e} multiplications, which is the limit")
        if time.monotonic() > self.ends:
            raise Rejected(
                "the check takes longer than its time limit; allow more seconds if you trust the certificate"
            )

    def reach(self, number: int) -> None:
        """Compute the boxes of all nodes up to this one that have none yet."""
        for k in range(len(self.boxes), number + 1):
            self.charge(LOOK)
            self.boxes[k] = self.image(k)
            if k in self.within:
                self.boxes[k] = self.boxes[k].meet(self.within[k]).ordered()

    def image(self, number: int) -> ProvedInterval:
        """The range of a node, (*shape), from the boxes of its inputs."""
        node = self.nodes[number]
        op, x, a = node.op, [self.boxes[i] for i in node.inputs], node.arrays
        if op == "Constant":
            return _stored(a["value"])
        if op == "Move":
            return ProvedInterval(
                *(np.concatenate(end)[a["index"]] for end in zip(*((b.lo.flat, b.hi.flat) for b in x), strict=True))
            )
        if op in ("Linear", "MatMul"):
            return product(x[0], _stored(a["weight"]) if op == "Linear" else x[1])
        if op in ("Scale", "Multiply"):
            return x[0] * (_stored(a["factor"]) if op == "Scale" else x[1])
        if op == "Add":
            return x[0] + x[1]
        if op == "Relu":
            return ProvedInterval(np.maximum(x[0].lo, 0), np.maximum(x[0].hi, 0))
        if op == "Attention":  # between the least and the largest value
            ends = x[1].lo.min(-2, keepdims=True), x[1].hi.max(-2, keepdims=True)
            return ProvedInterval(*(np.broadcast_to(end, node.shape) for end in ends))
        if op == "Normalize":  # |y_i| / σ ≤ √d, and y / σ lies between y / σ_u and y / σ_l
            root = float(up(np.sqrt(np.array(node.shape[-1]))))
            return (x[0] / self.norm(number).sigma[..., None]).meet(ProvedInterval(-root, root))
        return curves.image(op, x[0].lo, x[0].hi)

    def work(self, number: int) -> int:
        """How many numbers a pass of one objective handles at a node, at most."""
        node = self.nodes[number]
        keys = self.nodes[node.inputs[0]].shape[-1] if node.op == "Attention" else 1
        return math.prod(node.shape) * keys

    def forget(self, number: int) -> None:
        """Drop everything that was derived from a node's box, its zonotope or, of a normalisation, the range of σ."""
        self.charge(LOOK * len(self.nodes))
        users = {k for k, node in enumerate(self.nodes) if number in node.inputs}
        self._derived = {
            key: value
            for key, value in self._derived.items()
            if key[0] not in users and not (key[0] == number and key[1] not in OF_INPUTS)
        }

    def part(self, split: tuple[int, int, float, bool], left: bool) -> Known:
        """One branch: the inputs for which an entry of a node is at most (left) or at least (right) a point.

        split: the node, the index of the entry in it, the point, and whether the entry is one of a normalisation's σ.
        """
        number, entry, point, inner = split
        branch = copy.copy(self)
        box = self.norm(number).sigma if inner else self.boxes[checked_index(number, len(self.nodes))]
        lo, hi = box.lo.copy(), box.hi.copy()
        if not math.isfinite(point) or checked_index(entry, lo.size) < 0 or number == 0:
            raise Rejected("a branching at a point that is not finite, or at the input, on whose box zonotopes depend")
        end, best = (hi, min) if left else (lo, max)
        end.flat[entry] = best(end.flat[entry], point)
        narrower = ProvedInterval(lo, hi).ordered()
        if inner:
            branch.sigma = {**self.sigma, number: narrower}
        else:
            branch.boxes = {**self.boxes, number: narrower}
        branch.forget(number)
        return branch

    def over(self, given: CheckedSet) -> Known:
        """What is known over a part of this set: boxes of all nodes, before anything is proved there.

        All that is known here holds for every input of the part; so do the cuts on the way to here.
        """
        self.reach(len(self.nodes) - 1)
        inner = Known(self.nodes, given.lower, given.upper, self.spent, self.ends, given, self.jobs)
        inner.within, inner.sigma = {k: box for k, box in self.boxes.items() if k}, dict(self.sigma)
        return inner

    def _once(self, number: int, what: str, compute: Callable[[], T], pieces: int = 1) -> T:
        """The object `what` derived for a node, computed on first use."""
        key = (number, what, pieces)
        if key not in self._derived:
            self._derived[key] = compute()
        return self._derived[key]  # type: ignore[return-value]

    def total_size(self, number: int) -> float:
        """An upper bound of the sum of |x| over the entries x of a node."""
        return self._once(number, "total", lambda: float(self.boxes[number].size.sum() * MORE))

    def sizes(self, number: int) -> Array:
        """An upper bound of |W| |x| for a Linear or Scale node: the size of the terms of each entry, (*shape)."""
        return self._once(number, "sizes", lambda: self._sizes(number))

    def softmax_rows(self, number: int, pieces: int = 1) -> rows.SoftmaxRows:
        """The softmax rows of an attention node, the range of lse(s) cut into pieces."""
        return self._once(number, "rows", lambda: self._softmax_rows(number, pieces), pieces)

    def norm(self, number: int) -> CheckerNorm:
        """The bounds of 1/σ of a normalisation node."""
        return self._once(number, "norm", lambda: self._norm(number))

    def ellipsoid(self, number: int) -> zonotopes.CheckedEllipsoid:
        """The ellipsoids around the rows of a node that has a zonotope."""
        return self._once(number, "ellipsoid", lambda: self._ellipsoid(number))

    def used_columns(self, number: int) -> int:
        """How many columns the rows of a node with a zonotope have that are not 0, all rows together."""
        return self._once(number, "columns", lambda: zonotopes.used_columns(self.zonotopes[number]))

    def planes(self, number: int) -> ProductPlanes:
        """The planes of a MatMul node."""
        return self._once(number, "planes", lambda: self._planes(number))

    def linear_bounds(self, number: int) -> LinearBounds:
        """The lines around a Relu or a curve over its box."""
        return self._once(number, "lines", lambda: self._linear_bounds(number))

    def _sizes(self, number: int) -> Array:
        node, x = self.nodes[number], self.boxes[self.nodes[number].inputs[0]].size
        if node.op == "Linear":
            return np.asarray((x @ np.abs(node.arrays["weight"])) * (1 + rounding(x.shape[-1])) + TINY)
        return np.asarray(x * np.abs(node.arrays["factor"]) * MORE + TINY)

    def _softmax_rows(self, number: int, pieces: int) -> rows.SoftmaxRows:
        node = self.nodes[number]
        scores = self.boxes[node.inputs[0]]
        visible = ~node.arrays["mask"] if "mask" in node.arrays else np.ones(scores.lo.shape, dtype=bool)
        if "penalty" in node.arrays:
            penalty = node.arrays["penalty"]
            most = (ProvedInterval(np.where(node.arrays["replaced"], 0.0, scores.hi)) + _stored(penalty)).hi
            rows.negligible(np.where(penalty != 0, most, -np.inf), np.where(visible, scores.lo, -np.inf))
        return rows.rows(scores, visible, self.centred.get(number), pieces)

    def _norm(self, number: int) -> CheckerNorm:
        norm = CheckerNorm(self, number)
        if not (norm.sigma.lo > 0).all():
            raise Rejected("a normalisation without eps, of a row whose entries may all be 0")
        return norm

    def _ellipsoid(self, number: int) -> zonotopes.CheckedEllipsoid:
        self.charge(self.zonotopes[number].columns.size * self.nodes[number].shape[-1])
        return zonotopes.ellipsoid(self.zonotopes[number])

    def _planes(self, number: int) -> ProductPlanes:
        i, j = self.nodes[number].inputs
        x, y = self.boxes[i], self.boxes[j]
        both = i in self.zonotopes and j in self.zonotopes
        centre_x, centre_y = (self.zonotopes[k].centre if both else self.boxes[k].middle() for k in (i, j))
        error = x.reach(centre_x) @ y.reach(centre_y) * (1 + rounding(centre_x.shape[-1])) + TINY * centre_x.shape[-1]
        if not both:
            return ProductPlanes(centre_x=centre_x, centre_y=centre_y, error=error, exact=None)
        left, right = self.zonotopes[i], self.zonotopes[j].transposed()
        self.charge(error.size * centre_x.shape[-1] * (left.columns.shape[-1] + 8 * centre_x.shape[-1] ** 2))
        if left.exact and right.exact and error.size * left.columns.shape[-1] <= MOST_NUMBERS:
            exact, sums = zonotopes.exact_products(left, right)
            factors = ExactFactors(columns_x=left.columns, columns_y=right.columns, error=exact, sums=sums)
            error = np.minimum(error, exact)
            if left.balls:  # the exact sums are those of the cube around the balls
                error = np.minimum(error, zonotopes.products(left, right))
            return ProductPlanes(centre_x=centre_x, centre_y=centre_y, error=error, exact=factors)
        error = np.minimum(error, zonotopes.products(left, right))
        return ProductPlanes(centre_x=centre_x, centre_y=centre_y, error=error, exact=None)

    def _linear_bounds(self, number: int) -> LinearBounds:
        op, box = self.nodes[number].op, self.boxes[self.nodes[number].inputs[0]]
        if op == "Relu":
            return relu_lines(box)
        k, t, h, s, c, below, above = self.lines[number]
        ways = ((1, k, t), (-1, -h, s), (1, c, below), (-1, -c, above))
        low, high, b, top = (curves.floor(op, sign, slope, touch, box.lo, box.hi) for sign, slope, touch in ways)
        return LinearBounds(
            lower_slope=k,
            lower_intercept=low,
            upper_slope=h,
            upper_intercept=-high,
            band_slope=c,
            band_lower=b,
            band_upper=-top,
        )


def _cost(node: CheckerNode, nodes: list[CheckerNode]) -> int:
    """The work of a pass of one objective at a node, roughly, in multiplications."""
    inner = nodes[node.inputs[0]].shape[-1] if node.op in ("Linear", "MatMul", "Attention") else 8
    return math.prod(node.shape) * (2 * inner + 8)


def _stored(value: Array) -> ProvedInterval:
    """The range of the real numbers that stored numbers stand for: all within a relative distance of STORED."""
    return ProvedInterval(value) * ProvedInterval(1 - STORED, 1 + STORED)


class CheckerNorm:
    """A normalisation y / σ, σ² = mean y² + eps, of rows y of d numbers: bounds of ρ = 1/σ that are linear in y."""

    def __init__(self, known: Known, number: int) -> None:
        node = known.nodes[number]
        source = node.inputs[0]
        self.box, self.eps, self.d = known.boxes[source], _stored(np.array(node.eps)), node.shape[-1]
        self.ellipsoid: zonotopes.CheckedEllipsoid | None = None
        self.c, far, along = self.box.middle(), np.array(np.inf), np.array(np.inf)
        if source in known.zonotopes and self.box.lo.size * self.d <= zonotopes.MOST_SHAPES:
            z = known.zonotopes[source]
            known.charge(z.columns.size * self.d)
            one = zonotopes.ProvedZonotope(
                centre=z.centre[..., None, :],
                columns=z.columns[..., None, :, :],
                error=z.error[..., None, :],
                exact=z.exact,
                balls=z.balls,
            )
            self.ellipsoid, self.c = zonotopes.ellipsoid(one), z.centre
            far = ((zonotopes.spectral(self.ellipsoid.L) * self.ellipsoid.root) ** 2 * MORE)[..., 0]
            along = zonotopes.by_columns(z.centre[None, ..., None, :], one)[0, ..., 0, 0]
        self.reach = self.box.reach(self.c)
        self.far = np.minimum(far, (self.reach**2).sum(-1) * (1 + rounding(self.d)))
        self.along = np.minimum(along, (np.abs(self.c) * self.reach).sum(-1) * (1 + rounding(self.d)))
        self.square = ProvedInterval(self.c).square().sum() / self.d
        self.middle = (self.square + self.eps).sqrt()
        plane = (self.square - ProvedInterval(self.along) / self.d + self.eps) / self.middle
        least = self.box.square().sum() / self.d + self.eps
        most = np.minimum(least.hi, (self.square + self.eps + (ProvedInterval(2 * self.along) + self.far) / self.d).hi)
        sigma = ProvedInterval(np.maximum(least.sqrt().lo, plane.lo), up(np.sqrt(most)))
        self.sigma = sigma.meet(known.sigma[number]) if number in known.sigma else sigma

    def below(self, touch: Array | None = None) -> tuple[Array, Array]:
        """Slopes k (S, ..., d) and constants b (S, ...) with ρ ≥ k·y + b.

        They come from the tangent of x^{−1/2} at σ₀², touch = σ₀ (S, ...), and from an upper bound of σ² that is linear
        in y: by the chords of y², or by the expansion about c, whichever is lower at c.
        """
        d, eps, box = self.d, self.eps, self.box
        chords = (ProvedInterval(box.lo) + box.hi) / d, eps - (ProvedInterval(box.lo) * box.hi).sum() / d
        about = ProvedInterval(2 * self.c) / d, eps - self.square + ProvedInterval(self.far) / d
        values_at_c = [(s.middle() * self.c).sum(-1) + b.middle() for s, b in (about, chords)]
        slope, square = (x.where(values_at_c[0] < values_at_c[1], y) for x, y in zip(about, chords, strict=True))
        if touch is None:
            inside = np.clip(self.c, box.lo, box.hi)
            touch = np.sqrt(np.maximum((slope.middle() * inside).sum(-1) + square.hi, self.sigma.lo**2))[None]
        if not (touch > 0).all():
            raise Rejected("a tangent of the inverse root at a number that is not positive")
        T = 1 / (2 * (ProvedInterval(touch) * touch * touch))
        return self._floats(-slope * T[..., None], 1.5 / ProvedInterval(touch) - T * square, -1)

    def above(self) -> tuple[Array, Array]:
        """Slopes k (..., d) and constants b (...) with ρ ≤ k·y + b.

        They come from the chord of 1/σ, and from σ ≥ its tangent plane at c, (c·y/d + eps)/σ(c).
        """
        low, high = ProvedInterval(self.sigma.lo), ProvedInterval(self.sigma.hi)
        both = low * high
        k = -ProvedInterval(self.c) / (both * self.middle * self.d)[..., None]
        return self._floats(k, (low + high - self.eps / self.middle) / both, 1)

    def _floats(self, k: ProvedInterval, b: ProvedInterval, side: int) -> tuple[Array, Array]:
        """Slopes as floats, and the constant of the upper (side 1) or lower (side −1) bound, widened for rounding."""
        slope = k.middle()
        error = (ProvedInterval(k.reach(slope)) * self.box.size).sum().hi
        return slope, (b + error).hi if side > 0 else (b - error).lo

    def least(self, k: Array, b: Array) -> Array:
        """A lower bound of k·y + b over each row: k = times · c + rest, and |c·(y − c)| is bounded. k (S, ..., d)."""
        length = (self.c**2).sum(-1)
        times = (k * self.c).sum(-1) / np.where(length > 0, length, 1.0)
        rest = ProvedInterval(k) - ProvedInterval(times[..., None]) * self.c
        deviation = ((rest.size * self.reach).sum(-1) + np.abs(times) * self.along) * (1 + rounding(self.d))
        deviation = np.minimum(deviation, (np.abs(k) * self.reach).sum(-1) * (1 + rounding(self.d)))
        return np.asarray(((ProvedInterval(k) * self.c).sum() + b - deviation).lo)
