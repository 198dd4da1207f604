/* Convolutions whose groups have a single channel, over channels in blocks: each lane is a group of its own.
 *
 * The rows that an item needs are laid out with their zeros, so that no window asks where the image ends.
 */
#include "table/depthwise_blocked.h"
#include "blocked_row_body.h"
#include "blocked_ending_body.h"

enum { FN(ACROSS) = 8 };  /* pixels that are summed together */

/* Results of np pixels of a row, `step` floats of the input apart. */
TI_INLINE void FN(depthwise_sums)(const int np, const float *x, const int64_t step, const float *w, const int32_t *taps, int64_t num_taps, float *y) {
  VF sum[FN(ACROSS)];
#pragma GCC unroll 8
  for (int j = 0; j < np; j++) sum[j] = FN(set)(0);
  for (int64_t tap = 0; tap < num_taps; tap++, w += VL) {
    const VF weight = FN(load)(w);
    const float *const p = x + taps[tap];
#pragma GCC unroll 8
    for (int j = 0; j < np; j++) sum[j] = FN(fma)(FN(load)(p + j * step), weight, sum[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < np; j++) FN(store)(y + j * VL, sum[j]);
}
#undef TI_ACROSS
#define TI_ACROSS(P_) \
  static __attribute__((noinline)) void FN(depthwise_##P_)(const float *x, int64_t step, const float *w, const int32_t *taps, int64_t n, float *y) { \
    if (step == VL) FN(depthwise_sums)(P_, x, VL, w, taps, n, y); \
    else if (step == 2 * VL) FN(depthwise_sums)(P_, x, 2 * VL, w, taps, n, y); \
    else FN(depthwise_sums)(P_, x, step, w, taps, n, y); }
TI_ACROSS(1) TI_ACROSS(2) TI_ACROSS(3) TI_ACROSS(4) TI_ACROSS(5) TI_ACROSS(6) TI_ACROSS(7) TI_ACROSS(8)
static void (*const FN(across_table)[FN(ACROSS)])(const float *, int64_t, const float *, const int32_t *, int64_t, float *) = {
  FN(depthwise_1), FN(depthwise_2), FN(depthwise_3), FN(depthwise_4), FN(depthwise_5), FN(depthwise_6), FN(depthwise_7), FN(depthwise_8),
};

/* Weights of a block of groups, [tap][lanes]. */
static void FN(turn_weights)(const float *w, int64_t groups, int64_t num_taps, float *d) {
  for (int64_t tap = 0; tap < num_taps; tap++)
    for (int64_t l = 0; l < VL; l++) d[tap * VL + l] = l < groups ? w[l * num_taps + tap] : 0;
}

TI_KERNEL(depthwise_blocked) {
  const depthwise_blocked_ints *const p = (const depthwise_blocked_ints *)ints;
  const blocked_window s = p->window;
  const int64_t blocks = ti_ceil(s.g, VL), parts = ti_ceil(s.oh, p->rows), num_taps = s.kh * s.kw, pixels = s.h * s.w;
  const int64_t columns = (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1, tiles = ti_ceil(s.ow, FN(ACROSS));
  float *const w = (float *)scratch, *const room = w + num_taps * VL, *const laid_out = room + 2 * VL;
  int32_t *const taps = (int32_t *)(laid_out + ((p->rows - 1) * s.sh + (s.kh - 1) * s.dh + 1) * columns * VL), *const at = taps + num_taps;
  for (int64_t k = 0; k < num_taps; k++) taps[k] = (int32_t)((k / s.kw * s.dh * columns + k % s.kw * s.dw) * VL);
  for (int64_t i = 0; i < s.ow; i++) at[i] = (int32_t)(i * VL);
  for (int64_t item = begin; item < end; item++) {
    const int64_t row0 = item % parts * p->rows, rows = ti_min(p->rows, s.oh - row0), block = item / parts % blocks, n = item / (parts * blocks);
    const int64_t groups = ti_min(VL, s.g - block * VL), span = (rows - 1) * s.sh + (s.kh - 1) * s.dh + 1;
    const float *const x = (const float *)args[1] + (p->is_plain ? (n * s.g + block * VL) * pixels : (n * blocks + block) * pixels * VL);
    const int64_t out = ((n * blocks + block) * s.oh + row0) * s.ow * VL;
    FN(turn_weights)((const float *)args[2] + block * VL * num_taps, groups, num_taps, w);
    FN(blocked_ending) ending = FN(begin_ending)(args, (int)p->flags, (int)p->activation, ((const conv_product_scalars *)scalars)->epsilon,
                                                 block * VL, groups, VL, room);
    if (ending.added) ending.added += out;
    for (int64_t r = 0; r < span; r++) {
      const int64_t row = row0 * s.sh - s.ph + r;
      float *const d = laid_out + r * columns * VL;
      if (row < 0 || row >= s.h) memset(d, 0, sizeof(float) * (size_t)(columns * VL));
      else FN(lay_row)(x + row * s.w * (p->is_plain ? 1 : VL), (int)p->is_plain, pixels, groups, s.w, -s.pw, columns, d);
    }
    float *y = (float *)args[0] + out;
    for (int64_t r = 0; r < rows; r++, y += s.ow * VL) {
      for (int64_t i = 0; i < tiles; i++) {
        const int64_t c0 = s.ow * i / tiles;
        FN(across_table)[s.ow * (i + 1) / tiles - c0 - 1](laid_out + (r * s.sh * columns + c0 * s.sw) * VL, s.sw * VL, w, taps, num_taps, y + c0 * VL);
      }
      FN(end_block)(&ending, y, at, s.ow, 0);
      if (ending.added) ending.added += s.ow * VL;
    }
  }
  return TI_OK;
}
