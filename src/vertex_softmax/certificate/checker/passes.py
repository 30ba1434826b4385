"""One backward pass: linear functions of a node become linear functions of the input.

Invariant: for every input x of the set for which all boxes hold, Σ A·node(x) ≥ Σ coefficients·x + lo; under `parallel`
Σ A·node(x) = Σ coefficients·x + Σ noise·ν + c with lo ≤ c ≤ hi and ν in [−1, 1], the same ν(x) for every A.

Coefficients are floats and count as exact: only constants carry errors. Where an op needs A' = A W and floating point
gives Â instead, |(A' − Â)·x| ≤ rounding · |A|·(|W| |x|), with |x| from the box, is subtracted from the constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from . import curves, rows, zonotopes
from .cuts import Cuts
from .file import Rejected
from .fitted import CheckedFits, by_fitted
from .lines import relu_lines
from .narrowing import ProvedBound
from .network import LOOK, ExactFactors, Known
from .rounding import MORE, TINY, Array, ProvedInterval, down, rounding, up

MOST_COLUMNS = 1 << 25
"""The most numbers in the columns of one zonotope; further noise becomes error."""
MOST_EXACT = 1 << 28
"""The most products for sums over all columns of a zonotope; where more are needed, ellipsoids are used."""
UNDERFLOW = 2.0**-900
"""More than a size loses by underflow."""
LOST = 2.0**-980
"""More than a coefficient loses by underflow: 2⁻¹⁰²² for each of the less than 2⁴⁰ products that it is a sum of."""
FEW_ROWS = 0.3
"""Where at most this share of the rows of an attention have coefficients, the others are left out."""
SLACK = 128
"""The relative error of a stored number, 2⁻⁴⁶ = 128 u, counted in roundings."""

RULES = ("affine", "vertex")
"""The rules for rows of attention."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PassOptions:
    """How a backward pass is run."""

    rule: str = "affine"
    """the rule for rows of attention, one of RULES"""
    chosen: dict[int, dict[str, Array]] = field(default_factory=dict)
    """node → parameters of its relaxation by name, one set per objective (shapes: `wanted`); defaults where absent"""
    parallel: bool = False
    """bound from both sides by parallel planes, with noise terms: for zonotopes"""
    columns: int = 0
    """the most noise terms that are kept as columns under `parallel`"""
    cuts: dict[int, Cuts] = field(default_factory=dict)
    """node that ReLUs alone read → narrower ranges of its entries, for some of the objectives"""
    fitted: dict[int, CheckedFits] = field(default_factory=dict)
    """attention → ellipsoids of its values, fitted to its functionals"""
    groups: int = 1
    """of how many passes that are made at once the objectives are: what is chosen by their number is each one's own"""
    alone: bool = False
    """whether sums over columns are used where one objective's are short enough, however many objectives there are"""


