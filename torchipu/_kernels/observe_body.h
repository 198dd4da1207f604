/* Looks at the results of ops without changing them: floating-point exceptions, and statistics of magnitudes. */
#include "update_state_body.h"

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

/* check: args operands, results; ints [operands, results, flags, then for each argument its elements and whether it is
 * half]. One item. flags 1: elementwise, so that an operand of the result's size matters at the same place only; 2: the
 * op divides, so that an infinity from finite operands with a zero among them is a division by zero; 4: the op is a
 * comparison, invalid on NaN; 8: the op is given an infinite number; 16: a NaN.
 *
 * An exception is what is not finite although no operand accounts for it. */
TI_KERNEL(check) {
  const int64_t operands = ints[0], results = ints[1], flags = ints[2], *sizes = ints + 3;
  const int given = (flags & 8 ? FN(SEES_INFINITY) : 0) | (flags & 16 ? FN(SEES_NAN) : 0);
  int any = given;
  for (int64_t k = 0; k < operands; k++) any |= FN(seen_in)(args[k], (int)sizes[2 * k + 1], sizes[2 * k]);
  if (flags & 4) return any & FN(SEES_NAN) ? TI_TRAP_INVALID : TI_OK;
  for (int64_t r = operands; r < operands + results; r++) {
    const int64_t n = sizes[2 * r];
    const int is_half = (int)sizes[2 * r + 1];
    for (int64_t i = 0; i < n; i++) {
      const int found = FN(seen)(FN(magnitude)(args[r], is_half, i)) & (FN(SEES_INFINITY) | FN(SEES_NAN));
      if (!found) continue;
      int here = any;
      if (flags & 1) {
        here = given;
        for (int64_t k = 0; k < operands; k++)
          here |= sizes[2 * k] == n ? FN(seen)(FN(magnitude)(args[k], (int)sizes[2 * k + 1], i))
                                    : FN(seen_in)(args[k], (int)sizes[2 * k + 1], sizes[2 * k]);
      }
      if (here & FN(SEES_NAN)) continue;
      if (found & FN(SEES_NAN)) return TI_TRAP_INVALID;
      if (here & FN(SEES_INFINITY)) continue;
      return flags & 2 && here & FN(SEES_ZERO) ? TI_TRAP_DIVISION : TI_TRAP_OVERFLOW;
    }
  }
  return TI_OK;
}

/* tally: args words, values; ints [elements, is half]. One item. Words 0 to 255 count the elements by the exponent of
 * a float, zeros in the first and NaN and infinity in the last; 256 is the bits of the largest finite magnitude, 257
 * how many are NaN. */
TI_KERNEL(tally) {
  int64_t *words = (int64_t *)args[0];
  for (int64_t i = 0; i < ints[0]; i++) {
    const uint32_t size = FN(magnitude)(args[1], (int)ints[1], i);
    words[size >> 23]++;
    if (size < 0x7f800000 && (int64_t)size > words[256]) words[256] = size;
    words[257] += size > 0x7f800000;
  }
  return TI_OK;
}
