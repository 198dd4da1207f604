/* Convolutions whose groups have a single channel, over channels in blocks: each lane is a group of its own.
 *
 * Windows within the image read it where it lies, and those at its sides the taps that are within. Row-major images, and
 * such whose windows mostly reach over a side, are laid out first with their zeros.
 */
#include "table/depthwise_blocked.h"
#include "blocked_row_body.h"
#include "blocked_ending_body.h"
#include "depthwise_tile_body.h"

/* Results of np pixels of a row, `step` floats of the input apart. */
TI_INLINE void FN(depthwise_sums)(const int np, const int64_t step, const float *x, const FN(depthwise_taps) *t, float *y) {
  VF sum[FN(ACROSS)];
#pragma GCC unroll 8
  for (int j = 0; j < np; j++) sum[j] = FN(set)(0);
  for (int64_t r = 0; r < t->rows; r++) {
    const float *p = x + r * t->row_step, *w = t->w + r * t->w_row;
    for (int64_t c = 0; c < t->columns; c++, p += t->column_step, w += t->w_column) {
      const VF weight = FN(load)(w);
#pragma GCC unroll 8
      for (int j = 0; j < np; j++) sum[j] = FN(fma)(FN(load)(p + j * step), weight, sum[j]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < np; j++) FN(store)(y + j * t->to, sum[j]);
}
#undef TI_ACROSS
#define TI_ACROSS(P_) \
  static __attribute__((noinline)) void FN(depthwise_##P_)(const float *x, const FN(depthwise_taps) *t, float *y) { \
    if (t->step == VL) FN(depthwise_sums)(P_, VL, x, t, y); \
    else if (t->step == 2 * VL) FN(depthwise_sums)(P_, 2 * VL, x, t, y); \
    else FN(depthwise_sums)(P_, t->step, x, t, y); }
TI_ACROSS(1) TI_ACROSS(2) TI_ACROSS(3) TI_ACROSS(4) TI_ACROSS(5) TI_ACROSS(6) TI_ACROSS(7) TI_ACROSS(8)
static void (*const FN(across_table)[FN(ACROSS)])(const float *, const FN(depthwise_taps) *, float *) = {
  FN(depthwise_1), FN(depthwise_2), FN(depthwise_3), FN(depthwise_4), FN(depthwise_5), FN(depthwise_6), FN(depthwise_7), FN(depthwise_8),
};

/* Pixels [first, end) of a row, whose windows all have the same taps; x is where that of pixel 0 begins. */
static void FN(depthwise_run)(const float *x, const FN(depthwise_taps) *t, int64_t first, int64_t end, float *y) {
  if (first == end) return;
  const int64_t tiles = ti_ceil(end - first, FN(ACROSS));
  const ti_pieces pixels = ti_pieces_of(end - first, tiles);
  for (int64_t i = 0, c0 = first; i < tiles; c0 += ti_piece(pixels, i++))
    FN(across_table)[ti_piece(pixels, i) - 1](x + c0 * t->step, t, y + c0 * t->to);
}

/* Pixels [first, end) whose windows reach over a side of an image of `width` pixels. */
static void FN(depthwise_side)(const float *x, FN(depthwise_taps) t, const blocked_window *s, int64_t first, int64_t end, float *y) {
  const float *const w = t.w;
  for (int64_t c = first; c < end; c++) {
    const int64_t column = c * s->sw - s->pw;
    const int64_t lo = ti_min(s->kw, column < 0 ? ti_ceil(-column, s->dw) : 0), hi = ti_min(s->kw, column < s->w ? ti_ceil(s->w - column, s->dw) : 0);
    t.w = w + lo * VL;
    t.columns = ti_max(0, hi - lo);
    FN(depthwise_1)(x + c * t.step + lo * t.column_step, &t, y + c * VL);
  }
}

/* One row of results out of an image in blocks, ended where that is done in registers. */
static void FN(depthwise_row)(const float *image, const blocked_window *s, int64_t row, const float *w, const FN(blocked_ending) *e, float *y) {
  const int64_t top = row * s->sh - s->ph;
  const int64_t r0 = ti_min(s->kh, top < 0 ? ti_ceil(-top, s->dh) : 0), r1 = ti_max(r0, ti_min(s->kh, top < s->h ? ti_ceil(s->h - top, s->dh) : 0));
  const FN(depthwise_taps) t = {.w = w + r0 * s->kw * VL, .rows = r1 - r0, .columns = s->kw, .w_row = s->kw * VL, .w_column = VL, .row_step = s->dh * s->w * VL,
                                .column_step = s->dw * VL, .step = s->sw * VL, .width = s->w, .to = VL};
  const float *const first_row = image + (top + r0 * s->dh) * s->w * VL, *const x = first_row - s->pw * VL;
  if (FN(slides)(s)) { FN(slide_run)(first_row, &t, s, s->pw, e, y); return; }
  const int64_t last = s->w - 1 - (s->kw - 1) * s->dw + s->pw;  /* where the last window within the image begins */
  const int64_t end = last < 0 ? 0 : ti_min(s->ow, last / s->sw + 1), first = ti_min(end, ti_ceil(s->pw, s->sw));
  FN(depthwise_side)(x, t, s, 0, first, y);
  FN(depthwise_run)(x, &t, first, end, y);
  FN(depthwise_side)(x, t, s, end, s->ow, y);
}

/* Lays out `span` rows of an image, those that results from row0 on need. */
static void FN(lay_image)(const float *x, int is_plain, const blocked_window *s, int64_t row0, int64_t span, int64_t groups, int64_t columns,
                          float *d) {
  for (int64_t r = 0; r < span; r++, d += columns * VL) {
    const int64_t row = row0 * s->sh - s->ph + r;
    if (row < 0 || row >= s->h) memset(d, 0, sizeof(float) * (size_t)(columns * VL));
    else FN(lay_row)(x + row * s->w * (is_plain ? 1 : VL), is_plain, s->h * s->w, groups, s->w, -s->pw, columns, d);
  }
}

TI_KERNEL(depthwise_blocked) {
  const depthwise_blocked_ints *const p = (const depthwise_blocked_ints *)ints;
  const blocked_window s = p->window;
  const int64_t blocks = ti_ceil(s.g, VL), parts = ti_ceil(s.oh, p->rows), num_taps = s.kh * s.kw, pixels = s.h * s.w;
  const int64_t columns = (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1;
  float *const laid_out = (float *)scratch;
  FN(depthwise_taps) all = {.rows = s.kh, .columns = s.kw, .w_row = s.kw * VL, .w_column = VL, .row_step = s.dh * columns * VL, .column_step = s.dw * VL,
                            .step = s.sw * VL, .width = columns, .to = VL};
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t row0 = item % parts * p->rows, rows = ti_min(p->rows, s.oh - row0), n = item / parts / blocks, block = item / parts % blocks;
    const int64_t groups = ti_min(VL, s.g - block * VL);
    const float *const x = (const float *)args[1] + (p->is_plain ? (n * s.g + block * VL) * pixels : (n * blocks + block) * pixels * VL);
    const float *const w = (const float *)args[2] + block * num_taps * VL;
    const int64_t out = ((n * blocks + block) * s.oh + row0) * s.ow * VL;
    FN(blocked_ending) ending = FN(begin_ending)(args + 3, p->flags, p->activation, blocks * VL, block * VL, args[0], s.g, s.oh * s.ow);
    FN(move_ending)(&ending, out);
    if (p->lays_out) FN(lay_image)(x, (int)p->is_plain, &s, row0, (rows - 1) * s.sh + (s.kh - 1) * s.dh + 1, groups, columns, laid_out);
    all.w = w;
    const int64_t strip = FN(rows_at_once)(&s), ends_here = !FN(ends_in_registers)(&s, &ending);
    float *y = (float *)args[0] + out;
    for (int64_t r = 0; r < rows; r++, y += s.ow * VL) {
      const float *const row = laid_out + r * s.sh * columns * VL;
      if (!p->lays_out) FN(depthwise_row)(x, &s, row0 + r, w, &ending, y);
      else if (FN(slides)(&s)) FN(slide_run)(row, &all, &s, 0, &ending, y);
      else FN(depthwise_run)(row, &all, 0, s.ow, y);
      const int64_t done = r % strip + 1;
      if (!ends_here) {
        FN(move_ending)(&ending, s.ow * VL);
      } else if (done == strip || r + 1 == rows) {
        FN(end_block)(&ending, y - (done - 1) * s.ow * VL, NULL, done * s.ow, 0);
        FN(move_ending)(&ending, done * s.ow * VL);
      }
    }
  }
  return TI_OK;
}

/* The taps of a dimension that meet results in the pixels of one phase of the stride, `tap_step` taps apart; the first of them
 * meets result `first` in pixel 0 of the phase, and each next one the result `step` before. */
typedef struct { int64_t count, tap, tap_step, first, step; } FN(phase);

/* Those of each phase of a stride. */
static void FN(find_phases)(int64_t taps, int64_t stride, int64_t padding, int64_t dilation, FN(phase) *phases) {
  int64_t tap_step = 1;
  while (tap_step * dilation % stride) tap_step++;
  for (int64_t q = 0; q < stride; q++) {
    int64_t tap = 0;
    while (tap < taps && (q + padding - tap * dilation) % stride) tap++;
    phases[q] = (FN(phase)){ti_ceil(taps - tap, tap_step), tap, tap_step, (q + padding - tap * dilation) / stride, tap_step * dilation / stride};
  }
}

/* How many of them meet one of `results` results in pixel j of a phase, from tap `lo` on. */
static inline int64_t FN(phase_taps)(const FN(phase) *p, int64_t j, int64_t results, int64_t *lo) {
  const int64_t at = p->first + j, beyond = at - results + 1;
  *lo = beyond > 0 ? ti_ceil(beyond, p->step) : 0;
  return ti_max(0, ti_min(p->count, at < 0 ? 0 : at / p->step + 1) - *lo);
}

/* One row of the gradient of the input, phase by phase; `dy` and `w` are those of a block. */
static void FN(input_row)(const float *dy, const blocked_window *s, const FN(phase) *down, const FN(phase) *across, int64_t row, const float *w, float *y) {
  const FN(phase) *const r = down + row % s->sh;
  int64_t r0;
  FN(depthwise_taps) t = {.rows = FN(phase_taps)(r, row / s->sh, s->oh, &r0), .w_row = r->tap_step * s->kw * VL, .row_step = -r->step * s->ow * VL,
                          .step = VL, .to = s->sw * VL};
  dy += (r->first + row / s->sh - r0 * r->step) * s->ow * VL;
  w += (r->tap + r0 * r->tap_step) * s->kw * VL;
  for (int64_t q = 0; q < ti_min(s->sw, s->w); q++) {
    const FN(phase) *const c = across + q;
    const int64_t count = ti_ceil(s->w - q, s->sw);
    const int64_t lo = c->count ? ti_min(count, ti_max(0, (c->count - 1) * c->step - c->first)) : 0;
    const int64_t hi = c->count ? ti_max(lo, ti_min(count, s->ow - c->first)) : count;
    t.w_column = c->tap_step * VL, t.column_step = -c->step * VL;
    for (int64_t j = 0; j < count; j++) {
      if (j == lo) {  /* all taps */
        t.w = w + c->tap * VL, t.columns = c->count;
        FN(depthwise_run)(dy + c->first * VL, &t, lo, hi, y + q * VL);
        j = hi;
        if (j == count) break;
      }
      int64_t c0;
      t.columns = FN(phase_taps)(c, j, s->ow, &c0);
      t.w = w + (c->tap + c0 * c->tap_step) * VL;
      FN(depthwise_1)(dy + (c->first + j - c0 * c->step) * VL, &t, y + q * VL + j * t.to);
    }
  }
}

TI_KERNEL(depthwise_input_blocked) {
  const depthwise_input_blocked_ints *const p = (const depthwise_input_blocked_ints *)ints;
  const blocked_window s = p->window;
  const int64_t blocks = ti_ceil(s.g, VL), parts = ti_ceil(s.h, p->rows), strip = ti_max(1, FN(ENDED_PIXELS) / s.w);
  FN(phase) *const down = (FN(phase) *)scratch, *const across = down + s.sh;
  FN(find_phases)(s.kh, s.sh, s.ph, s.dh, down), FN(find_phases)(s.kw, s.sw, s.pw, s.dw, across);
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t row0 = item % parts * p->rows, row1 = ti_min(s.h, row0 + p->rows), plane = item / parts, block = plane % blocks;
    FN(blocked_ending) ending = FN(begin_ending)(args + 3, p->flags, TI_ACTIVATION_NONE, blocks * VL, block * VL, args[0], s.g, s.h * s.w);
    FN(move_ending)(&ending, (plane * s.h + row0) * s.w * VL);
    for (int64_t row = row0; row < row1; row += strip) {
      const int64_t rows = ti_min(strip, row1 - row);
      float *const y = (float *)args[0] + (plane * s.h + row) * s.w * VL;
      for (int64_t r = 0; r < rows; r++)
        FN(input_row)((const float *)args[1] + plane * s.oh * s.ow * VL, &s, down, across, row + r, (const float *)args[2] + block * s.kh * s.kw * VL, y + r * s.w * VL);
      if (p->flags) FN(end_block)(&ending, y, NULL, rows * s.w, 0);
      FN(move_ending)(&ending, rows * s.w * VL);
    }
  }
  return TI_OK;
}
