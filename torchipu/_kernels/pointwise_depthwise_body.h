/* A convolution of one pixel and the depthwise one behind it: what the first makes never leaves the cache.
 *
 * Networks of inverted residuals widen images before they convolve each channel by itself, so that what lies between the
 * two is the largest of all. An item holds the rows of a few blocks that the windows of a strip of results reach, with the
 * zeros beside them; the next strip keeps the rows that it shares, and computes the others.
 */
#include "table/pointwise_depthwise.h"
#include "blocked_tile_body.h"
#include "depthwise_tile_body.h"

enum { FN(PIXELS_AT_A_TIME) = 66 };  /* whose channels of a chunk stay in a first-level cache */

/* What an item computes: `blocks` of channels from `first` on. */
typedef struct {
  const pointwise_depthwise_ints *p;
  const float *x, *w;               /* the image, and weights of the convolution of one pixel */
  int64_t first, blocks, columns, span;
  float *held;                      /* [block][span][columns][lanes] */
  const int32_t *from, *to;         /* of a pixel in the image and among those held */
  FN(blocked_ending) inner;
  FN(held_rows) rows;               /* that `inner` rounds */
} FN(widened);

/* Rows [row, end) of the image, which are held from `place` on. */
static void FN(widen_rows)(FN(widened) *t, int64_t row, int64_t end, int64_t place) {
  const blocked_window s = t->p->window;
  const int64_t channels = t->p->channels, blocks_in = ti_ceil(channels, VL), count = (end - row) * s.w;
  static const int32_t none = 0;
  FN(blocked_tile) tile = {.taps = &none, .num_taps = 1, .channel = 1, .w_block = channels * VL, .x_block = s.h * s.w * VL,
                           .y_block = t->span * t->columns * VL, .y = t->held + place * t->columns * VL};
  t->rows.row = row - place;
  for (int64_t k = 0; k < count; k += FN(PIXELS_AT_A_TIME)) {
    tile.from = t->from + k;
    tile.to = t->to + k;
    for (int64_t c0 = 0; c0 < blocks_in; c0 += t->p->chunk) {
      const int64_t last = ti_min(c0 + t->p->chunk, blocks_in);
      tile.blocks = ti_min(last, channels / VL) - c0;
      tile.rest = ti_min(last * VL, channels) - (c0 + tile.blocks) * VL;
      tile.accumulate = c0 > 0;
      tile.w = t->w + t->first * tile.w_block + c0 * VL * VL;
      tile.x = t->x + c0 * tile.x_block + row * s.w * VL;
      FN(add_tiles)(tile, t->blocks, ti_min(FN(PIXELS_AT_A_TIME), count - k), last == blocks_in ? &t->inner : NULL);
    }
  }
}

/* Holds rows [row, end), some of which may be outside of the image, from `place` on. */
static void FN(hold_rows)(FN(widened) *t, int64_t row, int64_t end, int64_t place) {
  const blocked_window s = t->p->window;
  const int64_t a = ti_min(end, ti_max(row, 0)), b = ti_max(a, ti_min(end, s.h)), floats = t->columns * VL;
  for (int64_t k = 0; k < t->blocks; k++) {
    float *const rows = t->held + (k * t->span + place - row) * floats;
    memset(rows + row * floats, 0, sizeof(float) * (size_t)((a - row) * floats));
    memset(rows + b * floats, 0, sizeof(float) * (size_t)((end - b) * floats));
    for (int64_t r = a; r < b; r++) {
      memset(rows + r * floats, 0, sizeof(float) * (size_t)(s.pw * VL));
      memset(rows + (r * t->columns + s.pw + s.w) * VL, 0, sizeof(float) * (size_t)(s.pw * VL));
    }
  }
  if (a < b) FN(widen_rows)(t, a, b, place + a - row);
}

/* Moves the last `kept` of `rows` that are held to the front. */
static void FN(keep_rows)(const FN(widened) *t, int64_t rows, int64_t kept) {
  const int64_t floats = t->columns * VL;
  for (int64_t k = 0; k < t->blocks; k++) {
    float *const held = t->held + k * t->span * floats;
    memmove(held, held + (rows - kept) * floats, sizeof(float) * (size_t)(kept * floats));
  }
}

