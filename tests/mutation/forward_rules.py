"""More faults in the forward proofs of the checker: the rules of further ops, the last norm, and the propagation."""

from __future__ import annotations

from tests.mutation.forward import of
from tests.mutation.mutant import Mutant

MUTANTS: list[Mutant] = [
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
            "the cube": ("smooth", "third * (0.75 * h * h)", "third * (0.5 * h * h)"),
            "what the cube leaves": ("smooth", "np.abs(third) * h ** 3 / 4 + fourth * h ** 4", "fourth * h ** 4"),
            "the fourth power": (
                "smooth",
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
        "relu.py",
        "test_relu.py",
        {
            "a parabola's least error": ("deviation", "np.minimum(least, end.lo)", "np.maximum(least, end.lo)"),
            "one side's error from below": ("deviation", "np.minimum(least, end.lo)", "end.lo"),
            "one side's error from above": (
                "deviation",
                "np.maximum(most, (ProvedInterval(bow) * t.square() + np.maximum(rises.hi, 0)).hi)",
                "(ProvedInterval(bow) * t.square() + np.maximum(rises.hi, 0)).hi",
            ),
            "a tangent that does not rise": ("deviation", "np.maximum(rises.hi, 0)", "0 * rises.hi"),
            "a tangent that falls too much": (
                "deviation",
                "ProvedInterval(2 * bow) * t",
                "ProvedInterval(4 * bow) * t",
            ),
            "a tangent of half the height": (
                "deviation",
                "ProvedInterval(bow) * t.square()",
                "ProvedInterval(bow / 2) * t.square()",
            ),
            "the slopes of both sides exchanged": (
                "deviation",
                "((1 - ProvedInterval(slope), up), (ProvedInterval(slope), -low))",
                "((ProvedInterval(slope), up), (1 - ProvedInterval(slope), -low))",
            ),
            "ends that are rounded": (
                "deviation",
                "tilt * length - ProvedInterval(bow) * ProvedInterval(length).square()",
                "ProvedInterval((tilt.middle() - bow * length) * length)",
            ),
            "half of a parabola's error": ("parabola", "left.reach(middle)", "left.reach(middle) / 2"),
            "a parabola around 0": (
                "parabola",
                "ProvedInterval(slope) + ProvedInterval(2 * bow) * c",
                "ProvedInterval(slope)",
            ),
            "a parabola's value at the centre": (
                "parabola",
                "ProvedInterval(bow) * ProvedInterval(c).square()",
                "ProvedInterval(0 * bow)",
            ),
            "coefficients that are not rounded": (
                "parabola",
                "(value.reach(value.middle()) + steep.reach(steep.middle()) * h) * MORE",
                "0 * h",
            ),
            "a slope that is not rounded": (
                "parabola",
                "(value.reach(value.middle()) + steep.reach(steep.middle()) * h) * MORE",
                "value.reach(value.middle())",
            ),
            "signs that are not known": ("parabola", "known = on | off", "known = on | off | (box.hi < 1e-6)"),
            "numbers that may be negative": ("parabola", "box.lo >= 0", "box.lo >= -1e-11"),
            "numbers that may be positive": ("parabola", "box.hi <= 0", "box.hi <= 1e-11"),
            "what is no number is known": ("parabola", "known = on | off", "known = ~((box.lo < 0) & (box.hi > 0))"),
            "curvatures of any size": ("between", "g / 2 <= MOST", "g / 2 <= np.inf"),
        },
    ),
    *of(
        "curves.py",
        "test_relu.py",
        {
            "a parabola's rows that are not finite": (
                "curved",
                "np.isfinite(found.rough).all(-1)",
                "~np.isnan(first.rough).all(-1)",
            ),
            "a parabola without its own error": ("curved", "(size * x.own + near.own) * MORE", "size * x.own * MORE"),
        },
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
