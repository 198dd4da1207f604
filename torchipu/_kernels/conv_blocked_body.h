/* Convolutions over channels in blocks: each channel of a pixel is broadcast against vectors of results.
 *
 * Registers hold a few blocks of results of a few pixels. Pixels are found through tables of offsets, so that a tile may
 * span rows and images, and small images fill tiles as well as large ones do. Channels are summed in chunks, short enough
 * that weights and pixels stay in the first cache and that sums round no worse than those of eager PyTorch. Rows that
 * padding touches are laid out with their zeros, a chunk at a time; elsewhere the input is read where it lies.
 */
#include "table/conv_blocked.h"
#include "blocked_row_body.h"
#include "blocked_taps_body.h"
#include "blocked_tile_body.h"
#include "conv_ending_body.h"

/* What an item reads and writes. */
typedef struct {
  const conv_blocked_ints *p;
  int64_t blocks_in, blocks_out;       /* of a group */
  int64_t columns, span;               /* of a row that is laid out; rows of an image that are */
  int64_t n0, images, row0, rows, column0, width; /* where rows are laid out; columns of results */
  int64_t first, count;                /* pixels of the item, of all images; first of them where the input is read in place */
  int32_t *from, *to;                  /* of each pixel, relative to image n0 */
} FN(blocked_item);

/* Places of `count` pixels beside each other: `step` and `stride` floats apart. */
TI_INLINE void FN(place_run)(int32_t *from, int32_t *to, int64_t first, int64_t step, int64_t place, int64_t stride, int64_t count) {
  for (int64_t c = 0; c < count; c++) {
    from[c] = (int32_t)(first + c * step);
    to[c] = (int32_t)(place + c * stride);
  }
}

/* Where the pixels of an item lie: within what is laid out, or within the input, and within the results. */
static void FN(find_pixels)(FN(blocked_item) *t) {
  const conv_blocked_ints *const p = t->p;
  const blocked_window s = p->window;
  const blocked_target to = p->target;
  const int64_t plane = s.oh * s.ow, out = s.g * t->blocks_out * to.plane, in = p->apart * s.h * s.w, lanes = p->is_plain ? 1 : VL;
  int64_t k = 0;
  if (!p->pixels) {
    for (int64_t n = 0; n < t->images; n++)
      for (int64_t r = 0; r < t->rows; r++, k += t->width)
        FN(place_run)(t->from + k, t->to + k, (n * t->span + r * s.sh) * t->columns * lanes, s.sw * lanes,
                      (n * out + (t->row0 + r) * to.down + t->column0 * to.across) * VL, to.across * VL, t->width);
    return;
  }
  /* Where every pixel of an image is read and written, its rows are one. */
  const int is_whole = s.sw == 1 && s.sh * s.w == s.ow && to.down == s.ow * to.across;
  const int64_t width = is_whole ? plane : s.ow;
  for (int64_t n = 0, at = t->first % plane; k < t->count; n++, at = 0)
    for (int64_t run; at < plane && k < t->count; at += run, k += run) {
      const int64_t r = at / width, c = at % width;
      run = ti_min(width - c, t->count - k);
      FN(place_run)(t->from + k, t->to + k, (n * in + r * s.sh * s.w + c * s.sw) * VL, s.sw * VL,
                    (n * out + r * to.down + c * to.across) * VL, to.across * VL, run);
    }
}

/* Lays out the rows that an item needs of `count` channels, one channel after the other as they lie in a row-major image. */
static void FN(lay_planes)(const FN(blocked_item) *t, const float *x, int64_t group, int64_t first, int64_t count, float *d) {
  const blocked_window s = t->p->window;
  const int64_t pixels = s.h * s.w, left = t->column0 * s.sw - s.pw, lo = ti_min(ti_max(0, -left), t->columns), hi = ti_max(lo, ti_min(t->columns, s.w - left));
  for (int64_t c = first; c < first + count; c++)
    for (int64_t n = t->n0; n < t->n0 + t->images; n++)
      for (int64_t r = 0; r < t->span; r++, d += t->columns) {
        const int64_t row = t->row0 * s.sh - s.ph + r;
        if (row < 0 || row >= s.h) { memset(d, 0, sizeof(float) * (size_t)t->columns); continue; }
        memset(d, 0, sizeof(float) * (size_t)lo);
        memcpy(d + lo, x + ((n * s.g + group) * s.c + c) * pixels + row * s.w + left + lo, sizeof(float) * (size_t)(hi - lo));
        memset(d + hi, 0, sizeof(float) * (size_t)(t->columns - hi));
      }
}

/* Fetches the row of the next group into the second cache, where it waits while this group's rows are summed. */
TI_INLINE void FN(fetch_row)(const float *row, int64_t width) {
  for (int64_t i = 0; i < width * VL; i += 16) __builtin_prefetch(row + i, 0, 2);
}

