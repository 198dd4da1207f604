/* Floats of 8 bits: F143 (bias 8, up to 240) and F152 (bias 16, up to 57344), with one NaN, 0x80, and no negative zero;
 * source ipu_hardware.md, section 5. A tensor has one scale, a power of two. */

#include "rounding_body.h"

/* One value divided by its scale, as a byte. `raise` is what is added to the multiple of the last bit before it is cut
 * off: a random number below 1, or negative to round to nearest, ties to even. What is beyond the largest becomes it if
 * `saturates`, else NaN, which NaN is in any case. */
static uint8_t FN(fp8_code)(double value, double raise, int mantissa, int bias, double largest, int saturates) {
  const double size = fabs(value);
  const int sign = value < 0 ? 0x80 : 0, beyond = saturates ? sign | 0x7f : 0x80;
  if (!(size < 1e30)) return (uint8_t)(size > 0 ? beyond : 0x80);
  int exponent = 0;
  frexp(size, &exponent);
  exponent = size == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
  const double exact = ldexp(size, mantissa - exponent);
  double units = raise < 0 ? rint(exact) : floor(exact + raise);
  if (ldexp(units, exponent - mantissa) > largest) return (uint8_t)beyond;
  if (units == (double)(2 << mantissa)) units /= 2, exponent++;
  const int whole = (int)units, one = 1 << mantissa;
  const int code = whole < one ? whole : (exponent + bias) << mantissa | (whole - one);
  return (uint8_t)(code ? code | sign : 0);
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
    const int64_t skip = (first + i) % VL, n = ti_min(VL - skip, last - i);
    const VU bits = FN(random_halves)(keys, first + i - skip);
    for (int64_t k = 0; k < n; k++)
      codes[i + k] = FN(fp8_code)(values[i + k] * q->inverse, p->is_stochastic ? ldexp(bits[skip + k], -16) : -1.0,
                                  (int)p->mantissa, (int)p->bias, q->largest, (int)p->saturates);
    i += n;
  }
  return TI_OK;
}

TI_KERNEL(fp8_decode) {
  (void)scratch;
  const fp8_decode_ints *const p = (const fp8_decode_ints *)ints;
  const double scale = ((const fp8_decode_scalars *)scalars)->scale;
  const int mantissa = (int)p->mantissa, bias = (int)p->bias, one = 1 << mantissa;
  float *values = (float *)args[0];
  const uint8_t *codes = (const uint8_t *)args[1];
  for (int64_t i = begin * TI_FP8_SPAN; i < p->elements && i < end * TI_FP8_SPAN; i++) {
    const int exponent = (codes[i] & 0x7f) >> mantissa, part = codes[i] & (one - 1);
    const double size = exponent ? ldexp(one + part, exponent - bias - mantissa) : ldexp(part, 1 - bias - mantissa);
    values[i] = codes[i] == 0x80 ? NAN : (float)((codes[i] & 0x80 ? -size : size) * scale);
  }
  return TI_OK;
}
