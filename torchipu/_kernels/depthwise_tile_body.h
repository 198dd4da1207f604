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
  int64_t rows, columns, w_row, w_column, row_step, column_step, step;
  int64_t width;  /* columns of the input; windows of `slide_run` may reach over its sides */
  int64_t to;     /* from a result to the next; those of `slide_run` adjoin */
} FN(depthwise_taps);

/* Pixels of a row from `to` floats on, whose windows begin in a column. */
typedef void (*FN(slider))(const float *, int64_t, const FN(depthwise_taps) *, const FN(blocked_ending) *, ptrdiff_t to, float *);
/* By columns of the window, stride and pixels; depthwise_tiles_body.h defines it. */
extern TI_SHARED const FN(slider) FN(slide_table)[3][2][FN(ACROSS)];

/* Whether windows are among those. */
static inline int FN(slides)(const blocked_window *s) {
  return (s->kw == 3 || s->kw == 5 || s->kw == 7) && s->sw <= 2 && s->dw == 1;
}

/* Whether the sums of such windows are ended in registers; else whoever has them summed ends them. */
static inline int FN(ends_in_registers)(const blocked_window *s, const FN(blocked_ending) *e) { return FN(slides)(s) && FN(is_short)(e); }

enum { FN(ENDED_PIXELS) = 64 };  /* that are summed before they are ended elsewhere than in registers: they stay in a first-level cache */
static inline int64_t FN(rows_at_once)(const blocked_window *s) { return ti_max(1, FN(ENDED_PIXELS) / ti_max(1, s->ow)); }

/* A row of results, ended where that is done in registers; `x` is where column 0 of the first row of taps lies. */
static void FN(slide_run)(const float *x, const FN(depthwise_taps) *t, const blocked_window *s, int64_t padding, const FN(blocked_ending) *e,
                          float *y) {
  const FN(slider) *const sliders = FN(slide_table)[s->kw / 2 - 1][s->sw - 1];
  const FN(blocked_ending) *const in_registers = FN(is_short)(e) ? e : NULL;
  const int64_t tiles = ti_ceil(s->ow, FN(ACROSS));
  const ti_pieces pixels = ti_pieces_of(s->ow, tiles);
  for (int64_t i = 0, c0 = 0; i < tiles; c0 += ti_piece(pixels, i++)) {
    const int64_t column = c0 * s->sw - padding;
    sliders[ti_piece(pixels, i) - 1](x + column * VL, column, t, in_registers, c0 * VL, y);
  }
}
