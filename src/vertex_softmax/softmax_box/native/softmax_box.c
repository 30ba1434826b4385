/* The CPU kernel of vertex_softmax.softmax_box, in both precisions, for one instruction set.
 *
 * Plain C with the vector extensions that gcc and clang share; no intrinsics, no libm, no Python headers.
 * hatch_build.py compiles this file once per instruction set (VARIANT names it); dispatch.c picks one at run time.
 *
 * The result of a row is min over s in [l, u] of c.softmax(s) (and the maximum likewise), found without a sort:
 *   solve    t <- R(y(t)) with y_j = U_j where c_j < t else L_j, until t stops falling by more than its own rounding
 *            (reference.newton_min says why the probe lies a band below t);
 *   outward  a number that is never above the exact minimum: a candidate t is returned only after phi(t) >= 0 has
 *            been shown with the error bound proved in ../outward.py, else the smallest coefficient;
 *   NaN      "not handled here": the row is invalid, or its weights span more than e^WIDEST, or its coefficients
 *            come near overflow. The caller diagnoses it or sends it to the log-domain path.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "shape.h"

#ifdef __FAST_MATH__
#error "the rounding proof needs IEEE arithmetic in the order written: compile without -ffast-math"
#endif

#define PASTE3(a, b, c) a##_##b##_##c
#define PASTE(a, b, c) PASTE3(a, b, c)
#define SHORT (4 * LANES) /* rows up to this many keys go one per lane */
#define EXTRA_ULPS 20  /* what ../outward.py counts beside the length of the sums */
#define ROUND_ULPS 16  /* with the length of the sums: how far the value of a vertex may be off, see ../reference.py */
#define TRIES 24
#define BLOCK 64       /* vectors summed before their sum is added to the others */

#define FN(name) PASTE(name, f64, VARIANT)
#define FN2(name) PASTE(vertex_##name, f64, VARIANT)
#include "real64.h"
#include "vectors.h"
#include "keys.h"
#include "lanes.h"
#include "rows.h"
#include "undef.h"

#define FN(name) PASTE(name, f32, VARIANT)
#define FN2(name) PASTE(vertex_##name, f32, VARIANT)
#include "real32.h"
#include "vectors.h"
#include "keys.h"
#include "lanes.h"
#include "rows.h"
