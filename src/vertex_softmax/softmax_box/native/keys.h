/* Long rows: one row at a time, the vector runs along its keys. The row sits in scratch buffers padded with keys of
 * weight 0, so c, l and u are read once from memory and a box shared by many coefficient rows is exponentiated once. */

/* The weights of one box row into L, U; 0 where the fast path does not handle the row. */
static int FN(key_weights)(const REAL *l, int64_t sl, const REAL *u, int64_t su, int64_t K, int64_t padded, REAL *L,
                           REAL *U) {
    const REAL inf = (REAL)INFINITY;
    for (int64_t j = 0; j < K; j++) L[j] = l[j * sl];
    for (int64_t j = 0; j < K; j++) U[j] = u[j * su];
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
    if (FN(any)(bad) || !(a - b <= WIDEST)) return 0; /* every key masked: -inf + inf is NaN and ends here too */
    for (int64_t j = 0; j < padded; j += LANES) {
        FN(store)(L + j, FN(exp)(FN(load)(L + j) - a));
        FN(store)(U + j, FN(exp)(FN(load)(U + j) - a));
    }
    return 1;
}

typedef struct { REAL start, low, high; } FN(spread);

/* sign * c into C; 0 where a coefficient is not finite or so large that products might overflow. */
static int FN(key_coefficients)(const REAL *c, int64_t sc, int64_t K, int64_t padded, REAL sign, REAL *C,
                                FN(spread) *spread) {
    if (sc == 1) {
        int64_t whole = K / LANES * LANES;
        for (int64_t j = 0; j < whole; j += LANES) FN(store)(C + j, FN(load)(c + j) * sign);
        for (int64_t j = whole; j < K; j++) C[j] = c[j] * sign;
    } else {
        for (int64_t j = 0; j < K; j++) C[j] = c[j * sc] * sign;
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
    return FN(sum)(size) < LARGEST;
}

/* R(y(t)): one round of the solver. */
static inline REAL FN(key_round)(const REAL *C, const REAL *L, const REAL *U, int64_t padded, REAL t) {
    VEC n0 = {0}, s0 = {0}, n1 = {0}, s1 = {0}, vt = FN(all)(t);
    int64_t j = 0;
    for (; j + 2 * LANES <= padded; j += 2 * LANES) {
        VEC c0 = FN(load)(C + j), c1 = FN(load)(C + j + LANES);
        VEC y0 = FN(pick)(c0 < vt, FN(load)(U + j), FN(load)(L + j));
        VEC y1 = FN(pick)(c1 < vt, FN(load)(U + j + LANES), FN(load)(L + j + LANES));
        n0 += c0 * y0; s0 += y0;
        n1 += c1 * y1; s1 += y1;
    }
    if (j < padded) {
        VEC c0 = FN(load)(C + j);
        VEC y0 = FN(pick)(c0 < vt, FN(load)(U + j), FN(load)(L + j));
        n0 += c0 * y0; s0 += y0;
    }
    return FN(sum)(n0 + n1) / FN(sum)(s0 + s1);
}

static REAL FN(key_solve)(const REAL *C, const REAL *L, const REAL *U, int64_t padded, FN(spread) spread) {
    const REAL size = FABS(spread.low) > FABS(spread.high) ? FABS(spread.low) : FABS(spread.high);
    const REAL band = (REAL)(padded / LANES + ROUND_ULPS) * UNIT * size;
    REAL t = FN(key_round)(C, L, U, padded, spread.start);
    for (;;) {
        REAL probe = t - band, better = FN(key_round)(C, L, U, padded, probe);
        if (better == t) return t;
        if (!(better < probe)) break;
        t = better;
    }
    for (;;) { /* keys lie in the band: finish with the probe at t itself */
        REAL better = FN(key_round)(C, L, U, padded, t);
        if (!(better < t)) return t;
        t = better;
    }
}

static inline void FN(key_residual)(const REAL *C, const REAL *L, const REAL *U, int64_t padded, REAL t, REAL ulps,
                                    REAL *F, REAL *G, REAL *S) {
    VEC f = {0}, g = {0}, s = {0};
    for (int64_t j = 0; j < padded; j += LANES)
        FN(share)(FN(load)(C + j), FN(load)(L + j), FN(load)(U + j), FN(all)(t), FN(all)(ulps), &f, &g, &s);
    *F = FN(sum)(f); *G = FN(sum)(g); *S = FN(sum)(s);
}

static REAL FN(key_outward)(const REAL *C, const REAL *L, const REAL *U, int64_t padded, REAL t, FN(spread) spread) {
    const REAL ulps = (REAL)(padded / LANES + EXTRA_ULPS);
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