/* Lays out the rows that an item needs of the blocks [first, first + count) of a group's channels. */
static void FN(lay_rows)(const FN(blocked_item) *t, const float *x, int64_t group, int64_t first, int64_t count, float *d) {
  const blocked_window s = t->p->window;
  const int64_t left = t->column0 * s.sw - s.pw, there = ti_min(ti_max(0, left), s.w);
  for (int64_t block = first; block < first + count; block++)
    for (int64_t n = t->n0; n < t->n0 + t->images; n++) {
      const float *const image = x + (n * t->p->apart + group * t->blocks_in + block) * s.h * s.w * VL;
      for (int64_t r = 0; r < t->span; r++, d += t->columns * VL) {
        const int64_t row = t->row0 * s.sh - s.ph + r;
        if (row < 0 || row >= s.h) { memset(d, 0, sizeof(float) * (size_t)(t->columns * VL)); continue; }
        FN(lay_row)(image + row * s.w * VL, 0, 0, VL, s.w, left, t->columns, d);
        if (t->blocks_in == 1 && s.g > 1) FN(fetch_row)(image + ((s.h + row) * s.w + there) * VL, ti_min(t->columns, s.w - there));
      }
    }
}

/* One item: its pixels, of the results [r0, r0 + results) of a group, in blocks. */
static void FN(convolve)(FN(blocked_item) *t, char *const *args, int64_t group, int64_t r0, int64_t results, const int32_t *taps,
                         float *laid_out) {
  const conv_blocked_ints *const p = t->p;
  const blocked_window s = p->window;
  const int64_t num_taps = s.kh * s.kw, in_place = p->pixels > 0, plane = p->target.plane * VL;
  const int64_t out = ((t->n0 * s.g + group) * t->blocks_out + r0) * plane + p->target.first * VL;
  const float *const x = (const float *)args[1], *const w = (const float *)args[2];
  FN(blocked_ending) ending = FN(begin_ending)(args + 3, p->flags, p->activation, s.g * t->blocks_out * VL, (group * t->blocks_out + r0) * VL,
                                               args[0], s.g * s.m, p->target.plane);
  FN(move_ending)(&ending, out);
  const int64_t channel = p->is_plain ? t->images * t->span * t->columns : 1;
  FN(blocked_tile) tile = {.channel = channel, .y = (float *)args[0] + out, .from = t->from, .to = t->to, .taps = taps, .num_taps = num_taps, .w_block = s.c * num_taps * VL, .y_block = plane,
                           .x_block = in_place ? s.h * s.w * VL : t->images * t->span * t->columns * VL};
  for (int64_t c0 = 0; c0 < t->blocks_in; c0 += p->chunk) {
    const int64_t end = ti_min(c0 + p->chunk, t->blocks_in);
    tile.blocks = p->is_plain ? 0 : ti_min(end, s.c / VL) - c0;
    tile.rest = ti_min(end * VL, s.c) - (c0 + tile.blocks) * VL;
    tile.accumulate = c0 > 0;
    tile.w = w + (group * t->blocks_out + r0) * tile.w_block + c0 * VL * num_taps * VL;
    if (in_place) tile.x = x + (t->n0 * p->apart + group * t->blocks_in + c0) * tile.x_block;
    else {
      if (p->is_plain) FN(lay_planes)(t, x, group, c0 * VL, tile.rest, laid_out);
      else FN(lay_rows)(t, x, group, c0, end - c0, laid_out);
      tile.x = laid_out;
    }
    FN(add_tiles)(tile, results, t->count, end == t->blocks_in ? &ending : NULL);
  }
}

TI_KERNEL(conv_blocked) {
  (void)scalars;
  const conv_blocked_ints *const p = (const conv_blocked_ints *)ints;
  const blocked_window s = p->window;
  FN(blocked_item) t = {.p = p, .blocks_in = ti_ceil(s.c, VL), .blocks_out = ti_ceil(s.m, VL)};
  t.columns = p->pixels ? s.w : (p->columns - 1) * s.sw + (s.kw - 1) * s.dw + 1;
  const int64_t plane = s.oh * s.ow, most = p->pixels ? p->pixels : p->images * p->rows * p->columns;
  const int64_t down = ti_ceil(s.oh, ti_max(1, p->rows)), across = ti_ceil(s.ow, ti_max(1, p->columns)), parts = ti_ceil(t.blocks_out, p->results);
  t.from = (int32_t *)scratch;
  t.to = t.from + most;
  int32_t *const taps = t.to + most;
  float *const laid_out = (float *)(taps + ti_ceil(s.kh * s.kw + 2 * most, 16) * 16 - 2 * most);
  for (int64_t k = 0; k < s.kh * s.kw; k++) taps[k] = (int32_t)((k / s.kw * s.dh * t.columns + k % s.kw * s.dw) * (p->is_plain ? 1 : VL));
  for (int64_t item = begin, known = -1; item < end; item++) {
    const int64_t part = item % parts, group = item / parts % s.g, block = item / (parts * s.g);
    if (p->pixels) {
      t.first = block * p->pixels;
      t.n0 = t.first / plane;
      t.count = ti_min(p->pixels, s.n * plane - t.first);
    } else {
      t.n0 = block / across / down * p->images;
      t.images = ti_min(p->images, s.n - t.n0);
      t.row0 = block / across % down * p->rows;
      t.rows = ti_min(p->rows, s.oh - t.row0);
      t.column0 = block % across * p->columns;
      t.width = ti_min(p->columns, s.ow - t.column0);
      t.span = (t.rows - 1) * s.sh + (s.kh - 1) * s.dh + 1;
      t.count = t.images * t.rows * t.width;
    }
    if (block != known) FN(find_pixels)(&t);
    known = block;
    FN(convolve)(&t, args, group, part * p->results, ti_min(p->results, t.blocks_out - part * p->results), taps, laid_out);
  }
  return TI_OK;
}

