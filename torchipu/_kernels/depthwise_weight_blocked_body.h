/* Gradients of the weights of convolutions whose groups have a single channel, over channels in blocks: each lane is a group
 * of its own, and registers hold the sums of some taps over the pixels of a few rows.
 */
#include "table/depthwise_weight_blocked.h"
#include "blocked_row_body.h"
#include "transpose_any_body.h"

/* Pixels whose products with the results are summed, and the sums of the taps that they are added to. */
typedef struct {
  const float *x, *dy;
  ptrdiff_t x_row, x_step, tap_row, tap_column;  /* from the pixels of a row of results, of a result, of a tap to the next */
  int64_t rows, columns, sums_row;
  float *sums;
} FN(tap_sums);

/* Adds those of nr rows of nc taps. */
TI_INLINE void FN(add_taps)(const int nr, const int nc, const ptrdiff_t across, const FN(tap_sums) *t) {
  VF sum[10];
  const ptrdiff_t down = t->tap_row, step = t->x_step;
  const float *dy = t->dy;
#pragma GCC unroll 10
  for (int i = 0; i < nr * nc; i++) sum[i] = FN(set)(0);
  for (int64_t r = 0; r < t->rows; r++) {
    const float *x = t->x + r * t->x_row;
#pragma GCC unroll 1
    for (int64_t c = 0; c < t->columns; c++, x += step, dy += VL) {
      const VF d = FN(load)(dy);
#pragma GCC unroll 3
      for (int i = 0; i < nr; i++)
#pragma GCC unroll 7
        for (int j = 0; j < nc; j++) sum[i * nc + j] = FN(fma)(d, FN(load)(x + i * down + j * across), sum[i * nc + j]);
    }
  }
#pragma GCC unroll 3
  for (int i = 0; i < nr; i++)
#pragma GCC unroll 7
    for (int j = 0; j < nc; j++) {
      float *const s = t->sums + i * t->sums_row + j * VL;
      FN(store)(s, FN(load)(s) + sum[i * nc + j]);
    }
}
#undef TI_TAPS
#define TI_TAPS(R_, C_) \
  static __attribute__((noinline)) void FN(add_taps_##R_##_##C_)(const FN(tap_sums) *t) { \
    if (t->tap_column == VL) FN(add_taps)(R_, C_, VL, t); \
    else FN(add_taps)(R_, C_, t->tap_column, t); }
TI_TAPS(1, 1) TI_TAPS(1, 2) TI_TAPS(1, 3) TI_TAPS(1, 4) TI_TAPS(1, 5) TI_TAPS(1, 6) TI_TAPS(1, 7) TI_TAPS(2, 5) TI_TAPS(3, 3)
enum { FN(MOST_COLUMNS) = 7 };
static void (*const FN(taps_table)[FN(MOST_COLUMNS)])(const FN(tap_sums) *) = {
  FN(add_taps_1_1), FN(add_taps_1_2), FN(add_taps_1_3), FN(add_taps_1_4), FN(add_taps_1_5), FN(add_taps_1_6), FN(add_taps_1_7),
};

/* Adds those of all taps of a window; `x` is where the first of them meets the first result. */
static void FN(add_window)(const blocked_window *s, FN(tap_sums) t) {
  const float *const x = t.x;
  float *const sums = t.sums;
  for (int64_t c = 0, columns; c < s->kw; c += columns) {
    columns = ti_min(FN(MOST_COLUMNS), s->kw - c);
    for (int64_t r = 0, rows; r < s->kh; r += rows) {
      rows = columns == 3 && s->kh - r >= 3 ? 3 : columns == 5 && s->kh - r >= 2 ? 2 : 1;
      t.x = x + r * t.tap_row + c * t.tap_column, t.sums = sums + r * t.sums_row + c * VL;
      if (rows == 3) FN(add_taps_3_3)(&t);
      else if (rows == 2) FN(add_taps_2_5)(&t);
      else FN(taps_table)[columns - 1](&t);
    }
  }
}

/* Lays out `span` rows of an image from row `top` on, with the zeros of the padding. */
static void FN(lay_span)(const float *image, const blocked_window *s, int64_t top, int64_t span, int64_t columns, float *d) {
  for (int64_t row = top; row < top + span; row++, d += columns * VL) {
    if (row < 0 || row >= s->h) memset(d, 0, sizeof(float) * (size_t)(columns * VL));
    else FN(lay_row)(image + row * s->w * VL, 0, 0, VL, s->w, -s->pw, columns, d);
  }
}

TI_KERNEL(depthwise_weight_blocked) {
  const depthwise_weight_blocked_ints *const p = (const depthwise_weight_blocked_ints *)ints;
  const blocked_window s = p->window;
  const int64_t blocks = ti_ceil(s.g, VL), taps = s.kh * s.kw, columns = p->in_place ? s.w : (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1;
  float *const sums = (float *)scratch, *const laid_out = sums + taps * VL;
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t chunk = item / blocks, block = item % blocks, last = s.n * (chunk + 1) / p->chunks;
    memset(sums, 0, sizeof(float) * (size_t)(taps * VL));
    for (int64_t n = s.n * chunk / p->chunks; n < last; n++) {
      const float *const image = (const float *)args[2] + (n * blocks + block) * s.h * s.w * VL;
      const float *const dy = (const float *)args[1] + (n * blocks + block) * s.oh * s.ow * VL;
      for (int64_t row0 = 0; row0 < s.oh; row0 += p->rows) {
        const int64_t rows = ti_min(p->rows, s.oh - row0), top = row0 * s.sh - s.ph;
        if (!p->in_place) FN(lay_span)(image, &s, top, (rows - 1) * s.sh + (s.kh - 1) * s.dh + 1, columns, laid_out);
        const float *const x = p->in_place ? image + top * columns * VL : laid_out;
        for (int64_t r = 0; r < rows; r += p->summed)
          FN(add_window)(&s, (FN(tap_sums)){
            .x = x + r * s.sh * columns * VL, .dy = dy + (row0 + r) * s.ow * VL, .x_row = s.sh * columns * VL, .x_step = s.sw * VL,
            .tap_row = s.dh * columns * VL, .tap_column = s.dw * VL, .rows = ti_min(p->summed, rows - r), .columns = s.ow,
            .sums_row = s.kw * VL, .sums = sums});
      }
    }
    FN(transpose_any)((float *)args[0] + (chunk * s.g + block * VL) * taps, taps, sums, VL, ti_min(VL, s.g - block * VL), taps);
  }
  return TI_OK;
}
