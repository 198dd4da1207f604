/* Sums of a few blocks of results of a few pixels, which registers hold. */
#include "blocked_ending_body.h"

/* The most blocks of a tile, and the most pixels beside so many blocks. */
#if VL == 16
enum { FN(MOST_BLOCKS) = 4, FN(MOST_PIXELS) = 12 };
static const int FN(PIXELS)[] = {0, 12, 12, 8, 6};
#else
enum { FN(MOST_BLOCKS) = 2, FN(MOST_PIXELS) = 10 };
static const int FN(PIXELS)[] = {0, 10, 6};
#endif

typedef struct {
  const float *w, *x;
  float *y;
  const int32_t *from, *to, *taps;  /* where pixels begin in x and go in y, and what a tap adds to the former */
  ptrdiff_t w_block, x_block, y_block;
  int64_t blocks, rest, num_taps;  /* blocks of channels, and channels that come after them one by one */
  int64_t channel;                 /* floats of x from one of the latter to the next */
  int accumulate;
  const FN(blocked_ending) *ending;  /* applied to the sums in registers; NULL for none */
} FN(blocked_tile);

/* By blocks, then by pixels; blocked_tiles_body.h defines it. */
extern TI_SHARED void (*const FN(blocked_table)[FN(MOST_BLOCKS)][FN(MOST_PIXELS)])(const FN(blocked_tile) *);

/* Fetches what is added to pixels into the second cache, while their sums are made of what the first one has. */
static void FN(fetch_pixels)(const float *x, const int32_t *at, int64_t count, int64_t blocks, ptrdiff_t block) {
  for (int64_t b = 0; b < blocks; b++, x += block)
    for (int64_t i = 0; i < count; i++) __builtin_prefetch(x + at[i], 0, 2);
}

/* Sums of `results` blocks of `count` pixels; with an ending they are ended. */
static void FN(add_tiles)(FN(blocked_tile) tile, int64_t results, int64_t count, const FN(blocked_ending) *ending) {
  const int64_t across = ti_ceil(results, FN(MOST_BLOCKS));
  const ti_pieces blocks = ti_pieces_of(results, across);
  const float *const w = tile.w;
  const int32_t *const from = tile.from, *const to = tile.to;
  float *const y = tile.y;
  for (int64_t a = 0, b0 = 0; a < across; b0 += ti_piece(blocks, a++)) {
    const int nb = ti_piece(blocks, a);
    const int64_t tiles = ti_ceil(count, FN(PIXELS)[nb]);
    const ti_pieces pixels = ti_pieces_of(count, tiles);
    FN(blocked_ending) e = {0};
    if (ending) {
      e = *ending;
      if (e.first) e.first += b0 * VL;
      if (e.is_affine) { e.scale += b0 * VL; e.shift += b0 * VL; }
      FN(move_ending)(&e, b0 * tile.y_block);
      if (e.added) FN(fetch_pixels)(e.added, to, count, nb, tile.y_block);
    }
    tile.ending = ending && FN(is_short)(&e) ? &e : NULL;
    tile.w = w + b0 * tile.w_block;
    tile.y = y + b0 * tile.y_block;
    tile.from = from;
    tile.to = to;
    for (int64_t i = 0; i < tiles; i++) {
      const int np = ti_piece(pixels, i);
      FN(blocked_table)[nb - 1][np - 1](&tile);
      tile.from += np;
      tile.to += np;
    }
    for (int64_t b = 0; ending && !tile.ending && b < nb; b++) {
      FN(end_block)(&e, tile.y + b * tile.y_block, to, count, b);
      FN(move_ending)(&e, tile.y_block);
    }
  }
}
