/* Picks the widest instruction set this processor has. HAVE_… says what hatch_build.py compiled. */
#include "shape.h"

#define ARGS(REAL)                                                                                                     \
    const SHAPE *s, const REAL *c, const REAL *l, const REAL *u, REAL *const *outs, REAL *const *cuts, REAL *scratch
#define DECLARE(variant)                                                                                               \
    void vertex_rows_f64_##variant(ARGS(double));                                                                      \
    void vertex_rows_f32_##variant(ARGS(float));

DECLARE(generic)
#ifdef HAVE_AVX2
DECLARE(avx2)
#endif
#ifdef HAVE_AVX512
DECLARE(avx512)
#endif

/* 0 generic, 1 AVX2, 2 AVX-512; -1 where even the generic code would not run */
int vertex_variant(void) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("sse4.2")) return -1;
#endif
#ifdef HAVE_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return 2;
#endif
#ifdef HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return 1;
#endif
    return 0;
}

#ifdef HAVE_AVX512
#define AVX512(precision) case 2: vertex_rows_##precision##_avx512(s, c, l, u, outs, cuts, scratch); break;
#else
#define AVX512(precision)
#endif
#ifdef HAVE_AVX2
#define AVX2(precision) case 1: vertex_rows_##precision##_avx2(s, c, l, u, outs, cuts, scratch); break;
#else
#define AVX2(precision)
#endif
#define CHOOSE(precision, variant)                                                                                     \
    switch (variant) {                                                                                                 \
        AVX512(precision)                                                                                              \
        AVX2(precision)                                                                                                \
        default: vertex_rows_##precision##_generic(s, c, l, u, outs, cuts, scratch);                             \
    }

void vertex_rows_f64(int variant, ARGS(double)) { CHOOSE(f64, variant) }
void vertex_rows_f32(int variant, ARGS(float)) { CHOOSE(f32, variant) }
