/* Convolutions of windows of three by three by Winograd's F(2x2, 3x3), over channels in blocks.
 *
 * A tile of four by four pixels gives two by two results. Pixels and weights are brought into sixteen sums each, whose
 * products over the channels are as many small matrix products; these come to 16 multiplications where the sums that define
 * a convolution take 36. After Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015.
 */
#include "table/winograd.h"
#include "blocked_tile_body.h"

enum { FN(POINTS) = 16, FN(APART) = 16 };  /* floats between the sums of two points: else all sixteen fall on one set of the cache */

/* Four sums of a row or a column of four: those of the input. */
TI_INLINE void FN(transform4)(VF a, VF b, VF c, VF d, VF *y, int64_t step) {
  y[0] = a - c;
  y[step] = b + c;
  y[2 * step] = c - b;
  y[3 * step] = b - d;
}

TI_INLINE void FN(transform_tile)(const VF *d, float *y, int64_t point) {
  VF t[16], u[16];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) FN(transform4)(d[j], d[4 + j], d[8 + j], d[12 + j], t + j, 4);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) FN(transform4)(t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3], u + 4 * i, 1);
#pragma GCC unroll 16
  for (int k = 0; k < 16; k++) FN(store)(y + k * point, u[k]);
}

/* What an item computes. */
typedef struct {
  const winograd_ints *p;
  int64_t blocks_in, blocks_out, down, across;  /* tiles of an image */
  int64_t first, count;                         /* tiles of the item */
  int32_t *at;                                  /* where each lies in a plane of the item */
  float *inputs, *sums;                         /* [point][block][tile][lanes] */
  int64_t input_point, sums_point;              /* from a point to the next */
} FN(winograd_item);

/* Where a tile lies: its image, and among the tiles of that. */
typedef struct { int64_t n, row, column; } FN(tile_place);

static FN(tile_place) FN(first_place)(const FN(winograd_item) *t) {
  return (FN(tile_place)){t->first / (t->down * t->across), t->first / t->across % t->down, t->first % t->across};
}

TI_INLINE void FN(next_place)(const FN(winograd_item) *t, FN(tile_place) *at) {
  if (++at->column < t->across) return;
  at->column = 0;
  if (++at->row < t->down) return;
  at->row = 0;
  at->n++;
}

/* Reads four by four pixels of a plane; zeros stand around it. */
TI_INLINE void FN(read_tile)(const float *plane, const blocked_window *s, int64_t top, int64_t left, VF *d) {
  if (top >= 0 && left >= 0 && top + 4 <= s->h && left + 4 <= s->w) {
    const float *const from = plane + (top * s->w + left) * VL;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) d[i] = FN(load)(from + (i / 4 * s->w + i % 4) * VL);
    return;
  }
  for (int i = 0; i < 16; i++) {
    const int64_t row = top + i / 4, column = left + i % 4;
    const int is_in = row >= 0 && row < s->h && column >= 0 && column < s->w;
    d[i] = is_in ? FN(load)(plane + (row * s->w + column) * VL) : FN(set)(0.f);
  }
}

/* Brings all channels of the tiles of an item into their sums. */
static void FN(transform_input)(const FN(winograd_item) *t, const float *x) {
  const blocked_window s = t->p->window;
  float *y = t->inputs;
  for (int64_t b = 0; b < t->blocks_in; b++) {
    FN(tile_place) at = FN(first_place)(t);
    for (int64_t k = 0; k < t->count; k++, y += VL, FN(next_place)(t, &at)) {
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
  FN(tile_place) place = FN(first_place)(t);
  VF scale = FN(set)(1.f), shift = FN(set)(0.f);
  if (e.is_affine) { scale = FN(load)(e.scale); shift = FN(load)(e.shift); }
  for (int64_t k = 0; k < t->count; k++, sums += VL, FN(next_place)(t, &place)) {
    const int64_t row = place.row * 2, column = place.column * 2;
    VF v[4];
    FN(results_of)(sums, t->sums_point, v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      if (row + i / 2 >= s.oh || column + i % 2 >= s.ow) continue;
      const int64_t at = place.n * image + ((row + i / 2) * s.ow + column + i % 2) * VL;
      if (e.is_affine) v[i] = FN(fma)(v[i], scale, shift);
      if (e.added) v[i] += FN(load)(e.added + at);
      FN(store)(y + at, FN(activated)(activation, v[i]));
    }
  }
}

static void FN(write_results)(const FN(winograd_item) *t, const FN(blocked_ending) *e, const float *sums, float *y) {
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
        FN(blocked_ending) e = FN(begin_ending)(args + 3, p->flags, p->activation, t.blocks_out * VL, (r0 + b) * VL);
        if (e.added) e.added += (r0 + b) * plane;
        FN(write_results)(&t, &e, t.sums + b * t.count * VL, (float *)args[0] + (r0 + b) * plane);
      }
    }
  }
  return TI_OK;
}

/* Four sums of three weights. */
static inline void FN(transform3)(double a, double b, double c, double *y, int64_t step) {
  y[0] = a;
  y[step] = (a + b + c) / 2;
  y[2 * step] = (a - b + c) / 2;
  y[3 * step] = c;
}

TI_KERNEL(pack_winograd) {
  const pack_winograd_ints *const p = (const pack_winograd_ints *)ints;
  const int64_t blocks = ti_ceil(p->m, VL);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++)
    for (int64_t c = 0; c < p->c; c++)
      for (int64_t l = 0; l < VL; l++) {
        const int64_t m = item * VL + l;
        double t[12] = {0}, u[16] = {0};
        if (m < p->m) {
          const float *const w = (const float *)args[1] + (m * p->c + c) * 9;
          for (int j = 0; j < 3; j++) FN(transform3)(w[j], w[3 + j], w[6 + j], t + j, 3);
          for (int i = 0; i < 4; i++) FN(transform3)(t[3 * i], t[3 * i + 1], t[3 * i + 2], u + 4 * i, 1);
        }
        for (int64_t k = 0; k < FN(POINTS); k++) ((float *)args[0])[((k * blocks + item) * p->c + c) * VL + l] = (float)u[k];
      }
  return TI_OK;
}
