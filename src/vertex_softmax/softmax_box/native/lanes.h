/* Short rows: LANES rows at a time, one row per lane, transposed into the scratch buffers. No horizontal sums. */

/* Transpose LANES rows of K keys: to[j * LANES + i] = from[i][j]. */
static inline void FN(lane_gather)(const REAL *const *from, int64_t stride, int64_t K, REAL *to) {
    for (int i = 0; i < LANES; i++) {
        const REAL *row = from[i];
        if (stride == 1)
            for (int64_t j = 0; j < K; j++) to[j * LANES + i] = row[j];
        else
            for (int64_t j = 0; j < K; j++) to[j * LANES + i] = row[j * stride];
    }
}

typedef struct { IVEC handled; int masked; VEC reach; } FN(lane_box);

/* The weights of LANES box rows into L, U; lanes that the fast path does not handle get weight 1. */
static FN(lane_box) FN(lane_weights)(const REAL *const *l, int64_t sl, const REAL *const *u, int64_t su, int64_t K,
                                     REAL *L, REAL *U) {
    VEC top = FN(all)(-(REAL)INFINITY), low = top;
    IVEC bad = {0}, masked = {0};
    FN(lane_gather)(l, sl, K, L);
    FN(lane_gather)(u, su, K, U);
    for (int64_t j = 0; j < K; j++) {
        VEC vl = FN(load)(L + j * LANES), vu = FN(load)(U + j * LANES);
        bad |= FN(broken)(vl, vu);
        masked |= vu == FN(all)(-(REAL)INFINITY);
        top = FN(vmax)(top, vu);
        low = FN(vmax)(low, vl);
    }
    IVEC handled = ~bad & (top - low <= WIDEST);
    for (int64_t j = 0; j < K; j++) {
        VEC one = FN(all)(1), x = FN(load)(L + j * LANES) - top, z = FN(load)(U + j * LANES) - top;
        FN(store)(L + j * LANES, FN(pick)(handled, FN(exp)(FN(pick)(handled, x, -one)), one));
        FN(store)(U + j * LANES, FN(pick)(handled, FN(exp)(FN(pick)(handled, z, -one)), one));
    }
    VEC reach = FN(exp)(FN(pick)(handled, low - top, FN(all)(0)));
    return (FN(lane_box)){handled, FN(any)(masked), reach};
}

typedef struct { VEC start, low, high; } FN(lane_spread);

/* sign * c into C; returns the lanes whose coefficients are finite and of a size that products neither overflow nor
 * underflow (the others get 0). Masked keys take the coefficient of an unmasked key, as in keys.h. */
static IVEC FN(lane_coefficients)(const REAL *const *c, int64_t sc, const REAL *const *u, int64_t su, FN(lane_box) box,
                                  int64_t K, REAL sign, REAL *C, FN(lane_spread) *spread) {
    FN(lane_gather)(c, sc, K, C);
    for (int i = 0; box.masked && i < LANES; i++) {
        REAL counts = 0, sum = 0;
        for (int64_t j = 0; j < K; j++) {
            if (u[i][j * su] != -(REAL)INFINITY) counts = C[j * LANES + i];
            sum += C[j * LANES + i] * 0; /* 0, or NaN where a coefficient is not finite */
        }
        for (int64_t j = 0; j < K; j++)
            if (u[i][j * su] == -(REAL)INFINITY) C[j * LANES + i] = counts + sum;
    }
    VEC total = {0}, size = {0}, low = FN(load)(C) * sign, high = low;
    for (int64_t j = 0; j < K; j++) {
        VEC v = FN(load)(C + j * LANES) * sign;
        FN(store)(C + j * LANES, v);
        total += v;
        size += FN(vabs)(v);
        low = FN(vmin)(low, v);
        high = FN(vmax)(high, v);
    }
    IVEC fine = box.handled & (size < LARGEST) & ((size == FN(all)(0)) | (size * box.reach >= SMALLEST));
    low = FN(pick)(fine, low, FN(all)(0));
    high = FN(pick)(fine, high, FN(all)(0));
    if (FN(any)(~fine))
        for (int64_t j = 0; j < K; j++)
            FN(store)(C + j * LANES, FN(pick)(fine, FN(load)(C + j * LANES), FN(all)(0)));
    spread->start = FN(pick)(fine, (total - size / 2) / (REAL)K, FN(all)(0)); /* any start will do */
    spread->low = low;
    spread->high = high;
    return fine;
}

