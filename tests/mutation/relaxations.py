"""Faults in the relaxations of single ops: functions of one number, softmax, attention, maximum.

Left out, because no bound comes out on the wrong side: other slopes of chords and tangents (every intercept is made
from its slope), fewer bisections (the tangent at the bracket's end pays for them), minimum for maximum of two numbers
that differ by rounding, masked keys counted in the sum below 1/R, free slopes of a ReLU that is decided, the size of
chunks, the choice between two bounds that both hold, the two ends of w exchanged (the affine rule tries both).
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "relaxations",
        "ops/line_relaxations.py",
        "ops/test_contract.py",
        {
            "the sign of A exchanged": ("LineRelaxation.backward", "up = A >= 0", "up = A <= 0"),
            "intercepts of the two sides exchanged": (
                "LineRelaxation.backward",
                "torch.where(up, self.lines.lower_intercept, self.lines.upper_intercept)",
                "torch.where(up, self.lines.upper_intercept, self.lines.lower_intercept)",
            ),
        },
        only="Silu",
    ),
    *mutants(
        "relaxations",
        "ops/elementwise.py",
        "ops/test_contract.py",
        {
            "silu's tails begin too late": ("Silu", "_outside(2.3993572805154676678)", "_outside(9.0)"),
        },
        only="Silu",
    ),
    *mutants(
        "relaxations",
        "ops/lines.py",
        "ops/test_contract.py",
        {
            "relu: on from -0.1": ("relu_lines", "lower >= 0, upper <= 0", "lower >= -0.1, upper <= 0"),
            "relu: NaN at one end is overlooked": (
                "relu_lines",
                "nan = lower.isnan() | upper.isnan()",
                "nan = lower.isnan() & upper.isnan()",
            ),
        },
        only="Relu or free_parameter",
    ),
    *mutants(
        "relaxations",
        "ops/line_relaxations.py",
        "ops/test_contract.py",
        {
            "relu: free slopes beyond 1": ("ReluRelaxation", '{"slope": Range()}', '{"slope": Range(0.0, 1.5)}'),
        },
        only="Relu or free_parameter",
    ),
    *mutants(
        "relaxations",
        "ops/elementwise.py",
        "ops/test_contract.py",
        {
            "gelu's bottom elsewhere": (
                "Gelu._bottom",
                "return -0.7517915246935644575",
                "return -0.9517915246935644575",
            ),
            "1/x: slopes of the mirror image": ("Reciprocal.lines", "-mirror.lower_slope", "mirror.lower_slope"),
        },
        only="Gelu or Reciprocal or free_parameter",
    ),
    *mutants(
        "relaxations",
        "ops/line_relaxations.py",
        "ops/test_contract.py",
        {
            "free lines beyond the ends' ones": (
                "CurvedRelaxation",
                '{"below": Range(-1.0, 1.0), "above": Range(-1.0, 1.0)}',
                '{"below": Range(-2.0, 2.0), "above": Range(-1.0, 1.0)}',
            ),
        },
        only="Gelu or Reciprocal or free_parameter",
    ),
    *mutants(
        "relaxations",
        "ops/elementwise.py",
        "ops/test_lines.py",
        {
            "gelu's inflection elsewhere": (
                "Gelu.curvature",
                "tanh if self.tanh else math.sqrt(2)",
                "tanh if self.tanh else 1.0",
            ),
            "gelu's slope": (
                "Gelu.derivative",
                "values.slope(x)",
                "values.slope(-x)",
            ),
            "silu's slope": ("Silu.derivative", "x * (-x).sigmoid()", "x * x.sigmoid()"),
            "log is convex": (
                "Log.lines",
                "concave_lines(self.evaluate, self.derivative, *self.inside(box))",
                "convex_lines(self.evaluate, self.derivative, *self.inside(box))",
            ),
            "the root of a negative number": ("Sqrt.lines", "zero.isnan()", "zero.isnan() & point"),
            "1/x across 0": ("Reciprocal.interval", "fine = (lower > 0) | (upper < 0)", "fine = lower != 0"),
        },
    ),
    *mutants(
        "relaxations",
        "ops/line_relaxations.py",
        "ops/test_parallel.py",
        {
            "parallel: half the noise": ("BandRelaxation.backward", "A * half", "A * half / 2"),
        },
        only="Relu or Silu",
    ),
    *mutants(
        "relaxations",
        "ops/elementwise.py",
        "ops/test_parallel.py",
        {
            "parallel: the band of relu too low": (
                "Relu.band",
                "dataclasses.replace(lines, lower_slope=lines.upper_slope)",
                (
                    "dataclasses.replace(lines, lower_slope=lines.upper_slope, upper_intercept=lines.upper_intercept "
                    "/ 2)"
                ),
            ),
        },
        only="Relu or Silu",
    ),
    *mutants(
        "relaxations",
        "ops/lines.py",
        "ops/test_lines.py",
        {
            "a fan goes on beyond its ends": (
                "Fan.mixed.mix",
                "share.abs() * (torch.where(share < 0, left, right) - middle)",
                "share * (torch.where(share < 0, left, right) - middle)",
            ),
            "the tangent without the ends": (
                "convex_lines",
                "torch.minimum(f(at) - slope * at, below_ends)",
                "f(at) - slope * at",
            ),
            "the higher of tangent and ends": (
                "convex_lines",
                "torch.minimum(f(at) - slope * at, below_ends)",
                "torch.maximum(f(at) - slope * at, below_ends)",
            ),
            "sides of minus f": (
                "negated",
                (
                    "Lines(\n"
                    "    lower_slope=-lines.upper_slope,\n"
                    "    lower_intercept=-lines.upper_intercept,\n"
                    "    upper_slope=-lines.lower_slope,\n"
                    "    upper_intercept=-lines.lower_intercept,\n"
                    ")"
                ),
                "lines.map(torch.neg)",
            ),
            "bisection the wrong way": ("below", "derivative(at) < slope", "derivative(at) > slope"),
            "the inner minimum forgotten": (
                "below",
                "torch.minimum(least, torch.minimum(bottom, ends))",
                "torch.minimum(least, ends)",
            ),
            "convex beyond its piece": ("_within", "upper.clamp(max=b)", "upper"),
            "the upper end line by the slope of minus f": (
                "end_lines",
                "below(lambda x: -f(x), lambda x: -derivative(x), turned, -slope, lower, upper)",
                "below(lambda x: -f(x), lambda x: -derivative(x), turned, slope, lower, upper)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/lines.py",
        "ops/test_parallel.py",
        {
            "band: half as wide": ("band", "(high - low) / 2", "(high - low) / 4"),
        },
        only="parallel and (Relu or Exp or Square or Silu or Tanh)",
    ),
    *mutants(
        "relaxations",
        "ops/softmax.py",
        "ops/test_contract.py",
        {
            "rows of NaN have probability 0": ("probabilities", "torch.full_like(zero, torch.nan)", "zero"),
            "the least difference of scores": (
                "row_bounds",
                "lower.unsqueeze(-2) - upper.unsqueeze(-1)",
                "lower.unsqueeze(-2) - lower.unsqueeze(-1)",
            ),
            "a chord that begins too low": (
                "row_bounds",
                "torch.maximum(most.exp() - rise * most, least.exp() - rise * least)",
                "least.exp() - rise * most",
            ),
            "1/R² forgotten": ("row_bounds", "(inverse + scaled.sum(-1)) * inverse", "scaled.sum(-1) * inverse"),
            "lse twice": (
                "row_bounds",
                "(middle * (centre - level)).sum(-1, keepdim=True) - (masked - level).logsumexp(-1, keepdim=True)",
                "(middle * (centre - level)).sum(-1, keepdim=True) - 2 * (masked - level).logsumexp(-1, keepdim=True)",
            ),
            "p^U with a slope": ("row_bounds", "torch.where(worse, zero, slope)", "slope"),
            "the rises' sign": ("_row_below", "up * beside(rows.rises) - pulled", "up * beside(rows.rises) + pulled"),
            "keys are carried": (
                "Softmax.carries_diagonal",
                "None if dimension == len(shape) - 1 else (dimension,)",
                "(dimension,)",
            ),
        },
        only="Softmax",
    ),
    *mutants(
        "relaxations",
        "ops/softmax.py",
        "ops/test_softmax.py",
        {
            "subnormal probabilities have a logarithm": (
                "row_bounds",
                "weights.lower >= torch.finfo(lower.dtype).tiny",
                "weights.lower > 0",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/softmax.py",
        "ops/test_attention_rows.py",
        {
            "chosen: twice the entropy": (
                "_row_below_at",
                "-(q * log_q).sum(-1, keepdim=True)",
                "-2 * (q * log_q).sum(-1, keepdim=True)",
            ),
            "chosen: the pivot is not taken off": (
                "row_below",
                "_row_below_at(c - pivot, rows, pivot.squeeze(-1), choice)",
                "_row_below_at(c, rows, pivot.squeeze(-1), choice)",
            ),
        },
        only="lse_rule",
    ),
    *mutants(
        "relaxations",
        "ops/maximum.py",
        "ops/test_contract.py",
        {
            "decided too early": ("Maximum.relax", "others <= t", "others <= t + 0.5"),
            "t is not added": ("Maximum.relax", "t + raised.sum(-1, keepdim=True)", "raised.sum(-1, keepdim=True)"),
            "NaN is 0": (
                "Maximum.relax",
                "torch.where(bad.isnan(), bad, torch.zeros_like(bad))",
                "torch.zeros_like(bad)",
            ),
        },
        only="Maximum",
    ),
    *mutants(
        "relaxations",
        "ops/attention/op.py",
        "ops/test_contract.py",
        {
            "interval: the upper ends of the values below": (
                "Attention.interval",
                "finite_or_zero(values.lower).mT.unsqueeze(-3)",
                "finite_or_zero(values.upper).mT.unsqueeze(-3)",
            ),
            "interval: a row that cannot be bounded": (
                "Attention.interval",
                "torch.where(fine, low - largest, plain.lower)",
                "low - largest",
            ),
        },
        only="Attention",
    ),
    *mutants(
        "relaxations",
        "ops/attention/shared.py",
        "ops/test_contract.py",
        {
            "diagonal rows in another order": ("row_step", "each.movedim(-3, 2)", "each.movedim(-3, 1)"),
            "rows of NaN are rows of 0": (
                "Scores.of",
                "torch.where(broken, torch.nan, 0.0)",
                "torch.where(broken, 0.0, 0.0)",
            ),
            "vertex: the box is its lower corner": ("Scores.exact_minimum", "beside(box.upper)", "beside(box.lower)"),
            "the next row's box": (
                "Scores.exact_minimum",
                "softmax_box_min(finite_or_zero(c), beside(box.lower), beside(box.upper))",
                "softmax_box_min(finite_or_zero(c), beside(box.lower).roll(1, -2), beside(box.upper).roll(1, -2))",
            ),
            "rows that are no numbers are not marked": (
                "Scores.marked",
                "constant if self.bad is None else constant + beside(self.bad)",
                "constant",
            ),
        },
        only="Attention",
    ),
    *mutants(
        "relaxations",
        "ops/attention/lse_row.py",
        "ops/test_contract.py",
        {
            "lse: p^L w^L forgotten": ("LseRow.backward", "b - (low * w.lower).sum(-1)", "b"),
        },
        only="Attention",
    ),
    *mutants(
        "relaxations",
        "ops/attention/minorant.py",
        "ops/test_contract.py",
        {
            "affine: the best of the pieces": (
                "Minorant.bound",
                "minorant_constant(*self.pieces, low, high, slope, coefficient, mu.unsqueeze(-1)).amin(-1)",
                ("minorant_constant(*self.pieces, low, high, slope, coefficient, mu.unsqueeze(-1)).amax(-1) + 0.001"),
            ),
        },
        only="Attention",
    ),
    *mutants(
        "relaxations",
        "ops/attention/better_row.py",
        "ops/test_contract.py",
        {
            "rows: the slope beside the exact constant": (
                "BetterRow.improved",
                "torch.where(exact.unsqueeze(-1), torch.zeros_like(a), a)",
                "a",
            ),
        },
        only="Attention",
    ),
    *mutants(
        "relaxations",
        "ops/attention/minorant.py",
        "ops/test_attention_rows.py",
        {
            "pieces: the lower end by the wrong cut": ("_pieces", "cuts[..., 1:, :]", "cuts[..., :-1, :]"),
            "pieces that cross become points": ("_pieces", "torch.minimum(lower, upper)", "lower"),
            "centred: the smaller curvature": (
                "centred_log_probabilities",
                "torch.maximum(*(torch.expm1(d) - d for d in ends))",
                "torch.minimum(*(torch.expm1(d) - d for d in ends))",
            ),
            "centred: keys whose weight underflowed": (
                "centred_log_probabilities",
                "torch.where(missed, whole, torch.minimum(most, whole))",
                "torch.minimum(most, whole)",
            ),
            "centred: the least lse below": (
                "centred_log_probabilities",
                "torch.maximum(low, shifted.lower - most)",
                "torch.maximum(low, shifted.lower - least)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/attention/affine_row.py",
        "ops/test_attention_rows.py",
        {
            "coupled: p^L w^L forgotten": (
                "AffineRow._coupled",
                "self.scores.exact_minimum(w.lower) - (least * w.lower).sum(-1)",
                "self.scores.exact_minimum(w.lower)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/attention/lse_row.py",
        "ops/test_attention_rows.py",
        {
            "mix: p^L with w^U": ("LseRow.backward", "(1 - mix) * high * w.upper", "(1 - mix) * low * w.upper"),
        },
    ),
    *mutants(
        "relaxations",
        "ops/attention/shared.py",
        "ops/test_parallel.py",
        {
            "half the ellipsoid": (
                "Values.functionals",
                "w.meet(Interval(middle - radius, middle + radius))",
                "w.meet(Interval(middle - radius / 2, middle + radius / 2))",
            ),
        },
        only="Attention",
    ),
    *mutants(
        "relaxations",
        "ops/attention/affine_row.py",
        "ops/test_parallel.py",
        {
            "parallel: half the error": (
                "AffineRow.backward",
                "(-above - b).unsqueeze(-1) / 2",
                "(-above - b).unsqueeze(-1) / 4",
            ),
        },
        only="Attention",
    ),
]
