/* Floats of 8 bits: F143 (bias 8, up to 240) and F152 (bias 16, up to 57344), with one NaN, 0x80, and no negative zero;
 * source ipu_hardware.md, section 5. A tensor has one scale, a power of two. */

/* fp8_encode: args codes, values (float); ints [elements, bits of mantissa, bias]; scalars [1 / scale, largest]. Items
 * are blocks of 4096 elements. To nearest, ties to even; what is beyond the largest becomes NaN. */
static int FN(fp8_encode)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                          void *scratch) {
  (void)scratch;
  const int mantissa = (int)ints[1], bias = (int)ints[2];
  uint8_t *codes = (uint8_t *)args[0];
  const float *values = (const float *)args[1];
  for (int64_t i = begin * 4096; i < ints[0] && i < end * 4096; i++) {
    const double size = fabs((double)values[i]) * scalars[0];
    if (!(size < 1e30)) {
      codes[i] = 0x80;
      continue;
    }
    int exponent = 0;
    frexp(size, &exponent);
    exponent = size == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    double units = rint(ldexp(size, mantissa - exponent));
    if (ldexp(units, exponent - mantissa) > scalars[1]) {
      codes[i] = 0x80;
      continue;
    }
    if (units == (double)(2 << mantissa)) units /= 2, exponent++;
    const int whole = (int)units, one = 1 << mantissa;
    const int code = whole < one ? whole : (exponent + bias) << mantissa | (whole - one);
    codes[i] = (uint8_t)(code && values[i] < 0 ? code | 0x80 : code);
  }
  return TI_OK;
}

/* fp8_decode: args values (float), codes; ints as above; scalars [scale]. */
static int FN(fp8_decode)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                          void *scratch) {
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
