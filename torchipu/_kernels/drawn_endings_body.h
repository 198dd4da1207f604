/* How neighbouring pixels end where all ops that round do so stochastically, and draw at the same places: what groups of pixels
 * share stays at hand, and each activation has a loop of its own. Groups are whole, so that nothing is asked of single pixels.
 */
#include "blocked_ending_body.h"

/* Of one block: what the ops take, and second keys; `next` is from the place of a pixel to that of its neighbour. */
typedef struct {
  VF first, scale, shift;
  VU next, second[TI_ROUNDED_OPS];
  const float *added, *gate;  /* beside the first pixel */
  int has_first, is_affine, overflow, rounds[TI_ROUNDED_OPS];
} FN(drawn_ending);

TI_INLINE FN(drawn_ending) FN(drawn_of)(const FN(blocked_ending) *e, ptrdiff_t to, int64_t block) {
  const FN(blocked_rounding) *const r = &e->rounding;
  const uint32_t step = (r->ops[r->shared].has_channels_last ? r->channels : 1) * TI_ROUNDING_STEP;
  FN(drawn_ending) d = {.next = (VU){0} + step, .added = e->added ? e->added + to : NULL, .gate = e->gate ? e->gate + to : NULL,
                        .has_first = e->first != NULL, .is_affine = e->is_affine, .overflow = r->overflow};
  if (e->first) d.first = FN(load)(e->first + block * VL);
  if (e->is_affine) { d.scale = FN(load)(e->scale + block * VL); d.shift = FN(load)(e->shift + block * VL); }
  for (int op = 0; op < TI_ROUNDED_OPS; op++) {
    d.rounds[op] = r->ops[op].is_rounded;
    d.second[op] = (VU){0} + r->ops[op].keys.second;
  }
  return d;
}

/* Some neighbouring pixels, i behind the first one, at y. */
TI_INLINE void FN(end_drawn)(const FN(drawn_ending) *e, FN(rounded_vectors) *held, const int activation, const int count, float *y,
                             int64_t i, VU place) {
  const int has_zeros = activation == TI_ACTIVATION_HARDSWISH || activation == TI_ACTIVATION_HARDSIGMOID;
  VF v[FN(ROUNDED_PIXELS)];
  VU at[FN(ROUNDED_PIXELS)], factor[FN(ROUNDED_PIXELS)], words[FN(ROUNDED_PIXELS)];
  TI_EACH(count) {
    v[p] = FN(load)(y + (i + p) * VL);
    at[p] = place;
    factor[p] = FN(shared_factor)(place);
    place += e->next;
  }
#define TI_PLACE(p) (i + p) * VL
#define TI_ROUND(op) \
  if (e->rounds[op]) { \
    TI_EACH(count) words[p] = factor[p] * (at[p] ^ e->second[op]); \
    FN(round_at_random)(held, op, op == 3 && has_zeros, count, v, words, e->overflow); \
  }
  TI_END_ROUNDED(e->has_first, e->first, e->scale, e->shift, activation, count, TI_PLACE, TI_ROUND);
#undef TI_PLACE
#undef TI_ROUND
  TI_EACH(count) FN(store)(y + (i + p) * VL, v[p]);
}

TI_INLINE void FN(end_all_drawn)(const FN(blocked_ending) *of, const int activation, float *y, ptrdiff_t to, int64_t count,
                                 const FN(blocked_place) *at, int64_t block) {
  const FN(drawn_ending) e = FN(drawn_of)(of, to, block);
  const FN(rounded_op) *const drawn = of->rounding.ops + of->rounding.shared;
  FN(rounded_vectors) held = {{0}};
  VU place = (drawn->has_channels_last ? at->last : at->second) + drawn->keys.first;
  int64_t i = 0;
  for (; i + FN(ROUNDED_PIXELS) <= count; i += FN(ROUNDED_PIXELS), place += e.next * FN(ROUNDED_PIXELS))
    FN(end_drawn)(&e, &held, activation, FN(ROUNDED_PIXELS), y + to, i, place);
  for (; i < count; i++, place += e.next) FN(end_drawn)(&e, &held, activation, 1, y + to, i, place);
}

#undef TI_DRAWN
#define TI_DRAWN(activation) \
  static __attribute__((noinline)) void FN(drawn_##activation)(const FN(blocked_ending) *e, float *y, ptrdiff_t to, int64_t count, \
                                                               const FN(blocked_place) *at, int64_t block) { \
    FN(end_all_drawn)(e, TI_ACTIVATION_##activation, y, to, count, at, block); \
  }
TI_DRAWN(NONE) TI_DRAWN(RELU) TI_DRAWN(RELU6) TI_DRAWN(HARDSWISH) TI_DRAWN(HARDSIGMOID) TI_DRAWN(SILU) TI_DRAWN(SIGMOID) TI_DRAWN(GELU)
static void (*const FN(drawn_table)[])(const FN(blocked_ending) *, float *, ptrdiff_t, int64_t, const FN(blocked_place) *, int64_t) = {
  [TI_ACTIVATION_NONE] = FN(drawn_NONE), [TI_ACTIVATION_RELU] = FN(drawn_RELU), [TI_ACTIVATION_RELU6] = FN(drawn_RELU6),
  [TI_ACTIVATION_HARDSWISH] = FN(drawn_HARDSWISH), [TI_ACTIVATION_HARDSIGMOID] = FN(drawn_HARDSIGMOID),
  [TI_ACTIVATION_SILU] = FN(drawn_SILU), [TI_ACTIVATION_SIGMOID] = FN(drawn_SIGMOID), [TI_ACTIVATION_GELU] = FN(drawn_GELU),
};
