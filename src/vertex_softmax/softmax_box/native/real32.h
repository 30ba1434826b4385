/* The constants of single precision. */
static const float EXP_POLY_32[] = {1.0f, 1.0f, 1.0f / 2, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040};
#define REAL float
#define INT int32_t
#define FABS fabsf
#define UNIT 0x1p-24f
#define SAFETY 1.0625f
#define LOWEST (-87.0f)
#define UNDERFLOW 4.1e-38f
#define WIDEST 60.0f
#define LARGEST 0x1p100f
#define SMALLEST 0x1p-96f
#define LOG2E 0x1.715476p0f
#define ROUND_MAGIC 0x1.8p23f
#define LN2_HI 0x1.62e4p-1f /* the leading 15 bits: n * LN2_HI is exact for |n| < 2^9 */
#define LN2_LO 0x1.7f7d1cp-20f
#define MANTISSA_BITS 23
#define EXPONENT_MAGIC 0x1p23f
#define EXPONENT_BIAS 127
#define EXP_POLY EXP_POLY_32
#define EXP_DEGREE 7