/* Weights of `count` channels from w on, where all taps adjoin; channels do where `channel` is their number. */
static void FN(pack_whole)(const pack_blocked_ints *p, const float *w, int64_t lanes, int64_t count, float *y) {
  enum { PIECE = 64 };
  const int64_t taps = p->kh * p->kw, adjoin = p->channel == taps && p->across > 0, length = adjoin ? count * taps : taps;
  float piece[PIECE * VL];
  for (int64_t c = 0; c < (adjoin ? 1 : count); c++) {
    if (p->row == taps) FN(fetch_taps)(w + (c + FN(TAPS_AHEAD)) * p->channel, taps * VL);
    for (int64_t first = 0; first < length; first += PIECE) {
      const int64_t size = ti_min(PIECE, length - first);
      FN(lay_taps)(w + c * p->channel + first, p->row, lanes, size, piece);
      for (int64_t k = 0; k < size; k++) {
        const int64_t tap = (first + k) % taps, at = c + (first + k) / taps;
        FN(store)(y + ((p->across > 0 ? tap : taps - 1 - tap) * count + at) * VL, FN(load)(piece + k * VL));
      }
    }
  }
}

TI_KERNEL(pack_blocked) {
  const pack_blocked_ints *const p = (const pack_blocked_ints *)ints;
  const int64_t blocks = ti_ceil(p->m, VL), taps = p->kh * p->kw;
  const int64_t is_whole = (p->across == 1 && p->down == p->kw) || (p->across == -1 && p->down == -p->kw);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t m0 = item % blocks * VL, lanes = ti_min(VL, p->m - m0);
    const float *const w = (const float *)args[1] + item / blocks * p->group + m0 * p->row + p->first;
    float *y = (float *)args[0] + item * p->c * taps * VL;
    for (int64_t c0 = 0; c0 < p->c; c0 += VL) {
      const int64_t count = ti_min(VL, p->c - c0);
      const float *const from = w + c0 * p->channel;
      if (is_whole) {
        FN(pack_whole)(p, from + (p->across < 0 ? 1 - taps : 0), lanes, count, y);
        y += count * taps * VL;
        continue;
      }
      for (int64_t tap = 0; tap < taps; tap++) {
        const float *const at = from + tap / p->kw * p->down + tap % p->kw * p->across;
        if (p->channel == 1) FN(lay_taps)(at, p->row, lanes, count, y); /* channels adjoin: they come last */
        else for (int64_t c = 0; c < count; c++) {
          if (p->row == 1) FN(store)(y + c * VL, FN(load_part)(at + c * p->channel, lanes));
          else FN(lay_taps)(at + c * p->channel, p->row, lanes, 1, y + c * VL);
        }
        y += count * VL;
      }
    }
  }
  return TI_OK;
}

TI_KERNEL(fold_blocked) {
  const fold_blocked_ints *const p = (const fold_blocked_ints *)ints;
  const int64_t lanes = ti_ceil(p->channels, VL) * VL;
  float *const y = (float *)args[0];
  (void)begin; (void)end; (void)scratch;
  memset(y, 0, sizeof(float) * 2 * (size_t)lanes);
  FN(find_affine)(args + 1, (int)p->flags, ((const conv_product_scalars *)scalars)->epsilon, 0, p->channels, y, y + lanes);
  if (p->flags & TI_CONV_ENDING_HAS_FACTOR) {
    const int64_t others = __builtin_popcountll((uint64_t)p->flags & (TI_CONV_ENDING_HAS_BIAS | TI_CONV_ENDING_HAS_NORM | TI_CONV_ENDING_HAS_NORM_WEIGHT | TI_CONV_ENDING_HAS_NORM_BIAS));
    const float *const factor = (const float *)args[1 + others + (p->flags & TI_CONV_ENDING_HAS_NORM ? 1 : 0)];
    for (int64_t i = 0; i < p->channels; i++) { y[i] *= factor[i]; y[lanes + i] *= factor[i]; }
  }
  return TI_OK;
}
