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

/* The places in streams of random words, no key added, of the elements that a vector of results holds, as they are numbered
 * with the channels second and last. */
typedef struct {
  VU second, last;
  uint32_t pixel;
} FN(blocked_place);

TI_INLINE FN(blocked_place) FN(place_at)(const FN(blocked_rounding) *r, uint32_t image, uint32_t block, uint32_t pixel) {
  const uint32_t channel = block * VL, step = TI_ROUNDING_STEP;
  const uint32_t second = (image * r->channels + channel) * r->pixels + pixel, last = (image * r->pixels + pixel) * r->channels + channel;
  return (FN(blocked_place)){FN(lanes_by)(r->pixels * step) + second * step, FN(lanes_by)(step) + last * step, pixel};
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
  at->second += pixels * TI_ROUNDING_STEP;
  at->last += pixels * r->channels * TI_ROUNDING_STEP;
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

enum { FN(GROUPS_BEYOND) = 4 };
enum { FN(ROUNDED_PIXELS) = 4 };  /* at a time: a vector waits for each op's rounding, others meanwhile do not */

/* What stays at hand while vectors are rounded. */
typedef struct {
#if VL == 16
  FN(rounding_constants) constants;
  VU size, kept_bits, range;         /* of floats without their sign, and of normal halves among them */
#endif
  int are_beyond[TI_ROUNDED_OPS];    /* for how many groups of pixels it is not asked whether values are normal halves */
} FN(rounded_vectors);

static inline FN(rounded_vectors) FN(hold_vectors)(void) {
#if VL == 16
  return (FN(rounded_vectors)){.constants = FN(hold_constants)(), .size = FN(held)(0x7fffffffu), .kept_bits = FN(held)(~0x1fffu),
                               .range = FN(held)(0x477fdfffu - 0x38800000u)};  /* beyond it a carry may overflow */
#else
  return (FN(rounded_vectors)){.are_beyond = {0}};
#endif
}

#if VL == 16
/* Rounds vectors to floats that are normal halves: the random bits that such halves count are added to the mantissas, whose
 * ends are cut off. Returns whether all were, or zero; else nothing is written. */
TI_INLINE int FN(round_normal)(const FN(rounded_vectors) *held, const int count, const VU *words, VF *v) {
  const VU size = held->size, kept = held->kept_bits;
  VU rounded[FN(ROUNDED_PIXELS)], beyond[FN(ROUNDED_PIXELS)], most;
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) {
    rounded[p] = ((VU)v[p] + (words[p] >> 19)) & kept;
    beyond[p] = ((VU)v[p] & size) - held->constants.least;
    most = p ? (VU)_mm512_max_epu32((__m512i)most, (__m512i)beyond[p]) : beyond[p];
  }
  if (__builtin_expect(_mm512_cmpgt_epu32_mask((__m512i)most, (__m512i)held->range) != 0, 0)) {
    __mmask16 odd = 0;
#pragma GCC unroll 4
    for (int p = 0; p < count; p++) {
      const __mmask16 others = _mm512_cmpgt_epu32_mask((__m512i)beyond[p], (__m512i)held->range);
      odd |= _mm512_mask_test_epi32_mask(others, (__m512i)v[p], (__m512i)size);
      rounded[p] = (VU)_mm512_mask_mov_epi32((__m512i)rounded[p], others, (__m512i)v[p]);
    }
    if (odd) return 0;
  }
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) v[p] = (VF)rounded[p];
  return 1;
}
#endif

/* As `round_op`, of an op that rounds stochastically. */
TI_INLINE void FN(round_at_random)(const FN(blocked_rounding) *r, int op, FN(rounded_vectors) *held, const int count, VF *v,
                                   const FN(blocked_place) *at) {
  const FN(rounded_op) *const o = r->ops + op;
  const VU second = (VU){0} + o->keys.second;
  const uint32_t step = (o->has_channels_last ? r->channels : 1) * TI_ROUNDING_STEP;
  VU place = (o->has_channels_last ? at->last : at->second) + o->keys.first, words[FN(ROUNDED_PIXELS)];
#pragma GCC unroll 4
  for (int p = 0; p < count; p++, place += step) words[p] = FN(random_words)(place, second);
#if VL == 16
  /* Where one value is no normal half, as of gradients, others near it mostly are none either. */
  if (held->are_beyond[op] > 0) held->are_beyond[op]--;
  else if (FN(round_normal)(held, count, words, v)) return;
  else held->are_beyond[op] = FN(GROUPS_BEYOND);
  FN(halves) halves[FN(ROUNDED_PIXELS)];
  FN(halves_of_some)(&held->constants, count, v, words, r->overflow, halves);
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) v[p] = FN(of_halves)(halves[p]);
#else
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) v[p] = FN(rounded_by)(v[p], words[p], r->overflow);
#endif
}

/* Rounds the results of an op: `count` vectors, of neighbouring pixels. */
TI_INLINE void FN(round_op)(const FN(blocked_rounding) *r, int op, FN(rounded_vectors) *held, const int count, VF *v,
                            const FN(blocked_place) *at) {
  const FN(rounded_op) *const o = r->ops + op;
  if (!o->is_rounded) return;
  if (o->is_random) {
    FN(round_at_random)(r, op, held, count, v, at);
  } else if (r->overflow == TI_HALF_OVERFLOW_INFINITY) {
#pragma GCC unroll 4
    for (int p = 0; p < count; p++) v[p] = FN(of_halves)(FN(nearest_halves)(v[p]));
  } else {
    for (int p = 0; p < count; p++) v[p] = FN(rounded_to_nearest)(v[p], r->overflow);
  }
}
