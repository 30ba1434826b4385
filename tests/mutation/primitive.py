"""Faults in the primitive: exact optima over score boxes, their proofs of rounding, probabilities, the affine rule.

Left out, because nothing comes out on the wrong side: a tie c = t at either end (its share is 0), any other start of
Newton's method, the number of tries of the proof (min c is always there), single ulps of its bound (the proof says
where it has room), MOST_KEYS (a precondition of the proof, not a value), τ_0 and τ_K (never below their neighbours),
WIDEST (beyond it weights underflow, and the proof still holds: it only gives less).
"""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "primitive",
        "softmax_box/torch_backend.py",
        "softmax_box/test_values.py",
        {
            "newton: upper ends on the large coefficients": (
                "y = torch.where(c < t, U, L)",
                "y = torch.where(c > t, U, L)",
            ),
            "newton: never careful": (
                "if bool(((c < t) & (c >= t - band)).any())",
                "if bool(((c < t) & (c >= t + band)).any())",
            ),
            "newton: the probe is t": ("probe = t - ulps * size if below else t", "probe = t"),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/log_domain.py",
        "softmax_box/test_values.py softmax_box/test_soundness.py",
        {
            "coefficients that underflow round up": (
                "    if outward:  # the minimum grows",
                "    if False:  # the minimum grows",
            ),
            "no proof": ("t = proof.lower_bound(scaled, lower, upper, t, None)", "t = t + 0"),
        },
        only="exact or range or underflow or outward",
    ),
    *mutants(
        "primitive",
        "softmax_box/outward.py",
        "softmax_box/test_mutants.py",
        {
            "no error": ("residual - SAFETY * (error + lost), mass", "residual, mass"),
            "what is not proved is returned": ("proved = open_ & (spare >= 0)", "proved = open_ & (spare >= -1e30)"),
        },
        only="outward_check or acceptance or candidate",
    ),
    *mutants(
        "primitive",
        "softmax_box/probabilities.py",
        "softmax_box/test_probabilities.py",
        {
            "the total less one": ("return prefix + suffix", "return y.sum(-1, keepdim=True) - y"),
            "the least with the others low": ("L / (L + _others(U))", "L / (L + _others(L))"),
            "wide rows: the others low": ("_log_domain(lo[at], up[at])", "_log_domain(lo[at], lo[at])"),
            "p^L is not lowered": ("least * (1 - 2 * error)", "least"),
            "p^U rounded down": ("back(-round_down(-greatest, dtype))", "back(round_down(greatest, dtype))"),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/affine.py",
        "softmax_box/test_affine.py",
        {
            "the bottom between the ends forgotten": (
                "inside = (up_left < a) & (a < up_right)",
                "inside = (up_left < a) & (a < up_left)",
            ),
            "values at their lower ends": ("torch.minimum(*terms).sum(-1)", "terms[0].sum(-1)"),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/log_ranges.py",
        "softmax_box/test_affine.py",
        {
            "the wrong shift for the largest key": ("torch.where(first, second, top), mass", "top + 0 * second, mass"),
            "pieces: the lower end by the wrong cut": ("- D[..., 1:, None])", "- D[..., :-1, None])"),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/affine_outward.py",
        "softmax_box/test_affine.py softmax_box/test_affine_mutants.py",
        {
            "summands are not lowered": ("lost = UNIT * (keys + EXTRA_ULPS)", "lost = 0.0 * UNIT"),
            "ranges are not widened": ("low - _widening(low, keys), high + _widening(high, keys)", "low, high"),
            "the bottom is not lowered": ("- lost * (a + slope.abs() + fixed)", "- 0 * (a + slope.abs() + fixed)"),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/rigorous.py",
        "softmax_box/test_rigorous.py",
        {
            "below the largest coefficient is a bound": ("    if t <= min(c):\n", "    if t <= max(c):\n"),
            "undecided is proved": ("            if value >= 0:\n", "            if not value < 0:\n"),
            "a conversion to nearest": (
                "while not flint.arb(value) <= ball:",
                "while False and not flint.arb(value) <= ball:",
            ),
            "coefficients of masked keys count": (
                "tuple(view[index][keep].tolist() for view in views)",
                (
                    "(views[0][index].tolist(), *(np.where(keep, view[index], "
                    "view[index][keep].min()).tolist() for view in views[1:]))"
                ),
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/api.py",
        "softmax_box/test_values.py softmax_box/test_argmin.py softmax_box/test_gradients.py",
        {
            "wide rows: the maximum is the minimum": (
                "value[left], where[left] = low * sign, cut * sign",
                "value[left], where[left] = low, cut",
            ),
            "the mask holds masked keys": (
                'mask = (found["c"] < cut[..., None]) & (found["upper"] > -torch.inf)',
                'mask = found["c"] < cut[..., None]',
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/arguments.py",
        "softmax_box/test_bad_input.py",
        {
            "crossed ends are taken": (
                (
                    "ends = (lower <= upper) & (upper < torch.inf) & ((lower > -torch.inf) | (upper == "
                    "-torch.inf)) & c.isfinite()"
                ),
                ("ends = (upper < torch.inf) & ((lower > -torch.inf) | (upper == -torch.inf)) & c.isfinite()"),
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/native.py",
        "softmax_box/test_layout.py",
        {
            "threads: every piece from the start": (
                "offsets = tuple(start * stride for stride in size_strides)",
                "offsets = tuple(0 * start * stride for stride in size_strides)",
            ),
        },
    ),
]
