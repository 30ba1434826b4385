"""Faults in the primitive: exact optima over score boxes, their proofs of rounding, probabilities, the affine rule.

Left out, because nothing comes out on the wrong side: a tie c = t at either end (its share is 0), any other start of
Newton's method, the number of tries of the proof (min c is always there), single ulps of its bound (the proof says
where it has room), MOST_KEYS (a precondition of the proof, not a value), τ_0 and τ_K (never below their neighbours),
WIDEST (beyond it weights underflow, and the proof still holds: it only gives less).
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "primitive",
        "softmax_box/torch_backend.py",
        "softmax_box/test_values.py",
        {
            "newton: upper ends on the large coefficients": (
                "newton.mean_at",
                "y = torch.where(c < t, U, L)",
                "y = torch.where(c > t, U, L)",
            ),
            "newton: never careful": ("descend", "c >= t - band", "c >= t + band"),
            "newton: the probe is t": ("_careful", "probe = t - ulps * size if below else t", "probe = t"),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/log_domain.py",
        "softmax_box/test_values.py softmax_box/test_soundness.py",
        {
            "coefficients that underflow round up": (
                "_solve",
                "if outward: scaled = torch.where(_times_power(scaled, exponent) > c, _below(scaled), scaled)",
                "if False: scaled = torch.where(_times_power(scaled, exponent) > c, _below(scaled), scaled)",
            ),
            "no proof": ("_solve", "proof.lower_bound(scaled, lower, upper, t, None)", "t + 0"),
        },
        only="exact or range or underflow or outward",
    ),
    *mutants(
        "primitive",
        "softmax_box/outward.py",
        "softmax_box/test_mutants.py",
        {
            "no error": ("lower_bound.margin", "residual - SAFETY * (error + lost)", "residual"),
            "what is not proved is returned": ("lower_bound", "open_ & (spare >= 0)", "open_ & (spare >= -1e30)"),
        },
        only="outward_check or acceptance or candidate",
    ),
    *mutants(
        "primitive",
        "softmax_box/probabilities.py",
        "softmax_box/test_probabilities.py",
        {
            "the total less one": ("_others", "return prefix + suffix", "return y.sum(-1, keepdim=True) - y"),
            "the least with the others low": ("_direct", "L / (L + _others(U))", "L / (L + _others(L))"),
            "wide rows: the others low": (
                "softmax_box_probabilities",
                "least.masked_scatter(wide, _log_domain(lo[wide_rows], up[wide_rows]))",
                "least.masked_scatter(wide, _log_domain(lo[wide_rows], lo[wide_rows]))",
            ),
            "p^L is not lowered": ("_widened", "least * (1 - 2 * error)", "least"),
            "p^U rounded down": (
                "softmax_box_probabilities",
                "back(-round_down(-greatest, dtype))",
                "back(round_down(greatest, dtype))",
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/affine.py",
        "softmax_box/test_affine.py",
        {
            "the bottom between the ends forgotten": ("least", "a < up_right", "a < up_left"),
            "values at their lower ends": (
                "minorant_constant",
                "mu.squeeze(-1) + torch.minimum(*terms).sum(-1)",
                "mu.squeeze(-1) + terms[0].sum(-1)",
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/log_ranges.py",
        "softmax_box/test_affine.py",
        {
            "the wrong shift for the largest key": (
                "_others",
                "torch.where(first, second, top), mass",
                "top + 0 * second, mass",
            ),
            "pieces: the lower end by the wrong cut": ("pieces", "D[..., 1:, None]", "D[..., :-1, None]"),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/affine_outward.py",
        "softmax_box/test_affine.py softmax_box/test_affine_mutants.py",
        {
            "summands are not lowered": ("proved_minorant", "UNIT * (keys + EXTRA_ULPS)", "0.0 * UNIT"),
            "ranges are not widened": (
                "proved_ranges",
                "low, high = ranges.low - _widening(ranges.low, keys), ranges.high + _widening(ranges.high, keys)",
                "low, high = ranges.low, ranges.high",
            ),
            "the bottom is not lowered": (
                "_least",
                "lost * (a + slope.abs() + fixed)",
                "0 * (a + slope.abs() + fixed)",
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/rigorous.py",
        "softmax_box/test_rigorous.py",
        {
            "below the largest coefficient is a bound": ("_decide", "t <= min(c)", "t <= max(c)"),
            "undecided is proved": ("_decide", "if value >= 0: return True", "if not value < 0: return True"),
            "a conversion to nearest": (
                "_down",
                "not flint.arb(value) <= ball",
                "False and not flint.arb(value) <= ball",
            ),
            "coefficients of masked keys count": (
                "_rows.rows",
                "tuple((view[index][unmasked].tolist() for view in views))",
                (
                    "(views[0][index].tolist(), *(np.where(unmasked, view[index], "
                    "view[index][unmasked].min()).tolist() for view in views[1:]))"
                ),
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/api.py",
        "softmax_box/test_values.py softmax_box/test_argmin.py softmax_box/test_gradients.py",
        {
            "wide rows: the maximum is the minimum": ("_solve_unhandled", "low * sign, low_cut * sign", "low, low_cut"),
            "the mask holds masked keys": (
                "softmax_box_argmin",
                "(rows[0] < cut[..., None]) & (rows[2] > -torch.inf)",
                "rows[0] < cut[..., None]",
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/arguments.py",
        "softmax_box/test_bad_input.py",
        {
            "crossed ends are taken": ("all_valid", "(lower <= upper) & (upper < torch.inf)", "upper < torch.inf"),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/native.py",
        "softmax_box/test_layout.py",
        {
            "threads: every piece from the start": (
                "_run",
                "(start * stride for stride in strides)",
                "(0 * start * stride for stride in strides)",
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/choices_outward.py",
        "softmax_box/test_choices.py",
        {
            "choices: terms without their error": ("choice_terms", "down(term - error)", "term"),
            "choices: terms without what underflow loses": (
                "choice_terms",
                "limits.underflow * (1 + d.abs())",
                "0 * (1 + d.abs())",
            ),
            "choices: a large weight of a negative term is lowered": (
                "choice_terms",
                "torch.where(high & (d < 0), -torch.inf, low)",
                "low",
            ),
            "choices: a sum without its error": ("least_sum", "down(least.sum(-1) - error)", "least.sum(-1)"),
            "choices: the greatest term of a key": (
                "least_sum",
                "torch.where(allowed, terms, torch.inf).amin(-1)",
                "torch.where(allowed, terms, -torch.inf).amax(-1)",
            ),
            "choices: what is not proved is returned": (
                "lower_bound",
                "least_sum(choice_terms(v, s, at, a), allowed) >= 0",
                "least_sum(choice_terms(v, s, at, a), allowed) >= -1e30",
            ),
            "choices: the greatest of the positive terms": ("least_choices", "other.argmin(-1)", "other.argmax(-1)"),
            "choices: the least of the negative terms in size": (
                "least_choices",
                "torch.where(allowed & (v < t), size, -torch.inf)",
                "torch.where(allowed & (v < t), -size, -torch.inf)",
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/choices.py",
        "softmax_box/test_choices.py",
        {"choices: no probe below every rounding error": ("_newton", "value - band * largest", "value - band * size")},
        only="minimum",
    ),
    *mutants(
        "primitive",
        "softmax_box/choices_rigorous.py",
        "softmax_box/test_choices.py",
        {
            "choices: the greatest term, in balls": ("_least", "other < term", "other > term"),
            "choices: a term of value t although there are negative ones": ("_least", "not negative", "True"),
            "choices: the enclosure's lower end is not proved": (
                "_enclose",
                "t > least and _decide(t, row) is not True",
                "False",
            ),
        },
        only="ball or ties or allowed",
    ),
]