class Pass:
    """One backward pass of S objectives A (S, *shape) from a node to the input. See the module's invariant."""

    def __init__(self, known: Known, number: int, A: Array, options: PassOptions = PassOptions()) -> None:  # noqa: B008
        self.known, self.options, S = known, options, A.shape[0]
        known.charge(S * known.costs[number] + LOOK**2 * (number + 1))
        self.waiting: dict[int, list[Array]] = {number: [A]}
        """Node → coefficients that its users have sent it."""
        self.lo, self.hi, self.error, self.size = (np.zeros(S) for _ in range(4))
        """The constants so far, their rounding error, and the sum of the sizes of their `count` terms; (S,) each."""
        self.count, self.noise = 0, []  # type: tuple[int, list[Array]]
        self.coefficients, self.deviation = (np.zeros((S, math.prod(known.nodes[0].shape))) for _ in range(2))
        for k in range(number, -1, -1):
            if k in self.waiting:
                self._visit(k, self.waiting.pop(k))
        lost = (self.error + rounding(self.count + 2) * self.size) * MORE + TINY * (self.count + 1)
        self.lo, self.hi = down(self.lo - lost), up(self.hi + lost)

    def bound(self) -> Array:
        """A lower bound of Σ A·node over the input set, (S,)."""
        self.known.charge(len(self.lo) * self.known.given.work)
        return np.asarray(down(self.lo + self.known.given.lowest(self.coefficients, self.deviation)))

    def linear_bound(self) -> ProvedBound:
        """The linear bound of an objective that is alone in the pass."""
        if len(self.lo) != 1:
            raise Rejected("a linear bound of several objectives where one alone is needed")
        return ProvedBound(self.coefficients[0], self.deviation[0], float(self.lo[0]))

    def _add(self, lo: Array, hi: Array | None = None) -> None:
        """Add the numbers lo (S, ...) to the lower constants, and hi (or lo, if None) to the upper ones."""
        low = lo.reshape(len(lo), -1)
        below, size = low.sum(-1), np.abs(low).sum(-1)
        above = below
        if hi is not None:
            high = hi.reshape(len(hi), -1)
            above, size = high.sum(-1), np.maximum(size, np.abs(high).sum(-1))
        self.lo, self.hi, self.size = self.lo + below, self.hi + above, self.size + size
        self.count += low.shape[1] + 2

    def _add_constant(self, A: Array, value: Array) -> None:
        """Add Σ A·value to both constants, A (S, *shape) and a stored value (*shape): each product is one term."""
        flat, times = A.reshape(len(A), -1), value.reshape(-1)
        total, size = flat @ times, np.abs(flat) @ (np.abs(times) + UNDERFLOW)
        self.lo, self.hi, self.size = self.lo + total, self.hi + total, self.size + size
        self.count += len(times) + 2
        self.error = self.error + rounding(SLACK) * size * (1 + rounding(len(times))) + TINY * len(times)

    def _add_rounding(self, A: Array, size: Array, roundings: int = 10) -> None:
        """Add the error of terms A·x, |x| ≤ size, after so many roundings; UNDERFLOW covers what `size` has lost."""
        flat = np.abs(A).reshape(A.shape[0], -1) @ (np.broadcast_to(size, A.shape[1:]).reshape(-1) + UNDERFLOW)
        self.error = self.error + rounding(roundings) * flat * (1 + rounding(math.prod(A.shape[1:]))) + TINY * A[0].size

    def _propagate(self, number: int, A: Array) -> None:
        """Add coefficients A (S, *shape) to those that wait for a node."""
        self.waiting.setdefault(number, []).append(A)

    def _add_noise(self, noise: Array) -> None:
        """Add the noise terms of one op, (S, ...): as columns while fewer than `columns` are used, else as errors."""
        flat = noise.reshape(noise.shape[0], -1)
        if sum(part.shape[1] for part in self.noise) + flat.shape[1] <= self.options.columns:
            self.noise.append(flat)
            self._add_rounding(flat, np.ones(1))
        else:
            self._add(-np.abs(flat), np.abs(flat))

    def _visit(self, number: int, parts: list[Array]) -> None:
        """Replace a node, whose coefficients are the sum of `parts` (S, *shape), by linear functions of its inputs."""
        node, known = self.known.nodes[number], self.known
        box, A = known.boxes[number], parts[0]
        self.error = self.error + LOST * known.total_size(number)
        for part in parts[1:]:
            A = A + part
            self._add_rounding(A, box.size, 1)
        chosen = self.options.chosen.get(number, {})
        if "held" in chosen:  # a multiplier h of the box: h·z − max h·z ≤ 0 for z in it, so that any h may be added
            h = chosen["held"]
            self._add(-np.maximum(h * box.lo, h * box.hi))
            A = A + h
            self._add_rounding(A, box.size, 1)
        if number in self.options.cuts:
            A = self._hold(number, A, self.options.cuts[number])
        x, op = node.inputs, node.op
        if op == "Input":
            self.coefficients = A.reshape(A.shape[0], -1)
        elif op == "Constant":
            self._add_constant(A, node.arrays["value"])
        elif op == "Add":
            self._propagate(x[0], A)
            self._propagate(x[1], A)
        elif op == "Scale":
            self._propagate(x[0], A * node.arrays["factor"])
            self._add_rounding(A, known.sizes(number), 2 + SLACK)
        elif op == "Linear":
            weight = node.arrays["weight"]
            self._propagate(x[0], _by_rows(A, weight.T))
            self._add_rounding(A, known.sizes(number), weight.shape[1] + SLACK)
        else:
            named = op in ("Move", "Multiply", "MatMul", "Normalize", "Attention", "Relu")
            getattr(self, "_" + op.lower() if named else "_curve")(number, A, chosen)

    def _hold(self, number: int, A: Array, cuts: Cuts) -> Array:
        """A with the multipliers of cuts added, as above: of single entries, in their narrower ranges."""
        h = cuts.held
        if not h.any():
            return A
        terms = -np.maximum(h * cuts.box.lo, h * cuts.box.hi)
        total, size = (np.bincount(cuts.which, x, len(A)) for x in (terms, np.abs(terms)))
        self.lo, self.hi, self.size = self.lo + total, self.hi + total, self.size + size
        self.count += int(np.bincount(cuts.which).max()) + 2
        flat = A.reshape(len(A), -1).copy()
        flat[cuts.which, cuts.entries] += h
        self._add_rounding(flat, self.known.boxes[number].size.ravel(), 1)
        return flat.reshape(A.shape)

    def _move(self, number: int, A: Array, _: dict[str, Array]) -> None:
        """The coefficients of a gather: those of entries that were taken several times are added up."""
        node = self.known.nodes[number]
        sizes = [math.prod(self.known.nodes[i].shape) for i in node.inputs]
        move = node.move(sum(sizes))
        back = move.back(A.reshape(A.shape[0], -1))
        if move.most > 1:
            self._add_rounding(A, self.known.boxes[number].size, move.most)
        ends = np.cumsum([0, *sizes])
        for k, i in enumerate(node.inputs):
            self._propagate(i, back[:, ends[k] : ends[k + 1]].reshape(-1, *self.known.nodes[i].shape))

    def _multiply(self, number: int, A: Array, _: dict[str, Array]) -> None:
        """An elementwise product: x y = y_c x + x_c y − x_c y_c + (x − x_c)(y − y_c)."""
        i, j = self.known.nodes[number].inputs
        x, y = self.known.boxes[i], self.known.boxes[j]
        centre_x, centre_y = x.middle(), y.middle()
        error = x.reach(centre_x) * y.reach(centre_y) * MORE
        self._propagate(i, A * centre_y)
        self._propagate(j, A * centre_x)
        self._add(-A * (centre_x * centre_y))
        self._add_rounding(A, (x.size + np.abs(centre_x)) * (y.size + np.abs(centre_y)))
        self._add_second_order(A, error)

    def _matmul(self, number: int, A: Array, chosen: dict[str, Array]) -> None:
        """A matrix product: as `_multiply` for every row and column, with one error for the whole sum over d."""
        i, j = self.known.nodes[number].inputs
        planes = self.known.planes(number)
        centre_x, centre_y = planes.centre_x, planes.centre_y
        x, y = self.known.boxes[i].size, self.known.boxes[j].size
        if "corner" in chosen:
            if planes.exact is None:
                raise Rejected("planes at a corner need factors whose generators are those of the input alone")
            self._corner(number, A, np.clip(distinct(chosen["corner"]), -1, 1), planes.exact)
            return
        self._propagate(i, A @ centre_y.swapaxes(-1, -2))
        self._propagate(j, centre_x.swapaxes(-1, -2) @ A)
        self._add(-A * (centre_x @ centre_y))
        self._add_rounding(A, (x + np.abs(centre_x)) @ (y + np.abs(centre_y)), max(A.shape[-2:]) + centre_x.shape[-1])
        self._add_second_order(A, planes.error)

    def _corner(self, number: int, A: Array, sigma: Array, factors: ExactFactors) -> None:
        """The planes of a matrix product that touch it at the inputs ξ = σ instead of at the centre.

        σ: (S, inputs), or (1, inputs) for all objectives.

        With x = x_c + G ξ, y = y_c + H ξ, M = Gᵀ H and s the sign of a M_pq,

        a M_pq ξ_p ξ_q ≥ |a M_pq| (τ (ξ_p + s ξ_q) − 1) for τ = (σ_p + s σ_q)/2 in [−1, 1]; added up it is
        ½ a (Gσ·Hξ + Gξ·Hσ) + ½ |a| Σ_p σ_p ξ_p (Σ_q |M_pq| + Σ_q |M_qp|) − |a| Σ |M|.
        """
        i, j = self.known.nodes[number].inputs
        planes = self.known.planes(number)
        centre_x, centre_y = planes.centre_x, planes.centre_y
        G, H, error, sums = factors.columns_x, factors.columns_y, factors.error, factors.sums
        dx, dy = (np.moveaxis(columns @ sigma.T, -1, 0) for columns in (G, H))  # (S, ..., n, d), (S, ..., m, d)
        x, y = centre_x + dx / 2, centre_y + dy.swapaxes(-1, -2) / 2
        self._propagate(i, A @ y.swapaxes(-1, -2))
        self._propagate(j, x.swapaxes(-1, -2) @ A)
        self._add(-A * (centre_x @ y + (dx / 2) @ centre_y))
        self._add(-np.abs(A) * error)
        flat = np.abs(A).reshape(A.shape[0], -1)
        self.deviation = self.deviation + sigma / 2 * (flat @ sums.reshape(flat.shape[1], -1))
        far_x, far_y = np.abs(centre_x) + np.abs(G).sum(-1), np.abs(centre_y) + np.abs(H).sum(-1).swapaxes(-1, -2)
        size = (self.known.boxes[i].size + far_x) @ (self.known.boxes[j].size + far_y)
        self._add_rounding(A, size + error, G.shape[-1] + flat.shape[1] + 3 * G.shape[-2] + max(A.shape[-2:]))

    def _add_second_order(self, A: Array, error: Array) -> None:
        """Add a second-order term of size at most `error`: as noise under `parallel`, else as an error."""
        return self._add_noise(A * error) if self.options.parallel else self._add(-np.abs(A) * error)

    def _relu(self, number: int, A: Array, chosen: dict[str, Array]) -> None:
        """ReLU: as `_curve`; entries that are cut have lines of their own, over the ranges that are left of them."""
        node, cuts = self.known.nodes[number], self.options.cuts.get(self.known.nodes[number].inputs[0])
        box, flat = self.known.boxes[node.inputs[0]], A.reshape(len(A), -1)
        if self.options.parallel:
            self._band(number, A)
            return
        k = chosen["slope"].reshape(len(A), -1) if "slope" in chosen else None
        lines = self.known.linear_bounds(number).flat()
        if k is not None:
            lines = relu_lines(ProvedInterval(box.lo.ravel(), box.hi.ravel()), distinct(k))
        slope, constant = lines.times(flat)
        if cuts is not None:
            at = cuts.which, cuts.entries
            slope[at], constant[at] = relu_lines(cuts.box, None if k is None else k[at]).times(flat[at])
        self._propagate(node.inputs[0], slope.reshape(A.shape))
        self._add_rounding(slope, box.size.ravel())
        self._add(constant)

    def _band(self, number: int, A: Array) -> None:
        """A function of one number under `parallel`: between two lines of one slope."""
        node, lines = self.known.nodes[number], self.known.linear_bounds(number)
        middle = lines.band_lower / 2 + lines.band_upper / 2
        self._propagate(node.inputs[0], A * lines.band_slope)
        self._add_rounding(A, np.abs(lines.band_slope) * self.known.boxes[node.inputs[0]].size)
        self._add(A * middle)
        self._add_noise(A * ProvedInterval(lines.band_lower, lines.band_upper).reach(middle))

    def _curve(self, number: int, A: Array, chosen: dict[str, Array]) -> None:
        """A function of one number: A⁺ times the line below and A⁻ times the line above; under `parallel` the band."""
        node = self.known.nodes[number]
        box = self.known.boxes[node.inputs[0]]
        if self.options.parallel:
            self._band(number, A)
            return
        lines = self.known.linear_bounds(number)
        if "below" in chosen:
            k, h = chosen["below"], chosen["above"]
            low = curves.floor(node.op, 1, k, chosen["touch_below"].swapaxes(0, 1), box.lo, box.hi)
            high = -curves.floor(node.op, -1, -h, chosen["touch_above"].swapaxes(0, 1), box.lo, box.hi)
            lines = replace(lines, lower_slope=k, lower_intercept=low, upper_slope=h, upper_intercept=high)
        slope, constant = lines.times(A)
        self._propagate(node.inputs[0], slope)
        self._add_rounding(slope, box.size)
        self._add(constant)

    def _normalize(self, number: int, A: Array, chosen: dict[str, Array]) -> None:
        """A normalisation: η·y/σ = ρ_c w + ŵ (ρ − ρ_c) + (w − ŵ)(ρ − ρ_c), w = η·y, ρ = 1/σ, for any ρ_c and ŵ."""
        norm = self.known.norm(number)
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
        if self.options.parallel:  # ρ − h·y is bounded from below over the rows
            least = norm.least(k - h, low)
            back, ends = rho[..., None] * A + w[..., None] * h, [w * (least - rho), w * (high - rho)]
            self._add(np.minimum(*ends) - second, np.maximum(*ends) + second)
        else:
            positive = w >= 0
            back = rho[..., None] * A + w[..., None] * np.where(positive[..., None], k, h)
            ends = [w * (np.where(positive, low, high) - rho)] * 2
            self._add(ends[0] - second)
        sizes = [np.abs(rho[..., None] * A), np.abs(w[..., None]) * np.maximum(np.abs(k), np.abs(h))]
        self._add_rounding(sizes[0] + sizes[1], norm.box.size)
        self._add_rounding((np.maximum(*map(np.abs, ends)) + second + np.abs(w * rho)).reshape(len(A), -1), np.ones(1))
        self._propagate(self.known.nodes[number].inputs[0], back)

    def _attention(self, number: int, A: Array, chosen: dict[str, Array]) -> None:
        """Attention: Σ_d η_id out_id = Σ_j p_ij w_ij, with each w_ij = η_i·v_j bounded first; then the rule per row."""
        i, j = self.known.nodes[number].inputs
        if "penalty" in self.known.nodes[number].arrays:  # see rows.negligible
            each = np.abs(A).sum(-2, keepdims=True) * (1 + rounding(A.shape[-2]))
            self._add_rounding(np.broadcast_to(each, (len(A), *self.known.nodes[j].shape)), self.known.boxes[j].size, 1)
        ranges = Functionals(self.known, number, A, self.options)
        pieces = next((chosen[name].shape[-1] for name in ("mu", "level") if name in chosen), 1)
        row = self.known.softmax_rows(number, pieces)
        if self.options.rule == "vertex":
            self._add(rows.vertex(row, ranges.of(A).lo))
            return
        used = (A != 0).any(-1)
        if not chosen and ranges.fitted is None and used.mean() < FEW_ROWS:
            found = self._some_rows(row, A, used, ranges)
        else:
            found = self._rows(row, ranges.of(A), chosen)
        self._add(found.lo, found.hi)
        self._add_rounding(np.abs(found.m).swapaxes(-1, -2) @ np.abs(A), self.known.boxes[j].size, A.shape[-2])
        self._propagate(i, found.a)
        self._propagate(j, found.m.swapaxes(-1, -2) @ A)

    def _rows(self, row: rows.SoftmaxRows, w: ProvedInterval, chosen: dict[str, Array]) -> BoundedRows:
        """The affine rule for rows with functionals w, (S, ..., n, K)."""
        if "a" in chosen:
            a, m, mu = np.where(row.visible, chosen["a"], 0.0), chosen["m"], chosen["mu"]
        elif "place" in chosen:
            a, m, mu = rows.placed(row, w, chosen["place"], chosen["slope"], chosen["level"])
        else:  # the gradient and the value of the row at the centre
            m, centre = np.broadcast_to(row.middle, w.lo.shape), w.middle()
            mu = (m * centre).sum(-1, keepdims=True)
            a = m * (centre - mu)
        above = -rows.affine(row, -w, -a, m, -mu) if self.options.parallel else None
        return BoundedRows(a, m, rows.affine(row, w, a, m, mu), above)

    def _some_rows(self, row: rows.SoftmaxRows, A: Array, used: NDArray[np.bool_], ranges: Functionals) -> BoundedRows:
        """The same where most rows have no coefficients, `used` (S, ..., n): those are 0, and so is what they add."""
        shape = (*A.shape[:-1], row.visible.shape[-1])
        found = BoundedRows(*(np.zeros(shape) for _ in range(2)), *(np.zeros(used.shape) for _ in range(2)))
        for index in np.ndindex(*A.shape[1:-2]):
            at = (slice(None), *index)
            s, i = np.nonzero(used[at])
            w = ranges.of(A[at][s, i][:, None], index)[:, 0]
            mine = self._rows(row.at(index, i), ProvedInterval(w.lo[None], w.hi[None]), {})
            pairs = ((found.a, mine.a), (found.m, mine.m), (found.lo, mine.lo), (found.hi, mine.hi))
            for whole, some in pairs:
                if some is not None and whole is not None:
                    whole[at][s, i] = some[0]
        return found if self.options.parallel else replace(found, hi=None)


