/* Rounding of float32 to values that a half holds: to nearest or stochastic, and what becomes of an overflow.
 *
 * Stochastic rounding adds 16 random bits below the last bit that is kept, and truncates: a value is rounded up with a
 * probability equal to the fraction that is discarded, to 2^-16 of the last bit. Normal halves discard 13 bits, so
 * that 13 of the random bits count; subnormal ones discard more. The carry may run into the exponent.
 *
 * Bits must cost less than the arithmetic around them. A stream, one for each (seed, replica, result, micro-batch), has
 * two keys from one Philox block, and its word of number m is a hash of m between them: C. Wellons, "Prospecting for
 * hash functions", 2018 (lowbias32), with the second key added in its middle. Elements 2 m and 2 m + 1 take the low and
 * the high half of word m. Whoever rounds begins at a multiple of 32 elements.
 */
#include "philox.h"
#include "table/round_blocks.h"
enum { FN(FETCH) = 512 };  /* floats ahead of those that are rounded */

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

/* The word of a number, the first key added to it; its upper half is as it stays, the lower is yet to be `folded`. */
TI_INLINE VU FN(unfolded)(VU place, VU second) {
  place ^= place >> 16;
  place *= 0x7feb352du;
  place ^= place >> 15;
  return (place + second) * 0x846ca68bu;
}
TI_INLINE VU FN(folded)(VU word) { return word ^ word >> 16; }

/* Words of a stream, by their numbers. */
TI_INLINE VU FN(random_of)(FN(keys) keys, VU number) {
  return FN(folded)(FN(unfolded)(number + keys.first, (VU){0} + keys.second));
}

/* The lower halves of even elements, and the upper ones of odd elements. */
TI_INLINE VU FN(half_of)(VU words, VU element) { return words >> ((element & 1) << 4) & 0xffff; }

/* The random bits of elements i to i + VL - 1, i being a multiple of VL. */
TI_INLINE VU FN(random_halves)(FN(keys) keys, int64_t i) {
#if VL == 16
  const VU lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
  const VU lanes = {0, 1, 2, 3, 4, 5, 6, 7};
#endif
  return FN(half_of)(FN(random_of)(keys, (lanes >> 1) + (uint32_t)(i >> 1)), lanes);
}

/* The numbers of words behind the first that lie where `spread` takes them from. */
TI_INLINE VU FN(spread_numbers)(void) {
#if VL == 16
  const VU order = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
#elif defined TI_PORTABLE
  const VU order = {0, 1, 2, 3, 4, 5, 6, 7};
#else
  const VU order = {0, 1, 4, 5, 2, 3, 6, 7};
#endif
  return order;
}

/* The halves of words so ordered: those of the first VL elements, and of the next. */
TI_INLINE void FN(spread)(VU words, VU *random) {
#if VL == 16
  random[0] = (VU)_mm512_unpacklo_epi16((__m512i)words, _mm512_setzero_si512());
  random[1] = (VU)_mm512_unpackhi_epi16((__m512i)words, _mm512_setzero_si512());
#elif defined TI_PORTABLE
  for (int i = 0; i < 2 * VL; i++) random[i / VL][i % VL] = words[i / 2] >> (i % 2 * 16) & 0xffff;
#else
  random[0] = (VU)_mm256_unpacklo_epi16((__m256i)words, _mm256_setzero_si256());
  random[1] = (VU)_mm256_unpackhi_epi16((__m256i)words, _mm256_setzero_si256());
#endif
}

/* The numbers of the words of elements i to i + 2 VL - 1, the first key added; i is a multiple of 2 VL. */
TI_INLINE VU FN(place_of_pair)(FN(keys) keys, int64_t i) {
  return FN(spread_numbers)() + ((uint32_t)(i >> 1) + keys.first);
}

/* The random bits of these elements. */
TI_INLINE void FN(random_pair)(FN(keys) keys, int64_t i, VU *random) {
  FN(spread)(FN(folded)(FN(unfolded)(FN(place_of_pair)(keys, i), (VU){0} + keys.second)), random);
}

