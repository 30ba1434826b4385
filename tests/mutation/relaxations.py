"""Faults in the relaxations of single ops: functions of one number, softmax, attention, maximum.

Left out, because no bound comes out on the wrong side: other slopes of chords and tangents (every intercept is made
from its slope), fewer bisections (the tangent at the bracket's end pays for them), minimum for maximum of two numbers
that differ by rounding, masked keys counted in the sum below 1/R, free slopes of a ReLU that is decided, the size of
chunks, the choice between two bounds that both hold, the two ends of w exchanged (the affine rule tries both).
"""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "relaxations",
        "ops/elementwise.py",
        "ops/test_contract.py",
        {
            "the sign of A exchanged": ("        up = A >= 0\n", "        up = A <= 0\n"),
            "intercepts of the two sides exchanged": (
                "torch.where(up, relaxed.lower_intercept, relaxed.upper_intercept)",
                "torch.where(up, relaxed.upper_intercept, relaxed.lower_intercept)",
            ),
            "silu's tails begin too late": ("concave = _outside(2.3993572805154676678)", "concave = _outside(9.0)"),
        },
        only="Silu",
    ),
    *mutants(
        "relaxations",
        "ops/elementwise.py",
        "ops/test_contract.py",
        {
            "relu: on from -0.1": ("on, off = lower >= 0, upper <= 0", "on, off = lower >= -0.1, upper <= 0"),
            "relu: NaN at one end is overlooked": (
                "nan = lower.isnan() | upper.isnan()",
                "nan = lower.isnan() & upper.isnan()",
            ),
            "relu: free slopes beyond 1": ('{"slope": Range()}', '{"slope": Range(0.0, 1.5)}'),
        },
        only="Relu or free_parameter",
    ),
    *mutants(
        "relaxations",
        "ops/elementwise.py",
        "ops/test_contract.py",
        {
            "gelu's bottom elsewhere": ("return -0.7517915246935644575", "return -0.9517915246935644575"),
            "1/x: slopes of the mirror image": (
                "left = Lines(-mirror.lower_slope,",
                "left = Lines(mirror.lower_slope,",
            ),
            "free lines beyond the ends' ones": (
                '"below": Range(-1.0, 1.0), "above"',
                '"below": Range(-2.0, 2.0), "above"',
            ),
        },
        only="Gelu or Reciprocal or free_parameter",
    ),
    *mutants(
        "relaxations",
        "ops/elementwise.py",
        "ops/test_lines.py",
        {
            "gelu's inflection elsewhere": ("else math.sqrt(2)\n", "else 1.0\n"),
            "gelu's slope": ("torch.special.ndtr(x) + x *", "torch.special.ndtr(x) - x *"),
            "silu's slope": ("s * (1 + x * (-x).sigmoid())", "s * (1 + x * x.sigmoid())"),
            "log is convex": (
                "return concave_lines(self.evaluate, self.derivative, *self.inside(box))",
                "return convex_lines(self.evaluate, self.derivative, *self.inside(box))",
            ),
            "the root of a negative number": ("outside = zero.isnan()", "outside = zero.isnan() & point"),
            "1/x across 0": ("fine = (lower > 0) | (upper < 0)", "fine = lower != 0"),
        },
    ),
    *mutants(
        "relaxations",
        "ops/elementwise.py",
        "ops/test_parallel.py",
        {
            "parallel: half the noise": ("noise=A * relaxed.half)", "noise=A * relaxed.half / 2)"),
            "parallel: the band of relu too low": (
                "lines._replace(lower_slope=lines.upper_slope)",
                "lines._replace(lower_slope=lines.upper_slope, upper_intercept=lines.upper_intercept / 2)",
            ),
        },
        only="Relu or Silu",
    ),
    *mutants(
        "relaxations",
        "ops/lines.py",
        "ops/test_lines.py",
        {
            "a fan goes on beyond its ends": ("t.abs() * (side - self.middle[k])", "t * (side - self.middle[k])"),
            "the tangent without the ends": ("torch.minimum(f(at) - slope * at, below_ends)", "f(at) - slope * at"),
            "the higher of tangent and ends": (
                "torch.minimum(f(at) - slope * at, below_ends)",
                "torch.maximum(f(at) - slope * at, below_ends)",
            ),
            "sides of minus f": (
                ("Lines(-lines.upper_slope, -lines.upper_intercept, -lines.lower_slope, -lines.lower_intercept)"),
                ("Lines(-lines.lower_slope, -lines.lower_intercept, -lines.upper_slope, -lines.upper_intercept)"),
            ),
            "bisection the wrong way": ("falling = derivative(at) < slope", "falling = derivative(at) > slope"),
            "the inner minimum forgotten": ("torch.minimum(bottom, ends))", "ends)"),
            "convex beyond its piece": ("upper.clamp(max=b)", "upper"),
            "the upper end line by the slope of minus f": (
                "turned, -slope, lower, upper)\n        found.append",
                "turned, slope, lower, upper)\n        found.append",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/lines.py",
        "ops/test_parallel.py",
        {
            "band: half as wide": (
                "lines.upper_intercept\n    return Band(slope, (low + high) / 2, (high - low) / 2)",
                "lines.upper_intercept\n    return Band(slope, (low + high) / 2, (high - low) / 4)",
            ),
        },
        only="parallel and (Relu or Exp or Square or Silu or Tanh)",
    ),
    *mutants(
        "relaxations",
        "ops/softmax.py",
        "ops/test_contract.py",
        {
            "rows of NaN have probability 0": ("nan = torch.full_like(zero, torch.nan)", "nan = zero"),
            "the least difference of scores": (
                "least = lower.unsqueeze(-2) - upper.unsqueeze(-1)",
                "least = lower.unsqueeze(-2) - lower.unsqueeze(-1)",
            ),
            "a chord that begins too low": (
                "offset = torch.maximum(most.exp() - rise * most, least.exp() - rise * least)",
                "offset = least.exp() - rise * most",
            ),
            "1/R² forgotten": (
                "2 * inverse - (inverse + scaled.sum(-1)) * inverse, weights",
                "2 * inverse - scaled.sum(-1) * inverse, weights",
            ),
            "the sign of lse": ("- masked.logsumexp(-1, keepdim=True)", "+ masked.logsumexp(-1, keepdim=True)"),
            "p^U with a slope": ("high), torch.where(worse, zero, slope)", "high), slope"),
            "the rises' sign": ("a = up * beside(rows.rises) - pulled", "a = up * beside(rows.rises) + pulled"),
            "keys are carried": ("None if keep == len(shape) - 1 else (keep,)", "(keep,)"),
        },
        only="Softmax",
    ),
    *mutants(
        "relaxations",
        "ops/softmax.py",
        "ops/test_softmax.py",
        {
            "subnormal probabilities have a logarithm": (
                "(weights.lower >= torch.finfo(lower.dtype).tiny)",
                "(weights.lower > 0)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/softmax.py",
        "ops/test_attention_rows.py",
        {
            "chosen: twice the entropy": ("entropy = -(q * log_q)", "entropy = -2 * (q * log_q)"),
            "chosen: the pivot is not taken off": ("_row_below_at(c - pivot, rows", "_row_below_at(c, rows"),
        },
        only="lse_rule",
    ),
    *mutants(
        "relaxations",
        "ops/maximum.py",
        "ops/test_contract.py",
        {
            "decided too early": ("decided = others <= t ", "decided = others <= t + 0.5 "),
            "t is not added": ("t + raised.sum(-1, keepdim=True)", "raised.sum(-1, keepdim=True)"),
            "NaN is 0": ("torch.where(bad.isnan(), bad, torch.zeros_like(bad))", "torch.zeros_like(bad)"),
        },
        only="Maximum",
    ),
    *mutants(
        "relaxations",
        "ops/attention.py",
        "ops/test_contract.py",
        {
            "interval: the upper ends of the values below": (
                "softmax_box_min(_finite(values.lower)",
                "softmax_box_min(_finite(values.upper)",
            ),
            "interval: a row that cannot be bounded": (
                "Interval(torch.where(fine, low, plain.lower), torch.where(fine, high, plain.upper))",
                "Interval(low, high)",
            ),
            "rows of NaN are rows of 0": ("torch.where(broken, torch.nan, 0.0)", "torch.where(broken, 0.0, 0.0)"),
            "lse: p^L w^L forgotten": ("low, b - (low * w.lower).sum(-1), heads", "low, b, heads"),
            "diagonal rows in another order": (
                "each = each.movedim(-3, 2).flatten(1, 2)",
                "each = each.movedim(-3, 1).flatten(1, 2)",
            ),
            "affine: the best of the pieces": ("mu.unsqueeze(-1)).amin(-1)", "mu.unsqueeze(-1)).amax(-1) + 1e-3"),
            "rows: the slope beside the exact constant": (
                "torch.where(exact.unsqueeze(-1), torch.zeros_like(a), a), torch",
                "a, torch",
            ),
            "vertex: the box is its lower corner": (
                "softmax_box_min(_finite(c), beside(box.lower), beside(box.upper))",
                "softmax_box_min(_finite(c), beside(box.lower), beside(box.lower))",
            ),
        },
        only="Attention",
    ),
    *mutants(
        "relaxations",
        "ops/attention.py",
        "ops/test_attention_rows.py",
        {
            "pieces: the lower end by the wrong cut": (
                "scores.lower.unsqueeze(-2) - cuts[..., 1:, :]",
                "scores.lower.unsqueeze(-2) - cuts[..., :-1, :]",
            ),
            "pieces that cross become points": (
                "return Interval(torch.minimum(lower, upper), torch.maximum(lower, upper))",
                "return Interval(lower, torch.maximum(lower, upper))",
            ),
            "centred: the smaller curvature": (
                "curved = torch.maximum(*(torch.expm1",
                "curved = torch.minimum(*(torch.expm1",
            ),
            "centred: keys whose weight underflowed": (
                "torch.where(missed, whole, torch.minimum(most, whole))",
                "torch.minimum(most, whole)",
            ),
            "centred: the least lse below": ("shifted.lower - most)", "shifted.lower - least)"),
            "coupled: p^L w^L forgotten": (
                "_vertex(w.lower, heads) - (least * w.lower).sum(-1)",
                "_vertex(w.lower, heads)",
            ),
            "mix: p^L with w^U": ("(1 - mix) * high * w.upper).sum(-1)", "(1 - mix) * low * w.upper).sum(-1)"),
        },
    ),
    *mutants(
        "relaxations",
        "ops/attention.py",
        "ops/test_parallel.py",
        {
            "half the ellipsoid": (
                "Interval(middle - radius, middle + radius))\n\n\ndef row_choice",
                "Interval(middle - radius / 2, middle + radius / 2))\n\n\ndef row_choice",
            ),
        },
        only="Attention",
    ),
]
