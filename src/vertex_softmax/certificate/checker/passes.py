"""One backward pass: linear functions of a node become linear functions of the input.

Invariant: for every input x of the set for which all boxes hold, Σ A·node(x) ≥ Σ coefficients·x + lo; under `parallel`
Σ A·node(x) = Σ coefficients·x + Σ noise·ν + c with lo ≤ c ≤ hi and ν in [−1, 1], the same ν(x) for every A.

Coefficients are floats and exact, whatever they are: only constants carry errors. Where an op asks for A' = A W and
floats give Â, (A' − Â)·x is a constant to be paid for, at most rounding · |A|·(|W| |x|) with |x| from the box.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from . import curves, rows, zonotopes
from .network import LOOK, Known, Norm, relu_lines
from .rounding import MORE, TINY, Array, Interval, down, rounding, up

MOST_COLUMNS = 1 << 25
"""Numbers in the columns of one zonotope; what is beyond becomes error."""
MOST_EXACT = 1 << 28
"""Products that the whole sums over columns may take, else ellipsoids."""


UNDERFLOW = 2.0**-900
LOST = 2.0**-980
"""More than a coefficient loses by underflow: 2⁻¹⁰²² for each of the less than 2⁴⁰ products that it is made of."""
SLACK = 128
"""As many roundings as what a stored number may be off by: 2⁻⁴⁶ = 128 u."""


class How(NamedTuple):
    """Which rule rows take, into how many pieces, what was chosen per node and objective, and what is wanted."""

    rule: str = "affine"
    pieces: int = 1
    chosen: dict[int, dict[str, Array]] = {}  # noqa: RUF012
    parallel: bool = False
    columns: int = 0


class Pass:
    """The state of one pass of S objectives."""

    def __init__(self, known: Known, number: int, A: Array, how: How = How()) -> None:  # noqa: B008
        self.known, self.how, S = known, how, A.shape[0]
        known.charge(S * known.costs[number] + LOOK**2 * (number + 1))
        self.waiting: dict[int, list[Array]] = {number: [A]}
        self.lo, self.hi, self.paid, self.size = (np.zeros(S) for _ in range(4))
        self.count, self.noise = 0, []  # type: tuple[int, list[Array]]
        self.coefficients, self.deviation = (np.zeros((S, math.prod(known.nodes[0].shape))) for _ in range(2))
        for k in range(number, -1, -1):
            if k in self.waiting:
                self._visit(k, self.waiting.pop(k))
        lost = (self.paid + rounding(self.count + 2) * self.size) * MORE + TINY * (self.count + 1)
        self.lo, self.hi = down(self.lo - lost), up(self.hi + lost)

    def bound(self) -> Array:
        """At most Σ A·node over the input box."""
        centre, reach = self.start()
        n = len(centre)
        found = self.lo + self.coefficients @ centre - np.abs(self.coefficients * reach + self.deviation).sum(-1)
        size = np.abs(self.coefficients) @ (np.abs(centre) + reach) + np.abs(self.deviation).sum(-1) + np.abs(self.lo)
        return np.asarray(down(found - rounding(2 * n + 6) * size * MORE - TINY * 2 * n))

    def start(self) -> tuple[Array, Array]:
        """x = centre + reach ξ, |ξ| ≤ 1."""
        box = self.known.boxes[0]
        return box.middle().ravel(), box.reach(box.middle()).ravel()

    def _add(self, lo: Array, hi: Array | None = None) -> None:
        """Numbers (S, ...) to be added up."""
        low, high = (x.reshape(len(x), -1) for x in (lo, lo if hi is None else hi))
        self.lo, self.hi = self.lo + low.sum(-1), self.hi + high.sum(-1)
        self.size = self.size + np.maximum(np.abs(low).sum(-1), np.abs(high).sum(-1))
        self.count += low.shape[1] + 2

    def _pay(self, A: Array, size: Array, roundings: int = 10) -> None:
        """What |A|·size has rounded; what underflowed on the way to it is in UNDERFLOW."""
        flat = np.abs(A).reshape(A.shape[0], -1) @ (np.broadcast_to(size, A.shape[1:]).reshape(-1) + UNDERFLOW)
        self.paid = self.paid + rounding(roundings) * flat * (1 + rounding(math.prod(A.shape[1:]))) + TINY * A[0].size

    def _give(self, number: int, A: Array) -> None:
        self.waiting.setdefault(number, []).append(A)

    def _hear(self, noise: Array) -> None:
        """Columns of one op, as long as there is room; then errors."""
        flat = noise.reshape(noise.shape[0], -1)
        if sum(part.shape[1] for part in self.noise) + flat.shape[1] <= self.how.columns:
            self.noise.append(flat)
            self._pay(flat, np.ones(1))
        else:
            self._add(-np.abs(flat), np.abs(flat))

    def _visit(self, number: int, parts: list[Array]) -> None:
        node, known = self.known.nodes[number], self.known
        box, A = known.boxes[number], parts[0]
        self.paid = self.paid + LOST * float(box.size.sum() * MORE)
        for part in parts[1:]:
            A = A + part
            self._pay(A, box.size, 1)
        chosen = self.how.chosen.get(number, {})
        if "held" in chosen:  # h·z − max h·z ≤ 0 on the box: any h may be added
            h = chosen["held"]
            self._add(-np.maximum(h * box.lo, h * box.hi))
            A = A + h
            self._pay(A, box.size, 1)
        x, op = node.inputs, node.op
        if op == "Input":
            self.coefficients = A.reshape(A.shape[0], -1)
        elif op == "Constant":
            self._add(A * node.arrays["value"])
            self._pay(A, np.abs(node.arrays["value"]), SLACK)
        elif op == "Add":
            self._give(x[0], A)
            self._give(x[1], A)
        elif op == "Scale":
            self._give(x[0], A * node.arrays["factor"])
            self._pay(A, known.make(number, "sizes"), 2 + SLACK)
        elif op == "Linear":
            weight = node.arrays["weight"]
            self._give(x[0], A @ weight.T)
            self._pay(A, known.make(number, "sizes"), weight.shape[1] + SLACK)
        else:
            named = op in ("Move", "Multiply", "MatMul", "Normalize", "Attention")
            getattr(self, "_" + op.lower() if named else "_curve")(number, A, chosen)

    def _move(self, number: int, A: Array, _: dict[str, Array]) -> None:
        node = self.known.nodes[number]
        sizes = [math.prod(self.known.nodes[i].shape) for i in node.inputs]
        index, flat = node.arrays["index"].ravel(), A.reshape(A.shape[0], -1)
        order = np.argsort(index, kind="stable")
        which, first = np.unique(index[order], return_index=True)
        back = np.zeros((A.shape[0], sum(sizes)))
        back[:, which] = flat[:, order] if len(which) == len(index) else np.add.reduceat(flat[:, order], first, axis=1)
        if len(which) < len(index):
            self._pay(A, self.known.boxes[number].size, int(np.bincount(index).max()))
        ends = np.cumsum([0, *sizes])
        for k, i in enumerate(node.inputs):
            self._give(i, back[:, ends[k] : ends[k + 1]].reshape(-1, *self.known.nodes[i].shape))

    def _multiply(self, number: int, A: Array, _: dict[str, Array]) -> None:
        """x y = y_c x + x_c y − x_c y_c + (x − x_c)(y − y_c)."""
        i, j = self.known.nodes[number].inputs
        x, y = self.known.boxes[i], self.known.boxes[j]
        at_x, at_y = x.middle(), y.middle()
        error = x.reach(at_x) * y.reach(at_y) * MORE
        self._give(i, A * at_y)
        self._give(j, A * at_x)
        self._add(-A * (at_x * at_y))
        self._pay(A, (x.size + np.abs(at_x)) * (y.size + np.abs(at_y)))
        self._second(A, error)

    def _matmul(self, number: int, A: Array, chosen: dict[str, Array]) -> None:
        """The same for every row and column, with one error for the whole sum."""
        i, j = self.known.nodes[number].inputs
        at_x, at_y, error, exact = self.known.make(number, "planes")
        x, y = self.known.boxes[i].size, self.known.boxes[j].size
        if "corner" in chosen:
            self._corner(number, A, np.clip(chosen["corner"], -1, 1), *exact)
            return
        self._give(i, A @ at_y.swapaxes(-1, -2))
        self._give(j, at_x.swapaxes(-1, -2) @ A)
        self._add(-A * (at_x @ at_y))
        self._pay(A, (x + np.abs(at_x)) @ (y + np.abs(at_y)), max(A.shape[-2:]) + at_x.shape[-1])
        self._second(A, error)

    def _corner(self, number: int, A: Array, sigma: Array, G: Array, H: Array, error: Array, sums: Array) -> None:
        """The planes that touch at ξ = σ. With x = x_c + G ξ, y = y_c + H ξ, M = Gᵀ H and s the sign of a M_pq,

        a M_pq ξ_p ξ_q ≥ |a M_pq| (τ (ξ_p + s ξ_q) − 1) for τ = (σ_p + s σ_q)/2 in [−1, 1]; added up it is
        ½ a (Gσ·Hξ + Gξ·Hσ) + ½ |a| Σ_p σ_p ξ_p (Σ_q |M_pq| + Σ_q |M_qp|) − |a| Σ |M|.
        """
        i, j = self.known.nodes[number].inputs
        at_x, at_y, _, _ = self.known.make(number, "planes")
        dx, dy = (np.moveaxis(columns @ sigma.T, -1, 0) for columns in (G, H))  # (S, ..., n, d), (S, ..., m, d)
        x, y = at_x + dx / 2, at_y + dy.swapaxes(-1, -2) / 2
        self._give(i, A @ y.swapaxes(-1, -2))
        self._give(j, x.swapaxes(-1, -2) @ A)
        self._add(-A * (at_x @ y + (dx / 2) @ at_y))
        self._add(-np.abs(A) * error)
        flat = np.abs(A).reshape(A.shape[0], -1)
        self.deviation = self.deviation + sigma / 2 * (flat @ sums.reshape(flat.shape[1], -1))
        far_x, far_y = np.abs(at_x) + np.abs(G).sum(-1), np.abs(at_y) + np.abs(H).sum(-1).swapaxes(-1, -2)
        size = (self.known.boxes[i].size + far_x) @ (self.known.boxes[j].size + far_y)
        self._pay(A, size + error, G.shape[-1] + flat.shape[1] + 3 * G.shape[-2] + max(A.shape[-2:]))

    def _second(self, A: Array, error: Array) -> None:
        """What is left of second order: an unknown of its own, or an error."""
        return self._hear(A * error) if self.how.parallel else self._add(-np.abs(A) * error)

    def _curve(self, number: int, A: Array, chosen: dict[str, Array]) -> None:
        """A⁺ times the lower line, A⁻ times the upper one; or the band."""
        node = self.known.nodes[number]
        box = self.known.boxes[node.inputs[0]]
        k, low, h, high, c, b, t = self.known.make(number, "curve")
        if self.how.parallel:
            middle = b / 2 + t / 2
            self._give(node.inputs[0], A * c)
            self._pay(A, np.abs(c) * box.size)
            self._add(A * middle)
            self._hear(A * Interval(b, t).reach(middle))
            return
        if node.op == "Relu" and "slope" in chosen:
            k, low, *_ = relu_lines(box, chosen["slope"])
        elif "below" in chosen:
            k, h = chosen["below"], chosen["above"]
            low = curves.floor(node.op, 1, k, chosen["touch_below"].swapaxes(0, 1), box.lo, box.hi)
            high = -curves.floor(node.op, -1, -h, chosen["touch_above"].swapaxes(0, 1), box.lo, box.hi)
        up_ = A >= 0
        slope = A * np.where(up_, k, h)
        self._give(node.inputs[0], slope)
        self._pay(slope, box.size)
        self._add(A * np.where(up_, low, high))

    def _normalize(self, number: int, A: Array, chosen: dict[str, Array]) -> None:
        """η·y/σ = ρ_c w + ŵ (ρ − ρ_c) + (w − ŵ)(ρ − ρ_c), w = η·y, ρ = 1/σ, for any numbers ρ_c and ŵ."""
        norm: Norm = self.known.make(number, "norm")
        d = norm.d
        w = (A * norm.c).sum(-1)
        off = (np.abs(A) * norm.reach).sum(-1)
        if norm.ellipsoid is not None:
            off = np.minimum(off, zonotopes.by_ellipsoid(A[..., None, :], norm.ellipsoid)[..., 0, 0])
        off = (off + rounding(d) * (np.abs(A) * np.abs(norm.c)).sum(-1)) * (1 + rounding(d + 2)) + TINY * d
        inverse = 1 / norm.sigma
        rho = inverse.middle()
        second = off * inverse.reach(rho) * MORE
        (k, low), (h, high) = norm.below(chosen.get("touch")), norm.above()
        if self.how.parallel:  # ρ − h·y from below over the rows
            least = norm.apart(k - h, low)
            back, ends = rho[..., None] * A + w[..., None] * h, [w * (least - rho), w * (high - rho)]
            self._add(np.minimum(*ends) - second, np.maximum(*ends) + second)
        else:
            up_ = w >= 0
            back = rho[..., None] * A + w[..., None] * np.where(up_[..., None], k, h)
            ends = [w * (np.where(up_, low, high) - rho)] * 2
            self._add(ends[0] - second)
        sizes = [np.abs(rho[..., None] * A), np.abs(w[..., None]) * np.maximum(np.abs(k), np.abs(h))]
        self._pay(sizes[0] + sizes[1], norm.box.size)
        self._pay((np.maximum(*map(np.abs, ends)) + second + np.abs(w * rho)).reshape(len(A), -1), np.ones(1))
        self._give(self.known.nodes[number].inputs[0], back)

    def _attention(self, number: int, A: Array, chosen: dict[str, Array]) -> None:
        """Σ_d η_id out_id = Σ_j p_ij w_ij with w_ij = η_i·v_j, bounded as one number; then a rule per row."""
        i, j = self.known.nodes[number].inputs
        w = self._functionals(j, A)
        pieces = chosen["mu"].shape[-1] if "a" in chosen else 1
        row: rows.Rows = self.known.make(number, "rows", pieces)
        if "penalty" in self.known.nodes[number].arrays:  # see rows.negligible
            each = np.abs(A).sum(-2, keepdims=True) * (1 + rounding(A.shape[-2]))
            self._pay(np.broadcast_to(each, (len(A), *self.known.nodes[j].shape)), self.known.boxes[j].size, 1)
        if self.how.rule == "vertex":
            self._add(rows.vertex(row, w.lo))
            return
        if "a" in chosen:
            a, m, mu = np.where(row.there, chosen["a"], 0.0), chosen["m"], chosen["mu"]
        else:  # the gradient of the row at the centre, and its value there
            m, centre = np.broadcast_to(row.middle, w.lo.shape), w.middle()
            mu = (m * centre).sum(-1, keepdims=True)
            a = m * (centre - mu)
        B = rows.affine(row, w, a, m, mu)
        self._add(B, -rows.affine(row, -w, -a, m, -mu) if self.how.parallel else None)
        self._pay(np.abs(m).swapaxes(-1, -2) @ np.abs(A), self.known.boxes[j].size, A.shape[-2])
        self._give(i, a)
        self._give(j, m.swapaxes(-1, -2) @ A)

    def _functionals(self, number: int, eta: Array) -> Interval:
        """η_i·v_j for rows v of a node: (S, ..., m, d) → (S, ..., m, n)."""
        box, z = self.known.boxes[number], self.known.zonotopes.get(number)
        centre = box.middle() if z is None else z.centre
        d = eta.shape[-1]
        size = np.abs(eta)
        off = size @ box.reach(centre).swapaxes(-1, -2)
        if z is not None:
            few = eta.size * z.columns.shape[-3] * z.columns.shape[-1] <= MOST_EXACT
            self.known.charge(eta.size * z.columns.shape[-3] * (z.columns.shape[-1] if few else d))
            wide = (
                zonotopes.by_columns(eta, z)
                if few
                else zonotopes.by_ellipsoid(eta, self.known.make(number, "ellipsoid"))
            )
            off = np.minimum(off, wide)
        off = (off + rounding(d) * (size @ np.abs(centre).swapaxes(-1, -2))) * (1 + rounding(d + 2)) + TINY * d
        middle = eta @ centre.swapaxes(-1, -2)
        return Interval(down(middle - off), up(middle + off))


def wanted(known: Known, number: int, S: int, pieces: int) -> dict[str, tuple[int, ...]]:
    """The shapes of what may be chosen for a node."""
    node = known.nodes[number]
    shape, last = node.shape, node.shape[:-1]
    keys = known.nodes[node.inputs[0]].shape if node.inputs else shape
    whole = {"held": shape, "slope": shape, "below": shape, "above": shape, "touch": last, "a": keys, "m": keys}
    more = {"touch_below": (2, *shape), "touch_above": (2, *shape), "mu": (*keys[:-1], pieces)}
    corner = (int(np.prod(known.nodes[0].shape)),)
    return {name: (S, *rest) for name, rest in {**whole, **more, "corner": corner}.items()}


def joined(parts: list[Pass], shape: tuple[int, ...]) -> zonotopes.Zonotope:
    """The zonotope of a node whose every number was an objective of one of these parallel passes."""
    centre, reach = parts[0].start()
    A, lo, hi = (np.concatenate(x) for x in zip(*((p.coefficients, p.lo, p.hi) for p in parts), strict=True))
    n = len(centre)
    size = np.abs(A) @ (np.abs(centre) + reach) + np.maximum(np.abs(lo), np.abs(hi))
    error = (hi / 2 - lo / 2 + rounding(n + 4) * size) * (1 + rounding(n + 4)) + TINY * (n + 2)
    middle = (lo / 2 + hi / 2) + A @ centre
    exact = not parts[0].noise and bool((error <= 1e-9 * (1 + size)).all())
    columns = np.concatenate([np.concatenate([p.coefficients * reach, *p.noise], -1) for p in parts])
    if not exact:
        columns = columns[:, (columns != 0).any(0)]
    return zonotopes.Zonotope(middle.reshape(shape), columns.reshape(*shape, -1), error.reshape(shape), exact)
