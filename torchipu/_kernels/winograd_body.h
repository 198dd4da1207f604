/* Convolutions of windows of three by three by Winograd's F(2x2, 3x3), over channels in blocks.
 *
 * A tile of four by four pixels gives two by two results. Pixels and weights are brought into sixteen sums each, whose
 * products over the channels are as many small matrix products; these come to 16 multiplications where the sums that define
 * a convolution take 36. After Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015.
 */
#include "table/winograd.h"
#include "blocked_tile_body.h"
#include "transpose_body.h"
#include "blocked_taps_body.h"
#include "winograd_tile_body.h"

/* What an item computes. */
typedef struct {
  const winograd_ints *p;
  int64_t blocks_in, blocks_out, down, across;  /* tiles of an image */
  int64_t first, count;                         /* tiles of the item */
  int32_t *at;                                  /* where each lies in a plane of the item */
  float *inputs, *sums;                         /* [point][block][tile][lanes] */
  int64_t input_point, sums_point;              /* from a point to the next */
} FN(winograd_item);

/* Brings all channels of the tiles of an item into their sums. */
static void FN(transform_input)(const FN(winograd_item) *t, const float *x) {
  const blocked_window s = t->p->window;
  float *y = t->inputs;
  for (int64_t b = 0; b < t->blocks_in; b++) {
    FN(tile_place) at = FN(place_of)(t->first, t->down, t->across);
    for (int64_t k = 0; k < t->count; k++, y += VL, FN(next_place)(t->down, t->across, &at)) {
      VF d[16];
      FN(read_tile)(x + (at.n * t->blocks_in + b) * s.h * s.w * VL, &s, at.row * 2 - s.ph, at.column * 2 - s.pw, d);
      FN(transform_tile)(d, y, t->input_point);
    }
  }
}

/* The sums over the channels of `results` blocks, from block r0 on, for each of the points. */
static void FN(multiply_points)(const FN(winograd_item) *t, const float *w, int64_t r0, int64_t results) {
  static const int32_t none = 0;
  const int64_t channels = t->p->window.c, plane = t->count * VL;
  FN(blocked_tile) tile = {.from = t->at, .to = t->at, .taps = &none, .num_taps = 1, .channel = 1, .w_block = channels * VL, .x_block = plane, .y_block = plane};
  for (int64_t point = 0; point < FN(POINTS); point++)
    for (int64_t c0 = 0; c0 < t->blocks_in; c0 += t->p->chunk) {
      const int64_t end = ti_min(c0 + t->p->chunk, t->blocks_in);
      tile.blocks = ti_min(end, channels / VL) - c0;
      tile.rest = end * VL > channels ? channels % VL : 0;
      tile.accumulate = c0 > 0;
      tile.w = w + ((point * t->blocks_out + r0) * channels + c0 * VL) * VL;
      tile.x = t->inputs + point * t->input_point + c0 * plane;
      tile.y = t->sums + point * t->sums_point;
      FN(add_tiles)(tile, results, t->count, NULL);
    }
}

/* Two by two results out of the sixteen sums of a tile. */
TI_INLINE void FN(results_of)(const float *sums, int64_t point, VF *y) {
  VF t[8];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    const VF a = FN(load)(sums + j * point), b = FN(load)(sums + (4 + j) * point), c = FN(load)(sums + (8 + j) * point);
    t[j] = a + b + c;
    t[4 + j] = b - c - FN(load)(sums + (12 + j) * point);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    y[2 * i] = t[4 * i] + t[4 * i + 1] + t[4 * i + 2];
    y[2 * i + 1] = t[4 * i + 1] - t[4 * i + 2] - t[4 * i + 3];
  }
}

/* Writes and ends the results of one block; `y` is that of the first image. */
TI_INLINE void FN(write_block)(const FN(winograd_item) *t, const FN(blocked_ending) e, const int activation, const float *sums, float *y) {
  const blocked_window s = t->p->window;
  const int64_t image = t->blocks_out * s.oh * s.ow * VL;
  FN(tile_place) place = FN(place_of)(t->first, t->down, t->across);
  VF scale = FN(set)(1.f), shift = FN(set)(0.f);
  if (e.is_affine) { scale = FN(load)(e.scale); shift = FN(load)(e.shift); }
  for (int64_t k = 0; k < t->count; k++, sums += VL, FN(next_place)(t->down, t->across, &place)) {
    const int64_t row = place.row * 2, column = place.column * 2;
    VF v[4];
    FN(results_of)(sums, t->sums_point, v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      if (row + i / 2 >= s.oh || column + i % 2 >= s.ow) continue;
      const int64_t at = place.n * image + ((row + i / 2) * s.ow + column + i % 2) * VL;
      if (e.is_affine) v[i] = FN(fma)(v[i], scale, shift);
      if (e.added) v[i] += FN(load)(e.added + at);
      if (e.gate) v[i] = FN(gated)(v[i], FN(load)(e.gate + at));
      FN(store)(y + at, FN(activated)(activation, v[i]));
    }
  }
}

