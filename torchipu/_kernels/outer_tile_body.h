/* Sums over pixels of the products of a few channels with a few blocks of results, which registers hold. */
#include "registers_body.h"

enum { FN(OUTER_CHANNELS) = VL / 2, FN(OUTER_BLOCKS) = 3 };

typedef struct {
  const float *x, *dy;                          /* first channel, first block, of the first pixel */
  float *c;
  ptrdiff_t x_image, x_row, x_step;             /* from an image, a row, a pixel to the next */
  ptrdiff_t dy_image, dy_row, dy_block;         /* pixels adjoin */
  ptrdiff_t c_channel, c_block;
  int64_t images, rows, columns;
  int accumulate;
} FN(outer_tile);

TI_INLINE void FN(outer_sums)(const int nb, const FN(outer_tile) *t) {
  VF sum[FN(OUTER_CHANNELS) * FN(OUTER_BLOCKS)];
  const ptrdiff_t step = t->x_step, dy_block = t->dy_block;
  const int64_t columns = t->columns;
#pragma GCC unroll 24
  for (int i = 0; i < nb * FN(OUTER_CHANNELS); i++) sum[i] = FN(set)(0);
  for (int64_t n = 0; n < t->images; n++)
    for (int64_t r = 0; r < t->rows; r++) {
      const float *x = t->x + n * t->x_image + r * t->x_row, *dy = t->dy + n * t->dy_image + r * t->dy_row;
#pragma GCC unroll 1
      for (int64_t c = 0; c < columns; c++, x += step, dy += VL) {
        VF d[FN(OUTER_BLOCKS)];
#pragma GCC unroll 3
        for (int b = 0; b < nb; b++) d[b] = FN(load)(dy + b * dy_block);
#pragma GCC unroll 8
        for (int j = 0; j < FN(OUTER_CHANNELS); j++) {
          if (nb == 1) {
            FN(add_product_of)(&sum[j], x + j, d[0]);
            continue;
          }
          const VF v = FN(broadcast)(x + j);
#pragma GCC unroll 3
          for (int b = 0; b < nb; b++) FN(add_product)(&sum[j * nb + b], v, d[b]);
        }
      }
    }
#pragma GCC unroll 8
  for (int j = 0; j < FN(OUTER_CHANNELS); j++)
#pragma GCC unroll 3
    for (int b = 0; b < nb; b++) {
      float *const c = t->c + j * t->c_channel + b * t->c_block;
      if (t->accumulate) sum[j * nb + b] += FN(load)(c);
      FN(store)(c, sum[j * nb + b]);
    }
}
static __attribute__((noinline)) void FN(outer_1)(const FN(outer_tile) *t) { FN(outer_sums)(1, t); }
static __attribute__((noinline)) void FN(outer_2)(const FN(outer_tile) *t) { FN(outer_sums)(2, t); }
static __attribute__((noinline)) void FN(outer_3)(const FN(outer_tile) *t) { FN(outer_sums)(3, t); }

/* The products of `blocks` blocks, at most OUTER_BLOCKS. */
TI_INLINE void FN(add_outer)(const FN(outer_tile) *t, int64_t blocks) {
  if (blocks == 3) FN(outer_3)(t);
  else if (blocks == 2) FN(outer_2)(t);
  else FN(outer_1)(t);
}
