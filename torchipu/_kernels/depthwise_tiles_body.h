/* The functions of runs of single channels that depthwise convolutions with channels in blocks call, compiled once. */
#include "blocked_ending_body.h"
#include "depthwise_tile_body.h"

static const float FN(no_pixel)[VL] __attribute__((aligned(64))) = {0};

/* Sums of `np` results, the first of whose windows begins in `column`, where x points. */
TI_INLINE void FN(slide)(const int np, const int kw, const int step, const int is_within, const float *x, int64_t column,
                         const FN(depthwise_taps) *t, VF *sum) {
#pragma GCC unroll 8
  for (int j = 0; j < np; j++) sum[j] = FN(set)(0);
  for (int64_t r = 0; r < t->rows; r++) {
    const float *const p = x + r * t->row_step, *const w = t->w + r * t->w_row;
#pragma GCC unroll 24
    for (int i = 0; i < (np - 1) * step + kw; i++) {
      const VF v = FN(load)(is_within || (uint64_t)(column + i) < (uint64_t)t->width ? p + i * VL : FN(no_pixel));
#pragma GCC unroll 8
      for (int c = 0; c < kw; c++)
        if (i >= c && (i - c) % step == 0 && (i - c) / step < np) sum[(i - c) / step] = FN(fma)(v, FN(load)(w + c * VL), sum[(i - c) / step]);
    }
  }
}

TI_INLINE void FN(scale_sums)(const int np, const FN(blocked_ending) *e, ptrdiff_t to, VF *sum) {
  if (e->is_affine) {
    const VF scale = FN(load)(e->scale), shift = FN(load)(e->shift);
#pragma GCC unroll 8
    for (int j = 0; j < np; j++) sum[j] = FN(fma)(sum[j], scale, shift);
  }
  if (e->added)
#pragma GCC unroll 8
    for (int j = 0; j < np; j++) sum[j] += FN(load)(e->added + to + j * VL);
  if (e->gate)
#pragma GCC unroll 8
    for (int j = 0; j < np; j++) sum[j] = FN(gated)(sum[j], FN(load)(e->gate + to + j * VL));
}

TI_INLINE void FN(activate_sums)(const int np, const int activation, VF *sum) {
#pragma GCC unroll 8
  for (int j = 0; j < np; j++) sum[j] = FN(activated)(activation, sum[j]);
}

TI_INLINE void FN(slide_pixels)(const int np, const int kw, const int step, const float *x, int64_t column, const FN(depthwise_taps) *t,
                                const FN(blocked_ending) *e, ptrdiff_t to, float *y) {
  VF sum[FN(ACROSS)];
  if (column >= 0 && column + (np - 1) * step + kw <= t->width) FN(slide)(np, kw, step, 1, x, column, t, sum);
  else FN(slide)(np, kw, step, 0, x, column, t, sum);
  if (e) {
    FN(scale_sums)(np, e, to, sum);
    switch (e->activation) {
      case TI_ACTIVATION_RELU: FN(activate_sums)(np, TI_ACTIVATION_RELU, sum); break;
      case TI_ACTIVATION_RELU6: FN(activate_sums)(np, TI_ACTIVATION_RELU6, sum); break;
      case TI_ACTIVATION_HARDSWISH: FN(activate_sums)(np, TI_ACTIVATION_HARDSWISH, sum); break;
      case TI_ACTIVATION_HARDSIGMOID: FN(activate_sums)(np, TI_ACTIVATION_HARDSIGMOID, sum); break;
      default: break;
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < np; j++) FN(store)(y + to + j * VL, sum[j]);
}
#undef TI_SLIDE
#undef TI_SLIDES
#undef TI_SLIDERS
#define TI_SLIDE(P_, K_, S_) \
  static __attribute__((noinline)) void FN(slide_##P_##_##K_##_##S_)(const float *x, int64_t column, const FN(depthwise_taps) *t, const FN(blocked_ending) *e, ptrdiff_t to, float *y) { \
    FN(slide_pixels)(P_, K_, S_, x, column, t, e, to, y); }
#define TI_SLIDES(K_, S_) TI_SLIDE(1, K_, S_) TI_SLIDE(2, K_, S_) TI_SLIDE(3, K_, S_) TI_SLIDE(4, K_, S_) TI_SLIDE(5, K_, S_) TI_SLIDE(6, K_, S_) TI_SLIDE(7, K_, S_) TI_SLIDE(8, K_, S_)
#define TI_SLIDERS(K_, S_) {FN(slide_1_##K_##_##S_), FN(slide_2_##K_##_##S_), FN(slide_3_##K_##_##S_), FN(slide_4_##K_##_##S_), \
                            FN(slide_5_##K_##_##S_), FN(slide_6_##K_##_##S_), FN(slide_7_##K_##_##S_), FN(slide_8_##K_##_##S_)}
TI_SLIDES(3, 1) TI_SLIDES(3, 2) TI_SLIDES(5, 1) TI_SLIDES(5, 2) TI_SLIDES(7, 1) TI_SLIDES(7, 2)
const FN(slider) FN(slide_table)[3][2][FN(ACROSS)] = {
  {TI_SLIDERS(3, 1), TI_SLIDERS(3, 2)}, {TI_SLIDERS(5, 1), TI_SLIDERS(5, 2)}, {TI_SLIDERS(7, 1), TI_SLIDERS(7, 2)},
};