/* What stands for values beyond the largest half, 65504; NaN stays. */
TI_INLINE VF FN(overflowed)(VF x, int overflow) {
  const VI bits = (VI)x, sign = bits & INT32_MIN, size = bits & INT32_MAX;
  const VI beyond = (size >= 0x47800000) & (size <= 0x7f800000);
  const int32_t stand_in = overflow == TI_HALF_OVERFLOW_NAN ? 0x7fc00000
                           : overflow == TI_HALF_OVERFLOW_SATURATE ? 0x477fe000 : 0x7f800000;
  return (VF)((beyond & (sign | stand_in)) | (~beyond & bits));
}

#if VL == 16
/* Values rounded stochastically: the random bits, as many times 2^-16 of the last bit that is kept, are added and the sum
 * is cut off. Addition towards zero loses nothing that the second cut would keep, and the least exponent that is taken,
 * that of 2^-14, makes subnormal halves no special case. */
TI_INLINE __m512 FN(sum_of)(VF x, VU random) {
  const __m512 power = (__m512)((VI)x & (VI)((VU){0} + 0xff800000u));
  /* the larger size of the two, with the sign of the first; 2^26 less: a step of the random bits */
  const VI step = (VI)_mm512_range_ps(power, _mm512_set1_ps(0x1p-14f), 3) - (26 << 23);
  return _mm512_fmadd_round_ps(_mm512_cvtepi32_ps((__m512i)random), (__m512)step, (__m512)x, 11);
}

/* Whether any of these, twice the size of halves, is that of the largest half or more. */
TI_INLINE int FN(is_largest)(__m256i twice) {
  return __builtin_expect(_mm256_cmp_epu16_mask(twice, _mm256_set1_epi16((short)0xf7fe), 5) != 0, 0);
}

TI_INLINE FN(halves) FN(halves_by)(VF x, VU random, int overflow) {
  const __m512 sum = FN(sum_of)(x, random);
  const __m256i halves = _mm512_cvtps_ph(sum, 11);
  if (FN(is_largest)(_mm256_add_epi16(halves, halves))) return _mm512_cvtps_ph((__m512)FN(overflowed)((VF)sum, overflow), 11);
  return halves;
}
#else
/* Values that are no normal halves: multiples of 2^-24 below 2^-14, overflows, infinities and NaN among others. */
static __attribute__((noinline)) VF FN(rounded_beyond)(VF x, VU random, int overflow) {
  const VI bits = (VI)x, sign = bits & INT32_MIN, size = bits & INT32_MAX;
  const VI normal = (size + (VI)(random >> 3)) & ~0x1fff;
  /* in steps of the random bits, 2^16 of which are the last bit of a subnormal half */
  const VI steps = FN(toint)(FN(trunc)((VF)size * 0x1p40f)) + (VI)random;
  const VF tiny = FN(tofloat)(steps >> 16) * 0x1p-24f;
  const VI is_tiny = size < 0x38800000, is_special = size >= 0x7f800000;
  VI result = (is_tiny & (VI)tiny) | (~is_tiny & normal);
  result = (is_special & size) | (~is_special & result);
  return FN(overflowed)((VF)(result | sign), overflow);
}

/* Values rounded stochastically to 11 significant bits. */
TI_INLINE FN(halves) FN(halves_by)(VF x, VU random, int overflow) {
  const VI bits = (VI)x, size = bits & INT32_MAX;
  /* from 2^-14 up to where a carry may overflow; 0 is right here as well */
  const VI odd = ((size > 0) & (size < 0x38800000)) | (size > 0x477fdfff);
  if (__builtin_expect(!_mm256_testz_si256((__m256i)odd, (__m256i)odd), 0))
    return FN(nearest_halves)(FN(rounded_beyond)(x, random, overflow));
  return _mm256_cvtps_ph((__m256)(bits + (VI)(random >> 3)), 11);
}
#endif

