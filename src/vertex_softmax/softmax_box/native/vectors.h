/* Vectors of one precision: loads, selects, reductions, e^x. Included once per precision by softmax_box.c.
 *
 * Only IEEE basic operations, in an order this file fixes (no -ffast-math), so that the rounding error of every
 * result has a bound that can be proved: see ../outward.py.
 */

typedef REAL FN(vec) __attribute__((vector_size(VECTOR_BYTES)));
typedef INT FN(ivec) __attribute__((vector_size(VECTOR_BYTES)));
#define VEC FN(vec)
#define IVEC FN(ivec)
#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))

static inline VEC FN(load)(const REAL *p) { VEC v; memcpy(&v, p, sizeof v); return v; }
static inline void FN(store)(REAL *p, VEC v) { memcpy(p, &v, sizeof v); }
static inline VEC FN(all)(REAL x) { return x - (VEC){0}; }
static inline VEC FN(pick)(IVEC m, VEC a, VEC b) { return (VEC)((m & (IVEC)a) | (~m & (IVEC)b)); }
static inline VEC FN(vmax)(VEC a, VEC b) { return FN(pick)(a > b, a, b); }
static inline VEC FN(vmin)(VEC a, VEC b) { return FN(pick)(a < b, a, b); }
static inline VEC FN(vabs)(VEC a) { return (VEC)((IVEC)a & ~((IVEC)FN(all)(-(REAL)0))); }

static inline int FN(any)(IVEC m) {
    uint64_t words[VECTOR_BYTES / 8], seen = 0;
    memcpy(words, &m, sizeof m);
    for (int i = 0; i < VECTOR_BYTES / 8; i++) seen |= words[i];
    return seen != 0;
}
static inline REAL FN(sum)(VEC v) { /* a tree: log2(LANES) roundings */
    REAL p[VECTOR_BYTES / sizeof(REAL)];
    memcpy(p, &v, sizeof v);
    for (int w = (int)LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++) p[i] += p[i + w];
    return p[0];
}
static inline REAL FN(largest)(VEC v) {
    REAL best = v[0];
    for (int i = 1; i < LANES; i++) best = v[i] > best ? v[i] : best;
    return best;
}

/* e^x for x <= 0, relative error at most EXP_ULPS * UNIT; 0 below LOWEST. */
static inline VEC FN(exp)(VEC x) {
    IVEC gone = x < LOWEST;
    VEC live = FN(pick)(gone, FN(all)(0), x);
    VEC shifted = live * FN(all)(LOG2E) + FN(all)(ROUND_MAGIC);
    VEC n = shifted - FN(all)(ROUND_MAGIC);
    VEC r = (live - n * FN(all)(LN2_HI)) - n * FN(all)(LN2_LO);
    VEC p = FN(all)(EXP_POLY[EXP_DEGREE]);
    for (int k = EXP_DEGREE - 1; k >= 0; k--) p = p * r + FN(all)(EXP_POLY[k]);
    IVEC power = ((IVEC)shifted) << MANTISSA_BITS;
    return FN(pick)(gone, FN(all)(0), (VEC)((IVEC)p + power));
}

/* An upper bound of |log y| for a weight 0 < y <= 1, read off its exponent: y >= 2^e gives |log y| <= -e log 2. */
static inline VEC FN(depth)(VEC y) {
    VEC biased = (VEC)(((IVEC)y >> MANTISSA_BITS) | (IVEC)FN(all)(EXPONENT_MAGIC)) - FN(all)(EXPONENT_MAGIC);
    return (FN(all)(EXPONENT_BIAS) - biased) * FN(all)((REAL)0.6931472);
}

/* Whether the box [l, u] is invalid: NaN, crossed ends, +inf, or -inf at one end only. */
static inline IVEC FN(broken)(VEC l, VEC u) {
    const VEC inf = FN(all)((REAL)INFINITY);
    return ~(l <= u) | (u == inf) | ((l == -inf) & (u != -inf));
}

/* One key's share of a round: c*y into N, y into S, |c*y| into A, with y = U where c < t, else L. */
static inline void FN(add_key)(VEC c, VEC L, VEC U, VEC t, VEC *N, VEC *S, VEC *A) {
    const VEC y = FN(pick)(c < t, U, L);
    *N += c * y;
    *S += y;
    *A += FN(vabs)(c) * y;
}

/* One key's share of the residual at t: d*y into F, its error in units of UNIT into G, y into S (y = y_j(t)). */
static inline void FN(share)(VEC c, VEC L, VEC U, VEC t, VEC ulps, VEC *F, VEC *G, VEC *S) {
    VEC d = c - t;
    VEC y = FN(pick)(d < FN(all)(0), U, L);
    VEC term = d * y;
    *F += term;
    *G += FN(vabs)(term) * (ulps + FN(depth)(y));
    *S += y;
}
