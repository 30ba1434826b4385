"""The faults of mutants.py, by file: the function, an expression or statements of it, what stands there instead.

Left out, because the proof has room and no result changes to the unsound side: the 2⁻⁵⁰ for the reals between two
floats at an inflection (f'' is 0 there: 1e-48 is lost), single factors MORE or 1 + rounding where another term is
larger, the rounding of N in products, and that of sums of a few numbers which numpy adds in pairs.
"""

from __future__ import annotations

Changes = dict[str, tuple[str, str, str] | tuple[str, str, str, int]]

ROUNDING: Changes = {
    "no rounding term": ("rounding", "2 * (n + 2) * UNIT", "0.0 * n"),
    "a quarter of the rounding term": ("rounding", "2 * (n + 2) * UNIT", "(n + 2) * UNIT / 2"),
    "a rounding term that does not grow": ("rounding", "2 * (n + 2)", "8"),
    "down does nothing": ("down", "return np.nextafter(x, -np.inf)", "return x"),
    "up does nothing": ("up", "return np.nextafter(x, np.inf)", "return x"),
    "down goes up": ("down", "return np.nextafter(x, -np.inf)", "return np.nextafter(x, np.inf)"),
    "a sum is not rounded down": ("ProvedInterval.__add__", "down(self.lo + y.lo)", "self.lo + y.lo"),
    "a difference of like ends": (
        "ProvedInterval.__sub__",
        "ProvedInterval(down(self.lo - y.hi), up(self.hi - y.lo))",
        "ProvedInterval(down(self.lo - y.lo), up(self.hi - y.hi))",
    ),
    "ends of minus x in the wrong order": (
        "ProvedInterval.__neg__",
        "ProvedInterval(-self.hi, -self.lo)",
        "ProvedInterval(-self.lo, -self.hi)",
    ),
    "a corner of a product is missing": ("ProvedInterval.__mul__", "self.hi * y.lo", "self.lo * y.lo"),
    "a corner of a quotient is missing": ("ProvedInterval.__truediv__", "self.lo / y.hi", "self.hi / y.lo"),
    "division by what crosses 0": (
        "ProvedInterval.__truediv__",
        "bounded = (y.lo > 0) | (y.hi < 0)",
        "bounded = y.lo != 0",
    ),
    "a quotient is not rounded up": (
        "ProvedInterval.__truediv__",
        "np.where(bounded, up(ends.max(0)), np.inf)",
        "np.where(bounded, ends.max(0), np.inf)",
    ),
    "a root is not rounded up": ("ProvedInterval.sqrt", "up(np.sqrt(self.hi))", "np.sqrt(self.hi)"),
    "a root is not rounded down": (
        "ProvedInterval.sqrt",
        "down(np.sqrt(np.maximum(self.lo, 0)))",
        "np.sqrt(np.maximum(self.lo, 0))",
    ),
    "a square over 0 is not 0": ("ProvedInterval.square", "(self.lo <= 0) & (self.hi >= 0)", "False"),
    "a square is not rounded up": ("ProvedInterval.square", "up(self.size * self.size)", "self.size * self.size"),
    "size of one end": (
        "ProvedInterval.size",
        "return np.maximum(np.abs(self.lo), np.abs(self.hi))",
        "return np.abs(self.hi)",
    ),
    "sums without a rounding term": (
        "ProvedInterval.sum",
        "rounding(self.lo.shape[axis]) * self.size.sum(axis)",
        "0.0",
    ),
    "|sum| for the sum of |x|": (
        "ProvedInterval.sum",
        "rounding(self.lo.shape[axis]) * self.size.sum(axis)",
        "rounding(self.lo.shape[axis]) * np.abs(self.lo.sum(axis))",
    ),
    "meet joins": ("ProvedInterval.meet", "np.minimum(self.hi, other.hi)", "np.minimum(self.hi, other.lo)"),
    "reach to one side": (
        "ProvedInterval.reach",
        "np.maximum(up(self.hi - point), up(point - self.lo))",
        "np.maximum(up(self.hi - point), up(self.hi - point))",
    ),
    "reach is not rounded up": (
        "ProvedInterval.reach",
        "np.maximum(up(self.hi - point), up(point - self.lo))",
        "np.maximum(self.hi - point, point - self.lo)",
    ),
    "where exchanges one end": (
        "ProvedInterval.where",
        "np.where(condition, self.hi, other.hi)",
        "np.where(condition, other.hi, self.hi)",
    ),
    "products without radius times radius": (
        "product",
        "size_y = np.abs(centre_y) + radius_y",
        "size_y = np.abs(centre_y)",
    ),
    "products without the left radius": (
        "product",
        "np.abs(centre_x) @ radius_y + radius_x @ size_y",
        "np.abs(centre_x) @ radius_y",
    ),
    "products without the right radius": (
        "product",
        "np.abs(centre_x) @ radius_y + radius_x @ size_y",
        "radius_x @ size_y",
    ),
    "products without rounding": (
        "product",
        "rounding(centre_x.shape[-1]) * ((np.abs(centre_x) + radius_x) @ size_y)",
        "0.0",
    ),
    "products without TINY": (
        "product",
        (
            "np.abs(centre_x) @ radius_y + radius_x @ size_y + rounding(centre_x.shape[-1]) * "
            "((np.abs(centre_x) + radius_x) @ size_y) + 8 * centre_x.shape[-1] * TINY"
        ),
        (
            "np.abs(centre_x) @ radius_y + radius_x @ size_y + rounding(centre_x.shape[-1]) * "
            "((np.abs(centre_x) + radius_x) @ size_y)"
        ),
    ),
    "enclose is not rounded down": ("enclose", "down(ends[:, 0])", "ends[:, 0]"),
    "enclose is not rounded up": ("enclose", "up(ends[:, 1])", "ends[:, 1]"),
    "the middle of a ball": ("_ends", "(float(value.lower()), float(value.upper()))", "(float(value), float(value))"),
    "what is no number is 0": ("_ends", "(-np.inf, np.inf)", "(0.0, 0.0)"),
    "the precision is left": ("enclose", "ctx.prec = old_precision", "pass"),
    "the next number of the grid": ("exp_on_grid", "-steps * FINE", "-(steps + 1) * FINE"),
    "the tables exchanged": (
        "exp_on_grid",
        "_tables[0][coarse] * _tables[1][fine]",
        "_tables[0][fine] * _tables[1][coarse % 64]",
    ),
    "MORE is 1": ("", "1 + 2.0**-40", "1.0"),
}
CURVES: Changes = {
    "convex for concave": (
        "floor",
        "curve.convex if sign > 0 else curve.concave",
        "curve.concave if sign > 0 else curve.convex",
    ),
    "tanh the other way": (
        "",
        "_rising(arb.tanh, lambda x: 1 / x.cosh() ** 2)",
        ("Curve(f=arb.tanh, slope=lambda x: 1 / x.cosh() ** 2, convex=ABOVE, concave=BELOW, least=-INFINITY)"),
    ),
    "the reciprocal the other way": (
        "",
        ("Curve(f=lambda x: 1 / x, slope=lambda x: -1 / (x * x), convex=ABOVE, concave=BELOW, least=INFINITY)"),
        ("Curve(f=lambda x: 1 / x, slope=lambda x: -1 / (x * x), convex=BELOW, concave=ABOVE, least=INFINITY)"),
    ),
    "gelu's inflection one float up": (
        "",
        "_bump(1.414213562373095, lambda x: x * _normal(x), _gelu_slope, -0.7517915246935645)",
        "_bump(1.4142135623730951, lambda x: x * _normal(x), _gelu_slope, -0.7517915246935645)",
    ),
    "silu's inflection one float up": (
        "",
        "_bump(2.3993572805154676, lambda x: x * _sigmoid(x), _silu_slope, -1.2784645427610738)",
        "_bump(2.399357280515468, lambda x: x * _sigmoid(x), _silu_slope, -1.2784645427610738)",
    ),
    "the inflection of the tanh form one float down": (
        "",
        ("_tanh_gelu(lambda: ((2 / arb.pi()).sqrt(), arb(44715) / 1000000), 1.4185040087908283, -0.7524614220710163)"),
        ("_tanh_gelu(lambda: ((2 / arb.pi()).sqrt(), arb(44715) / 1000000), 1.418504008790828, -0.7524614220710163)"),
    ),
    "the inflection of the tanh form in double, one float down": (
        "",
        ("_tanh_gelu(lambda: (arb(0.7978845608028654), arb(0.044715)), 1.4185040087908283, -0.7524614220710162)"),
        ("_tanh_gelu(lambda: (arb(0.7978845608028654), arb(0.044715)), 1.418504008790828, -0.7524614220710162)"),
    ),
    "the inflection of the other constants": (
        "",
        (
            "_tanh_gelu(lambda: (arb(0.7978845834732056), arb(0.044714998453855515)), 1.4185039771280708, "
            "-0.7524614044087226)"
        ),
        (
            "_tanh_gelu(lambda: (arb(0.7978845834732056), arb(0.044714998453855515)), 1.4185040087908283, "
            "-0.7524614044087226)"
        ),
    ),
    "the constants of float32 in double": ("", "arb(0.7978845834732056)", "arb(0.7978845608028654)"),
    "0.044715 as a double": ("", "arb(44715) / 1000000", "arb(0.0447)"),
    "gelu's slope": (
        "_gelu_slope",
        "_normal(x) + x * (-x * x / 2).exp() / (2 * arb.pi()).sqrt()",
        "_normal(x) - x * (-x * x / 2).exp() / (2 * arb.pi()).sqrt()",
    ),
    "silu's slope": ("_silu_slope", "1 + x * _sigmoid(-x)", "1 - x * _sigmoid(-x)"),
    "the slope of the tanh form": (
        "_tanh_gelu.slope",
        "x * (1 - t * t) * k * (1 + 3 * c * x * x)",
        "x * (1 - t * t) * k * (1 + 2 * c * x * x)",
    ),
    "the slope of tanh": ("", "x.cosh() ** 2", "x.cosh()"),
    "the slope of the inverse root": ("", "-x.rsqrt()", "x.rsqrt()"),
    "the root is convex": (
        "",
        (
            "Curve(f=arb.sqrt, slope=lambda x: 1 / (2 * x.sqrt()), convex=(), concave=REAL, least=-INFINITY, "
            "domain=(0.0, INFINITY))"
        ),
        (
            "Curve(f=arb.sqrt, slope=lambda x: 1 / (2 * x.sqrt()), convex=REAL, concave=(), least=-INFINITY, "
            "domain=(0.0, INFINITY))"
        ),
    ),
    "the sign of f is lost": (
        "floor.value_at",
        "(value if sign > 0 else -value) - ProvedInterval(k) * x",
        "value - ProvedInterval(k) * x",
    ),
    "upper ends of the values": (
        "floor",
        "np.minimum(value_at(lo).lo, value_at(hi).lo)",
        "np.minimum(value_at(lo).hi, value_at(hi).hi)",
    ),
    "one end only": ("floor", "np.minimum(value_at(lo).lo, value_at(hi).lo)", "value_at(lo).lo + 0 * value_at(hi).lo"),
    "the larger end": (
        "floor",
        "np.minimum(value_at(lo).lo, value_at(hi).lo)",
        "np.maximum(value_at(lo).lo, value_at(hi).lo)",
    ),
    "no tangents": ("floor", "np.where(overlaps, np.minimum(least, best), least)", "np.where(overlaps, least, least)"),
    "tangents that touch elsewhere": ("floor", "np.clip(point, left, right)", "point"),
    "a convex piece that goes on": (
        "floor",
        "np.maximum(lo, start), np.minimum(hi, stop)",
        "np.maximum(lo, start), hi",
    ),
    "a convex piece that begins too early": (
        "floor",
        "np.maximum(lo, start), np.minimum(hi, stop)",
        "lo, np.minimum(hi, stop)",
    ),
    "a rounding that goes half as far": ("_rounded", "0.5", "0.25"),
    "a rounding that never crosses a tie": (
        "_rounded",
        "SLACK * np.maximum(np.maximum(np.abs(lo), np.abs(hi)), 1)",
        "0 * np.maximum(np.maximum(np.abs(lo), np.abs(hi)), 1)",
    ),
    "a rounding up": ("_rounded", "np.ceil(down(lo - half))", "np.ceil(down(lo - half)) + 1"),
    "the larger end beside a rounding": (
        "_rounded",
        "np.minimum((slope * lo).lo, (slope * hi).lo)",
        "np.maximum((slope * lo).lo, (slope * hi).lo)",
    ),
    "the smaller end of k x beside a whole number": ("_rounded", "np.maximum(*ends)", "np.minimum(*ends)"),
    "softplus without its step": ("floor", "(hi > THRESHOLD) & (sign > 0)", "(hi > THRESHOLD) & (sign > 1)"),
    "ELU with a slope of 1 below 0": ("_elu_slope", "arb(1) if x > 0 else x.exp()", "arb(1)"),
    "hardswish bent everywhere": ("_hardswish.slope", "abs(x) > end", "abs(x) > 2 * end"),
    "the larger end of a tangent": ("_above_tangent", "np.minimum(*ends)", "np.maximum(*ends)"),
    "the upper end of a tangent": (
        "_above_tangent",
        "np.asarray((value + np.minimum(*ends)).lo)",
        "np.asarray((value + np.minimum(*ends)).hi)",
    ),
    "the sign of the slope": ("floor", "(slope if sign > 0 else -slope) - k", "slope - k"),
    "the slope of the line forgotten": (
        "floor",
        "(slope if sign > 0 else -slope) - k",
        "slope if sign > 0 else -slope",
    ),
    "k x is added": (
        "floor.value_at",
        "(value if sign > 0 else -value) - ProvedInterval(k) * x",
        "(value if sign > 0 else -value) + ProvedInterval(k) * x",
    ),
    "no domain": ("floor", "(lo >= curve.domain[0]) & (hi <= curve.domain[1]) & (lo <= hi)", "lo <= hi"),
    "boxes that are crossed": (
        "floor",
        "(lo >= curve.domain[0]) & (hi <= curve.domain[1]) & (lo <= hi)",
        "(lo >= curve.domain[0]) & (hi <= curve.domain[1])",
    ),
    "the reciprocal across 0": ("floor", "inside &= (lo > 0) | (hi < 0)", "inside &= True"),
    "the sign of the upper image": (
        "image",
        "-floor(name, -1, zero, points, lo, hi)",
        "floor(name, -1, zero, points, lo, hi)",
    ),
}
ZONOTOPES: Changes = {
    "boxes without errors": (
        "ProvedZonotope.box",
        "self._reach(self.balls) + self.error",
        "self._reach(self.balls)",
    ),
    "boxes without |·|": (
        "ProvedZonotope.box",
        "self._reach(self.balls) + self.error",
        "np.abs(self.columns.sum(-1)) + self.error",
    ),
    "boxes without rounding": (
        "ProvedZonotope.box",
        "(self._reach(self.balls) + self.error) * more_roundings(self.columns.shape[-1])",
        "self._reach(self.balls) + self.error",
    ),
    "turned without its columns": (
        "ProvedZonotope.transposed",
        "self.columns.swapaxes(-3, -2)",
        "self.columns.reshape(self.columns.swapaxes(-3, -2).shape)",
    ),
    "no error column": ("ellipsoid", "C[..., range(d), range(d)] += error", "C[..., range(d), range(d)] += 0"),
    "U without errors": (
        "ellipsoid",
        "np.where(large, u * shared, 0.0).sum(-1) + error.sum(-1)",
        "np.where(large, u * shared, 0.0).sum(-1)",
    ),
    "U without columns": ("ellipsoid", "np.where(large, u * shared, 0.0).sum(-1) + error.sum(-1)", "error.sum(-1)"),
    "a ball counts half": ("ellipsoid", "1 / len(ball.places)", "0.5 / len(ball.places)"),
    "a ball's weight is that of one column": (
        "ellipsoid",
        "np.sqrt(np.square(u[..., ball.places]).sum(-1, keepdims=True))",
        "u[..., ball.places]",
    ),
    "balls of columns that are left out": ("ProvedZonotope.used_rows", "kept(self.balls, used)", "self.balls[:1]"),
    "small columns forgotten": ("ellipsoid", "rows.error + np.abs(rows.columns - g).sum(-1)", "rows.error"),
    "weights twice": ("ellipsoid", "g[index] / u[index]", "g[index] / u[index] / u[index]"),
    "C is not raised": ("ellipsoid", "(2 * rounding(count + 4) + 8 * d * rounding(d + 4)) * trace + TINY", "trace * 0"),
    "U itself for its root": ("ellipsoid", "size * (1 + rounding(count + d + 2))", "np.sqrt(size)"),
    "L for its transpose": (
        "by_ellipsoid",
        "np.moveaxis(rows.L, -3, -2)",
        "np.moveaxis(rows.L.swapaxes(-1, -2), -3, -2)",
    ),
    "lengths without rounding": ("by_ellipsoid", "length + rounding(d + 4) * size", "length"),
    "lengths without underflow": ("", "UNDERFLOW = 1e-150", "UNDERFLOW = 0.0"),
    "lengths without U": (
        "by_ellipsoid",
        "(length + rounding(d + 4) * size + UNDERFLOW) * rows.root[..., None, :] * MORE",
        "(length + rounding(d + 4) * size + UNDERFLOW) * MORE + 0 * rows.root[..., None, :]",
    ),
    "functionals without errors": (
        "by_columns",
        "reach(eta @ G, of) + (size @ rows.error[..., j, :, None])[..., 0]",
        "reach(eta @ G, of)",
    ),
    "functionals without rounding": (
        "by_columns",
        "rounding(d) * (size @ total)[..., 0] + TINY * (count + d)",
        "TINY * (count + d)",
    ),
    "functionals without TINY": (
        "by_columns",
        "rounding(d) * (size @ total)[..., 0] + TINY * (count + d)",
        "rounding(d) * (size @ total)[..., 0]",
    ),
    "the largest column only": ("by_columns", "reach(eta @ G, of)", "np.abs(eta @ G).max(-1, initial=0)"),
    "columns that cancel": ("by_columns", "reach(eta @ G, of)", "np.abs((eta @ G).sum(-1))"),
    "products without the other U": (
        "products",
        "norm * left.root[..., :, None] * right.root[..., None, :] * MORE + TINY",
        "norm * left.root[..., :, None] * MORE + TINY + 0 * right.root[..., None, :]",
    ),
    "L L' for its transpose": (
        "products",
        "np.swapaxes(left.L, -1, -2)[..., :, None, :, :]",
        "left.L[..., :, None, :, :]",
    ),
    "the least row and column": (
        "spectral",
        "np.sqrt(T.sum(-1).max(-1)) * np.sqrt(T.sum(-2).max(-1))",
        "np.sqrt(T.sum(-1).min(-1)) * np.sqrt(T.sum(-2).min(-1))",
    ),
    "a norm that underflows": (
        "spectral",
        "np.sqrt(T.sum(-1).max(-1)) * np.sqrt(T.sum(-2).max(-1))",
        "np.sqrt(T.sum(-1).max(-1) * T.sum(-2).max(-1))",
    ),
    "the largest number for the norm": (
        "spectral",
        "np.sqrt(T.sum(-1).max(-1)) * np.sqrt(T.sum(-2).max(-1))",
        "np.sqrt(T.max(-1).max(-1)) * np.sqrt(T.min(-1).max(-1))",
    ),
    "products without TINY": (
        "products",
        "norm * left.root[..., :, None] * right.root[..., None, :] * MORE + TINY",
        "norm * left.root[..., :, None] * right.root[..., None, :] * MORE",
    ),
    "any L will do": ("ellipsoid", "(spare >= rounding(count + 4) * trace[..., None]).all(-1)", "spare.all(-1) | True"),
    "L is compared without Gershgorin": (
        "ellipsoid",
        "residual.lo[..., range(d), range(d)] - (residual.size * (1 - eye)).sum(-1) * (1 + rounding(d))",
        "residual.lo[..., range(d), range(d)]",
    ),
    "any P will do": ("spectral", "np.where(off < 0.5, norm * (1 + off), np.inf)", "norm"),
    "errors once": (
        "exact_products",
        "2 * (reach @ y.error[index][j] + x.error[index][i] @ end)",
        "reach @ y.error[index][j] + x.error[index][i] @ end",
    ),
    "the left error forgotten": (
        "exact_products",
        "reach @ y.error[index][j] + x.error[index][i] @ end",
        "reach @ y.error[index][j]",
    ),
    "the right error forgotten": (
        "exact_products",
        "reach @ y.error[index][j] + x.error[index][i] @ end",
        "x.error[index][i] @ end",
    ),
    "error times error forgotten": ("exact_products", "np.abs(H).sum(-1) + y.error[index][j]", "np.abs(H).sum(-1)"),
    "sums of products without rounding": (
        "exact_products",
        "rounding(d) * (reach @ end) + TINY * (M.size + d)",
        "TINY * (M.size + d)",
    ),
    "sums of products without TINY": (
        "exact_products",
        "rounding(d) * (reach @ end) + TINY * (M.size + d)",
        "rounding(d) * (reach @ end)",
    ),
    "the largest product only": ("exact_products", "each.sum() + errors", "M.max(initial=0) + errors"),
    "sums of rows only": (
        "exact_products",
        "sums[*index, i, j][used_y] += np.ones(len(M)) @ M",
        "sums[*index, i, j][used_y] += 0",
    ),
}
MOVES: Changes = {
    "a permutation stays": ("Moved.back", "A.take(self.order, axis=1)", "A", 0),
    "back to the wrong entries": (
        "Moved.back",
        "back[:, self.taken]",
        "back[:, np.sort(self.order)[: len(self.taken)]]",
    ),
    "the last of those that take one": (
        "Moved.back",
        "ordered if self.most == 1 else np.add.reduceat(ordered, self.first, axis=1)",
        "ordered[:, self.first]",
    ),
    "not in order": ("Moved.back", "ordered = A.take(self.order, axis=1)", "ordered = A"),
    "any move stays": ("moved", "np.array_equal(flat, np.arange(total))", "len(flat) == total"),
    "every entry once": ("moved", "int(counts.max())", "1"),
}
