/* Gradients of the weights of convolutions over channels in blocks.
 *
 * An item has one block of channels and some blocks of results. It goes through strips of pixels, short enough that they
 * stay in the first cache and that sums round no worse than those of eager PyTorch, and adds what registers have summed of
 * a strip to what the strips before it gave.
 */
#include "table/conv_weight_blocked.h"
#include "blocked_row_body.h"
#include "transpose_any_body.h"
#include "outer_tile_body.h"

/* What an item reads. */
typedef struct {
  const conv_weight_blocked_ints *p;
  int64_t blocks_in, blocks_out;          /* of a group */
  int64_t group, block, r0, results;      /* block of channels, blocks of results */
  int64_t n0, images, row0, rows, span;   /* of a strip; rows of the input that it needs of an image */
  int64_t column0, width;                 /* columns of results */
  int64_t columns;                        /* of a row that is laid out */
} FN(weight_item);

/* Lays out the rows of a strip with the zeros of the padding. */
static void FN(lay_strip)(const FN(weight_item) *t, const float *x, float *d) {
  const blocked_window s = t->p->window;
  for (int64_t n = t->n0; n < t->n0 + t->images; n++) {
    const float *const image = x + (n * t->p->apart + t->group * t->blocks_in + t->block) * s.h * s.w * VL;
    for (int64_t r = 0; r < t->span; r++, d += t->columns * VL) {
      const int64_t row = t->row0 * s.sh - s.ph + r;
      if (row < 0 || row >= s.h) memset(d, 0, sizeof(float) * (size_t)(t->columns * VL));
      else FN(lay_row)(image + row * s.w * VL, 0, 0, VL, s.w, t->column0 * s.sw - s.pw, t->columns, d);
    }
  }
}

/* Adds the products of a strip to the sums [block][channel][tap][lanes]. */
static void FN(add_strip)(const FN(weight_item) *t, const float *x, const float *dy, float *laid_out, float *sums, int accumulate) {
  const blocked_window s = t->p->window;
  const int64_t taps = s.kh * s.kw, plane = s.oh * s.ow * VL, channels = ti_min(VL, s.c - t->block * VL), width = t->p->in_place ? s.w : t->columns;
  FN(outer_tile) tile = {.x_row = s.sh * width * VL, .x_step = s.sw * VL, .dy_image = s.g * t->blocks_out * plane, .dy_row = s.ow * VL, .dy_block = plane,
                         .c_channel = taps * VL, .c_block = VL * taps * VL, .images = t->images, .rows = t->rows, .columns = t->width, .accumulate = accumulate};
  const float *from = laid_out;
  if (t->p->in_place) {
    from = x + (t->n0 * t->p->apart + t->group * t->blocks_in + t->block) * s.h * s.w * VL + (t->row0 * s.sh * s.w + t->column0 * s.sw) * VL;
    tile.x_image = t->p->apart * s.h * s.w * VL;
  } else {
    FN(lay_strip)(t, x, laid_out);
    tile.x_image = t->span * t->columns * VL;
  }
  if (t->width == s.ow && tile.x_row == s.ow * tile.x_step) { tile.columns *= tile.rows; tile.rows = 1; }  /* rows adjoin */
  const float *const gradients = dy + ((t->n0 * s.g + t->group) * t->blocks_out + t->r0) * plane + (t->row0 * s.ow + t->column0) * VL;
  const int64_t across = ti_ceil(t->results, FN(OUTER_BLOCKS));
  for (int64_t a = 0; a < across; a++) {
    const int64_t b0 = t->results * a / across, blocks = t->results * (a + 1) / across - b0;
    tile.dy = gradients + b0 * plane;
    for (int64_t tap = 0; tap < taps; tap++)
      for (int64_t j = 0; j < channels; j += FN(OUTER_CHANNELS)) {
        tile.x = from + (tap / s.kw * s.dh * width + tap % s.kw * s.dw) * VL + j;
        tile.c = sums + b0 * tile.c_block + (j * taps + tap) * VL;
        FN(add_outer)(&tile, blocks);
      }
  }
}

TI_KERNEL(conv_weight_blocked) {
  const conv_weight_blocked_ints *const p = (const conv_weight_blocked_ints *)ints;
  const blocked_window s = p->window;
  FN(weight_item) t = {.p = p, .blocks_in = ti_ceil(s.c, VL), .blocks_out = ti_ceil(s.m, VL), .columns = (p->columns - 1) * s.sw + (s.kw - 1) * s.dw + 1};
  const int64_t taps = s.kh * s.kw, summands = s.c * taps, down = ti_ceil(s.oh, p->rows), across = ti_ceil(s.ow, p->columns), strips = ti_ceil(s.n, p->images) * down * across, parts = ti_ceil(t.blocks_out, p->results);
  float *const sums = (float *)scratch, *const laid_out = sums + p->results * VL * taps * VL;
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t chunk = item / (parts * t.blocks_in * s.g), first = strips * chunk / p->chunks, last = strips * (chunk + 1) / p->chunks;
    t.r0 = item % parts * p->results;
    t.results = ti_min(p->results, t.blocks_out - t.r0);
    t.block = item / parts % t.blocks_in;
    t.group = item / (parts * t.blocks_in) % s.g;
    for (int64_t strip = first; strip < last; strip++) {
      t.n0 = strip / across / down * p->images;
      t.images = ti_min(p->images, s.n - t.n0);
      t.row0 = strip / across % down * p->rows;
      t.rows = ti_min(p->rows, s.oh - t.row0);
      t.column0 = strip % across * p->columns;
      t.width = ti_min(p->columns, s.ow - t.column0);
      t.span = (t.rows - 1) * s.sh + (s.kh - 1) * s.dh + 1;
      FN(add_strip)(&t, (const float *)args[2], (const float *)args[1], laid_out, sums, strip > first);
    }
    const int64_t there = ti_min(VL, s.c - t.block * VL) * taps;
    for (int64_t b = 0; b < t.results; b++) {
      const int64_t m0 = (t.r0 + b) * VL;
      float *const d = (float *)args[0] + ((chunk * s.g + t.group) * s.m + m0) * summands + t.block * VL * taps;
      FN(transpose_any)(d, summands, sums + b * VL * taps * VL, VL, ti_min(VL, s.m - m0), there);
    }
  }
  return TI_OK;
}
