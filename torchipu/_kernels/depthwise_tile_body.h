/* Convolutions of single channels in registers: a few neighbouring results of a row, each lane a channel of its own.
 *
 * A pixel is loaded once for a row of taps and added to all results that it belongs to, so that products, and not loads,
 * set the pace; windows of three, five and seven columns with a stride of one or two are so many unrolled functions.
 * Comes behind blocked_ending_body.h.
 */

enum { FN(ACROSS) = 8 };  /* pixels that are summed together */

/* The taps of a window that count, and how far they are apart. */
typedef struct {
  const float *w;
  int64_t rows, columns, w_row, row_step, column_step, step;
  int64_t width;  /* columns of the input; windows of `slide_run` may reach over its sides */
} FN(depthwise_taps);

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

TI_INLINE void FN(end_sums)(const int np, const int activation, const FN(blocked_ending) *e, const float *added, VF *sum) {
  VF scale = FN(set)(1.f), shift = FN(set)(0.f);
  if (e->is_affine) { scale = FN(load)(e->scale); shift = FN(load)(e->shift); }
#pragma GCC unroll 8
  for (int j = 0; j < np; j++) {
    if (e->is_affine) sum[j] = FN(fma)(sum[j], scale, shift);
    if (added) sum[j] += FN(load)(added + j * VL);
    sum[j] = FN(activated)(activation, sum[j]);
  }
}

TI_INLINE void FN(slide_pixels)(const int np, const int kw, const int step, const float *x, int64_t column, const FN(depthwise_taps) *t,
                                const FN(blocked_ending) *e, const float *added, float *y) {
  VF sum[FN(ACROSS)];
  if (column >= 0 && column + (np - 1) * step + kw <= t->width) FN(slide)(np, kw, step, 1, x, column, t, sum);
  else FN(slide)(np, kw, step, 0, x, column, t, sum);
  if (e) switch (e->activation) {
      case TI_ACTIVATION_RELU: FN(end_sums)(np, TI_ACTIVATION_RELU, e, added, sum); break;
      case TI_ACTIVATION_RELU6: FN(end_sums)(np, TI_ACTIVATION_RELU6, e, added, sum); break;
      case TI_ACTIVATION_HARDSWISH: FN(end_sums)(np, TI_ACTIVATION_HARDSWISH, e, added, sum); break;
      case TI_ACTIVATION_HARDSIGMOID: FN(end_sums)(np, TI_ACTIVATION_HARDSIGMOID, e, added, sum); break;
      default: FN(end_sums)(np, TI_ACTIVATION_NONE, e, added, sum); break;
    }
#pragma GCC unroll 8
  for (int j = 0; j < np; j++) FN(store)(y + j * VL, sum[j]);
}
typedef void (*FN(slider))(const float *, int64_t, const FN(depthwise_taps) *, const FN(blocked_ending) *, const float *, float *);
#undef TI_SLIDE
#undef TI_SLIDES
#undef TI_SLIDERS
#define TI_SLIDE(P_, K_, S_) \
  static __attribute__((noinline)) void FN(slide_##P_##_##K_##_##S_)(const float *x, int64_t column, const FN(depthwise_taps) *t, const FN(blocked_ending) *e, const float *added, float *y) { \
    FN(slide_pixels)(P_, K_, S_, x, column, t, e, added, y); }
#define TI_SLIDES(K_, S_) TI_SLIDE(1, K_, S_) TI_SLIDE(2, K_, S_) TI_SLIDE(3, K_, S_) TI_SLIDE(4, K_, S_) TI_SLIDE(5, K_, S_) TI_SLIDE(6, K_, S_) TI_SLIDE(7, K_, S_) TI_SLIDE(8, K_, S_)
#define TI_SLIDERS(K_, S_) {FN(slide_1_##K_##_##S_), FN(slide_2_##K_##_##S_), FN(slide_3_##K_##_##S_), FN(slide_4_##K_##_##S_), \
                            FN(slide_5_##K_##_##S_), FN(slide_6_##K_##_##S_), FN(slide_7_##K_##_##S_), FN(slide_8_##K_##_##S_)}
TI_SLIDES(3, 1) TI_SLIDES(3, 2) TI_SLIDES(5, 1) TI_SLIDES(5, 2) TI_SLIDES(7, 1) TI_SLIDES(7, 2)
/* By columns of the window, stride and pixels. */
static const FN(slider) FN(slide_table)[3][2][FN(ACROSS)] = {
  {TI_SLIDERS(3, 1), TI_SLIDERS(3, 2)}, {TI_SLIDERS(5, 1), TI_SLIDERS(5, 2)}, {TI_SLIDERS(7, 1), TI_SLIDERS(7, 2)},
};

/* Whether windows are among those. */
static inline int FN(slides)(const blocked_window *s) {
  return (s->kw == 3 || s->kw == 5 || s->kw == 7) && s->sw <= 2 && s->dw == 1;
}

/* A row of results, ended; `x` is where column 0 of the first row of taps lies, `at` tells where the results do. */
static void FN(slide_run)(const float *x, const FN(depthwise_taps) *t, const blocked_window *s, int64_t padding, const FN(blocked_ending) *e,
                          float *y, const int32_t *at) {
  const FN(slider) *const sliders = FN(slide_table)[s->kw / 2 - 1][s->sw - 1];
  const FN(blocked_ending) *const in_registers = FN(is_short)(e) ? e : NULL;
  const int64_t tiles = ti_ceil(s->ow, FN(ACROSS));
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t c0 = s->ow * i / tiles, np = s->ow * (i + 1) / tiles - c0, column = c0 * s->sw - padding;
    sliders[np - 1](x + column * VL, column, t, in_registers, in_registers && e->added ? e->added + c0 * VL : NULL, y + c0 * VL);
  }
  if (!in_registers) FN(end_block)(e, y, at, s->ow, 0);
}
