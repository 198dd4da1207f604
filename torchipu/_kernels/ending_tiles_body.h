/* How sums end that lie in blocks of channels and have left the registers, compiled once for all families that have such. */
#include "blocked_ending_body.h"

#if VL == 16
/* 32 neighbouring pixels of y from `to` on, the first of which is at `at`. */
TI_INLINE void FN(end_group)(const FN(blocked_ending) *e, FN(rounded_pairs) *pairs, float *y, VF first, VF scale, VF shift, ptrdiff_t to,
                             const FN(blocked_place) *at) {
#define TI_PIXEL(p) (q + (p & 1) + (p >> 1) * 16)
#define TI_PLACE(p) to + TI_PIXEL(p) * VL
#define TI_ROUND(op) FN(round_pairs)(&e->rounding, op, pairs, v, &place)
  for (ptrdiff_t q = 0; q < TI_GROUP_PIXELS / 2; q += 2) {
    const FN(pair_place) place = FN(pairs_at)(pairs, at, (uint32_t)q);
    VF v[FN(ROUNDED_PIXELS)];
    TI_EACH(FN(ROUNDED_PIXELS)) v[p] = FN(load)(y + TI_PLACE(p));
    TI_END_ROUNDED(FN(ROUNDED_PIXELS), TI_PLACE, TI_ROUND);
    TI_EACH(FN(ROUNDED_PIXELS)) FN(store)(y + TI_PLACE(p), v[p]);
  }
#undef TI_PIXEL
#undef TI_PLACE
#undef TI_ROUND
}
#endif

/* As `end_pixels`, which follows, with each op rounded. */
static __attribute__((noinline)) void FN(round_pixels)(const FN(blocked_ending) *of, float *y, const int32_t *at, int64_t count, int64_t block) {
  const FN(blocked_ending) e = *of;  /* nothing that is stored changes it */
  const VF first = e.first ? FN(load)(e.first + block * VL) : FN(set)(0.f);
  const VF scale = e.is_affine ? FN(load)(e.scale + block * VL) : first, shift = e.is_affine ? FN(load)(e.shift + block * VL) : first;
#if VL == 16
  FN(rounded_pairs) pairs;  /* whose words are written before they are read */
  pairs.constants = FN(hold_constants)();
  const int has_pairs = FN(has_pairs)(&e.rounding);
#endif
  for (int64_t i = 0, last; i < count; i = last) {
    FN(blocked_place) place = FN(vector_place)(&e.rounding, y + at[i]);
    const int64_t most = ti_min(count, i + e.rounding.pixels - place.pixel);
    for (last = i + 1; last < most && at[last] == at[last - 1] + VL;) last++;
    int64_t j = i;
#if VL == 16
    const int64_t groups = has_pairs ? (last - j) / TI_GROUP_PIXELS : 0;
    pairs.are_aligned = groups && FN(is_aligned)(&place);
    if (pairs.are_aligned || groups > 1) {
      if (!pairs.are_aligned) FN(begin_pairs)(&e.rounding, &pairs, &place);
      for (int64_t k = 0; k < groups; k++, j += TI_GROUP_PIXELS) {
        FN(end_group)(&e, &pairs, y, first, scale, shift, at[j], &place);
        FN(move_on)(&e.rounding, &place, TI_GROUP_PIXELS);
      }
    }
#endif
    for (int64_t some; j < last; j += some) {
      VF v[FN(ROUNDED_PIXELS)];
      float *const to = y + at[j];
      if (last - j >= FN(ROUNDED_PIXELS)) {
        some = FN(ROUNDED_PIXELS);
        for (int p = 0; p < FN(ROUNDED_PIXELS); p++) v[p] = FN(load)(to + p * VL);
        FN(end_rounded)(&e, FN(ROUNDED_PIXELS), v, first, scale, shift, at[j], &place);
        for (int p = 0; p < FN(ROUNDED_PIXELS); p++) FN(store)(to + p * VL, v[p]);
      } else {
        some = 1;
        v[0] = FN(load)(to);
        FN(end_rounded)(&e, 1, v, first, scale, shift, at[j], &place);
        FN(store)(to, v[0]);
      }
      FN(move_on)(&e.rounding, &place, (uint32_t)some);
    }
  }
}

/* Ends `count` pixels of one block, whose place in the results `at` tells. */
TI_INLINE void FN(end_pixels)(const FN(blocked_ending) e, const int activation, float *y, const int32_t *at, int64_t count, int64_t block) {
  VF scale = FN(set)(1.f), shift = FN(set)(0.f);
  if (e.is_affine) { scale = FN(load)(e.scale + block * VL); shift = FN(load)(e.shift + block * VL); }
  for (int64_t i = 0; i < count; i++) {
    VF v = FN(load)(y + at[i]);
    if (e.is_affine) v = FN(fma)(v, scale, shift);
    if (e.added) v += FN(load)(e.added + at[i]);
    if (e.gate) v = FN(gated)(v, FN(load)(e.gate + at[i]));
    FN(store)(y + at[i], FN(activated)(activation, v));
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
