/* Rounding of float32 to values that a half holds: to nearest or stochastic, and what becomes of an overflow.
 *
 * Stochastic rounding adds 16 random bits below the last bit that is kept, and truncates: a value is rounded up with a
 * probability equal to the fraction that is discarded, to 2^-16 of the last bit. Normal halves discard 13 bits, so
 * that 13 of the random bits count; subnormal ones discard more. The carry may run into the exponent.
 *
 * Bits must cost less than the arithmetic around them. All streams of a (seed, replica, micro-batch) share a first key, and
 * each has a second one: words of Philox blocks. Element i is at place p = i * 0xb5297a4d + first key, and its word is
 * (p ^ p >> 12) * (p ^ second key), all modulo 2^32: what is multiplied is as random as what it is multiplied with, so that
 * places in a row, whose differences are all alike, have products that are not. The upper half of the word are its random
 * bits. A vector takes five instructions, wherever its elements lie, and two for each further result that is rounded there.
 */
#include "philox.h"
#include "table/round_blocks.h"
enum { FN(FETCH) = 512 };  /* floats ahead of those that are rounded */

/* The keys of a stream; `state` is [seed, replica in the low half, stream, micro-batch]. */
typedef struct {
  uint32_t first, second;
} FN(keys);

static inline uint32_t FN(key_of)(const int64_t *state, uint32_t stream) {
  const uint32_t counter[4] = {0, (uint32_t)state[3], stream, (uint32_t)state[1]};
  const uint32_t seed[2] = {(uint32_t)state[0], (uint32_t)((uint64_t)state[0] >> 32)};
  uint32_t block[4];
  ti_philox(counter, seed, block);
  return block[0];
}

/* No result has the last of all streams. */
static inline FN(keys) FN(keys_of)(const int64_t *state) {
  return (FN(keys)){FN(key_of)(state, UINT32_MAX), FN(key_of)(state, (uint32_t)state[2])};
}

/* The same where `before` are those of another stream: most have the first in common. */
static inline FN(keys) FN(next_keys)(const int64_t *state, const int64_t *other, FN(keys) before) {
  if (!other || state[0] != other[0] || state[1] != other[1] || state[3] != other[3]) return FN(keys_of)(state);
  return (FN(keys)){before.first, FN(key_of)(state, (uint32_t)state[2])};
}

/* Whether a state switches stochastic rounding off: bit 32 of the word that holds the replica. */
static inline int FN(rounds_to_nearest)(const int64_t *state) { return state == 0 || (state[1] >> 32 & 1); }

/* From the place of one element to that of the next. */
#ifndef TORCHIPU_ROUNDING_STEP
#define TORCHIPU_ROUNDING_STEP
static const uint32_t TI_ROUNDING_STEP = 0xb5297a4du;
#endif

/* What is `apart` times the number of each lane. */
TI_INLINE VU FN(lanes_by)(uint32_t apart) {
#if VL == 16
  const VU lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
  const VU lanes = {0, 1, 2, 3, 4, 5, 6, 7};
#endif
  return lanes * apart;
}

/* The places of VL elements from number i on, `step` apart. */
TI_INLINE VU FN(places_of)(FN(keys) keys, int64_t i, uint32_t step) {
  return FN(lanes_by)(step * TI_ROUNDING_STEP) + ((uint32_t)i * TI_ROUNDING_STEP + keys.first);
}

/* The words of places: one factor is that of all streams. */
TI_INLINE VU FN(shared_factor)(VU place) { return place ^ place >> 12; }
TI_INLINE VU FN(random_words)(VU place, VU second) { return FN(shared_factor)(place) * (place ^ second); }

