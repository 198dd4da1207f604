/* How results that lie in blocks become halves: after each of the ops that are computed together, as if each had been
 * computed by itself. They stay floats, which are halves' values; random bits are those of the place in the result that
 * the op has, row-major, whatever the layout here.
 */
#include "table/conv_blocked.h"
#include "rounding_body.h"

#ifndef TORCHIPU_BLOCKED_ROUNDING
#define TORCHIPU_BLOCKED_ROUNDING
enum { TI_ROUNDED_OPS = 4, TI_GROUP_PIXELS = 32 }; /* the sums, what scales them, the addition, the activation */
#endif

typedef struct {
  FN(keys) keys;
  int is_rounded, is_random, has_channels_last;
} FN(rounded_op);

typedef struct {
  const float *results;                   /* of all images */
  uint32_t channels, pixels, blocks;      /* of an image */
  int is_any, overflow;
  FN(rounded_op) ops[TI_ROUNDED_OPS];
} FN(blocked_rounding);

/* The elements that a vector of results holds, as they are numbered with the channels second and last. */
typedef struct {
  VU second, last;
  uint32_t pixel;
} FN(blocked_place);

TI_INLINE FN(blocked_place) FN(place_at)(const FN(blocked_rounding) *r, uint32_t image, uint32_t block, uint32_t pixel) {
#if VL == 16
  const VU lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
  const VU lanes = {0, 1, 2, 3, 4, 5, 6, 7};
#endif
  const uint32_t channel = block * VL;
  return (FN(blocked_place)){lanes * r->pixels + ((image * r->channels + channel) * r->pixels + pixel),
                             lanes + ((image * r->pixels + pixel) * r->channels + channel), pixel};
}

static inline FN(blocked_place) FN(vector_place)(const FN(blocked_rounding) *r, const float *y) {
  const int64_t vector = (y - r->results) / VL, plane = vector / r->pixels;
  return FN(place_at)(r, (uint32_t)(plane / r->blocks), (uint32_t)(plane % r->blocks), (uint32_t)(vector % r->pixels));
}

/* Goes on by some pixels of the same plane. */
TI_INLINE void FN(move_on)(const FN(blocked_rounding) *r, FN(blocked_place) *at, uint32_t pixels) {
  at->second += pixels;
  at->last += pixels * r->channels;
  at->pixel += pixels;
}

/* Reads which ops round; `args` begin with the random words of those that round stochastically. */
static FN(blocked_rounding) FN(begin_rounding)(char *const *args, int64_t flags, const float *results, int64_t channels, int64_t pixels) {
  FN(blocked_rounding) r = {.results = results, .channels = (uint32_t)channels, .pixels = (uint32_t)pixels,
                            .blocks = (uint32_t)ti_ceil(channels, VL), .overflow = (int)(flags / TI_BLOCKED_ENDING_OVERFLOW & 3)};
  for (int op = 0; op < TI_ROUNDED_OPS; op++) {
    FN(rounded_op) *const o = r.ops + op;
    o->is_rounded = flags / TI_BLOCKED_ENDING_ROUNDS >> op & 1;
    o->has_channels_last = flags / TI_BLOCKED_ENDING_CHANNELS_LAST >> op & 1;
    r.is_any |= o->is_rounded;
    if (!(flags / TI_BLOCKED_ENDING_IS_RANDOM >> op & 1)) continue;
    const int64_t *const state = (const int64_t *)*args++;
    o->is_random = !FN(rounds_to_nearest)(state);
    if (o->is_random) o->keys = FN(keys_of)(state);
  }
  return r;
}

/* The random bits of the elements of these numbers. */
TI_INLINE VU FN(bits_of)(FN(keys) keys, VU i) {
#if VL == 16
  const VU word = (VU)_mm512_ternarylogic_epi32(_mm512_set1_epi32(15), (__m512i)i, (__m512i)(i >> 1), 0xca); /* 15 chooses */
#else
  const VU word = i >> 5 << 4 | (i & 15);
#endif
  return (FN(random_of)(keys, word) >> (i & 16)) & 0xffff;
}

enum { FN(ROUNDED_PIXELS) = 4 };  /* at a time: a vector waits for each op's rounding, others meanwhile do not */

#if VL == 16
/* Pixels 16 apart share random words, as do their elements: those of a channel whose element is in the lower half of its
 * group of 32, with the next 16 pixels; other channels' with the 16 before, whose words are kept. Of each op that rounds
 * stochastically. */
typedef struct {
  FN(rounding_constants) constants;
  int are_aligned;                     /* the groups of all channels begin with the 32 pixels */
  VU words[TI_ROUNDED_OPS][TI_GROUP_PIXELS / 2];
} FN(rounded_pairs);

/* Whether rounding may share words: where all of it is random, and numbered by channel before pixel. */
static inline int FN(has_pairs)(const FN(blocked_rounding) *r) {
  int is_any = 0;
  for (int op = 0; op < TI_ROUNDED_OPS; op++) {
    if (!r->ops[op].is_rounded) continue;
    if (!r->ops[op].is_random || r->ops[op].has_channels_last) return 0;
    is_any = 1;
  }
  return is_any;
}

/* Whether groups of all channels begin with the pixel that they have been found for. */
static inline int FN(is_aligned)(const FN(blocked_place) *at) {
  return _mm512_test_epi32_mask((__m512i)at->second, _mm512_set1_epi32(31)) == 0;
}

