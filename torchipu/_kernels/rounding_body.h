/* Rounding of float32 to values that a half holds: to nearest or stochastic, and what becomes of an overflow.
 *
 * Stochastic rounding adds 16 random bits below the last bit that is kept, and truncates: a value is rounded up with a
 * probability equal to the fraction that is discarded, to 2^-16 of the last bit. Normal halves discard 13 bits, so
 * that 13 of the random bits count; subnormal ones discard more. The carry may run into the exponent.
 *
 * Bits must cost less than the arithmetic around them. A stream, one for each (seed, replica, result, micro-batch), has
 * two keys from one Philox block, and its word of number i is a hash of i between them: C. Wellons, "Prospecting for
 * hash functions", 2018 (lowbias32), with the second key added in its middle. Element 32 g + p takes the low (p < 16)
 * or high half of word 16 g + p % 16. Whoever rounds begins at a multiple of 32 elements.
 */
#include "philox.h"
enum { FN(OVERFLOW_INFINITY), FN(OVERFLOW_NAN), FN(OVERFLOW_SATURATE) };
typedef uint32_t FN(ru) __attribute__((vector_size(VL * 4)));
typedef int32_t FN(ri) __attribute__((vector_size(VL * 4)));
typedef float FN(rf) __attribute__((vector_size(VL * 4)));

/* The keys of a stream; `state` is [seed, replica in the low half, stream, micro-batch]. */
typedef struct {
  uint32_t first, second;
} FN(keys);

static inline FN(keys) FN(keys_of)(const int64_t *state) {
  const uint32_t counter[4] = {0, (uint32_t)state[3], (uint32_t)state[2], (uint32_t)state[1]};
  const uint32_t seed[2] = {(uint32_t)state[0], (uint32_t)((uint64_t)state[0] >> 32)};
  uint32_t block[4];
  ti_philox(counter, seed, block);
  return (FN(keys)){block[0], block[1]};
}

/* Whether a state switches stochastic rounding off: bit 32 of the word that holds the replica. */
static inline int FN(rounds_to_nearest)(const int64_t *state) { return state == 0 || (state[1] >> 32 & 1); }

/* The random bits of elements i to i + VL - 1, i being a multiple of VL. */
static inline __attribute__((always_inline)) FN(ru) FN(random_halves)(FN(keys) keys, int64_t i) {
#if VL == 16
  const FN(ru) lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
  const FN(ru) lanes = {0, 1, 2, 3, 4, 5, 6, 7};
#endif
  FN(ru) word = lanes + (uint32_t)(i >> 5 << 4 | (i & 15)) + keys.first;
  word ^= word >> 16;
  word *= 0x7feb352du;
  word ^= word >> 15;
  word += keys.second;
  word *= 0x846ca68bu;
  word ^= word >> 16;
  return (word >> (uint32_t)(i & 16)) & 0xffff;
}

static inline __attribute__((always_inline)) FN(ri) FN(truncated)(FN(rf) x) {
#if VL == 16
  return (FN(ri))_mm512_cvttps_epi32((__m512)x);
#else
  return (FN(ri))_mm256_cvttps_epi32((__m256)x);
#endif
}

static inline __attribute__((always_inline)) FN(rf) FN(from_integer)(FN(ri) x) {
#if VL == 16
  return (FN(rf))_mm512_cvtepi32_ps((__m512i)x);
#else
  return (FN(rf))_mm256_cvtepi32_ps((__m256i)x);
#endif
}

/* What stands for values beyond the largest half, 65504; NaN stays. */
static inline __attribute__((always_inline)) FN(rf) FN(overflowed)(FN(rf) x, int overflow) {
  const FN(ri) bits = (FN(ri))x, sign = bits & INT32_MIN, size = bits & INT32_MAX;
  const FN(ri) beyond = (size >= 0x47800000) & (size <= 0x7f800000);
  const int32_t stand_in = overflow == FN(OVERFLOW_NAN) ? 0x7fc00000
                           : overflow == FN(OVERFLOW_SATURATE) ? 0x477fe000 : 0x7f800000;
  return (FN(rf))((beyond & (sign | stand_in)) | (~beyond & bits));
}

