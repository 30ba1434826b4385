"""Faults in the C kernel, which is compiled anew for each."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "primitive",
        "softmax_box/native/vectors.h",
        "softmax_box/test_values.py",
        {
            "upper ends on the large coefficients": (
                "",
                "const VEC y = FN(pick)(c < t, U, L);",
                "const VEC y = FN(pick)(c > t, U, L);",
            ),
        },
        only="native or exact",
    ),
    *mutants(
        "primitive",
        "softmax_box/native/vectors.h",
        "softmax_box/test_soundness.py",
        {
            "the residual at the wrong ends": (
                "",
                "VEC y = FN(pick)(d < FN(all)(0), U, L);",
                "VEC y = FN(pick)(d > FN(all)(0), U, L);",
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/native/real64.h",
        "softmax_box/test_exponential.py",
        {
            "the polynomial two degrees shorter": ("", "#define EXP_DEGREE 13", "#define EXP_DEGREE 11"),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/native/keys.h",
        "softmax_box/test_values.py",
        {
            "long rows: the probe is t": ("", "REAL probe = below ? t - ulps * size : t,", "REAL probe = t,"),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/native/keys.h",
        "softmax_box/test_soundness.py",
        {
            "long rows: what is not proved is returned": (
                "",
                "if (F >= need) return candidate;",
                "if (F >= 0) return candidate;",
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/native/lanes.h",
        "softmax_box/test_soundness.py",
        {
            "short rows: what is not proved is returned": (
                "",
                "IVEC proved = open & (F >= need);",
                "IVEC proved = open & (F >= FN(all)(0));",
            ),
        },
    ),
    *mutants(
        "primitive",
        "softmax_box/native/rows.h",
        "softmax_box/test_layout.py",
        {
            "the box of before": ("", "if (!shared || loaded != outer) box =", "if (!shared || loaded < 0) box ="),
        },
    ),
]