/* The words of elements i to i + VL - 1. */
TI_INLINE VU FN(random_words_from)(FN(keys) keys, int64_t i) {
  return FN(random_words)(FN(places_of)(keys, i, 1), (VU){0} + keys.second);
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
/* Values rounded stochastically by words: the random bits, as many times 2^-16 of the last bit that is kept, are added and
 * the sum is cut off. Addition towards zero loses nothing that the second cut would keep, and the least exponent that is
 * taken, that of 2^-14, makes subnormal halves no special case. */
TI_INLINE __m512 FN(sum_of)(VF x, VU word) {
  const __m512 power = (__m512)((VI)x & (VI)((VU){0} + 0xff800000u));
  /* the larger size of the two, with the sign of the first; 2^42 less: a step of the random bits where they lie in a word */
  const VI step = (VI)_mm512_range_ps(power, _mm512_set1_ps(0x1p-14f), 3) - (42 << 23);
  return _mm512_fmadd_round_ps(_mm512_cvtepu32_ps((__m512i)(word & 0xffff0000u)), (__m512)step, (__m512)x, 11);
}

/* Whether any of these, twice the size of halves, is that of the largest half or more. */
TI_INLINE int FN(is_largest)(__m256i twice) {
  return __builtin_expect(_mm256_cmp_epu16_mask(twice, _mm256_set1_epi16((short)0xf7fe), 5) != 0, 0);
}

TI_INLINE FN(halves) FN(halves_by)(VF x, VU word, int overflow) {
  const __m512 sum = FN(sum_of)(x, word);
  const __m256i halves = _mm512_cvtps_ph(sum, 11);
  if (FN(is_largest)(_mm256_add_epi16(halves, halves))) return _mm512_cvtps_ph((__m512)FN(overflowed)((VF)sum, overflow), 11);
  return halves;
}
#else
/* Values that are no normal halves: multiples of 2^-24 below 2^-14, overflows, infinities and NaN among others. */
static __attribute__((noinline)) VF FN(rounded_beyond)(VF x, VU word, int overflow) {
  const VI bits = (VI)x, sign = bits & INT32_MIN, size = bits & INT32_MAX;
  const VI normal = (size + (VI)(word >> 19)) & ~0x1fff;
  /* in steps of the random bits, 2^16 of which are the last bit of a subnormal half */
  const VI steps = FN(toint)(FN(trunc)((VF)size * 0x1p40f)) + (VI)(word >> 16);
  const VF tiny = FN(tofloat)(steps >> 16) * 0x1p-24f;
  const VI is_tiny = size < 0x38800000, is_special = size >= 0x7f800000;
  VI result = (is_tiny & (VI)tiny) | (~is_tiny & normal);
  result = (is_special & size) | (~is_special & result);
  return FN(overflowed)((VF)(result | sign), overflow);
}

/* Values rounded stochastically to 11 significant bits. */
TI_INLINE FN(halves) FN(halves_by)(VF x, VU word, int overflow) {
  const VI bits = (VI)x, size = bits & INT32_MAX;
  /* from 2^-14 up to where a carry may overflow; 0 is right here as well */
  const VI odd = ((size > 0) & (size < 0x38800000)) | (size > 0x477fdfff);
  if (__builtin_expect(!_mm256_testz_si256((__m256i)odd, (__m256i)odd), 0))
    return FN(nearest_halves)(FN(rounded_beyond)(x, word, overflow));
  return _mm256_cvtps_ph((__m256)(bits + (VI)(word >> 19)), 11);
}
#endif

/* The same, as floats. */
TI_INLINE VF FN(rounded_by)(VF x, VU word, int overflow) {
  return FN(of_halves)(FN(halves_by)(x, word, overflow));
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

/* What `sum_of` takes, and 2^16, from which on a sum is no half; the bits of floats without their sign, those that normal
 * halves keep, and the range of these, beyond which a carry may overflow; what is added to twice the bits of halves, and up
 * to where the sum, cut off, is that of normal ones; the distance of subnormal halves, as `sum_of` has it, and the sign. */
typedef struct {
  VU exponent, least, less, upper;
  VF largest;
  VU size, kept_bits, range;
  __m256i of_normal, last_normal;
  VU tiny_step, sign;
} FN(rounding_constants);

TI_INLINE FN(rounding_constants) FN(hold_constants)(void) {
  /* the last four are loaded where they are used: runs may be short */
  const FN(rounding_constants) c = {.exponent = FN(held)(0xff800000u), .least = FN(held)(0x38800000), .less = FN(held)((uint32_t)-(42 << 23)),
                              .upper = FN(held)(0xffff0000u), .largest = (VF)FN(held)(0x47800000), .size = FN(held)(0x7fffffffu),
                              .kept_bits = FN(held)(~0x1fffu), .range = FN(held)(0x477fdfffu - 0x38800000u),
                              .of_normal = _mm256_set1_epi16((short)0xf800), .last_normal = _mm256_set1_epi16((short)0xefff),
                              .tiny_step = (VU){0} + (0x38800000 - (42 << 23)), .sign = (VU){0} + 0x80000000u};
  return c;
}

/* As `halves_by`, of `count` vectors, up to four, which are looked at for overflows at once. Returns whether all are less
 * than any normal half. */
TI_INLINE int FN(halves_of_some)(const FN(rounding_constants) *c, const int count, const VF *x, const VU *words, int overflow,
                                 FN(halves) *halves) {
  __m512 sums[4], sizes;
#pragma GCC unroll 4
  for (int k = 0; k < count; k++) {
    const VU step = (VU)_mm512_range_ps((__m512)((VU)x[k] & c->exponent), (__m512)c->least, 3) + c->less;
    sums[k] = _mm512_fmadd_round_ps(_mm512_cvtepu32_ps((__m512i)(words[k] & c->upper)), (__m512)step, (__m512)x[k], 11);
    halves[k] = _mm512_cvtps_ph(sums[k], 11);
  }
  sizes = _mm512_range_ps(sums[0], sums[count - 1], 11);  /* the largest sizes; NaN passes by */
#pragma GCC unroll 2
  for (int k = 1; k < count - 1; k++) sizes = _mm512_range_ps(sizes, sums[k], 11);
  if (__builtin_expect(_mm512_cmp_ps_mask(sizes, (__m512)c->largest, _CMP_GE_OQ) != 0, 0))
#pragma GCC unroll 4
    for (int k = 0; k < count; k++) halves[k] = _mm512_cvtps_ph((__m512)FN(overflowed)((VF)sums[k], overflow), 11);
  return _mm512_cmp_ps_mask(sizes, (__m512)c->least, _CMP_NLT_UQ) == 0;
}

/* The same if all results are normal halves: the random bits that such halves count are added to the mantissas, and the
 * conversion cuts the sums off. What is less than any normal half and becomes one here does so by the whole sum too, whose
 * steps are longer; what does not, infinities and NaN, whose mantissas may overflow, show in the exponents of the halves.
 * Returns whether all were; else what is written is worth nothing. */
TI_INLINE int FN(normal_halves)(const FN(rounding_constants) *c, const int count, const VF *x, const VU *words, FN(halves) *halves) {
  __m256i places[4];
#pragma GCC unroll 4
  for (int k = 0; k < count; k++) {
    halves[k] = _mm512_cvtps_ph((__m512)((VU)x[k] + (words[k] >> 19)), 11);
    places[k] = _mm256_add_epi16(_mm256_add_epi16(halves[k], halves[k]), c->of_normal);
  }
#pragma GCC unroll 3
  for (int k = 1; k < count; k++) places[0] = _mm256_max_epu16(places[0], places[k]);
  return __builtin_expect(_mm256_cmpgt_epu16_mask(places[0], c->last_normal) == 0, 1);
}

/* The same if all are less than any normal half, whose distances are all alike. */
TI_INLINE int FN(tiny_halves)(const FN(rounding_constants) *c, const int count, const VF *x, const VU *words, FN(halves) *halves) {
  __m512 sums[4], sizes;
#pragma GCC unroll 4
  for (int k = 0; k < count; k++) {
    const VU step = ((VU)x[k] & c->sign) | c->tiny_step;
    sums[k] = _mm512_fmadd_round_ps(_mm512_cvtepu32_ps((__m512i)(words[k] & c->upper)), (__m512)step, (__m512)x[k], 11);
    halves[k] = _mm512_cvtps_ph(sums[k], 11);
  }
  sizes = _mm512_range_ps(sums[0], sums[count - 1], 11);
#pragma GCC unroll 2
  for (int k = 1; k < count - 1; k++) sizes = _mm512_range_ps(sizes, sums[k], 11);
  return __builtin_expect(_mm512_cmp_ps_mask(sizes, (__m512)c->least, _CMP_NLT_UQ) == 0, 1);
}

/* For how many groups of vectors it is not asked whether values are normal halves, where one of them was not: as of gradients,
 * others near it mostly are none either. */
enum { FN(GROUPS_BEYOND) = 4 };

/* What values of a run were found to be, and so are tried as next: normal halves, less than these, or some of either, which
 * then are not asked again for a while, longer each time. */
typedef struct {
  int are_tiny, unasked, longest;
} FN(found);
enum { FN(UNASKED) = 4, FN(MOST_UNASKED) = 64 };  /* groups of vectors */
enum { FN(FEW) = 512 };  /* elements, of which it is not asked: an answer comes too late to be of use */

TI_INLINE void FN(found_some)(FN(found) *found) {
  found->are_tiny = 0;
  found->longest = found->longest ? ti_min(found->longest * 2, FN(MOST_UNASKED)) : FN(UNASKED);
  found->unasked = found->longest;
}
TI_INLINE void FN(found_alike)(FN(found) *found) { found->longest -= found->longest > FN(UNASKED); }

/* Vectors, up to four, by whichever of these is for them. */
TI_INLINE void FN(halves_as_found)(const FN(rounding_constants) *c, const int count, const VF *x, const VU *words, int overflow,
                                   FN(halves) *halves, FN(found) *found) {
  if (found->unasked > 0) {
    found->unasked--;
  } else {
    if (found->are_tiny ? FN(tiny_halves)(c, count, x, words, halves) : FN(normal_halves)(c, count, x, words, halves)) {
      FN(found_alike)(found);
      return;
    }
    FN(found_some)(found);
  }
  if (FN(halves_of_some)(c, count, x, words, overflow, halves)) *found = (FN(found)){.are_tiny = 1, .longest = found->longest};
}

/* Adds the random bits that normal halves count to the mantissas of vectors, up to four, and cuts off their ends. Returns whether all
 * are normal halves, so that this is how they round; zero is none. */
TI_INLINE int FN(add_bits)(VU kept, VF largest, VF least, const int count, const VU *words, const VF *v, VU *rounded) {
  __m512 most, fewest;
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) rounded[p] = ((VU)v[p] + (words[p] >> 19)) & kept;
  /* NaN passes by, and one whose bits carry beyond the sign is zero here */
  most = _mm512_range_ps((__m512)rounded[0], (__m512)rounded[count - 1], 11);
  fewest = _mm512_range_ps((__m512)rounded[0], (__m512)rounded[count - 1], 10);
#pragma GCC unroll 2
  for (int p = 1; p < count - 1; p++) {
    most = _mm512_range_ps(most, (__m512)rounded[p], 11);
    fewest = _mm512_range_ps(fewest, (__m512)rounded[p], 10);
  }
  const __mmask16 beyond = _mm512_cmp_ps_mask(most, (__m512)largest, _CMP_GE_OQ) | _mm512_cmp_ps_mask(fewest, (__m512)least, _CMP_LT_OQ);
  return __builtin_expect(beyond == 0, 1);
}

/* Rounds vectors, up to four, to floats that are normal halves. Returns whether all were, or zero; else nothing is written. */
TI_INLINE int FN(round_normal)(const FN(rounding_constants) *c, const int count, const VU *words, VF *v) {
  VU rounded[4];
  if (!FN(add_bits)(c->kept_bits, c->largest, (VF)c->least, count, words, v, rounded)) {
    __mmask16 odd = 0;
#pragma GCC unroll 4
    for (int p = 0; p < count; p++) {
      const __mmask16 others = _mm512_cmpgt_epu32_mask((__m512i)(((VU)v[p] & c->size) - c->least), (__m512i)c->range);
      odd |= _mm512_mask_test_epi32_mask(others, (__m512i)v[p], (__m512i)c->size);
      rounded[p] = (VU)_mm512_mask_mov_epi32((__m512i)rounded[p], others, (__m512i)v[p]);
    }
    if (odd) return 0;
  }
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) v[p] = (VF)rounded[p];
  return 1;
}