/* Results of rows [r, r + count), the first of whose windows begins with the first row that is held. */
static void FN(convolve_strip)(const FN(widened) *t, const FN(blocked_ending) *ending, const float *w, float *y, int64_t r, int64_t count) {
  const blocked_window s = t->p->window;
  const int64_t floats = t->columns * VL, num_taps = s.kh * s.kw;
  for (int64_t k = 0; k < t->blocks; k++) {
    const FN(depthwise_taps) taps = {.w = w + (t->first + k) * num_taps * VL, .rows = s.kh, .columns = s.kw, .w_row = s.kw * VL,
                                     .row_step = floats, .column_step = VL, .step = s.sw * VL, .width = t->columns};
    const int64_t ends_here = !FN(ends_in_registers)(&s, ending), strip = ends_here ? FN(rows_at_once)(&s) : 1;
    for (int64_t i = 0; i < count; i += strip) {
      const int64_t out = ((t->first + k) * s.oh + r + i) * s.ow * VL, rows = ti_min(strip, count - i);
      FN(blocked_ending) e = *ending;
      if (e.first) e.first += (t->first + k) * VL;
      if (e.is_affine) { e.scale += (t->first + k) * VL; e.shift += (t->first + k) * VL; }
      FN(move_ending)(&e, out);
      for (int64_t row = 0; row < rows; row++)
        FN(slide_run)(t->held + (k * t->span + (i + row) * s.sh) * floats, &taps, &s, 0, &e, y + out + row * s.ow * VL);
      if (ends_here) FN(end_block)(&e, y + out, NULL, rows * s.ow, 0);
    }
  }
}

TI_KERNEL(pointwise_depthwise) {
  const pointwise_depthwise_ints *const p = (const pointwise_depthwise_ints *)ints;
  const blocked_window s = p->window;
  const int64_t blocks = ti_ceil(s.g, VL), blocks_in = ti_ceil(p->channels, VL), bands = ti_ceil(s.oh, p->rows), parts = ti_ceil(blocks, p->blocks);
  FN(widened) t = {.p = p, .w = (const float *)args[2], .columns = s.w + 2 * s.pw, .span = (p->strip - 1) * s.sh + s.kh, .held = (float *)scratch};
  int32_t *const from = (int32_t *)(t.held + p->blocks * t.span * t.columns * VL), *const to = from + t.span * s.w;
  char *const *const endings = args + 4 + FN(ending_operands)(p->inner_flags);
  (void)scalars;
  for (int64_t r = 0; r < t.span; r++)
    for (int64_t c = 0; c < s.w; c++) {
      from[r * s.w + c] = (int32_t)((r * s.w + c) * VL);
      to[r * s.w + c] = (int32_t)((r * t.columns + s.pw + c) * VL);
    }
  t.from = from; t.to = to;
  for (int64_t item = begin; item < end; item++) {
    const int64_t n = item / parts / bands, row0 = item / parts % bands * p->rows, last = ti_min(row0 + p->rows, s.oh);
    t.first = item % parts * p->blocks;
    t.blocks = ti_min(p->blocks, blocks - t.first);
    t.x = (const float *)args[1] + n * blocks_in * s.h * s.w * VL;
    t.inner = FN(begin_ending)(args + 4, p->inner_flags, p->inner_activation, blocks * VL, t.first * VL, t.held, s.g, s.h * s.w);
    t.rows = (FN(held_rows)){.plane = t.span * t.columns, .columns = t.columns, .width = s.w, .padding = s.pw,
                             .image = (uint32_t)n, .block = (uint32_t)t.first};
    t.inner.rounding.held = &t.rows;
    const int64_t image = n * blocks * s.oh * s.ow * VL;
    FN(blocked_ending) ending = FN(begin_ending)(endings, p->flags, p->activation, blocks * VL, 0, args[0], s.g, s.oh * s.ow);
    if (ending.added) ending.added += image;
    int64_t held = 0, behind = row0 * s.sh - s.ph;  /* rows that are held, and the one behind them */
    for (int64_t r = row0; r < last; r += p->strip) {
      const int64_t count = ti_min(p->strip, last - r), top = r * s.sh - s.ph, bottom = top + (count - 1) * s.sh + s.kh;
      const int64_t kept = ti_max(0, behind - top);
      FN(keep_rows)(&t, held, ti_min(kept, held));
      FN(hold_rows)(&t, top + kept, bottom, kept);
      behind = bottom;
      held = bottom - top;
      FN(convolve_strip)(&t, &ending, (const float *)args[3], (float *)args[0] + image, r, count);
    }
  }
  return TI_OK;
}