/* The same, as floats. */
TI_INLINE VF FN(rounded_by)(VF x, VU random, int overflow) {
  return FN(of_halves)(FN(halves_by)(x, random, overflow));
}

TI_INLINE VF FN(rounded_to_nearest)(VF x, int overflow) {
  return FN(overflowed)(FN(of_halves)(FN(nearest_halves)(x)), overflow);
}

/* Up to VL elements from i on of the n. */
TI_INLINE VF FN(to_be_rounded)(const float *s, long mask, long i, long n) {
  return mask ? FN(load_most)(s + i, n - i) : FN(load)(s);
}

/* Stores halves as floats at d and as they are at h, where these are not NULL. */
TI_INLINE void FN(put)(float *d, uint16_t *h, long i, long n, FN(halves) halves) {
  if (n - i < VL) {
    if (d) FN(store_part)(d + i, FN(of_halves)(halves), n - i);
    if (h) memcpy(h + i, &halves, (size_t)(n - i) * sizeof *h);
  } else {
    if (d) FN(store)(d + i, FN(of_halves)(halves));
    if (h) FN(store_halves)(h + i, halves);
  }
}

/* Up to 32 elements from i on, i being a multiple of 32. */
TI_INLINE void FN(round_group)(float *d, uint16_t *h, const float *s, long mask, FN(keys) keys, int64_t start, long i, long n,
                               int overflow) {
  for (long end = i + 32 < n ? i + 32 : n; i < end; i += 2 * VL) {
    VU random[2];
    FN(random_pair)(keys, start + i, random);
    for (long k = 0; k < 2 && i + k * VL < end; k++)
      FN(put)(d, h, i + k * VL, n, FN(halves_by)(FN(to_be_rounded)(s, mask, i + k * VL, n), random[k], overflow));
  }
}

TI_INLINE void FN(nearest_any)(float *d, uint16_t *h, const float *s, long mask, long n, int overflow) {
  for (long i = 0; i < n; i += VL) {
    const VF x = FN(to_be_rounded)(s, mask, i, n);
    const int is_plain = overflow == TI_HALF_OVERFLOW_INFINITY;
    FN(put)(d, h, i, n, FN(nearest_halves)(is_plain ? x : FN(rounded_to_nearest)(x, overflow)));
  }
}

#if VL == 16
/* A constant that stays in its register through a loop. */
TI_INLINE VU FN(held)(uint32_t value) {
  VU x = (VU){0} + value;
  __asm__("" : "+v"(x));
  return x;
}

/* What `sum_of` takes, and 2^16, from which on a sum is no half. */
typedef struct {
  VU exponent, least, less;
  VF largest;
} FN(rounding_constants);

TI_INLINE FN(rounding_constants) FN(hold_constants)(void) {
  return (FN(rounding_constants)){.exponent = FN(held)(0xff800000u), .least = FN(held)(0x38800000), .less = FN(held)((uint32_t)-(26 << 23)),
                                  .largest = (VF)FN(held)(0x47800000)};
}

/* As `halves_by`, of `count` vectors, an even number, which are looked at for overflows at once. */
TI_INLINE void FN(halves_of_some)(const FN(rounding_constants) *c, const int count, const VF *x, const VU *random, int overflow,
                                  FN(halves) *halves) {
  __m512 sums[4], sizes = _mm512_setzero_ps();
#pragma GCC unroll 4
  for (int k = 0; k < count; k++) {
    const VU step = (VU)_mm512_range_ps((__m512)((VU)x[k] & c->exponent), (__m512)c->least, 3) + c->less;
    sums[k] = _mm512_fmadd_round_ps(_mm512_cvtepi32_ps((__m512i)random[k]), (__m512)step, (__m512)x[k], 11);
    halves[k] = _mm512_cvtps_ph(sums[k], 11);
  }
#pragma GCC unroll 2
  for (int k = 0; k < count; k += 2) {  /* the largest sizes; NaN passes by */
    const __m512 both = _mm512_range_ps(sums[k], sums[k + 1], 11);
    sizes = k ? _mm512_range_ps(sizes, both, 11) : both;
  }
  if (__builtin_expect(_mm512_cmp_ps_mask(sizes, (__m512)c->largest, _CMP_GE_OQ) != 0, 0))
#pragma GCC unroll 4
    for (int k = 0; k < count; k++) halves[k] = _mm512_cvtps_ph((__m512)FN(overflowed)((VF)sums[k], overflow), 11);
}

