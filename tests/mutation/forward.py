"""Faults in the forward proofs of the checker: rules of ops, forms, ellipsoids and quadratic forms.

Left out, because the proof has room and no result changes to the unsound side: single factors MORE and grown, slack of
one rounding where another of the same size is added, and which of two bounds a choice takes: all are sound.
"""

from __future__ import annotations

from tests.mutation.mutant import Changes, Mutant, mutants

FOLDER = "certificate/checker/forward"


def of(file: str, tests: str, changes: Changes, only: str = "") -> list[Mutant]:
    """The faults of one file, and the tests of that folder that must notice."""
    names = " ".join(f"{FOLDER}/{name}" if "/" not in name else name for name in tests.split())
    return mutants("forward", f"{FOLDER}/{file}", names, changes, only)


MUTANTS: list[Mutant] = [
    *of(
        "pairs.py",
        "test_pairs.py",
        {
            "half the weights": ("_weights", "(1 / (r * r)).sum(0) * MORE", "(1 / (r * r)).sum(0) / 2"),
            "pairs counted half": ("frobenius", "weighted / 2", "weighted / 4"),
            "the largest coefficient is forgotten": ("_spectral", "norm * U * most * MORE", "norm * U * MORE"),
            "a matrix of halves of halves": ("_spectral", "relative.T / 2", "relative.T / 4", 0),
            "norms are taken to too high a root": (
                "symmetric_norm",
                "for _ in range(SQUARINGS):\n    norm = np.sqrt(norm * MORE)",
                "for _ in range(SQUARINGS + 1):\n    norm = np.sqrt(norm * MORE)",
            ),
            "what underflows is nothing": (
                "symmetric_norm",
                "np.minimum(norm * scale * MORE, size + n * math.sqrt(TINY))",
                "np.minimum(norm * scale * MORE, size)",
            ),
            "an ellipse of half the size": ("ellipse", "math.sqrt(0.5)", "0.5"),
            "the rows of pairs": ("row_squares", "found[i + 1:] += squares[begin[i]:begin[i + 1]]", "pass"),
            "one order only": ("outer", "x[first] * y[second] + x[second] * y[first]", "2 * x[first] * y[second]"),
        },
    ),
    *of(
        "forms.py",
        "test_forms.py",
        {
            "pairs as a ball of radius 1": ("Form.rough", "math.sqrt(columns.shape[1]) * MORE", "1.0"),
            "errors are not moved": ("image", "sizes(form.slack) * factor", "0.0"),
            "own errors are not moved": ("image", "sizes(form.own) * factor", "0.0 * sizes(form.own)"),
            "maps are not rounded": ("image", "rounding(roundings) * sizes(form.size) * factor", "0.0"),
            "sums are not rounded": ("total", "rounding(2) * (x.size + y.size) + LOST", "0.0"),
            "the length of a ball's largest column": (
                "lengths",
                "np.einsum('mk...,mk...->m...', columns, columns)",
                "np.square(columns).max(1)",
            ),
            "all numbers of one form": ("chosen", "np.where(keep, a.own, b.own)", "b.own"),
            "the slack of the other": ("chosen", "np.where(keep, a.slack, b.slack)", "b.slack"),
        },
    ),
    *of(
        "forms.py",
        "test_ops.py",
        {
            "squares without their mean": ("with_products", "form.centre + q.sum(0) / 2", "form.centre"),
            "squares twice": ("with_products", "q[:, None] / 2", "q[:, None]", 0),
        },
        only="curves",
    ),
    *of(
        "ellipsoids.py",
        "test_ellipsoids.py",
        {
            "rounding lowers a matrix": (
                "raised",
                "found[..., index, index] += np.abs(lift)[..., None]",
                "found[..., index, index] -= np.abs(lift)[..., None]",
            ),
            "loose errors have no size": ("of_blocks", "loose.sum(-1) * grown(d)", "0.0 * loose.sum(-1)"),
            "pairs have no size": ("of_blocks", "size = size + u", ""),
            "balls have half their size": ("of_blocks", "u.sum(0) * grown(balls)", "u.sum(0) / 2"),
            "the larger of two scales": (
                "around",
                "np.square(line.scale) + np.square(rest.scale)",
                "np.maximum(np.square(line.scale), np.square(rest.scale))",
            ),
            "columns with half the weights": (
                "of_columns",
                "u.sum(-1) * grown(x.shape[-2])",
                "u.sum(-1) * grown(x.shape[-2]) / 2",
            ),
            "keys are not added up": ("over_keys", "each_square.sum(-1)", "each_square.max(-1)"),
            "what is no number is nothing": (
                "over_keys",
                "(times == 0) | (scale == 0)",
                "~((times > 0) & (scale > 0))",
            ),
            "a factor that is not proved": ("factor", "(spare >= 0).all(-1)", "(spare >= -np.inf).all(-1)"),
            "no lift, no proof": (
                "factor",
                "np.where(valid[..., None, None], L, plain)",
                "np.where(valid[..., None, None], L, 0 * plain)",
            ),
            "columns of another row": ("with_columns", "flat[row, j]", "flat[row - 1, j]"),
            "columns stay apart and are lost": ("with_error", "np.concatenate(apart, -2)", "apart[0][..., :1, :]"),
            "a ball of its transpose": ("balls", "np.swapaxes(flat[live], -1, -2)", "flat[live]"),
            "without the scale": (
                "balls",
                "(found.scale * MORE)[..., None, None] * factor(found.matrix)",
                "factor(found.matrix)",
            ),
            "a box of the diagonal": (
                "with_error",
                "found.scale[..., None] * np.sqrt(np.diagonal(found.matrix, axis1=-2, axis2=-1)) * MORE",
                "found.scale[..., None] * np.diagonal(found.matrix, axis1=-2, axis2=-1) * 0.5",
            ),
        },
    ),
    *of(
        "last_norm.py",
        "test_last_norm.py",
        {
            "the plane below is steeper": ("bounds_of_sigma", "c / (d * middle)", "c / (d * middle) * 1.001"),
            "the plane is not proved": ("bounds_of_sigma", "left >= 0", "left >= -1"),
            "eps counted twice below": ("bounds_of_sigma", "np.maximum(below, 0)", "2 * np.maximum(below, 0)"),
            "eps is exact": (
                "bounds_of_sigma",
                "ProvedInterval(np.array(eps)) * ProvedInterval(1 - STORED, 1 + STORED)",
                "ProvedInterval(np.array(eps))",
            ),
            "rows do not move": ("bounds_of_sigma", "ProvedInterval(farthest) - square", "-square"),
            "the square of the centre counts more": (
                "bounds_of_sigma",
                "ProvedInterval(farthest) - square + stored * d",
                "ProvedInterval(farthest) - square * 1.01 + stored * d",
            ),
            "without eps above": ("bounds_of_sigma", "stored * d", "stored * 0"),
            "one bound for both signs": ("numerators", "mu >= 0", "mu >= -np.inf"),
            "the other bound for both signs": ("numerators", "mu >= 0", "mu >= np.inf"),
            "divided by the other end": ("quotients", "least >= 0", "least < 0"),
            "several rows, one of them looked at": ("lowest", "used.sum(-1) == 1", "used.sum(-1) >= 1"),
            "the constant of the affine ops": ("lowest", "back.lo[mine]", "back.hi[mine] + 0.5"),
        },
    ),
    *of(
        "propagation.py",
        "test_last_norm.py",
        {
            "an output that depends on more": ("last_norm", "len(found) == 1", "len(found) >= 1"),
            "what the norm gives, not what it reads": ("run", "forms[node.inputs[0]]", "forms[number]"),
        },
        only="norm or depends",
    ),
    *of(
        "norms.py",
        "test_norms.py",
        {"errors relative to what may be 0": ("RowNumbers.relative", "x.lo > SMALLEST", "x.lo > -np.inf")},
        only="around_zero",
    ),
    *of(
        "affine.py",
        "test_forms.py",
        {
            "stored numbers are exact": ("linear", "weight.shape[0] + STORED", "weight.shape[0]"),
            "stored factors are exact": ("scaled", "2 + STORED", "2"),
            "own errors with too little weight": ("mixed", "(own * length).sum(-1)", "(own * length).max(-1)"),
            "own errors are lost": (
                "linear",
                "np.where(round_[..., 0] & together, error.scale, 0.0)",
                "0.0 * error.scale",
            ),
            "own errors are lost where they stay apart": (
                "linear",
                "np.where(round_ & ~together[..., None], x.loose, 0.0)",
                "0.0 * x.loose",
            ),
            "own errors of another number": ("linear", "own[..., None] * weight", "own[..., ::-1, None] * weight"),
            "a gather of the first input": (
                "moved",
                "np.concatenate(parts, -1)[..., index]",
                "parts[0][..., index % parts[0].shape[-1]]",
            ),
        },
    ),
    *of(
        "products.py",
        "test_forms.py test_ops.py",
        {
            "rests are not multiplied": (
                "matrix_product",
                "product_reach(x.linear, y.rest) + product_reach(x.rest, y)",
                "product_reach(x.linear, y.rest)",
            ),
            "one factor's rest": (
                "matrix_product",
                "product_reach(x.linear, y.rest) + product_reach(x.rest, y)",
                "product_reach(x.rest, y)",
            ),
            "the square of a norm": ("product_norm", "np.minimum(norm, sizes[2])", "np.minimum(norm, sizes[2]) ** 2"),
            "only one half of the pairs": ("_matrix_pairs", "x[i] @ y[i + 1:] + x[i + 1:] @ y[i]", "x[i] @ y[i + 1:]"),
            "own errors of one factor": (
                "matrix_product",
                "x.own @ np.abs(y.centre) + np.abs(x.centre) @ y.own",
                "x.own @ np.abs(y.centre)",
            ),
            "half of a box": (
                "with_product_errors",
                "sum((x.radius * y.radius for (x, y) in parts))",
                "sum((x.radius * y.radius for (x, y) in parts)) / 2",
            ),
            "a gate's rest is forgotten": (
                "element_product",
                "[(x.linear, y.rest), (x.rest, y)]",
                "[(x.linear, y.rest)]",
            ),
        },
        only="products or norm_of_a_product",
    ),
    *of(
        "products.py",
        "test_ops.py",
        {
            "signs of weights are forgotten": (
                "with_product_errors",
                "one[..., :, None] * one[..., None, :]",
                "np.abs(one[..., :, None] * one[..., None, :])",
            ),
            "weights are forgotten": (
                "with_product_errors",
                "a.matrix * b.matrix * (one[..., :, None] * one[..., None, :])",
                "a.matrix * b.matrix * 0.2",
            ),
            "one scale of two": (
                "with_product_errors",
                "ErrorEllipsoid(matrix, a.scale).times(b.scale)",
                "ErrorEllipsoid(matrix, a.scale)",
            ),
        },
        only="products or curves",
    ),
]
