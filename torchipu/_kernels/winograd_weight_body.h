/* Gradients of the weights of convolutions of three by three by Winograd's F(2x2, 3x3), over channels in blocks.
 *
 * The convolution is y = A' [(G w G') * (B' x B)] A, tile by tile; what a gradient dy of the results makes of the weights
 * is therefore G' [sum over the tiles of (B' x B) * (A dy A')] G: 16 products for each pair of a channel and a result where
 * the sums that define it take 36. An item has a few blocks of channels and of results, and goes through its tiles a group
 * at a time, whose sums stay in the second-level cache.
 */
#include "table/winograd_weight.h"
#include "outer_tile_body.h"
#include "winograd_tile_body.h"
#include "transpose_body.h"
#include "transpose_any_body.h"

typedef struct {
  const winograd_weight_ints *p;
  int64_t blocks_in, blocks_out, down, across;
  int64_t c0, channels, r0, results;           /* blocks of the item */
  int64_t first, count;                        /* tiles of the group */
  float *inputs, *gradients, *sums;            /* [point][block][tile][lanes], likewise, [point][result block][channel][lanes] */
  int64_t input_point, gradient_point, sums_point;
} FN(wg_item);

static void FN(transform_inputs)(const FN(wg_item) *t, const float *x) {
  const blocked_window s = t->p->window;
  float *y = t->inputs;
  for (int64_t b = t->c0; b < t->c0 + t->channels; b++) {
    FN(tile_place) at = FN(place_of)(t->first, t->down, t->across);
    for (int64_t k = 0; k < t->count; k++, y += VL, FN(next_place)(t->down, t->across, &at)) {
      VF d[16];
      FN(read_tile)(x + (at.n * t->blocks_in + b) * s.h * s.w * VL, &s, at.row * 2 - s.ph, at.column * 2 - s.pw, d);
      FN(transform_tile)(d, y, t->input_point);
    }
  }
}

/* Four sums of two gradients. */
TI_INLINE void FN(spread2)(VF a, VF b, VF *y, int64_t step) {
  y[0] = a;
  y[step] = a + b;
  y[2 * step] = a - b;
  y[3 * step] = -b;
}

static void FN(transform_gradients)(const FN(wg_item) *t, const float *dy) {
  const blocked_window s = t->p->window;
  float *y = t->gradients;
  for (int64_t b = t->r0; b < t->r0 + t->results; b++) {
    FN(tile_place) at = FN(place_of)(t->first, t->down, t->across);
    for (int64_t k = 0; k < t->count; k++, y += VL, FN(next_place)(t->down, t->across, &at)) {
      const int64_t row = at.row * 2, column = at.column * 2, more_rows = row + 1 < s.oh, more_columns = column + 1 < s.ow;
      const float *const from = dy + (((at.n * t->blocks_out + b) * s.oh + row) * s.ow + column) * VL;
      VF d[4], u[8], v[16];
      const VF none = FN(set)(0.f);
      d[0] = FN(load)(from);
      d[1] = more_columns ? FN(load)(from + VL) : none;
      d[2] = more_rows ? FN(load)(from + s.ow * VL) : none;
      d[3] = more_rows && more_columns ? FN(load)(from + (s.ow + 1) * VL) : none;
#pragma GCC unroll 2
      for (int j = 0; j < 2; j++) FN(spread2)(d[j], d[2 + j], u + j, 2);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) FN(spread2)(u[2 * i], u[2 * i + 1], v + 4 * i, 1);
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) FN(store)(y + i * t->gradient_point, v[i]);
    }
  }
}