TI_INLINE VU FN(word_of)(VU i) {
  return (VU)_mm512_ternarylogic_epi32(_mm512_set1_epi32(15), (__m512i)i, (__m512i)(i >> 1), 0xca); /* 15 chooses */
}

/* Keeps the words of the first 16 pixels, for those channels that would have kept them before. */
static void FN(begin_pairs)(const FN(blocked_rounding) *r, FN(rounded_pairs) *pairs, const FN(blocked_place) *at) {
  for (int op = 0; op < TI_ROUNDED_OPS; op++) {
    if (!r->ops[op].is_rounded) continue;
    for (uint32_t q = 0; q < TI_GROUP_PIXELS / 2; q++) pairs->words[op][q] = FN(random_of)(r->ops[op].keys, FN(word_of)(at->second + q));
  }
}

/* Pixels q and q + 1 behind `at`, and those 16 further on: the numbers of the words that are new, and the channels whose
 * elements at the former are in upper halves. */
typedef struct {
  uint32_t q;
  VU numbers[2];
  __mmask16 are_upper[2];
} FN(pair_place);

TI_INLINE FN(pair_place) FN(pairs_at)(const FN(rounded_pairs) *pairs, const FN(blocked_place) *at, uint32_t q) {
  FN(pair_place) place = {.q = q};
#pragma GCC unroll 2
  for (uint32_t p = 0; p < 2; p++) {
    const VU i = at->second + (q + p), upper = i & 16;
    if (pairs->are_aligned) {
      place.numbers[p] = (at->second >> 1) + (q + p);
    } else {
      place.numbers[p] = FN(word_of)(i + upper);
      place.are_upper[p] = _mm512_test_epi32_mask((__m512i)upper, (__m512i)upper);
    }
  }
  return place;
}

/* As `round_op`, of the four vectors there. */
TI_INLINE void FN(round_pairs)(const FN(blocked_rounding) *r, int op, FN(rounded_pairs) *pairs, VF *v, const FN(pair_place) *place) {
  const FN(rounded_op) *const o = r->ops + op;
  if (!o->is_rounded) return;
  const FN(rounding_constants) *const c = &pairs->constants;
  const VU first = (VU){0} + o->keys.first, second = (VU){0} + o->keys.second;
  VU random[FN(ROUNDED_PIXELS)];
  FN(halves) halves[FN(ROUNDED_PIXELS)];
#pragma GCC unroll 2
  for (int p = 0; p < 2; p++) {
    const VU unfolded = FN(unfolded_of)(c, place->numbers[p] + first, second), high = unfolded >> 16;
    if (pairs->are_aligned) {
      random[p] = (unfolded ^ high) & c->low;
      random[p + 2] = high;
      continue;
    }
    const __mmask16 are_upper = place->are_upper[p];
    const VU word = unfolded ^ high;
    VU *const kept = &pairs->words[op][place->q + p];
    random[p] = (VU)_mm512_mask_srli_epi32((__m512i)word, are_upper, (__m512i)*kept, 16) & c->low;
    random[p + 2] = (VU)_mm512_mask_mov_epi32((__m512i)high, are_upper, (__m512i)word) & c->low;
    *kept = word;
  }
  FN(halves_of_some)(c, FN(ROUNDED_PIXELS), v, random, r->overflow, halves);
#pragma GCC unroll 4
  for (int p = 0; p < FN(ROUNDED_PIXELS); p++) v[p] = FN(of_halves)(halves[p]);
}
#endif

/* Rounds the results of an op: `count` vectors, of neighbouring pixels. */
TI_INLINE void FN(round_op)(const FN(blocked_rounding) *r, int op, const int count, VF *v, const FN(blocked_place) *at) {
  const FN(rounded_op) *const o = r->ops + op;
  if (!o->is_rounded) return;
  if (o->is_random) {
    const FN(keys) keys = o->keys;
    const uint32_t step = o->has_channels_last ? r->channels : 1;
    VU i = o->has_channels_last ? at->last : at->second;
#if VL == 16
    __m512 sums[FN(ROUNDED_PIXELS)];
    __m256i halves[FN(ROUNDED_PIXELS)], twice = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int p = 0; p < count; p++, i += step) {
      sums[p] = FN(sum_of)(v[p], FN(bits_of)(keys, i));
      halves[p] = _mm512_cvtps_ph(sums[p], 11);
      twice = _mm256_max_epu16(twice, _mm256_add_epi16(halves[p], halves[p]));
    }
    if (FN(is_largest)(twice))  /* all are looked at for overflows at once */
      for (int p = 0; p < count; p++) halves[p] = _mm512_cvtps_ph((__m512)FN(overflowed)((VF)sums[p], r->overflow), 11);
#pragma GCC unroll 4
    for (int p = 0; p < count; p++) v[p] = FN(of_halves)(halves[p]);
#else
#pragma GCC unroll 4
    for (int p = 0; p < count; p++, i += step) v[p] = FN(rounded_by)(v[p], FN(bits_of)(keys, i), r->overflow);
#endif
  } else if (r->overflow == TI_HALF_OVERFLOW_INFINITY) {
#pragma GCC unroll 4
    for (int p = 0; p < count; p++) v[p] = FN(of_halves)(FN(nearest_halves)(v[p]));
  } else {
    for (int p = 0; p < count; p++) v[p] = FN(rounded_to_nearest)(v[p], r->overflow);
  }
}
