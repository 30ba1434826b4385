/* Long rows: one row at a time, the vector runs along its keys. The row sits in scratch buffers padded with keys of
 * weight 0, so c, l and u are read once from memory and a box shared by many coefficient rows is exponentiated once. */

typedef struct { int handled, masked; REAL reach; } FN(box);

/* The weights of one box row into L, U. `reach` is e^(max l - max u), the least that the weights can sum up to. */
static FN(box) FN(key_weights)(const REAL *l, int64_t sl, const REAL *u, int64_t su, int64_t K, int64_t padded,
                               REAL *L, REAL *U) {
    const REAL inf = (REAL)INFINITY;
    for (int64_t j = 0; j < K; j++) L[j] = l[j * sl];
    for (int64_t j = 0; j < K; j++) U[j] = u[j * su];
    int masked = 0;
    for (int64_t j = 0; j < K; j++) masked |= U[j] == -inf;
    for (int64_t j = K; j < padded; j++) L[j] = U[j] = -inf;
    VEC top = FN(all)(-inf), low = FN(all)(-inf);
    IVEC bad = {0};
    for (int64_t j = 0; j < padded; j += LANES) {
        VEC vl = FN(load)(L + j), vu = FN(load)(U + j);
        bad |= FN(broken)(vl, vu);
        top = FN(vmax)(top, vu);
        low = FN(vmax)(low, vl);
    }
    REAL a = FN(largest)(top), b = FN(largest)(low);
    if (FN(any)(bad) || !(a - b <= WIDEST)) return (FN(box)){0, 0, 0}; /* every key masked: NaN, ends here too */
    for (int64_t j = 0; j < padded; j += LANES) {
        FN(store)(L + j, FN(exp)(FN(load)(L + j) - a));
        FN(store)(U + j, FN(exp)(FN(load)(U + j) - a));
    }
    return (FN(box)){1, masked, FN(exp)(FN(all)(b - a))[0]};
}

typedef struct { REAL start, low, high; } FN(spread);

/* sign * c into C; 0 where a coefficient is not finite, or products might overflow or underflow.
 * A masked key has weight 0; it takes the coefficient of an unmasked key, so that it has no effect on the spread. */
static int FN(key_coefficients)(const REAL *c, int64_t sc, const REAL *u, int64_t su, FN(box) box, int64_t K,
                                int64_t padded, REAL sign, REAL *C, FN(spread) *spread) {
    if (sc == 1) {
        int64_t whole = K / LANES * LANES;
        for (int64_t j = 0; j < whole; j += LANES) FN(store)(C + j, FN(load)(c + j) * sign);
        for (int64_t j = whole; j < K; j++) C[j] = c[j] * sign;
    } else {
        for (int64_t j = 0; j < K; j++) C[j] = c[j * sc] * sign;
    }
    if (box.masked) {
        REAL counts = 0, sum = 0;
        for (int64_t j = 0; j < K; j++) {
            if (u[j * su] != -(REAL)INFINITY) counts = C[j];
            sum += C[j] * 0; /* 0, or NaN where a coefficient is not finite */
        }
        for (int64_t j = 0; j < K; j++)
            if (u[j * su] == -(REAL)INFINITY) C[j] = counts + sum;
    }
    for (int64_t j = K; j < padded; j++) C[j] = C[0];
    VEC total = {0}, size = {0}, low = FN(load)(C), high = low;
    for (int64_t j = 0; j < padded; j += LANES) {
        VEC v = FN(load)(C + j);
        total += v;
        size += FN(vabs)(v);
        low = FN(vmin)(low, v);
        high = FN(vmax)(high, v);
    }
    spread->start = (FN(sum)(total) - FN(sum)(size) / 2) / (REAL)padded; /* any start will do */
    spread->low = -FN(largest)(-low);
    spread->high = FN(largest)(high);
    REAL whole_size = FN(sum)(size);
    return whole_size < LARGEST && (whole_size == 0 || whole_size * box.reach >= SMALLEST);
}