/* Adds the products of the tiles of a group. */
static void FN(add_group)(const FN(wg_item) *t, int accumulate) {
  const int64_t plane = t->count * VL, across = ti_ceil(t->results, FN(OUTER_BLOCKS));
  FN(outer_tile) tile = {.x_step = VL, .dy_block = plane, .c_channel = VL, .c_block = t->channels * VL * VL, .images = 1, .rows = 1, .columns = t->count, .accumulate = accumulate};
  for (int64_t point = 0; point < FN(POINTS); point++)
    for (int64_t a = 0; a < across; a++) {
      const int64_t b0 = t->results * a / across, blocks = t->results * (a + 1) / across - b0;
      tile.dy = t->gradients + point * t->gradient_point + b0 * plane;
      for (int64_t b = 0; b < t->channels; b++)
        for (int64_t j = 0; j < ti_min(VL, t->p->window.c - (t->c0 + b) * VL); j += FN(OUTER_CHANNELS)) {
          tile.x = t->inputs + point * t->input_point + b * plane + j;
          tile.c = t->sums + point * t->sums_point + ((b0 * t->channels + b) * VL + j) * VL;
          FN(add_outer)(&tile, blocks);
        }
    }
}

/* Three sums of four, those of a row or a column. */
TI_INLINE void FN(gather4)(VF a, VF b, VF c, VF d, VF *y, int64_t step) {
  const VF sum = (b + c) * 0.5f;
  y[0] = a + sum;
  y[step] = (b - c) * 0.5f;
  y[2 * step] = sum + d;
}

/* The nine weights of each channel of a block: d[channel][tap][lanes]. */
static void FN(gather_weights)(const float *sums, int64_t point, int64_t channels, float *d) {
  for (int64_t c = 0; c < channels; c++, sums += VL, d += 9 * VL) {
    VF u[16], t[12], g[9];
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) u[k] = FN(load)(sums + k * point);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) FN(gather4)(u[j], u[4 + j], u[8 + j], u[12 + j], t + j, 4);
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) FN(gather4)(t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3], g + 3 * i, 1);
#pragma GCC unroll 9
    for (int k = 0; k < 9; k++) FN(store)(d + k * VL, g[k]);
  }
}

TI_KERNEL(winograd_weight) {
  const winograd_weight_ints *const p = (const winograd_weight_ints *)ints;
  const blocked_window s = p->window;
  FN(wg_item) t = {.p = p, .blocks_in = ti_ceil(s.c, VL), .blocks_out = ti_ceil(s.m, VL), .down = ti_ceil(s.oh, 2), .across = ti_ceil(s.ow, 2)};
  const int64_t parts_in = ti_ceil(t.blocks_in, p->channels), parts_out = ti_ceil(t.blocks_out, p->results), summands = s.c * 9;
  const int64_t tiles = s.n * t.down * t.across, groups = ti_ceil(tiles, p->tiles);
  t.input_point = p->channels * p->tiles * VL + FN(APART);
  t.gradient_point = p->results * p->tiles * VL + FN(APART);
  t.sums_point = p->channels * p->results * VL * VL + FN(APART);
  t.inputs = (float *)scratch;
  t.gradients = t.inputs + FN(POINTS) * t.input_point;
  t.sums = t.gradients + FN(POINTS) * t.gradient_point;
  float *const weights = t.sums + FN(POINTS) * t.sums_point;
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t chunk = item / (parts_in * parts_out), first = groups * chunk / p->chunks, last = groups * (chunk + 1) / p->chunks;
    t.r0 = item % parts_out * p->results;
    t.results = ti_min(p->results, t.blocks_out - t.r0);
    t.c0 = item / parts_out % parts_in * p->channels;
    t.channels = ti_min(p->channels, t.blocks_in - t.c0);
    for (int64_t group = first; group < last; group++) {
      t.first = group * p->tiles;
      t.count = ti_min(p->tiles, tiles - t.first);
      FN(transform_inputs)(&t, (const float *)args[2]);
      FN(transform_gradients)(&t, (const float *)args[1]);
      FN(add_group)(&t, group > first);
    }
    for (int64_t r = 0; r < t.results; r++)
      for (int64_t b = 0; b < t.channels; b++) {
        const int64_t m0 = (t.r0 + r) * VL, channel = (t.c0 + b) * VL, there = ti_min(VL, s.c - channel);
        FN(gather_weights)(t.sums + (r * t.channels + b) * VL * VL, t.sums_point, there, weights);
        FN(transpose_any)((float *)args[0] + (chunk * s.m + m0) * summands + channel * 9, summands, weights, VL, ti_min(VL, s.m - m0), there * 9);
      }
  }
  return TI_OK;
}
