"""The kernel that triton_backend.py launches. One program solves ROWS rows of at most CHUNKS · WIDTH keys in registers.

A block has the dimensions CHUNKS, ROWS, WIDTH, the keys of a row being CHUNKS · WIDTH: a row lies across the WIDTH/4
(WIDTH/2 in float64) lanes that read it, its chunks within each lane, so that most of its sum needs no exchange between
lanes. CHUNK_AXIS says which dimension the chunks are: Triton's versions differ in which one they spread over lanes.

Every lane of a row must hold the same t bit for bit, or lanes leave a loop at different times and the program hangs.
So the kernel is launched with enable_fp_fusion=False: with fusion, a product that is added to its neighbour's becomes
fma(c, y, shuffled), which rounds differently on the two sides of the exchange (seen with Triton 3.6). Loops are bounded
besides; a row that has not settled after MOST_ROUNDS becomes NaN, like one that is invalid or outside the fast range.

Newton's method must not stop at keys that rounding kept at their upper end (reference.newton_min). If Q are the keys
within rounding below t, moving them down changes R by Σ_Q (t − c)(U − L) over the mass that remains: no more than
rounding, unless Q holds most of the mass. Rows where it holds a quarter become NaN too, and are done again with
CAREFUL, which probes below t. Nothing per key but c, L and U may live through the rounds: 127 registers let 16 warps
share a multiprocessor, 150 cost a quarter of the bandwidth.

The names are those of native/lanes.h and outward.py. Kernels and combine functions take single numbers and pointers
only, hence their long signatures.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _three_max_one_sum(a0, b0, c0, d0, a1, b1, c1, d1):
    return tl.maximum(a0, a1), tl.maximum(b0, b1), tl.maximum(c0, c1), d0 + d1


@triton.jit
def _add_two(a0, b0, a1, b1):
    return a0 + a1, b0 + b1


@triton.jit
def _add_three(a0, b0, c0, a1, b1, c1):
    return a0 + a1, b0 + b1, c0 + c1


@triton.jit
def exponential(x, DOUBLE: tl.constexpr):
    """e^x for x ≤ 0. In float32 x·log₂e is carried as high + low, so that the error does not grow with |x|."""
    if DOUBLE:
        y = tl.exp(x)
    else:
        high = x * 1.44269502162933349609375
        low = tl.fma(x, 1.44269502162933349609375, -high)
        low = tl.fma(x, 1.925963033500011079e-8, low)
        y = tl.exp2(high)
        y = tl.fma(y, low * 0.693147182464599609375, y)
    return y


@triton.jit
def spread(t, CHUNK_AXIS: tl.constexpr):
    """One number per row, broadcast over the row's block."""
    if CHUNK_AXIS == 0:
        return t[None, :, None]
    else:
        return t[:, None, None]


@triton.jit
def ratio(c, L, U, t, CHUNK_AXIS: tl.constexpr):
    """R(y(t)), y = U where c < t else L, and the mass Σ y: one round of the solver."""
    y = tl.where(c < spread(t, CHUNK_AXIS), U, L)
    top, mass = tl.reduce((tl.sum(c * y, CHUNK_AXIS), tl.sum(y, CHUNK_AXIS)), 1, _add_two)
    return top / mass, mass


@triton.jit
def ratio_and_size(c, L, U, t, CHUNK_AXIS: tl.constexpr):
    """R(y(t)), and the mean of |c| there, which is the scale of R's rounding."""
    y = tl.where(c < spread(t, CHUNK_AXIS), U, L)
    term = c * y
    sums = (tl.sum(term, CHUNK_AXIS), tl.sum(tl.abs(term), CHUNK_AXIS), tl.sum(y, CHUNK_AXIS))
    top, size, mass = tl.reduce(sums, 1, _add_three)
    return top / mass, size / mass


@triton.jit
def depth(y, DOUBLE: tl.constexpr):
    """An upper bound of |log y| for a weight 0 < y ≤ 1, read off its exponent as in native/vectors.h; finite at 0."""
    if DOUBLE:
        e = 1023 - (y.to(tl.int64, bitcast=True) >> 52)
    else:
        e = 127 - (y.to(tl.int32, bitcast=True) >> 23)
    return e.to(y.dtype) * 0.6931472


