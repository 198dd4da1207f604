/* How results that lie in blocks become halves: after each of the ops that are computed together, as if each had been
 * computed by itself. They stay floats, which are halves' values; random bits are those of the place in the result that
 * the op has, row-major, whatever the layout here.
 */
#include "table/conv_blocked.h"
#include "rounding_body.h"

#ifndef TORCHIPU_BLOCKED_ROUNDING
#define TORCHIPU_BLOCKED_ROUNDING
enum { TI_ROUNDED_OPS = 4 }; /* the sums, what scales them, the addition, the activation */
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