/* Some vectors, an even number. */
TI_INLINE void FN(round_vectors)(const FN(rounding_constants) *c, const int count, float *d, uint16_t *h, const float *s, VU place,
                                 VU next, VU second, FN(found) *found, int overflow) {
  VF x[4];
  VU words[4];
  FN(halves) halves[4];
#pragma GCC unroll 4
  for (int k = 0; k < count; k++, place += next) {
    _mm_prefetch((const char *)(s + k * VL + FN(FETCH)), _MM_HINT_T0);
    x[k] = FN(load)(s + k * VL);
    words[k] = FN(random_words)(place, second);
  }
  if (d && found->unasked <= 0) {
    if (FN(round_normal)(c, count, words, x)) {
      FN(found_alike)(found);
#pragma GCC unroll 4
      for (int k = 0; k < count; k++) {
        FN(store)(d + k * VL, x[k]);
        if (h) FN(store_halves)(h + k * VL, FN(nearest_halves)(x[k]));
      }
      return;
    }
    FN(found_some)(found);
  }
  if (d) {
    found->unasked--;
    FN(halves_of_some)(c, count, x, words, overflow, halves);
  } else {
    FN(halves_as_found)(c, count, x, words, overflow, halves, found);
  }
#pragma GCC unroll 4
  for (int k = 0; k < count; k++) {
    if (d) FN(store)(d + k * VL, FN(of_halves)(halves[k]));
    if (h) FN(store_halves)(h + k * VL, halves[k]);
  }
}