/* Ends `count` pixels that lie one behind the other from a place of an image on. */
static void FN(end_run)(const FN(winograd_item) *t, const FN(blocked_ending) *e, int64_t n, int64_t row, int64_t column, int64_t count, float *y) {
  const blocked_window s = t->p->window;
  const int64_t to = (n * t->blocks_out * s.oh * s.ow + row * s.ow + column) * VL;
  FN(blocked_ending) ending = *e;
  FN(move_ending)(&ending, to);
  FN(end_block)(&ending, y + to, NULL, count, 0);
}

/* The same where each op's results are rounded: as soon as tiles have written whole rows, or what they have of one. */
static void FN(write_rounded)(const FN(winograd_item) *t, const FN(blocked_ending) *e, const float *sums, float *y) {
  const blocked_window s = t->p->window;
  const FN(blocked_ending) none = {0};
  FN(winograd_item) run = *t;
  for (int64_t done = 0; done < t->count; done += run.count, sums += run.count * VL) {
    run.first = t->first + done;
    const FN(tile_place) at = FN(place_of)(run.first, t->down, t->across);
    const int64_t rows = at.column ? 0 : ti_min((t->count - done) / t->across, t->down - at.row);  /* whole ones, of tiles */
    run.count = rows ? rows * t->across : ti_min(t->count - done, t->across - at.column);
    FN(write_block)(&run, none, TI_ACTIVATION_NONE, sums, y);
    if (rows) {
      FN(end_run)(t, e, at.n, at.row * 2, 0, ti_min(rows * 2, s.oh - at.row * 2) * s.ow, y);
      continue;
    }
    for (int64_t row = at.row * 2; row < ti_min(at.row * 2 + 2, s.oh); row++)
      FN(end_run)(t, e, at.n, row, at.column * 2, ti_min(run.count * 2, s.ow - at.column * 2), y);
  }
}

static void FN(write_results)(const FN(winograd_item) *t, const FN(blocked_ending) *e, const float *sums, float *y) {
  if (e->rounding.is_any) { FN(write_rounded)(t, e, sums, y); return; }
  switch (e->activation) {
    case TI_ACTIVATION_NONE: FN(write_block)(t, *e, TI_ACTIVATION_NONE, sums, y); break;
    case TI_ACTIVATION_RELU: FN(write_block)(t, *e, TI_ACTIVATION_RELU, sums, y); break;
    case TI_ACTIVATION_RELU6: FN(write_block)(t, *e, TI_ACTIVATION_RELU6, sums, y); break;
    case TI_ACTIVATION_HARDSWISH: FN(write_block)(t, *e, TI_ACTIVATION_HARDSWISH, sums, y); break;
    case TI_ACTIVATION_HARDSIGMOID: FN(write_block)(t, *e, TI_ACTIVATION_HARDSIGMOID, sums, y); break;
    case TI_ACTIVATION_SILU: FN(write_block)(t, *e, TI_ACTIVATION_SILU, sums, y); break;
    case TI_ACTIVATION_SIGMOID: FN(write_block)(t, *e, TI_ACTIVATION_SIGMOID, sums, y); break;
    default: FN(write_block)(t, *e, TI_ACTIVATION_GELU, sums, y); break;
  }
}

