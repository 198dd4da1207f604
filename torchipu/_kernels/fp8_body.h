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

/* fp8_encode: args codes, values (float), then if flagged the random words of the op; ints [elements, bits of mantissa,
 * bias, saturates, is stochastic]; scalars [1 / scale, largest]. Items are blocks of 4096 elements. Stochastic rounding
 * takes 16 random bits an element, those of rounding_body.h. */
TI_KERNEL(fp8_encode) {
  (void)scratch;
  uint8_t *codes = (uint8_t *)args[0];
  const float *values = (const float *)args[1];
  const int64_t last = ints[0] < end * 4096 ? ints[0] : end * 4096;
  const FN(keys) keys = ints[4] ? FN(keys_of)((const int64_t *)args[2]) : (FN(keys)){0, 0};
  for (int64_t i = begin * 4096; i < last; i += VL) {
    const VU bits = FN(random_halves)(keys, i);
    for (int64_t k = 0; k < VL && i + k < last; k++)
      codes[i + k] = FN(fp8_code)(values[i + k] * scalars[0], ints[4] ? ldexp(bits[k], -16) : -1.0, (int)ints[1],
                                  (int)ints[2], scalars[1], (int)ints[3]);
  }
  return TI_OK;
}

/* fp8_decode: args values (float), codes; ints as above; scalars [scale]. */
TI_KERNEL(fp8_decode) {
  (void)scratch;
  const int mantissa = (int)ints[1], bias = (int)ints[2], one = 1 << mantissa;
  float *values = (float *)args[0];
  const uint8_t *codes = (const uint8_t *)args[1];
  for (int64_t i = begin * 4096; i < ints[0] && i < end * 4096; i++) {
    const int exponent = (codes[i] & 0x7f) >> mantissa, part = codes[i] & (one - 1);
    const double size = exponent ? ldexp(one + part, exponent - bias - mantissa) : ldexp(part, 1 - bias - mantissa);
    values[i] = codes[i] == 0x80 ? NAN : (float)((codes[i] & 0x80 ? -size : size) * scalars[0]);
  }
  return TI_OK;
}
