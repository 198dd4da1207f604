/* How sums end that lie in blocks of channels and have left the registers, compiled once for all families that have such. */
#include "drawn_endings_body.h"

/* Some neighbouring pixels from y + to on; `at` is the place of the first. */
TI_INLINE void FN(round_some)(const FN(blocked_ending) *e, const int count, float *y, VF first, VF scale, VF shift, ptrdiff_t to,
                              const FN(blocked_place) *at) {
  VF v[FN(ROUNDED_PIXELS)];
  TI_EACH(count) v[p] = FN(load)(y + to + p * VL);
#define TI_PLACE(p) to + p * VL
#define TI_ROUND(op) FN(round_op)(&e->rounding, op, count, v, at)
  TI_END_ROUNDED(e->first, first, scale, shift, e->activation, count, TI_PLACE, TI_ROUND);
#undef TI_PLACE
#undef TI_ROUND
  TI_EACH(count) FN(store)(y + to + p * VL, v[p]);
}

/* As `end_pixels`, which follows, of `count` neighbouring pixels of a plane from y + to on, with each op rounded, not all of them
 * stochastically; `of` is the place of the first. */
static void FN(round_neighbours)(const FN(blocked_ending) *e, float *y, ptrdiff_t to, int64_t count, const FN(blocked_place) *of,
                                 int64_t block) {
  const VF first = e->first ? FN(load)(e->first + block * VL) : FN(set)(0.f);
  const VF scale = e->is_affine ? FN(load)(e->scale + block * VL) : first, shift = e->is_affine ? FN(load)(e->shift + block * VL) : first;
  FN(blocked_place) place = *of;
  for (int64_t j = 0, some; j < count; j += some, to += some * VL) {
    some = count - j < FN(ROUNDED_PIXELS) ? 1 : FN(ROUNDED_PIXELS);
    if (some == 1) FN(round_some)(e, 1, y, first, scale, shift, to, &place);
    else FN(round_some)(e, FN(ROUNDED_PIXELS), y, first, scale, shift, to, &place);
    FN(move_on)(&e->rounding, &place, (uint32_t)some);
  }
}

/* How many of the pixels at these places, which ascend, lie one behind the other. */
static inline int64_t FN(neighbours)(const int32_t *at, int64_t count) {
  if (at[count - 1] - at[0] == (count - 1) * VL) return count;
  int64_t some = 1;
  while (some + 8 <= count && at[some + 7] == at[some - 1] + 8 * VL) some += 8;
  while (at[some] == at[some - 1] + VL) some++;
  return some;
}

/* The same of pixels whose places `at` tells: neighbours among them together, as long as they are of one plane. */
static void FN(round_pixels)(const FN(blocked_ending) *e, float *y, const int32_t *at, int64_t count, int64_t block) {
  const FN(blocked_rounding) *const r = &e->rounding;
  for (int64_t i = 0, some; i < count; i += some) {
    const ptrdiff_t to = at ? at[i] : i * VL;
    const FN(blocked_place) place = FN(vector_place)(r, y + to);
    some = ti_min(count - i, r->pixels - place.pixel);
    if (at) some = FN(neighbours)(at + i, some);
    (r->is_drawn ? FN(end_neighbours_drawn) : FN(round_neighbours))(e, y, to, some, &place, block);
  }
}

/* Ends `count` pixels of one block, whose place in the results `at` tells; NULL of neighbours. */
TI_INLINE void FN(end_pixels)(const FN(blocked_ending) e, const int activation, float *y, const int32_t *at, int64_t count, int64_t block) {
  VF scale = FN(set)(1.f), shift = FN(set)(0.f);
  if (e.is_affine) { scale = FN(load)(e.scale + block * VL); shift = FN(load)(e.shift + block * VL); }
  for (int64_t i = 0; i < count; i++) {
    const ptrdiff_t to = at ? at[i] : i * VL;
    VF v = FN(load)(y + to);
    if (e.is_affine) v = FN(fma)(v, scale, shift);
    if (e.added) v += FN(load)(e.added + to);
    if (e.gate) v = FN(gated)(v, FN(load)(e.gate + to));
    FN(store)(y + to, FN(activated)(activation, v));
  }
}

TI_SHARED void FN(end_block)(const FN(blocked_ending) *e, float *y, const int32_t *at, int64_t count, int64_t block) {
  if (e->rounding.is_any) { FN(round_pixels)(e, y, at, count, block); return; }
  switch (e->activation) {
    case TI_ACTIVATION_NONE: if (e->is_affine || e->added || e->gate) FN(end_pixels)(*e, TI_ACTIVATION_NONE, y, at, count, block); break;
    case TI_ACTIVATION_RELU: FN(end_pixels)(*e, TI_ACTIVATION_RELU, y, at, count, block); break;
    case TI_ACTIVATION_RELU6: FN(end_pixels)(*e, TI_ACTIVATION_RELU6, y, at, count, block); break;
    case TI_ACTIVATION_HARDSWISH: FN(end_pixels)(*e, TI_ACTIVATION_HARDSWISH, y, at, count, block); break;
    case TI_ACTIVATION_HARDSIGMOID: FN(end_pixels)(*e, TI_ACTIVATION_HARDSIGMOID, y, at, count, block); break;
    case TI_ACTIVATION_SILU: FN(end_pixels)(*e, TI_ACTIVATION_SILU, y, at, count, block); break;
    case TI_ACTIVATION_SIGMOID: FN(end_pixels)(*e, TI_ACTIVATION_SIGMOID, y, at, count, block); break;
    default: FN(end_pixels)(*e, TI_ACTIVATION_GELU, y, at, count, block); break;
  }
}
