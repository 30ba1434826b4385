/* Every row of a broadcast triple of arrays. outs points to the results for the minimum and the maximum, cuts to the
 * numbers whose vertices attain them (null: not wanted). Along `outer` dimensions the box changes, along `inner` ones
 * only c does, so a box row is exponentiated once for all its coefficient rows. Strides count
 * elements and may be 0 or negative. scratch holds 3 * max(K + LANES, LANES * min(K, SHORT)) numbers. */

static inline int64_t FN(offset)(int64_t index, int64_t n, const int64_t *shape, const int64_t *strides) {
    int64_t at = 0;
    for (int64_t i = n - 1; i > 0; i--) {
        at += index % shape[i] * strides[i];
        index /= shape[i];
    }
    return n ? at + index * strides[0] : 0;
}

static void FN(long_rows)(const SHAPE *s, const REAL *c, const REAL *l, const REAL *u, REAL *const *outs,
                          REAL *const *cuts, REAL *scratch) {
    const int64_t padded = (s->K + LANES - 1) / LANES * LANES;
    REAL *C = scratch, *L = C + padded, *U = L + padded;
    for (int64_t o = 0; o < s->outer_total; o++) {
        const REAL *oc = c + FN(offset)(o, s->n_outer, s->outer_shape, s->outer_c);
        const int64_t oo = FN(offset)(o, s->n_outer, s->outer_shape, s->outer_out);
        const REAL *ou = u + FN(offset)(o, s->n_outer, s->outer_shape, s->outer_u);
        FN(box) box = FN(key_weights)(l + FN(offset)(o, s->n_outer, s->outer_shape, s->outer_l), s->key_l, ou,
                                      s->key_u, s->K, padded, L, U);
        for (int64_t n = 0; n < s->inner_total; n++) {
            const REAL *row = oc + FN(offset)(n, s->n_inner, s->inner_shape, s->inner_c);
            const int64_t at = oo + FN(offset)(n, s->n_inner, s->inner_shape, s->inner_out);
            for (int side = 0; side < 2; side++) {
                if (!outs[side]) continue;
                REAL sign = side ? -1 : 1, t = (REAL)NAN, cut = (REAL)NAN;
                FN(spread) spread;
                if (box.handled &&
                    FN(key_coefficients)(row, s->key_c, ou, s->key_u, box, s->K, padded, sign, C, &spread)) {
                    t = FN(key_solve)(C, L, U, padded, spread, &cut);
                    if (s->outward) t = FN(key_outward)(C, L, U, padded, t, spread);
                }
                outs[side][at] = sign * t;
                if (cuts[side]) cuts[side][at] = sign * cut;
            }
        }
    }
}

static void FN(short_rows)(const SHAPE *s, const REAL *c, const REAL *l, const REAL *u, REAL *const *outs,
                           REAL *const *cuts, REAL *scratch) {
    REAL *C = scratch, *L = C + s->K * LANES, *U = L + s->K * LANES;
    const REAL *pc[VECTOR_BYTES / sizeof(REAL)], *pl[VECTOR_BYTES / sizeof(REAL)], *pu[VECTOR_BYTES / sizeof(REAL)];
    int64_t at[VECTOR_BYTES / sizeof(REAL)];
    const int64_t total = s->outer_total * s->inner_total;
    const int shared = s->inner_total >= 4 * LANES; /* then a group never crosses into the next box */
    int64_t loaded = -1, count;
    FN(lane_box) box = {{0}, 0, {0}};
    for (int64_t first = 0; first < total; first += count) {
        int64_t outer = first / s->inner_total, inner = first % s->inner_total;
        count = total - first < LANES ? total - first : LANES;
        if (shared && s->inner_total - inner < count) count = s->inner_total - inner;
        int64_t o = outer, n = inner;
        for (int64_t i = 0; i < LANES; i++, n++) {
            if (n == s->inner_total) o++, n = 0;
            if (i >= count) o = outer, n = inner; /* lanes without a row repeat the first */
            pc[i] = c + FN(offset)(o, s->n_outer, s->outer_shape, s->outer_c) +
                    FN(offset)(n, s->n_inner, s->inner_shape, s->inner_c);
            at[i] = FN(offset)(o, s->n_outer, s->outer_shape, s->outer_out) +
                    FN(offset)(n, s->n_inner, s->inner_shape, s->inner_out);
            if (shared && loaded == outer) continue;
            pl[i] = l + FN(offset)(o, s->n_outer, s->outer_shape, s->outer_l);
            pu[i] = u + FN(offset)(o, s->n_outer, s->outer_shape, s->outer_u);
        }
        if (!shared || loaded != outer) box = FN(lane_weights)(pl, s->key_l, pu, s->key_u, s->K, L, U);
        loaded = outer;
        for (int side = 0; side < 2; side++) {
            if (!outs[side]) continue;
            const REAL sign = side ? -1 : 1;
            FN(lane_spread) spread;
            IVEC fine = FN(lane_coefficients)(pc, s->key_c, pu, s->key_u, box, s->K, sign, C, &spread);
            VEC cut, t = FN(lane_solve)(C, L, U, s->K, spread, &cut);
            if (s->outward) t = FN(lane_outward)(C, L, U, s->K, t, spread);
            t = FN(pick)(fine, t * sign, FN(all)((REAL)NAN));
            for (int64_t i = 0; i < count; i++) outs[side][at[i]] = t[i];
            for (int64_t i = 0; cuts[side] && i < count; i++) cuts[side][at[i]] = cut[i] * sign;
        }
    }
}

void FN2(rows)(const SHAPE *s, const REAL *c, const REAL *l, const REAL *u, REAL *const *outs, REAL *const *cuts,
               REAL *scratch) {
    if (s->K <= SHORT) FN(short_rows)(s, c, l, u, outs, cuts, scratch);
    else FN(long_rows)(s, c, l, u, outs, cuts, scratch);
}