@dataclass(frozen=True, eq=False)
class BoundedRows:
    """Σ_j p_j w_j ≥ a·s + m·w + lo for rows of attention, (S, ..., n, K) and (S, ..., n)."""

    a: Array
    m: Array
    lo: Array
    hi: Array | None
    """and ≤ a·s + m·w + hi, under `parallel`"""


class Functionals:
    """The ranges of η_i·v_j for the rows v_j of an attention's values, (..., n, d), in one pass."""

    def __init__(self, known: Known, attention: int, eta: Array, options: PassOptions) -> None:
        """eta: all functionals of the pass, (S, ..., m, d)."""
        self.known, self.number = known, known.nodes[attention].inputs[1]
        self.fitted, self.shape = options.fitted.get(attention), known.nodes[attention].shape
        self.box, self.z = known.boxes[self.number], known.zonotopes.get(self.number)
        self.by_sums = False
        if self.z is not None:
            each = eta[0].size * known.used_columns(self.number)
            counted = 1 if options.alone else len(eta) // options.groups
            self.by_sums = self.fitted is None and each * counted <= MOST_EXACT
            known.charge(each * len(eta) if self.by_sums else eta.size * self.z.columns.shape[-3] * eta.shape[-1])

    def of(self, eta: Array, index: tuple[int, ...] = ()) -> ProvedInterval:
        """η (S, ..., m, d) → (S, ..., m, n); with `index` (not where ellipsoids are fitted) of the values there."""
        box, z = self.box[index], None if self.z is None else self.z.at(index)
        centre, d = box.middle() if z is None else z.centre, eta.shape[-1]
        size = np.abs(eta)
        radius = size @ box.reach(centre).swapaxes(-1, -2)
        if z is not None:
            if self.fitted is not None:
                if eta.shape[1:] != self.shape:
                    raise Rejected("fitted ellipsoids for functionals of another shape")
                bound = by_fitted(eta, self.fitted)
            elif self.by_sums:
                bound = zonotopes.by_columns(eta, z)
            else:
                bound = zonotopes.by_ellipsoid(eta, self.known.ellipsoid(self.number).at(index))
            radius = np.minimum(radius, bound)
        radius = (radius + rounding(d) * (size @ np.abs(centre).swapaxes(-1, -2))) * (1 + rounding(d + 2)) + TINY * d
        middle = eta @ centre.swapaxes(-1, -2)
        return ProvedInterval(down(middle - radius), up(middle + radius))


def _by_rows(A: Array, weight: Array) -> Array:
    """A @ weight for A (..., n): one product of all rows, as numpy makes one for each matrix of a stack."""
    return np.asarray((A.reshape(-1, A.shape[-1]) @ weight).reshape(*A.shape[:-1], weight.shape[-1]))


def distinct(x: Array) -> Array:
    """Parameters (S, ...); if those of all objectives are the same numbers in memory, of the first alone: (1, ...)."""
    return x[:1] if x.strides[0] == 0 else x


def wanted(known: Known, number: int, S: int, pieces: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters that may be chosen for a node in a pass of S objectives, by their names."""
    node = known.nodes[number]
    shape, last = node.shape, node.shape[:-1]
    keys = known.nodes[node.inputs[0]].shape if node.inputs else shape
    whole = {"held": shape, "below": shape, "above": shape, "touch": last, "a": keys, "m": keys, "place": keys}
    more = {"touch_below": (2, *shape), "touch_above": (2, *shape), "mu": (*keys[:-1], pieces)}
    more |= {"slope": keys, "level": (*keys[:-1], pieces), "corner": (int(np.prod(known.nodes[0].shape)),)}
    return {name: (S, *rest) for name, rest in {**whole, **more}.items()}