/* The halves of 32 elements, whose words are at this place. */
TI_INLINE void FN(halves_of_group)(const FN(rounding_constants) *c, const VF *x, VU place, VU second, int overflow, FN(halves) *halves) {
  VU random[2];
  FN(spread)(FN(folded)(FN(unfolded)(place, second)), random);
  FN(halves_of_some)(c, 2, x, random, overflow, halves);
}

/* Whole groups of 32. Returns how many elements these were. */
TI_INLINE long FN(round_groups)(float *d, uint16_t *h, const float *s, FN(keys) keys, int64_t start, long n, int overflow) {
  const FN(rounding_constants) c = FN(hold_constants)();
  const VU second = FN(held)(keys.second), group = FN(held)(16);
  VU place = FN(place_of_pair)(keys, start);
  long i = 0;
  for (; i + 32 <= n; i += 32, place += group) {
    _mm_prefetch((const char *)(s + i + FN(FETCH)), _MM_HINT_T0);
    _mm_prefetch((const char *)(s + i + FN(FETCH) + 16), _MM_HINT_T0);
    const VF x[] = {FN(load)(s + i), FN(load)(s + i + 16)};
    FN(halves) halves[2];
    FN(halves_of_group)(&c, x, place, second, overflow, halves);
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
      if (d) FN(store)(d + i + 16 * k, FN(of_halves)(halves[k]));
      if (h) FN(store_halves)(h + i + 16 * k, halves[k]);
    }
  }
  return i;
}
#endif

TI_INLINE void FN(keyed_any)(float *d, uint16_t *h, const float *s, long mask, FN(keys) keys, int64_t start, long n,
                             int overflow) {
  long i = 0;
#if VL == 16
  if (mask) i = FN(round_groups)(d, h, s, keys, start, n, overflow);
#endif
  for (; i + 32 <= n; i += 32) {
    _mm_prefetch((const char *)(s + ((i + FN(FETCH)) & mask)), _MM_HINT_T0);
    _mm_prefetch((const char *)(s + ((i + FN(FETCH) + 16) & mask)), _MM_HINT_T0);
    FN(round_group)(d, h, s, mask, keys, start, i, i + 32, overflow);
  }
  if (i < n) FN(round_group)(d, h, s, mask, keys, start, i, n, overflow);
}

TI_INLINE void FN(round_any)(float *d, uint16_t *h, const float *s, long mask, const int64_t *state, int64_t start, long n,
                             int overflow) {
  if (FN(rounds_to_nearest)(state)) FN(nearest_any)(d, h, s, mask, n, overflow);
  else FN(keyed_any)(d, h, s, mask, FN(keys_of)(state), start, n, overflow);
}

/* Round n elements, of which the first has the number `start`, a multiple of 32, to floats or to halves; `mask` is 0 where
 * one vector is repeated. By themselves, so that constants stay in registers. */
