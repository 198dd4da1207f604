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
  int begins;  /* whether it draws at other places than the op that drew before it */
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
  int is_drawn, is_alike;                 /* whether all that round do so stochastically, and whether all draw at the same places */
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

/* Where an op draws for the pixel at a place, and from there to the next pixel. */
TI_INLINE VU FN(drawn_at)(const FN(rounded_op) *o, const FN(blocked_place) *at) {
  return (o->has_channels_last ? at->last : at->second) + o->keys.first;
}
TI_INLINE uint32_t FN(drawn_apart)(const FN(blocked_rounding) *r, const FN(rounded_op) *o) {
  return (o->has_channels_last ? r->channels : 1) * TI_ROUNDING_STEP;
}

/* Reads which ops round; `args` begin with the random words of those that round stochastically. */
static FN(blocked_rounding) FN(begin_rounding)(char *const *args, int64_t flags, const float *results, int64_t channels, int64_t pixels) {
  FN(blocked_rounding) r = {.results = results, .channels = (uint32_t)channels, .pixels = (uint32_t)pixels,
                            .blocks = (uint32_t)ti_ceil(channels, VL), .overflow = (int)(flags / TI_BLOCKED_ENDING_OVERFLOW & 3)};
  const int64_t *other = NULL;
  FN(keys) keys = {0, 0};
  const FN(rounded_op) *before = NULL;
  r.is_drawn = r.is_alike = 1;
  for (int op = 0; op < TI_ROUNDED_OPS; op++) {
    FN(rounded_op) *const o = r.ops + op;
    o->is_rounded = flags / TI_BLOCKED_ENDING_ROUNDS >> op & 1;
    o->has_channels_last = flags / TI_BLOCKED_ENDING_CHANNELS_LAST >> op & 1;
    r.is_any |= o->is_rounded;
    const int64_t *const state = flags / TI_BLOCKED_ENDING_IS_RANDOM >> op & 1 ? (const int64_t *)*args++ : NULL;
    o->is_random = !FN(rounds_to_nearest)(state);
    r.is_drawn &= o->is_random || !o->is_rounded;
    if (!o->is_random) continue;
    o->keys = keys = FN(next_keys)(state, other, keys);
    o->begins = before && (before->keys.first != keys.first || before->has_channels_last != o->has_channels_last);
    r.is_alike &= !o->begins;
    other = state;
    before = o;
  }
  return r;
}

enum { FN(ROUNDED_PIXELS) = 4 };  /* at a time: a vector waits for each op's rounding, others meanwhile do not */

/* Rounds the results of an op: `count` vectors, of neighbouring pixels. */
TI_INLINE void FN(round_op)(const FN(blocked_rounding) *r, int op, const int count, VF *v, const FN(blocked_place) *at) {
  const FN(rounded_op) *const o = r->ops + op;
  if (!o->is_rounded) return;
  if (o->is_random) {
    VU place = FN(drawn_at)(o, at);
    for (int p = 0; p < count; p++, place += FN(drawn_apart)(r, o))
      v[p] = FN(rounded_by)(v[p], FN(random_words)(place, (VU){0} + o->keys.second), r->overflow);
  } else if (r->overflow == TI_HALF_OVERFLOW_INFINITY) {
#pragma GCC unroll 4
    for (int p = 0; p < count; p++) v[p] = FN(of_halves)(FN(nearest_halves)(v[p]));
  } else {
    for (int p = 0; p < count; p++) v[p] = FN(rounded_to_nearest)(v[p], r->overflow);
  }
}
