/* How the rows of c, l and u lie in memory; filled in by ../native.py (the fields in this order, all int64). */
#include <stdint.h>

typedef struct {
    int64_t K, key_c, key_l, key_u, outward;
    int64_t n_outer, outer_total;
    const int64_t *outer_shape, *outer_c, *outer_l, *outer_u, *outer_out;
    int64_t n_inner, inner_total;
    const int64_t *inner_shape, *inner_c, *inner_out;
} SHAPE;
