/* Rounding of float32 to values that a half holds: to nearest or stochastic, and what becomes of an overflow.
 *
 * Stochastic rounding adds 16 random bits below the last bit that is kept, and truncates: a value is rounded up with a
 * probability equal to the fraction that is discarded, to 2^-16 of the last bit. Normal halves discard 13 bits, so
 * that 13 of the random bits count; subnormal ones discard more. The carry may run into the exponent.
 * An item is 128 elements: element 32 w + lane takes the low 16 bits of word w of that lane, element 32 w + 16 + lane
 * the high ones (philox_body.h). Whoever rounds begins at a multiple of 128 elements.
 */
#include "philox_body.h"
enum { FN(OVERFLOW_INFINITY), FN(OVERFLOW_NAN), FN(OVERFLOW_SATURATE) };
enum { FN(ROUNDING_ITEM) = 128 };

/* Whether a state switches stochastic rounding off: bit 32 of the word that holds the replica. */
static inline int FN(rounds_to_nearest)(const int64_t *state) { return state == 0 || (state[1] >> 32 & 1); }

/* A value rounded to 11 significant bits, or to multiples of 2^-24 below 2^-14; overflow stays, as 65536. */
static inline __attribute__((always_inline)) FN(vf) FN(rounded_by)(FN(vf) x, FN(vu) random) {
  const FN(vi) bits = (FN(vi))x, sign = bits & INT32_MIN, size = bits & INT32_MAX;
  const FN(vi) normal = (size + (FN(vi))(random >> 3)) & ~0x1fff;
  const FN(vf) scaled = (FN(vf))size * 0x1p24f;
#if VL == 16
  const FN(vi) whole = (FN(vi))_mm512_cvttps_epi32((__m512)scaled);
  const FN(vf) floor = (FN(vf))_mm512_cvtepi32_ps((__m512i)whole);
  const FN(vi) part = (FN(vi))_mm512_cvttps_epi32((__m512)((scaled - floor) * 65536.f));
  const FN(vi) up = (part + (FN(vi))random) >> 16;
  const FN(vf) tiny = (FN(vf))_mm512_cvtepi32_ps((__m512i)(whole + up)) * 0x1p-24f;
#else
  const FN(vi) whole = (FN(vi))_mm256_cvttps_epi32((__m256)scaled);
  const FN(vf) floor = (FN(vf))_mm256_cvtepi32_ps((__m256i)whole);
  const FN(vi) part = (FN(vi))_mm256_cvttps_epi32((__m256)((scaled - floor) * 65536.f));
  const FN(vi) up = (part + (FN(vi))random) >> 16;
  const FN(vf) tiny = (FN(vf))_mm256_cvtepi32_ps((__m256i)(whole + up)) * 0x1p-24f;
#endif
  const FN(vi) is_tiny = size < 0x38800000, is_special = size >= 0x7f800000;
  FN(vi) result = (is_tiny & (FN(vi))tiny) | (~is_tiny & normal);
  result = (is_special & size) | (~is_special & result);
  return (FN(vf))(result | sign);
}

static inline __attribute__((always_inline)) FN(vf) FN(rounded_to_nearest)(FN(vf) x) {
#if VL == 16
  return (FN(vf))_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)x, 8));
#else
  return (FN(vf))_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)x, 8));
#endif
}

/* What stands for values beyond the largest half, 65504; NaN stays. */
static inline __attribute__((always_inline)) FN(vf) FN(overflowed)(FN(vf) x, int overflow) {
  const FN(vi) bits = (FN(vi))x, sign = bits & INT32_MIN, size = bits & INT32_MAX;
  const FN(vi) beyond = (size >= 0x47800000) & (size <= 0x7f800000);
  const int32_t stand_in = overflow == FN(OVERFLOW_NAN) ? 0x7fc00000
                           : overflow == FN(OVERFLOW_SATURATE) ? 0x477fe000 : 0x7f800000;
  return (FN(vf))((beyond & (sign | stand_in)) | (~beyond & bits));
}

/* The random halves of a word for elements 16 v to 16 v + 15 of an item, from lane `lane` of them on. */
static inline __attribute__((always_inline)) FN(vu) FN(rounding_bits)(const uint32_t *words, int v, int lane) {
  const FN(vu) pair = *(const FN(vu) *)(words + 16 * (v >> 1) + lane);
  return (pair >> (v & 1 ? 16 : 0)) & 0xffff;
}

/* The elements from i on that lie before n; `mask` is 0 where one vector is repeated. */
static inline __attribute__((always_inline)) FN(vf) FN(to_be_rounded)(const float *s, long mask, long i, long n) {
  if (!mask || n - i >= VL) return *(const FN(vf) *)(s + (i & mask));
  float part[VL] = {0};
  memcpy(part, s + i, (size_t)(n - i) * sizeof *part);
  return *(const FN(vf) *)part;
}

/* Rounds n elements, of which the first has the number `start`, a multiple of 128; `d` has room for VL more. */
static void FN(round_run)(float *d, const float *s, long mask, const int64_t *state, int64_t start, long n, int overflow) {
  if (FN(rounds_to_nearest)(state)) {
    for (long i = 0; i < n; i += VL)
      *(FN(vf) *)(d + i) = FN(overflowed)(FN(rounded_to_nearest)(FN(to_be_rounded)(s, mask, i, n)), overflow);
    return;
  }
  uint32_t words[64] __attribute__((aligned(64)));
  for (long begin = 0; begin < n; begin += FN(ROUNDING_ITEM)) {
    FN(words)(state, (start + begin) / FN(ROUNDING_ITEM), words);
    for (long i = 0; i < FN(ROUNDING_ITEM) && begin + i < n; i += VL) {
      const FN(vf) x = FN(to_be_rounded)(s, mask, begin + i, n);
      const FN(vu) random = FN(rounding_bits)(words, (int)(i / 16), (int)(i % 16));
      *(FN(vf) *)(d + begin + i) = FN(overflowed)(FN(rounded_by)(x, random), overflow);
    }
  }
}