TI_KERNEL(winograd) {
  const winograd_ints *const p = (const winograd_ints *)ints;
  const blocked_window s = p->window;
  FN(winograd_item) t = {.p = p, .blocks_in = ti_ceil(s.c, VL), .blocks_out = ti_ceil(s.m, VL), .down = ti_ceil(s.oh, 2), .across = ti_ceil(s.ow, 2)};
  const int64_t parts = ti_ceil(t.blocks_out, p->results), plane = s.oh * s.ow * VL;
  t.inputs = (float *)scratch;
  t.input_point = t.blocks_in * p->tiles * VL + FN(APART);
  t.sums_point = FN(MOST_BLOCKS) * p->tiles * VL + FN(APART);
  t.sums = t.inputs + FN(POINTS) * t.input_point;
  t.at = (int32_t *)(t.sums + FN(POINTS) * t.sums_point);
  for (int64_t k = 0; k < p->tiles; k++) t.at[k] = (int32_t)(k * VL);
  (void)scalars;
  for (int64_t item = begin, known = -1; item < end; item++) {
    const int64_t part = item % parts, group = item / parts;
    t.first = group * p->tiles;
    t.count = ti_min(p->tiles, s.n * t.down * t.across - t.first);
    if (group != known) FN(transform_input)(&t, (const float *)args[1]);
    known = group;
    const int64_t last = ti_min((part + 1) * p->results, t.blocks_out);
    for (int64_t r0 = part * p->results; r0 < last; r0 += FN(MOST_BLOCKS)) {
      const int64_t results = ti_min(FN(MOST_BLOCKS), last - r0);
      FN(multiply_points)(&t, (const float *)args[2], r0, results);
      for (int64_t b = 0; b < results; b++) {
        FN(blocked_ending) e = FN(begin_ending)(args + 3, p->flags, p->activation, t.blocks_out * VL, (r0 + b) * VL, args[0], s.m, s.oh * s.ow);
        FN(move_ending)(&e, (r0 + b) * plane);
        FN(write_results)(&t, &e, t.sums + b * t.count * VL, (float *)args[0] + (r0 + b) * plane);
      }
    }
  }
  return TI_OK;
}

/* Four sums of three weights. */
TI_INLINE void FN(transform3)(VF a, VF b, VF c, VF *y, int64_t step) {
  const VF sum = a + c;
  y[0] = a;
  y[step] = (sum + b) * 0.5f;
  y[2 * step] = (sum - b) * 0.5f;
  y[3 * step] = c;
}

/* Points lie so far apart, at a power of two mostly, that vectors go there several at a time. */
enum { FN(TOGETHER) = 8 };

TI_KERNEL(pack_winograd) {
  const pack_winograd_ints *const p = (const pack_winograd_ints *)ints;
  const int64_t blocks = ti_ceil(p->m, VL), point = blocks * p->c * VL;
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const float *w = (const float *)args[1] + item * VL * p->row;
    float *y = (float *)args[0] + item * p->c * VL;
    float some[FN(POINTS) * FN(TOGETHER) * VL], taps[9 * VL], apart[9 * VL * VL];
    const int64_t lanes = ti_min(VL, p->m - item * VL);
    for (int64_t c = 0; c < p->c; c++, w += p->channel) {
      const int64_t lane = c % FN(TOGETHER);
      if (p->row == 9 && p->tap == 1) FN(fetch_taps)(w + FN(TAPS_AHEAD) * p->channel, 9 * VL);
      VF g[9], t[12], u[16];
      if (p->tap == 1) FN(lay_taps)(w, p->row, lanes, 9, taps);
      else if (p->row == 1) for (int k = 0; k < 9; k++) FN(store)(taps + k * VL, FN(load_part)(w + k * p->tap, lanes));
      else { /* channels adjoin */
        if (c % VL == 0) for (int k = 0; k < 9; k++) FN(lay_taps)(w + k * p->tap, p->row, lanes, ti_min(VL, p->c - c), apart + k * VL * VL);
        for (int k = 0; k < 9; k++) FN(store)(taps + k * VL, FN(load)(apart + (k * VL + c % VL) * VL));
      }
#pragma GCC unroll 9
      for (int k = 0; k < 9; k++) g[k] = FN(load)(taps + (p->is_turned ? 8 - k : k) * VL);
#pragma GCC unroll 3
      for (int j = 0; j < 3; j++) FN(transform3)(g[j], g[3 + j], g[6 + j], t + j, 3);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) FN(transform3)(t[3 * i], t[3 * i + 1], t[3 * i + 2], u + 4 * i, 1);
#pragma GCC unroll 16
      for (int k = 0; k < FN(POINTS); k++) FN(store)(some + (k * FN(TOGETHER) + lane) * VL, u[k]);
      if (lane + 1 < FN(TOGETHER) && c + 1 < p->c) continue;
      for (int k = 0; k < FN(POINTS); k++) memcpy(y + k * point + (c - lane) * VL, some + k * FN(TOGETHER) * VL, sizeof(float) * (size_t)((lane + 1) * VL));
    }
  }
  return TI_OK;
}