static __attribute__((noinline)) void FN(round_run)(float *d, const float *s, long mask, const int64_t *state, int64_t start,
                                                    long n, int overflow) {
  FN(round_any)(d, 0, s, mask, state, start, n, overflow);
}
static __attribute__((noinline)) void FN(round_to)(uint16_t *h, const float *s, long mask, const int64_t *state, int64_t start,
                                                   long n, int overflow) {
  FN(round_any)(0, h, s, mask, state, start, n, overflow);
}
/* The same with the keys at hand: whoever rounds many short runs makes them once. */
static __attribute__((noinline)) void FN(round_keyed_run)(float *d, const float *s, long mask, FN(keys) keys, int64_t start,
                                                          long n, int overflow) {
  FN(keyed_any)(d, 0, s, mask, keys, start, n, overflow);
}
static __attribute__((noinline)) void FN(round_keyed_to)(uint16_t *h, const float *s, long mask, FN(keys) keys, int64_t start,
                                                         long n, int overflow) {
  FN(keyed_any)(0, h, s, mask, keys, start, n, overflow);
}
static __attribute__((noinline)) void FN(round_keyed)(uint16_t *h, const float *s, FN(keys) keys, int64_t start, long n,
                                                      int overflow) {
  FN(keyed_any)(0, h, s, -1, keys, start, n, overflow);
}
static __attribute__((noinline)) void FN(round_nearest)(uint16_t *h, const float *s, long n, int overflow) {
  FN(nearest_any)(0, h, s, -1, n, overflow);
}
/* The same of floats that stay, rounded, where they are; h may be NULL. */
static __attribute__((noinline)) void FN(round_keyed_here)(float *s, uint16_t *h, FN(keys) keys, int64_t start, long n,
                                                           int overflow) {
  if (h) FN(keyed_any)(s, h, s, -1, keys, start, n, overflow);
  else FN(keyed_any)(s, 0, s, -1, keys, start, n, overflow);
}
static __attribute__((noinline)) void FN(round_nearest_here)(float *s, uint16_t *h, long n, int overflow) {
  if (h) FN(nearest_any)(s, h, s, -1, n, overflow);
  else FN(nearest_any)(s, 0, s, -1, n, overflow);
}

/* `count` elements from number `first` on, none beyond the group of 32 that holds the first; s and h, which may be NULL,
 * are the places of number 0. Floats are written where they are kept. */
static __attribute__((noinline)) void FN(round_within)(float *s, uint16_t *h, int keeps, FN(keys) keys, int64_t first,
                                                       int64_t count, int overflow) {
#if VL == 16
  for (int64_t at = first & ~(int64_t)15; at < first + count; at += 16) {
    const int64_t from = first > at ? first - at : 0, to = first + count - at < 16 ? first + count - at : 16;
    const __mmask16 lanes = (__mmask16)((0xffffu >> (16 - to)) & (0xffffu << from));
    const VF x = (VF)_mm512_maskz_loadu_ps(lanes, s + at);
    const FN(halves) halves = FN(halves_by)(x, FN(random_halves)(keys, at), overflow);
    if (h) _mm256_mask_storeu_epi16(h + at, lanes, halves);
    if (keeps) _mm512_mask_storeu_ps(s + at, lanes, (__m512)FN(of_halves)(halves));
  }
#else
  float floats[32] = {0};
  uint16_t halves[32];
  const int64_t at = first & 31;
  memcpy(floats + at, s + first, (size_t)count * sizeof *s);
  FN(round_keyed_here)(floats, halves, keys, first - at, 32, overflow);
  if (h) memcpy(h + first, halves + at, (size_t)count * sizeof *h);
  if (keeps) memcpy(s + first, floats + at, (size_t)count * sizeof *s);
#endif
}

/* The same of any number of elements. */
static void FN(round_from)(float *s, uint16_t *h, int keeps, FN(keys) keys, int64_t first, int64_t count, int overflow) {
  const int64_t room = 32 - (first & 31), ahead = (first & 31) == 0 && count >= 32 ? 0 : count < room ? count : room;
  if (ahead) FN(round_within)(s, h, keeps, keys, first, ahead, overflow);
  first += ahead;
  count -= ahead;
  if (!count) return;
  if (keeps) FN(round_keyed_here)(s + first, h ? h + first : 0, keys, first, count, overflow);
  else FN(round_keyed)(h + first, s + first, keys, first, count, overflow);
}
