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
    *of(
        "norms.py",
        "test_norms.py test_ops.py",
        {
            "the remainder's lower end": (
                "remainder",
                "np.where(B / 2 > A, np.fmax(end.lo, -B / 2), -B / 2)",
                "np.where(B / 2 > A, np.fmax(end.lo, -B / 2), -B / 4)",
            ),
            "the remainder's upper end": (
                "remainder",
                "(ProvedInterval(A).square() / (one - A)).hi",
                "ProvedInterval(A).square().hi",
            ),
            "the end of a range that does not reach the minimum": (
                "remainder",
                "one / (one - ProvedInterval(2 * A) + B).sqrt() - 1 - A",
                "one / (one - ProvedInterval(2 * A) + B).sqrt() - 1",
            ),
            "eps is exact": (
                "row_of",
                "ProvedInterval(np.array(eps)) * ProvedInterval(1 - STORED, 1 + STORED) * d",
                "ProvedInterval(np.array(eps)) * d",
            ),
            "the shift of a product": (
                "_to_first_order",
                "c * (1 + middle)[..., None] - share * towards",
                "c * (1 + middle)[..., None] + share * towards",
            ),
            "a half of the product": (
                "_to_first_order",
                "U / 2 * np.sqrt(square) / W.lo * MORE",
                "U / 4 * np.sqrt(square) / W.lo",
            ),
            "no error along c": ("_to_first_order", "(row.rho.hi * half * MORE)[..., None] * c", "0.0 * c"),
            "no multiple of the row": (
                "_to_first_order",
                "np.where(bent, quadratic, plain) + half * shape.scale",
                "np.where(bent, quadratic, plain)",
            ),
            "no product": (
                "_to_first_order",
                "np.where(bent, quadratic, plain) + half * shape.scale",
                "half * shape.scale",
            ),
            "own errors do not turn": (
                "less_along",
                "sizes[0] * x + (x * sizes[1]).sum(-1, keepdims=True) * sizes[2]",
                "sizes[0] * x - (x * sizes[1]).sum(-1, keepdims=True) * sizes[2]",
            ),
        },
        only="norm or first_order or second_order or row",
    ),
    *of(
        "norms.py",
        "test_propagation.py",
        {
            "rows that cannot be expanded are": (
                "normalized",
                'pick("expanded", fits) & useful',
                'pick("expanded", fits)',
            ),
            "a sphere of radius 1": ("on_sphere", "d ** 0.5 * MORE", "1.0"),
        },
        only="every_choice or wide",
    ),
    *of(
        "second_norms.py",
        "test_norms.py test_ops.py",
        {
            "psi is forgotten along c": (
                "ranges",
                "more + (one - few) * B / 2 + kappa * np.maximum(-falls.lo, 0) / 2 + psi",
                "more + (one - few) * B / 2 + kappa * np.maximum(-falls.lo, 0) / 2",
            ),
            "the square of the rest": ("ranges", "ProvedInterval(B_rest) / 2", "ProvedInterval(B_rest) / 4"),
            "the inner product": ("ranges", "ProvedInterval(mixed)", "ProvedInterval(mixed) / 2"),
            "the denominator of the square": ("ranges", "(many - 1) * B / 2", "(many - 1) * B / 4"),
            "theta": ("ranges", "kappa * np.maximum(rises.hi, 0) / 2", "0.0"),
            "theta's least": ("ranges", "kappa * np.maximum(-falls.lo, 0) / 2", "0.0"),
            "a difference of squares": ("ranges", "ProvedInterval(A) + A_line", "ProvedInterval(A) * 0.1"),
            "k at least": ("ranges", "-(many * B / 2 + kappa * theta / 2) / least", "-(B / 2 + kappa * theta / 2)"),
            "a over the whole": (
                "to_second_order",
                "c / row.square.middle()[..., None]",
                "c / row.whole.middle()[..., None]",
            ),
            "the rest of a": ("to_second_order", "most * (A_rest + half) * MORE", "most * half * MORE"),
            "k itself": ("to_second_order", "most * (A_rest + half) * MORE", "most * A_rest * MORE"),
            "a times the rest": ("to_second_order", "of_rest.times(most * A_line * MORE)", "of_rest.times(0.0 * most)"),
            "errors along c": ("to_second_order", "(most * off * MORE)[..., None] * c", "0.0 * c"),
            "eps pushes the other way": (
                "to_second_order",
                "(rho * kappa.middle())[..., None] * c",
                "-(rho * kappa.middle())[..., None] * c",
            ),
            "kept products without their sign": (
                "_products",
                "-scale * (x + z[..., None] * c)",
                "scale * (x + z[..., None] * c)",
            ),
            "kept products across only": ("_products", "-scale * (x + z[..., None] * c)", "-scale * x"),
            "the part along c stays": ("parted", "x - (x * pull).sum(-1, keepdims=True) * c", "x"),
        },
        only="norm or order or row",
    ),
    *of(
        "exponentials.py",
        "test_exponentials.py",
        {
            "the line at least": ("line", "1 - enclose(arb.log, steep)", "1.01 - enclose(arb.log, steep)"),
            "one end of the line": (
                "line",
                "np.maximum((up - ProvedInterval(steep) * tau).hi, (down_ + ProvedInterval(steep) * tau).hi)",
                "(up - ProvedInterval(steep) * tau).hi * 0.98 + 0.02 * steep",
            ),
            "the third power": (
                "parabola",
                "tau ** 3 / 24 + tau ** 4 / 192 + odd + even / 2 + lost",
                "tau ** 3 / 30 + tau ** 4 / 192 + odd + even / 2 + lost",
            ),
            "no remainder of the series": (
                "parabola",
                "tau ** 3 / 24 + tau ** 4 / 192 + odd + even / 2 + lost",
                "tau ** 3 / 24",
            ),
            "the parabola's slope": ("parabola", "1 + tau ** 2 / 8", "1 + tau ** 2 / 6"),
            "scores are not centred": ("centred", "x - (weights * x).sum(-1, keepdims=True)", "x"),
            "own errors without the mean": (
                "centred",
                "(alone * x + (weights * x) @ others) * grown(keys)",
                "alone * x",
            ),
            "Z does not bend": ("centred", "(1 + drift + bent) * MORE", "(1 + drift) * MORE"),
            "the least weight": ("_weighed", "np.maximum(low.lo, 0)", "c.weights"),
        },
    ),
    *of(
        "logistic.py",
        "test_exponentials.py",
        {
            "no D": ("logistic", "ProvedInterval(-drift, (most + drift) * MORE)", "ProvedInterval(-drift, drift)"),
            "D without what s does": (
                "logistic",
                "((c.weights * bends) @ others + of_s * ((c.weights * grows) @ others)) * more / rest + bend_s",
                "(c.weights * bends) @ others / rest",
            ),
            "steepness of the other keys": ("logistic", "ratio + 1", "ratio", 2),
            "the top of z": (
                "logistic",
                "np.fmin(tops, (log + wide - D.lo).hi)",
                "np.fmin(tops, (log + wide / 2 - D.lo).hi)",
            ),
            "the bottom of z": (
                "logistic",
                "np.fmax(bottoms, (log - wide - D.hi).lo)",
                "np.fmax(bottoms, (log - wide).lo)",
            ),
            "the other end of D": (
                "_weights",
                "(shift - ProvedInterval(b) * D.hi).lo",
                "(shift - ProvedInterval(b) * D.lo).lo",
            ),
            "a key that is alone": ("_weights", "np.where(varies, alpha, alone * 1.0)", "np.where(varies, alpha, 0.0)"),
        },
    ),
    *of(
        "first_products.py",
        "test_ops.py",
        {
            "half of the ball": ("joint_products", "U / 2 * MORE", "U / 4"),
            "the shift to the other side": ("joint_products", "half[..., None] * shift", "-half[..., None] * shift"),
            "the scores' weights": (
                "joint_products",
                "half * np.sqrt(square * MORE) * MORE",
                "half * np.sqrt(square * MORE) / 2",
            ),
        },
        only="attention",
    ),
    *of(
        "attention.py",
        "test_ops.py",
        {
            "the curvature of weights": (
                "_to_second_order",
                "(q.delta + q.gamma * mixed + q.beta * c.t.loose) * MORE",
                "(q.delta + q.beta * c.t.loose) * MORE",
            ),
            "loose scores": (
                "_to_second_order",
                "(q.delta + q.gamma * mixed + q.beta * c.t.loose) * MORE",
                "(q.delta + q.gamma * mixed) * MORE",
            ),
            "errors of values times lines": (
                "_to_second_order",
                "over_keys(q.beta * line_t * MORE, of_rest)",
                "over_keys(0.0 * line_t, of_rest)",
            ),
            "errors of scores times values": (
                "_to_second_order",
                "(q.beta * other + bent + q.delta) * MORE",
                "(bent + q.delta) * MORE",
            ),
            "half the curvature at values": (
                "_to_second_order",
                "q.gamma * c.reach * c.reach / 2 * MORE",
                "q.gamma * c.reach * c.reach / 4",
            ),
            "2 r l is l r": ("_to_second_order", "2 * line_t * other + other * other", "other * other"),
            "products of scores and values": (
                "_products",
                "of_t[..., None] * (q.gamma[..., None] * away) + q.beta[..., None] * of_v[..., None, :, :]",
                "of_t[..., None] * (q.gamma[..., None] * away)",
            ),
            "not divided": ("_divided", "inverse.reach(middle) * MORE", "0.0 * middle"),
            "the range of weights": (
                "_to_first_order",
                "np.where(better, q.beta * c.t.loose + q.delta, q.reach(middle)) * MORE",
                "np.where(better, q.beta * c.t.loose + q.delta, 0.5 * q.reach(middle)) * MORE",
            ),
            "loose values": ("_to_first_order", "(share * c.reach) @ values.loose * grown(keys)", "0.0 * found.own"),
            "columns of keys": (
                "_to_first_order",
                "((q.delta + q.beta * c.t.loose) * MORE)[..., None] * away",
                "((q.beta * c.t.loose) * MORE)[..., None] * away",
            ),
            "loose scores to first order": (
                "_to_first_order",
                "((q.delta + q.beta * c.t.loose) * MORE)[..., None] * away",
                "(q.delta * MORE)[..., None] * away",
            ),
            "no product of scores and values": (
                "_to_first_order",
                "over_keys(share * both.size * MORE, ErrorEllipsoid(both.matrix, both.one))",
                "over_keys(0.0 * both.size, ErrorEllipsoid(both.matrix, both.one))",
            ),
            "the slope towards values": ("_numerator", "q.beta[..., None] * away", "0.9 * q.beta[..., None] * away"),
        },
        only="attention",
    ),
    *of(
        "curves.py",
        "test_curves.py test_ops.py",
        {
            "the cube": ("curved", "third * (0.75 * h * h)", "third * (0.5 * h * h)"),
            "what the cube leaves": ("curved", "np.abs(third) * h ** 3 / 4 + fourth * h ** 4", "fourth * h ** 4"),
            "the fourth power": (
                "curved",
                "np.abs(third) * h ** 3 / 4 + fourth * h ** 4",
                "np.abs(third) * h ** 3 / 4",
            ),
            "half the square": (
                "curved",
                "(second * part for part in pairs.outer(line, line))",
                "(second / 2 * part for part in pairs.outer(line, line))",
            ),
            "products with the rest": ("curved", "[(x.linear, x.rest), (x.rest, x)]", "[(x.linear, x.rest)]"),
            "half a band": (
                "bent",
                "ProvedInterval(low, high).reach(middle)",
                "0.5 * ProvedInterval(low, high).reach(middle)",
            ),
            "derivatives at the middle only": ("_fourth", "low.union(low + step)", "low"),
            "a sigmoid's curvature": ("_sigmoid", "u * w * (arb(1) / 6 - u * u)", "u * w * (arb(1) / 4 - u * u)"),
        },
        only="curves or taylor",
    ),
    *of(
        "propagation.py",
        "test_propagation.py",
        {
            "rows that are too wide": (
                "_attended",
                "chosen(useful[..., None], found, of_box(known.boxes[number]))",
                "found",
            ),
            "constants are exact": ("_propagated", "np.abs(value) * norms.STORED * MORE", "0.0 * value"),
            "blocks are dropped": ("reduced", "[around(old)]", "[around(rest.linear).times(0.0 * around(old).scale)]"),
            "what is dropped is nothing": ("reduced", "(rest.own + old.rough) * MORE", "rest.own"),
            "all is dropped": ("_without_lines", "(form.own + form.rough) * MORE", "form.own"),
            "a box of the centre": (
                "_meet",
                "ProvedInterval(found.centre) + ProvedInterval(-found.rough, found.rough)",
                "ProvedInterval(found.centre) + ProvedInterval(-0.5 * found.rough, found.rough)",
            ),
            "only one end of numbers": ("start", "box.reach(middle)", "0.9 * box.reach(middle)"),
        },
        only="every_op or points or together or functionals or wide",
    ),
    *of(
        "propagation.py",
        "certificate/test_forward.py",
        {
            "work is not counted": (
                "_charge",
                "known.charge(size * columns * 4 * inner + size * inner * inner * 8 + pairs)",
                "None",
            ),
        },
        only="limited",
    ),
]