/* R(y(t)) in every lane, and *size as in keys.h: one round of the solver. */
static inline VEC FN(lane_round)(const REAL *C, const REAL *L, const REAL *U, int64_t K, VEC t, VEC *size) {
    VEC n0 = {0}, s0 = {0}, a0 = {0}, n1 = {0}, s1 = {0}, a1 = {0};
    int64_t j = 0;
    for (; j + 2 <= K; j += 2) {
        const int64_t p = j * LANES, q = p + LANES;
        FN(add_key)(FN(load)(C + p), FN(load)(L + p), FN(load)(U + p), t, &n0, &s0, &a0);
        FN(add_key)(FN(load)(C + q), FN(load)(L + q), FN(load)(U + q), t, &n1, &s1, &a1);
    }
    if (j < K) {
        const int64_t p = j * LANES;
        FN(add_key)(FN(load)(C + p), FN(load)(L + p), FN(load)(U + p), t, &n0, &s0, &a0);
    }
    const VEC mass = s0 + s1;
    *size = (a0 + a1) / mass;
    return (n0 + n1) / mass;
}

/* The minimum; *cut is the number whose vertex y(cut) attains it. */
static VEC FN(lane_solve)(const REAL *C, const REAL *L, const REAL *U, int64_t K, FN(lane_spread) spread, VEC *cut) {
    const VEC ulps = FN(all)((REAL)(K + ROUND_ULPS) * UNIT);
    VEC size, next, t = FN(lane_round)(C, L, U, K, spread.start, &size);
    *cut = spread.start;
    for (int below = 1;;) { /* as in keys.h, for all lanes together: a lane that has arrived no longer moves */
        VEC probe = below ? t - ulps * size : t, better = FN(lane_round)(C, L, U, K, probe, &next);
        IVEC falling = better < t;
        int arrived = !FN(any)(better != t);
        t = FN(pick)(falling, better, t);
        size = FN(pick)(falling, next, size);
        *cut = FN(pick)(falling, probe, *cut);
        if (FN(any)(falling)) below = 1;
        else if (below && !arrived) below = 0;
        else return t;
    }
}

static inline void FN(lane_residual)(const REAL *C, const REAL *L, const REAL *U, int64_t K, VEC t, VEC ulps, VEC *F,
                                     VEC *G, VEC *S) {
    *F = *G = *S = (VEC){0};
    for (int64_t j = 0; j < K; j++)
        FN(share)(FN(load)(C + j * LANES), FN(load)(L + j * LANES), FN(load)(U + j * LANES), t, ulps, F, G, S);
}

static VEC FN(lane_outward)(const REAL *C, const REAL *L, const REAL *U, int64_t K, VEC t, FN(lane_spread) spread) {
    const VEC ulps = FN(all)((REAL)(K + EXTRA_ULPS));
    const VEC lost = ((REAL)K * UNDERFLOW) * (1 + (spread.high - spread.low));
    const VEC least = FN(vabs)(t) * UNIT;
    VEC F, G, S, result = spread.low;
    FN(lane_residual)(C, L, U, K, t, ulps, &F, &G, &S);
    VEC need = SAFETY * (UNIT * G + lost);
    VEC step = FN(pick)(F >= need, FN(all)(0), 2 * (need - F) / S);
    IVEC open = ~(IVEC){0};
    for (int tries = 0; tries < TRIES; tries++) {
        VEC candidate = t - step;
        open &= candidate > spread.low;
        if (!FN(any)(open)) break;
        FN(lane_residual)(C, L, U, K, candidate, ulps, &F, &G, &S);
        need = SAFETY * (UNIT * G + lost);
        IVEC proved = open & (F >= need);
        result = FN(pick)(proved, candidate, result);
        open &= ~proved;
        if (!FN(any)(open)) break;
        step = 2 * FN(vmax)(step, least) + 2 * (need - F) / S;
    }
    return result;
}