/* Values that are no normal halves: multiples of 2^-24 below 2^-14, overflows, infinities and NaN among others. */
static __attribute__((noinline)) FN(rf) FN(rounded_beyond)(FN(rf) x, FN(ru) random, int overflow) {
  const FN(ri) bits = (FN(ri))x, sign = bits & INT32_MIN, size = bits & INT32_MAX;
  const FN(ri) normal = (size + (FN(ri))(random >> 3)) & ~0x1fff;
  const FN(rf) scaled = (FN(rf))size * 0x1p24f;
  const FN(ri) whole = FN(truncated)(scaled);
  const FN(ri) part = FN(truncated)((scaled - FN(from_integer)(whole)) * 65536.f);
  const FN(rf) tiny = FN(from_integer)(whole + ((part + (FN(ri))random) >> 16)) * 0x1p-24f;
  const FN(ri) is_tiny = size < 0x38800000, is_special = size >= 0x7f800000;
  FN(ri) result = (is_tiny & (FN(ri))tiny) | (~is_tiny & normal);
  result = (is_special & size) | (~is_special & result);
  return FN(overflowed)((FN(rf))(result | sign), overflow);
}

/* Values rounded stochastically to 11 significant bits. */
static inline __attribute__((always_inline)) FN(vf) FN(rounded_by)(FN(vf) x, FN(ru) random, int overflow) {
  const FN(ri) bits = (FN(ri))x, size = bits & INT32_MAX;
  /* from 2^-14 up to where a carry may overflow; 0 is right here as well */
#if VL == 16
  const __mmask16 odd = _mm512_cmp_epu32_mask((__m512i)(size - 1), (__m512i)((FN(ri)){0} + 0x387fffff), 1) |
                        _mm512_cmp_epi32_mask((__m512i)size, (__m512i)((FN(ri)){0} + 0x477fdfff), 6);
  const int is_plain = odd == 0;
#else
  const FN(ri) odd = ((size > 0) & (size < 0x38800000)) | (size > 0x477fdfff);
  const int is_plain = _mm256_testz_si256((__m256i)odd, (__m256i)odd);
#endif
  if (__builtin_expect(!is_plain, 0)) return (FN(vf))FN(rounded_beyond)((FN(rf))x, random, overflow);
  return (FN(vf))((bits + (FN(ri))(random >> 3)) & ~0x1fff);
}

static inline __attribute__((always_inline)) FN(vf) FN(rounded_to_nearest)(FN(vf) x, int overflow) {
#if VL == 16
  return (FN(vf))FN(overflowed)((FN(rf))_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)x, 8)), overflow);
#else
  return (FN(vf))FN(overflowed)((FN(rf))_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)x, 8)), overflow);
#endif
}

/* The elements from i on that lie before n; `mask` is 0 where one vector is repeated. */
static inline __attribute__((always_inline)) FN(vf) FN(to_be_rounded)(const float *s, long mask, long i, long n) {
  if (!mask || n - i >= VL) return *(const FN(vf) *)(s + (i & mask));
  float part[VL] = {0};
  memcpy(part, s + i, (size_t)(n - i) * sizeof *part);
  return *(const FN(vf) *)part;
}

/* Rounds n elements, of which the first has the number `start`, a multiple of 32; `d` has room for VL more. */
static void FN(round_run)(float *d, const float *s, long mask, const int64_t *state, int64_t start, long n, int overflow) {
  if (FN(rounds_to_nearest)(state)) {
    for (long i = 0; i < n; i += VL)
      *(FN(vf) *)(d + i) = FN(rounded_to_nearest)(FN(to_be_rounded)(s, mask, i, n), overflow);
    return;
  }
  const FN(keys) keys = FN(keys_of)(state);
  for (long i = 0; i < n; i += VL)
    *(FN(vf) *)(d + i) =
        FN(rounded_by)(FN(to_be_rounded)(s, mask, i, n), FN(random_halves)(keys, start + i), overflow);
}
