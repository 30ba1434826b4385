"""More faults of mutants.py: those of the attention rows; faults.py says what each is."""

from __future__ import annotations

from tests.certificate.checker.faults import Changes

ROWS: Changes = {
    "no mask": ("rows", "unmasked = np.flatnonzero(visible[index])", "unmasked = np.arange(keys)"),
    "scores without a limit": ("", "LARGEST_SCORE = 1e6", "LARGEST_SCORE = np.inf"),
    "a row that is all masked": ("rows", "not visible.any(-1).all()", "False"),
    "like ends of log p": ("_ranges", "others_hi[j] / e_lo[j]", "others_lo[j] / e_lo[j]"),
    "the upper end of log p": ("_ranges", "others_lo[j] / e_hi[j]", "others_hi[j] / e_hi[j]"),
    "others with itself": ("_sums", "after[n - 1 - i]", "after[n - i]"),
    "others without the next": ("_sums", "after[n - 1 - i]", "after[max(n - 2 - i, 0)]"),
    "ends not rounded outward": ("_float", "float(np.nextafter(value, side * np.inf))", "value"),
    "ends rounded inward": ("_float", "side * np.inf", "-side * np.inf"),
    "lse from above only": (
        "rows",
        "max(abs(_float(sums[0], -1)), abs(_float(sums[1], 1)))",
        "abs(_float(sums[1], 1))",
    ),
    "lse from below only": (
        "rows",
        "max(abs(_float(sums[0], -1)), abs(_float(sums[1], 1)))",
        "abs(_float(sums[0], -1))",
    ),
    "κ dropped": (
        "_centred",
        "kappa - sum((x * y for x, y in zip(q, logs, strict=True)), arb(0))",
        "arb(0) - sum((x * y for x, y in zip(q, logs, strict=True)), arb(0))",
    ),
    "the sign of the entropy": (
        "_centred",
        "kappa - sum((x * y for x, y in zip(q, logs, strict=True)), arb(0))",
        "kappa + sum((x * y for x, y in zip(q, logs, strict=True)), arb(0))",
    ),
    "the lesser bend": ("_centred", "bends[0].max(bends[1])", "bends[0].min(bends[1])"),
    "no bend": ("_centred", "x * bends[0].max(bends[1]).max(arb(0))", "0 * bends[0].max(bends[1]).max(arb(0))"),
    "half of the bend": ("_centred", "v.expm1() - v", "(v.expm1() - v) / 2"),
    "log for log1p": ("_centred", "curved.log1p()", "curved.log()"),
    "least for largest": ("_centred", "arb(float(lo)) - largest", "arb(float(lo)) - least"),
    "largest for least": ("_centred", "arb(float(hi)) - least", "arb(float(hi)) - largest"),
    "weights at masked keys": (
        "rows",
        (
            "centred is not None and (centred[0][index][unmasked] > 0).all() and (not "
            "centred[0][index][~visible[index]].any())"
        ),
        "centred is not None and (centred[0][index][unmasked] > 0).all()",
    ),
    "pieces of the wrong end": ("_cut", "cuts[1:, None]", "cuts[:-1, None]"),
    "pieces of the other wrong end": ("_cut", "cuts[:-1, None]", "cuts[1:, None]"),
    "the lower ends of pieces of the upper box": ("_cut", "box[0] - cuts[1:, None]", "box[1] - cuts[1:, None]"),
    "the last piece is missing": (
        "_cut",
        "highs = np.minimum(highs, up(box[1] - cuts[:-1, None]))",
        ("highs = np.minimum(highs, up(box[1] - cuts[:-1, None]))\nlows[-1], highs[-1] = lows[0], highs[0]"),
    ),
    "e^u for e^l": ("_weights", "(box.lo, box.hi)", "(box.hi, box.hi)"),
    "e^l for e^u": ("_weights", "(box.lo, box.hi)", "(box.lo, box.lo)"),
    "weights rounded inward": (
        "_weights",
        "enclose(arb.exp, off.lo).lo, enclose(arb.exp, off.hi).hi",
        "enclose(arb.exp, off.hi).hi, enclose(arb.exp, off.lo).lo",
    ),
    "masked keys have a weight": ("_weights", "np.where(visible, largest, 0.0)", "largest"),
    "masked keys have a term": (
        "affine",
        "np.where(row.visible[..., None, :], _least(value - level, slope, row), 0.0)",
        "_least(value - level, slope, row)",
    ),
    "m w is added": (
        "affine",
        "lowest - rest - FEW * (np.abs(lowest) + np.abs(rest))",
        "lowest + rest - FEW * (np.abs(lowest) + np.abs(rest))",
    ),
    "one end of w": ("affine", "(w.lo, w.hi)", "(w.lo, w.lo)"),
    "the larger end of w": ("affine", "terms = np.minimum(*ends)", "terms = np.maximum(*ends)"),
    "μ forgotten": ("affine", "mu + terms.sum(-1)", "terms.sum(-1)"),
    "μ is added": ("affine", "_least(value - level, slope, row)", "_least(value + level, slope, row)"),
    "rows without TINY": (
        "affine",
        "mu + terms.sum(-1) - rounding(keys + 2) * (np.abs(mu) + np.abs(terms).sum(-1)) - TINY * 8 * keys",
        "mu + terms.sum(-1) - rounding(keys + 2) * (np.abs(mu) + np.abs(terms).sum(-1))",
    ),
    "no drift": (
        "affine",
        "(np.abs(a.sum(-1)) + rounding(keys) * np.abs(a).sum(-1)) * row.most * MORE",
        "(np.abs(a.sum(-1)) + rounding(keys) * np.abs(a).sum(-1)) * 0.0 * row.most",
    ),
    "drift without rounding": ("affine", "np.abs(a.sum(-1)) + rounding(keys) * np.abs(a).sum(-1)", "np.abs(a.sum(-1))"),
    "the best piece": ("affine", "total.min(-1)", "total.max(-1)"),
    "a handful of operations without rounding": ("", "rounding(12)", "0.0"),
    "e.lo and e.hi exchanged": ("_least", "np.where(positive, e.lo, e.hi)", "np.where(positive, e.hi, e.lo)"),
    "e.hi always": ("_least", "np.where(positive, e.lo, e.hi)", "e.hi"),
    "a r is added": (
        "_least",
        "grown - slope - FEW * (np.abs(v) * e.hi + np.abs(slope))",
        "grown + slope - FEW * (np.abs(v) * e.hi + np.abs(slope))",
    ),
    "the larger end of r": ("_least", "least = np.minimum(*ends)", "least = np.maximum(*ends)"),
    "only the ends of r": (
        "_least",
        "positive & (a > 0) & ~(v * row.e_low.lo * (1 - FEW) >= a)",
        "positive & (a > 0) & False & ~(v * row.e_low.lo * (1 - FEW) >= a)",
    ),
    "the slope's sides exchanged": ("_least", "v * row.e_low.lo * (1 - FEW) >= a", "v * row.e_low.lo * (1 - FEW) <= a"),
    "small numbers have no least": ("_least", "np.where(small, np.minimum(least, 0.0), least)", "least"),
    "the sign of x³/3": ("_least", "x - x * x / 2 + x * x * x / 3", "x - x * x / 2 - x * x * x / 3"),
    "no x³/3": ("_least", "x - x * x / 2 + x * x * x / 3", "x - x * x / 2"),
    "x² for x²/2": ("_least", "x - x * x / 2", "x - x * x"),
    "the sign of the logarithm": ("_least", "a_in * (1 - log)", "a_in * (1 + log)"),
    "no 1": ("_least", "a_in * (1 - log)", "a_in * (1.001 - log)"),
    "r₀ forgotten": ("_least", "r0 + (x - x * x / 2 + x * x * x / 3)", "0 * r0 + (x - x * x / 2 + x * x * x / 3)"),
    "the largest c": ("vertex", "down(seen.min(-1))", "np.where(row.there, c, -np.inf).max(-1)"),
    "masked coefficients": ("vertex", "np.where(row.visible, c, np.inf)", "c"),
    "φ with its sides exchanged": ("_phi", "np.where(off > 0, low.lo, high.hi)", "np.where(off > 0, high.hi, low.lo)"),
    "φ at l": ("_phi", "np.where(off > 0, low.lo, high.hi)", "low.lo"),
    "φ at u": ("_phi", "np.where(off > 0, low.lo, high.hi)", "high.hi"),
    "φ without rounding": ("_phi", "rounding(keys + 4) * np.abs(terms).sum(-1) + TINY * 8 * keys", "0.0"),
    "φ always": (
        "vertex",
        "np.where(_phi(row, low, high, c, candidate), np.maximum(best, candidate), best)",
        "np.maximum(best, candidate)",
    ),
    "φ without its sign": (
        "_phi",
        "off * np.where(off > 0, low.lo, high.hi)",
        "np.abs(off) * np.where(off > 0, low.lo, high.hi)",
    ),
}