/* What stays at hand through runs of one stream. */
typedef struct {
  FN(rounding_constants) constants;
  VU second, next;
  FN(found) found;
} FN(held_stream);

TI_INLINE FN(held_stream) FN(hold_stream)(FN(keys) keys) {
  return (FN(held_stream)){.constants = FN(hold_constants)(), .second = FN(held)(keys.second), .next = FN(held)(VL * TI_ROUNDING_STEP)};
}

/* Whole pairs of vectors, from a place on. Returns how many elements these were. */
TI_INLINE long FN(round_pairs)(FN(held_stream) *by, float *d, uint16_t *h, const float *s, VU place, long n, int overflow) {
  long i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL, place += by->next * 4)
    FN(round_vectors)(&by->constants, 4, d ? d + i : NULL, h ? h + i : NULL, s + i, place, by->next, by->second, &by->found, overflow);
  if (i + 2 * VL > n) return i;
  FN(round_vectors)(&by->constants, 2, d ? d + i : NULL, h ? h + i : NULL, s + i, place, by->next, by->second, &by->found, overflow);
  return i + 2 * VL;
}
#endif

/* What is left of a run from element i on, vector by vector. */
TI_INLINE void FN(keyed_rest)(float *d, uint16_t *h, const float *s, long mask, FN(keys) keys, int64_t start, long i, long n,
                              int overflow) {
  const VU second = (VU){0} + keys.second;
  VU place = FN(places_of)(keys, start + i, 1);
  for (; i < n; i += VL, place += VL * TI_ROUNDING_STEP) {
    _mm_prefetch((const char *)(s + ((i + FN(FETCH)) & mask)), _MM_HINT_T0);
    FN(put)(d, h, i, n, FN(halves_by)(FN(to_be_rounded)(s, mask, i, n), FN(random_words)(place, second), overflow));
  }
}

