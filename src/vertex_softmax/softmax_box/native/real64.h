/* The constants of double precision. */
static const double EXP_POLY_64[] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040,
                                     1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600,
                                     1.0 / 6227020800.0};
#define REAL double
#define INT int64_t
#define FABS fabs
#define UNIT 0x1p-53       /* unit roundoff */
#define SAFETY 1.0625
#define LOWEST (-708.0)    /* below this a weight counts as 0; e^-708 is still a normal number */
#define UNDERFLOW 8e-308   /* e^-708, or 3 times the smallest normal number, whichever is more; ../outward.py, step 3 */
#define WIDEST 600.0       /* max u - max l beyond which the log-domain path takes over */
#define LARGEST 0x1p1000   /* sum |c| from which products might overflow */
#define SMALLEST 0x1p-960  /* sum |c| times the least sum of weights below which products might underflow */
#define LOG2E 0x1.71547652b82fep0
#define ROUND_MAGIC 0x1.8p52
#define LN2_HI 0x1.62e42fefa38p-1 /* the leading 42 bits: n * LN2_HI is exact for |n| < 2^11 */
#define LN2_LO 0x1.ef35793c7673p-45
#define MANTISSA_BITS 52
#define EXPONENT_MAGIC 0x1p52
#define EXPONENT_BIAS 1023
#define EXP_POLY EXP_POLY_64
#define EXP_DEGREE 13
