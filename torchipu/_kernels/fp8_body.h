/* Floats of 8 bits: F143 (bias 8, up to 240) and F152 (bias 16, up to 57344), with one NaN, 0x80, and no negative zero;
 * source ipu_hardware.md, section 5. A tensor has one scale, a power of two. And those of other machines that torch has
 * types for: e4m3fn (bias 7, up to 448, NaN 0x7f of either sign) and e5m2 (bias 15, as IEEE 754 has it). */

#include "rounding_body.h"

/* What becomes of NaN and of values beyond the largest one: e4m3fn, which has no infinity, saturates, as torch does. */
static uint8_t FN(fp8_beyond)(int sign, int is_nan, int specials, int mantissa) {
  if (specials == TI_FP8_SPECIALS_NEGATIVE_ZERO) return 0x80;
  if (is_nan) return (uint8_t)(sign | 0x7f);
  if (specials == TI_FP8_SPECIALS_ONES) return (uint8_t)(sign | 0x7e);
  return (uint8_t)(sign | (0x7f >> mantissa << mantissa));
}

/* One value divided by its scale, as a byte. `raise` is what is added to the multiple of the last bit before it is cut
 * off: a random number below 1, or negative to round to nearest, ties to even. What is beyond the largest becomes it if
 * `saturates`, which F143 and F152 alone do, else infinity, or NaN, which NaN is in any case. */
static uint8_t FN(fp8_code)(double value, double raise, int mantissa, int bias, int specials, double largest,
                            int saturates) {
  const double size = fabs(value);
  const int sign = signbit(value) ? 0x80 : 0;
  const int beyond = saturates ? sign | 0x7f : FN(fp8_beyond)(sign, 0, specials, mantissa);
  if (!(size < 1e30)) return (uint8_t)(size > 0 ? beyond : FN(fp8_beyond)(sign, 1, specials, mantissa));
  int exponent = 0;
  frexp(size, &exponent);
  exponent = size == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
  const double exact = ldexp(size, mantissa - exponent);
  double units = raise < 0 ? rint(exact) : floor(exact + raise);
  if (ldexp(units, exponent - mantissa) > largest) return (uint8_t)beyond;
  if (units == (double)(2 << mantissa)) units /= 2, exponent++;
  const int whole = (int)units, one = 1 << mantissa;
  const int code = whole < one ? whole : (exponent + bias) << mantissa | (whole - one);
  return (uint8_t)(code || specials != TI_FP8_SPECIALS_NEGATIVE_ZERO ? code | sign : 0);
}

TI_KERNEL(fp8_encode) {
  (void)scratch;
  uint8_t *codes = (uint8_t *)args[0];
  const float *values = (const float *)args[1];
  const fp8_encode_ints *const p = (const fp8_encode_ints *)ints;
  const fp8_encode_scalars *const q = (const fp8_encode_scalars *)scalars;
  const int64_t last = p->elements < end * TI_FP8_SPAN ? p->elements : end * TI_FP8_SPAN;
  const FN(keys) keys = p->is_stochastic ? FN(keys_of)((const int64_t *)args[2]) : (FN(keys)){0, 0};
  const int64_t first = p->is_stochastic ? (int64_t)((uint64_t)((const int64_t *)args[2])[2] >> 32) : 0;
  for (int64_t i = begin * TI_FP8_SPAN; i < last;) {
    const int64_t n = ti_min(VL, last - i);
    const VU bits = FN(random_words_from)(keys, first + i) >> 16;
    for (int64_t k = 0; k < n; k++)
      codes[i + k] = FN(fp8_code)(values[i + k] * q->inverse, p->is_stochastic ? ldexp(bits[k], -16) : -1.0,
                                  (int)p->mantissa, (int)p->bias, (int)p->specials, q->largest, (int)p->saturates);
    i += n;
  }
  return TI_OK;
}

TI_KERNEL(fp8_decode) {
  (void)scratch;
  const fp8_decode_ints *const p = (const fp8_decode_ints *)ints;
  const double scale = ((const fp8_decode_scalars *)scalars)->scale;
  const int mantissa = (int)p->mantissa, bias = (int)p->bias, one = 1 << mantissa, specials = (int)p->specials;
  float *values = (float *)args[0];
  const uint8_t *codes = (const uint8_t *)args[1];
  for (int64_t i = begin * TI_FP8_SPAN; i < p->elements && i < end * TI_FP8_SPAN; i++) {
    const int exponent = (codes[i] & 0x7f) >> mantissa, part = codes[i] & (one - 1);
    const double size = exponent ? ldexp(one + part, exponent - bias - mantissa) : ldexp(part, 1 - bias - mantissa);
    const int rest = codes[i] & 0x7f;
    const int is_infinite = specials == TI_FP8_SPECIALS_IEEE && rest == 0x7f >> mantissa << mantissa;
    const int is_nan = specials == TI_FP8_SPECIALS_NEGATIVE_ZERO ? codes[i] == 0x80
                       : specials == TI_FP8_SPECIALS_ONES        ? rest == 0x7f
                                                                 : rest > 0x7f >> mantissa << mantissa;
    const double whole = is_infinite ? INFINITY : size * scale;
    values[i] = is_nan ? NAN : (float)(codes[i] & 0x80 ? -whole : whole);
  }
  return TI_OK;
}