/* Runs of n elements, `apart` from each other in memory and in number. */
TI_INLINE void FN(keyed_rows)(float *d, uint16_t *h, const float *s, FN(keys) keys, int64_t start, long n, int64_t rows, int64_t apart,
                              int overflow) {
#if VL == 16
  FN(held_stream) by = FN(hold_stream)(keys);
  VU place = FN(places_of)(keys, start, 1);
  if (!d && n * rows < FN(FEW)) by.found.unasked = FN(MOST_UNASKED);
#endif
  for (int64_t row = 0; row < rows; row++) {
    float *const floats = d ? d + row * apart : NULL;
    uint16_t *const halves = h ? h + row * apart : NULL;
    long i = 0;
#if VL == 16
    i = FN(round_pairs)(&by, floats, halves, s + row * apart, place, n, overflow);
    place += (uint32_t)apart * TI_ROUNDING_STEP;
#endif
    if (i < n) FN(keyed_rest)(floats, halves, s + row * apart, -1, keys, start + row * apart, i, n, overflow);
  }
}

TI_INLINE void FN(keyed_any)(float *d, uint16_t *h, const float *s, long mask, FN(keys) keys, int64_t start, long n,
                             int overflow) {
  if (mask) FN(keyed_rows)(d, h, s, keys, start, n, 1, 0, overflow);
  else FN(keyed_rest)(d, h, s, mask, keys, start, 0, n, overflow);
}

