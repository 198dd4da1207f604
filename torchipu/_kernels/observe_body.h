/* Looks at values without changing them: assertions, floating-point exceptions, and statistics of magnitudes. */

TI_INLINE uint32_t FN(magnitude)(const char *p, int is_half, int64_t i) {
  if (!is_half) return ((const uint32_t *)p)[i] & 0x7fffffff;
  const uint32_t bits = ((const uint16_t *)p)[i] & 0x7fff;
  if (bits >= 0x7c00) return 0x7f800000 | (bits & 0x3ff) << 13;
  if (bits >= 0x400) return (bits << 13) + (112u << 23);
  if (bits == 0) return 0;
  const int shift = __builtin_clz(bits) - 21; /* of a subnormal half, whose unit is 2^-24 */
  return (uint32_t)(113 - shift) << 23 | ((bits << shift & 0x3ff) << 13);
}

enum { FN(SEES_INFINITY) = 1, FN(SEES_NAN) = 2, FN(SEES_ZERO) = 4 };

TI_INLINE int FN(seen)(uint32_t size) {
  return size == 0x7f800000 ? FN(SEES_INFINITY) : size > 0x7f800000 ? FN(SEES_NAN) : size == 0 ? FN(SEES_ZERO) : 0;
}

static int FN(seen_in)(const char *p, int is_half, int64_t n) {
  int seen = 0;
  for (int64_t i = 0; i < n; i++) seen |= FN(seen)(FN(magnitude)(p, is_half, i));
  return seen;
}

TI_KERNEL(check) {
  const check_ints *const shape = (const check_ints *)ints;
  const int64_t operands = shape->operands, results = shape->results, flags = shape->flags, *sizes = shape->sizes;
  const int given = (flags & TI_CHECK_FLAG_GIVEN_INFINITY ? FN(SEES_INFINITY) : 0) | (flags & TI_CHECK_FLAG_GIVEN_NAN ? FN(SEES_NAN) : 0);
  int any = given;
  for (int64_t k = 0; k < operands; k++) any |= FN(seen_in)(args[k], (int)sizes[2 * k + 1], sizes[2 * k]);
  if (flags & TI_CHECK_FLAG_COMPARES) return any & FN(SEES_NAN) ? TI_TRAP_INVALID : TI_OK;
  for (int64_t r = operands; r < operands + results; r++) {
    const int64_t n = sizes[2 * r];
    const int is_half = (int)sizes[2 * r + 1];
    for (int64_t i = 0; i < n; i++) {
      const int found = FN(seen)(FN(magnitude)(args[r], is_half, i)) & (FN(SEES_INFINITY) | FN(SEES_NAN));
      if (!found) continue;
      int here = any;
      if (flags & TI_CHECK_FLAG_ELEMENTWISE) {
        here = given;
        for (int64_t k = 0; k < operands; k++)
          here |= sizes[2 * k] == n ? FN(seen)(FN(magnitude)(args[k], (int)sizes[2 * k + 1], i))
                                    : FN(seen_in)(args[k], (int)sizes[2 * k + 1], sizes[2 * k]);
      }
      if (here & FN(SEES_NAN)) continue;
      if (found & FN(SEES_NAN)) return TI_TRAP_INVALID;
      if (here & FN(SEES_INFINITY)) continue;
      return flags & TI_CHECK_FLAG_DIVIDES && here & FN(SEES_ZERO) ? TI_TRAP_DIVISION : TI_TRAP_OVERFLOW;
    }
  }
  return TI_OK;
}

TI_KERNEL(require) {
  (void)ints, (void)scalars, (void)begin, (void)end, (void)scratch;
  return *(const uint8_t *)args[0] ? TI_OK : TI_TRAP_ASSERTION;
}

TI_KERNEL(tally) {
  int64_t *words = (int64_t *)args[0];
  const tally_ints *const shape = (const tally_ints *)ints;
  for (int64_t i = 0; i < shape->elements; i++) {
    const uint32_t size = FN(magnitude)(args[1], (int)shape->is_half, i);
    words[size >> 23]++;
    if (size < 0x7f800000 && (int64_t)size > words[256]) words[256] = size;
    words[257] += size > 0x7f800000;
  }
  return TI_OK;
}