@triton.jit
def residual(c, L, U, t, ulps, DOUBLE: tl.constexpr, CHUNK_AXIS: tl.constexpr):
    """F ~ φ(t), G ~ Σ |c − t| y (ulps + |x|), S ~ Σ y: over the chunks in their own precision, then in float64."""
    d = c - spread(t, CHUNK_AXIS)
    y = tl.where(d < 0, U, L)
    term = d * y
    F = tl.sum(term, CHUNK_AXIS).to(tl.float64)
    G = tl.sum(tl.abs(term) * (ulps + depth(y, DOUBLE)), CHUNK_AXIS).to(tl.float64)
    S = tl.sum(y, CHUNK_AXIS).to(tl.float64)
    return tl.reduce((F, G, S), 1, _add_three)


@triton.jit
def rows_kernel(
    c_ptr, l_ptr, u_ptr, out_ptr, cut_ptr, left_ptr, n_rows, n_keys,
    size0, c0, l0, u0, size1, c1, l1, u1, size2, c2, l2, u2, size3, c3, l3, u3,
    key_c, key_l, key_u, sign, ulps, band,
    OUTWARD: tl.constexpr, CUT: tl.constexpr, CAREFUL: tl.constexpr, MOST_LEFT: tl.constexpr, LISTED: tl.constexpr,
    DOUBLE: tl.constexpr, DIMS: tl.constexpr,
    UNIT: tl.constexpr, FLOOR: tl.constexpr, UNDERFLOW: tl.constexpr, WIDEST: tl.constexpr,
    LARGEST: tl.constexpr, SMALLEST: tl.constexpr,
    SAFETY: tl.constexpr, TRIES: tl.constexpr,
    MOST_ROUNDS: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNK_AXIS: tl.constexpr,
):  # fmt: skip
    """Solve the ROWS rows of this program: the value of each to out_ptr, with CUT its cut to cut_ptr.

    Rows are numbered by the last four merged dimensions (size, strides of c, l, u); the result is contiguous.
    left_ptr: the number of programs that left a row unsolved in the fast kernel, the number in the careful one, then
    the indices of the first MOST_LEFT programs of the former. e^FLOOR is exactly 0, so raising a score to FLOOR only
    turns −inf (a masked key) into a finite number.
    """
    program = tl.program_id(0)
    if LISTED:  # the programs that the fast kernel listed; beyond their number, rows past the end, which are not stored
        program = tl.where(program < tl.load(left_ptr), tl.load(left_ptr + 2 + program), tl.cdiv(n_rows, ROWS))
    row = program * ROWS + tl.arange(0, ROWS)
    inside = row < n_rows
    rest = row
    index = rest
    if DIMS > 1:
        index = rest % size3
        rest = rest // size3
    at_c, at_l, at_u = index.to(tl.int64) * c3, index.to(tl.int64) * l3, index.to(tl.int64) * u3
    if DIMS > 1:
        index = rest
        if DIMS > 2:
            index = rest % size2
            rest = rest // size2
        at_c += index.to(tl.int64) * c2
        at_l += index.to(tl.int64) * l2
        at_u += index.to(tl.int64) * u2
    if DIMS > 2:
        index = rest
        if DIMS > 3:
            index = rest % size1
            rest = rest // size1
        at_c += index.to(tl.int64) * c1
        at_l += index.to(tl.int64) * l1
        at_u += index.to(tl.int64) * u1
    if DIMS > 3:
        at_c += rest.to(tl.int64) * c0
        at_l += rest.to(tl.int64) * l0
        at_u += rest.to(tl.int64) * u0
    chunk = tl.arange(0, CHUNKS) * WIDTH
    key = (chunk[:, None, None] if CHUNK_AXIS == 0 else chunk[None, :, None]) + tl.arange(0, WIDTH)[None, None, :]
    real = spread(inside, CHUNK_AXIS) & (key < n_keys)
    infinity = float("inf")
    l = tl.load(l_ptr + spread(at_l, CHUNK_AXIS) + key.to(tl.int64) * key_l, real, other=-infinity)  # noqa: E741
    u = tl.load(u_ptr + spread(at_u, CHUNK_AXIS) + key.to(tl.int64) * key_u, real, other=-infinity)
    c = tl.load(c_ptr + spread(at_c, CHUNK_AXIS) + key.to(tl.int64) * key_c, real, other=0.0) * sign

    fine = (l <= u) & (u < infinity) & ((l > -infinity) | (u == -infinity)) & (tl.abs(c) < infinity)
    c = tl.where(u > -infinity, c, 0.0)  # a masked key has weight 0, so its coefficient must have no effect
    size = tl.where(fine, tl.abs(c), infinity)
    a, b, size, total = tl.reduce(
        (tl.max(u, CHUNK_AXIS), tl.max(l, CHUNK_AXIS), tl.max(size, CHUNK_AXIS), tl.sum(c, CHUNK_AXIS)),
        1,
        _three_max_one_sum,
    )
    handled = (a - b <= WIDEST) & (size * n_keys < LARGEST)
    handled = handled & ((size == 0) | (size * exponential(b - a, DOUBLE) >= SMALLEST))
    a = tl.where(handled, a, 0.0)
    c = tl.where(spread(handled, CHUNK_AXIS), c, 0.0)
    xl = tl.maximum(l - spread(a, CHUNK_AXIS), FLOOR)
    xu = tl.maximum(u - spread(a, CHUNK_AXIS), FLOOR)
    L = tl.where(spread(handled, CHUNK_AXIS), exponential(xl, DOUBLE), 1.0)
    U = tl.where(spread(handled, CHUNK_AXIS), exponential(xu, DOUBLE), 1.0)

    cut = tl.where(handled, total / n_keys - 0.2 * size, 0.0)  # any start will do
    rounds = 0
    if CAREFUL:
        t, size = ratio_and_size(c, L, U, cut, CHUNK_AXIS)
        going = 1
        below = 1  # take the next vertex at the probe below t; only where that does not help, at t itself
        while (going > 0) & (rounds < MOST_ROUNDS):
            probe = t - below * band * size
            better, next_size = ratio_and_size(c, L, U, probe, CHUNK_AXIS)
            less = better < t
            falling = tl.max(less.to(tl.int32), 0)
            going = tl.maximum(falling, below * tl.max((better != t).to(tl.int32), 0))
            below = falling
            t = tl.where(less, better, t)
            size = tl.where(less, next_size, size)
            cut = tl.where(less, probe, cut)
            rounds += 1
    else:
        t, mass = ratio(c, L, U, cut, CHUNK_AXIS)
        falling = 1
        while (falling > 0) & (rounds < MOST_ROUNDS):
            better, mass = ratio(c, L, U, t, CHUNK_AXIS)
            less = better < t
            if CUT:
                cut = tl.where(less, t, cut)
            t = tl.where(less, better, t)
            falling = tl.max(less.to(tl.int32), 0)
            rounds += 1
        # keys so close below t that rounding might have kept them up, and heavy: a row for the careful kernel
        close = (c < spread(t, CHUNK_AXIS)) & (c >= spread(t - band * size, CHUNK_AXIS))
        moved = tl.sum(tl.sum(tl.where(close, U - L, 0.0), CHUNK_AXIS), 1)
        handled = handled & (4.0 * moved <= mass)
    handled = handled & (rounds < MOST_ROUNDS)

    if OUTWARD:
        low = tl.min(tl.min(c, CHUNK_AXIS), 1)  # masked keys and padding count as 0, which may only lower it
        high = tl.max(tl.max(c, CHUNK_AXIS), 1)
        lost = n_keys * UNDERFLOW * (1.0 + (high.to(tl.float64) - low.to(tl.float64)))
        F, G, S = residual(c, L, U, t, ulps, DOUBLE, CHUNK_AXIS)
        spare = F - SAFETY * (UNIT * G + lost)
        step = tl.where(spare >= 0, 0.0, -2.0 * spare / S)
        least = tl.abs(t).to(tl.float64) * UNIT
        result = low
        pending = handled
        tries = 0
        unproved = tl.max(pending.to(tl.int32), 0)
        while (unproved > 0) & (tries < TRIES):
            candidate = (t.to(tl.float64) - step).to(t.dtype)
            pending = pending & (candidate > low)
            F, G, S = residual(c, L, U, candidate, ulps, DOUBLE, CHUNK_AXIS)
            spare = F - SAFETY * (UNIT * G + lost)
            proved = pending & (spare >= 0)
            result = tl.where(proved, candidate, result)
            pending = pending & (spare < 0)
            step = 2.0 * tl.maximum(step, least) + tl.where(spare < 0, -2.0 * spare / S, 0.0)
            unproved = tl.max(pending.to(tl.int32), 0)
            tries += 1
        t = result
    if CUT:
        tl.store(cut_ptr + row, cut * sign, inside)
    tl.store(out_ptr + row, tl.where(handled, t * sign, float("nan")), inside)
    if MOST_LEFT or LISTED:  # noqa: SIM102 - list this program if it left a row unsolved
        if tl.max((inside & ~handled).to(tl.int32), 0) > 0:
            position = tl.atomic_add(left_ptr + LISTED, 1)
            if position < MOST_LEFT:
                tl.store(left_ptr + 2 + position, program)