TI_INLINE void FN(round_any)(float *d, uint16_t *h, const float *s, long mask, const int64_t *state, int64_t start, long n,
                             int overflow) {
  if (FN(rounds_to_nearest)(state)) FN(nearest_any)(d, h, s, mask, n, overflow);
  else FN(keyed_any)(d, h, s, mask, FN(keys_of)(state), start, n, overflow);
}

/* Round n elements, of which the first has the number `start`, to floats or to halves; `mask` is 0 where
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

static __attribute__((noinline)) void FN(round_keyed_rows)(uint16_t *h, const float *s, FN(keys) keys, int64_t start, long n,
                                                           int64_t rows, int64_t apart, int overflow) {
  FN(keyed_rows)(0, h, s, keys, start, n, rows, apart, overflow);
}
static __attribute__((noinline)) void FN(round_keyed_rows_here)(float *s, uint16_t *h, FN(keys) keys, int64_t start, long n,
                                                                int64_t rows, int64_t apart, int overflow) {
  if (h) FN(keyed_rows)(s, h, s, keys, start, n, rows, apart, overflow);
  else FN(keyed_rows)(s, 0, s, keys, start, n, rows, apart, overflow);
}

/* Runs of `count` elements, the first from number `first` on, which are `apart` from each other; s and h, which may be NULL,
 * are the places of number 0. Floats are written where they are kept. */
TI_INLINE void FN(round_from)(float *s, uint16_t *h, int keeps, FN(keys) keys, int64_t first, int64_t count, int64_t rows,
                              int64_t apart, int overflow) {
  if (keeps) FN(round_keyed_rows_here)(s + first, h ? h + first : 0, keys, first, count, rows, apart, overflow);
  else FN(round_keyed_rows)(h + first, s + first, keys, first, count, rows, apart, overflow);
}

/* `count` floats that lie side by side, as their halves will, whose numbers are `step` apart from `first` on. */
static void FN(round_apart)(uint16_t *h, const float *s, FN(keys) keys, int64_t first, int64_t step, int64_t count, int overflow) {
  for (int64_t i = 0; i < count; i += VL) {
    const VU words = FN(random_words)(FN(places_of)(keys, first + i * step, (uint32_t)step), (VU){0} + keys.second);
    FN(put)(0, h, i, count, FN(halves_by)(FN(load_most)(s + i, count - i), words, overflow));
  }
}