/* R(y(t)), one round of the solver; *size is the mean of |c| under the same weights, the scale of R's rounding. */
static inline REAL FN(key_round)(const REAL *C, const REAL *L, const REAL *U, int64_t padded, REAL t, REAL *size) {
    VEC n0 = {0}, s0 = {0}, a0 = {0}, n1 = {0}, s1 = {0}, a1 = {0}, vt = FN(all)(t);
    int64_t j = 0;
    for (; j + 2 * LANES <= padded; j += 2 * LANES) {
        FN(add_key)(FN(load)(C + j), FN(load)(L + j), FN(load)(U + j), vt, &n0, &s0, &a0);
        FN(add_key)(FN(load)(C + j + LANES), FN(load)(L + j + LANES), FN(load)(U + j + LANES), vt, &n1, &s1, &a1);
    }
    if (j < padded) FN(add_key)(FN(load)(C + j), FN(load)(L + j), FN(load)(U + j), vt, &n0, &s0, &a0);
    const REAL mass = FN(sum)(s0 + s1);
    *size = FN(sum)(a0 + a1) / mass;
    return FN(sum)(n0 + n1) / mass;
}

/* The minimum; *cut is the number whose vertex y(cut) attains it. */
static REAL FN(key_solve)(const REAL *C, const REAL *L, const REAL *U, int64_t padded, FN(spread) spread, REAL *cut) {
    const REAL ulps = (REAL)(padded / LANES + ROUND_ULPS) * UNIT;
    REAL size, next, t = FN(key_round)(C, L, U, padded, spread.start, &size);
    *cut = spread.start;
    for (int below = 1;;) { /* take the next vertex at the probe below t; only where that does not help, at t itself */
        REAL probe = below ? t - ulps * size : t, better = FN(key_round)(C, L, U, padded, probe, &next);
        if (better < t) {
            t = better;
            size = next;
            *cut = probe;
            below = 1;
        } else if (below && better != t) {
            below = 0;
        } else {
            return t;
        }
    }
}

static inline void FN(key_residual)(const REAL *C, const REAL *L, const REAL *U, int64_t padded, REAL t, REAL ulps,
                                    REAL *F, REAL *G, REAL *S) {
    VEC f = {0}, g = {0}, s = {0};
    for (int64_t first = 0; first < padded; first += BLOCK * LANES) { /* sums of block sums: shorter paths, less error */
        const int64_t end = first + BLOCK * LANES < padded ? first + BLOCK * LANES : padded;
        VEC bf = {0}, bg = {0}, bs = {0};
        for (int64_t j = first; j < end; j += LANES)
            FN(share)(FN(load)(C + j), FN(load)(L + j), FN(load)(U + j), FN(all)(t), FN(all)(ulps), &bf, &bg, &bs);
        f += bf;
        g += bg;
        s += bs;
    }
    *F = FN(sum)(f); *G = FN(sum)(g); *S = FN(sum)(s);
}

static REAL FN(key_outward)(const REAL *C, const REAL *L, const REAL *U, int64_t padded, REAL t, FN(spread) spread) {
    const int64_t vectors = padded / LANES;
    const REAL ulps = (REAL)((vectors < BLOCK ? vectors : BLOCK) + vectors / BLOCK + 1 + EXTRA_ULPS);
    const REAL lost = (REAL)padded * UNDERFLOW * (1 + (spread.high - spread.low));
    const REAL least = FABS(t) * UNIT;
    REAL F, G, S;
    FN(key_residual)(C, L, U, padded, t, ulps, &F, &G, &S);
    REAL need = SAFETY * (UNIT * G + lost);
    REAL step = F >= need ? 0 : 2 * (need - F) / S;
    for (int tries = 0; tries < TRIES; tries++) {
        REAL candidate = t - step;
        if (!(candidate > spread.low)) break;
        FN(key_residual)(C, L, U, padded, candidate, ulps, &F, &G, &S);
        need = SAFETY * (UNIT * G + lost);
        if (F >= need) return candidate;
        step = 2 * (step > least ? step : least) + 2 * (need - F) / S;
    }
    return spread.low;
}
