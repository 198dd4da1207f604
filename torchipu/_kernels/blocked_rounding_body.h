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

/* Rows of some blocks of one image that are held by themselves, [block][rows][columns][lanes]: columns beside the image are
 * among those that are held. */
typedef struct {
  int64_t plane, columns;                 /* vectors of a block, of a row */
  int64_t row, width, padding;            /* of the image, the first that is held; its columns, and those held before them */
  uint32_t image, block;                  /* the one, the first */
} FN(held_rows);

typedef struct {
  const float *results;                   /* of all images, or what is held */
  const FN(held_rows) *held;              /* NULL for all images */
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
  const int64_t vector = (y - r->results) / VL;
  if (r->held) {
    const FN(held_rows) h = *r->held;
    const int64_t block = vector / h.plane, row = vector % h.plane / h.columns, column = vector % h.plane % h.columns;
    return FN(place_at)(r, h.image, h.block + (uint32_t)block, (uint32_t)((h.row + row) * h.width + column - h.padding));
  }
  const int64_t plane = vector / r->pixels;
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
TI_INLINE VU FN(bits_of)(FN(keys) keys, VU i) { return FN(half_of)(FN(random_of)(keys, i >> 1), i); }

enum { FN(GROUPS_BEYOND) = 4 };
enum { FN(ROUNDED_PIXELS) = 4 };  /* at a time: a vector waits for each op's rounding, others meanwhile do not */

#if VL == 16
/* Neighbouring pixels share random words, as their elements do: those of a channel whose element is even with the next
 * one, others with the one before, whose words are kept. Of each op that rounds stochastically. */
typedef struct {
  FN(rounding_constants) constants;
  VU multipliers[2], size, kept_bits, range, low; /* of words; of floats without their sign, and of normal halves among them */
  __mmask16 are_odd;                 /* the channels whose elements are odd where a pair of pixels begins */
  VU places[2];                      /* numbers of the words of two pairs, no key added */
  VU kept[TI_ROUNDED_OPS];           /* upper halves of the words of the pair before */
  int are_beyond[TI_ROUNDED_OPS];    /* for how many groups of pixels it is not asked whether values are normal halves */
} FN(rounded_pairs);

static inline FN(rounded_pairs) FN(hold_pairs)(void) {
  return (FN(rounded_pairs)){.constants = FN(hold_constants)(), .multipliers = {FN(held)(0x7feb352du), FN(held)(0x846ca68bu)},
                             .size = FN(held)(0x7fffffffu), .kept_bits = FN(held)(~0x1fffu), .low = FN(held)(0xffffu),
                             .range = FN(held)(0x477fdfffu - 0x38800000u)};  /* beyond it a carry may overflow */
}

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

/* Begins with the pixel there: keeps what odd elements take of it. */
TI_INLINE void FN(begin_pairs)(const FN(blocked_rounding) *r, FN(rounded_pairs) *pairs, const FN(blocked_place) *at) {
  pairs->are_odd = _mm512_test_epi32_mask((__m512i)at->second, _mm512_set1_epi32(1));
  if (!pairs->are_odd) return;
  const VU place = at->second >> 1;
  for (int op = 0; op < TI_ROUNDED_OPS; op++)
    if (r->ops[op].is_rounded)
      pairs->kept[op] = FN(unfolded)(place + r->ops[op].keys.first, (VU){0} + r->ops[op].keys.second) >> 16;
}

/* Goes on to the four pixels there. */
TI_INLINE void FN(set_pairs)(FN(rounded_pairs) *pairs, const FN(blocked_place) *at) {
  pairs->places[0] = (at->second + 1) >> 1;
  pairs->places[1] = pairs->places[0] + 1;
}

/* As `unfolded`, with multipliers that stay at hand. */
TI_INLINE VU FN(unfolded_by)(const FN(rounded_pairs) *pairs, VU place, VU second) {
  place ^= place >> 16;
  place *= pairs->multipliers[0];
  place ^= place >> 15;
  return (place + second) * pairs->multipliers[1];
}

/* Rounds four vectors to floats that are normal halves: the random bits that such halves count are added to the mantissas,
 * whose ends are cut off. Returns whether all were, or zero; else nothing is written. */
TI_INLINE int FN(round_normal)(const FN(rounded_pairs) *pairs, const VU *random, VF *v) {
  const VU size = pairs->size, kept = pairs->kept_bits;
  VU rounded[FN(ROUNDED_PIXELS)];
  __mmask16 others[FN(ROUNDED_PIXELS)];
#pragma GCC unroll 4
  for (int p = 0; p < FN(ROUNDED_PIXELS); p++) {
    rounded[p] = ((VU)v[p] + (random[p] >> 3)) & kept;
    others[p] = _mm512_cmpgt_epu32_mask((__m512i)(((VU)v[p] & size) - pairs->constants.least), (__m512i)pairs->range);
  }
  if (__builtin_expect((others[0] | others[1] | others[2] | others[3]) != 0, 0)) {
    __mmask16 odd = 0;
#pragma GCC unroll 4
    for (int p = 0; p < FN(ROUNDED_PIXELS); p++) {
      odd |= _mm512_mask_test_epi32_mask(others[p], (__m512i)v[p], (__m512i)size);
      rounded[p] = (VU)_mm512_mask_mov_epi32((__m512i)rounded[p], others[p], (__m512i)v[p]);
    }
    if (odd) return 0;
  }
#pragma GCC unroll 4
  for (int p = 0; p < FN(ROUNDED_PIXELS); p++) v[p] = (VF)rounded[p];
  return 1;
}

/* As `round_op`, of four pixels. */
TI_INLINE void FN(round_pairs)(const FN(blocked_rounding) *r, int op, FN(rounded_pairs) *pairs, VF *v) {
  const FN(rounded_op) *const o = r->ops + op;
  if (!o->is_rounded) return;
  const VU first = (VU){0} + o->keys.first, second = (VU){0} + o->keys.second;
  VU random[FN(ROUNDED_PIXELS)];
#pragma GCC unroll 2
  for (int p = 0; p < 2; p++) {
    const VU word = FN(unfolded_by)(pairs, pairs->places[p] + first, second), high = word >> 16;
    random[2 * p] = (word ^ high) & pairs->low;
    random[2 * p + 1] = high;
  }
  if (pairs->are_odd) {  /* all of these are one element further on */
    VU before = pairs->kept[op];
    pairs->kept[op] = random[FN(ROUNDED_PIXELS) - 1];
#pragma GCC unroll 4
    for (int p = 0; p < FN(ROUNDED_PIXELS); p++) {
      const VU own = random[p];
      random[p] = (VU)_mm512_mask_mov_epi32((__m512i)own, pairs->are_odd, (__m512i)before);
      before = own;
    }
  }
  /* Where one value is no normal half, as of gradients, others near it mostly are none either. */
  if (pairs->are_beyond[op] > 0) pairs->are_beyond[op]--;
  else if (FN(round_normal)(pairs, random, v)) return;
  else pairs->are_beyond[op] = FN(GROUPS_BEYOND);
  FN(halves) halves[FN(ROUNDED_PIXELS)];
  FN(halves_of_some)(&pairs->constants, FN(ROUNDED_PIXELS), v, random, r->overflow, halves);
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
