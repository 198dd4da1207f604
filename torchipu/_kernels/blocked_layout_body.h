/* Planes of pixels brought into blocks of channels, and back; table/blocked_layout.py says what the kernels take. */
#include "table/blocked_layout.h"
#include "transpose_body.h"

TI_KERNEL(vector_lanes) {
  (void)ints; (void)scalars; (void)begin; (void)end; (void)scratch;
  *(int64_t *)args[0] = VL;
  return TI_OK;
}

/* Rows and columns that fill no tile, one by one. */
static void FN(transpose_rest)(float *d, int64_t ds, const float *s, int64_t ss, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) d[i * ds + j] = s[j * ss + i];
}

/* d[rows][columns] = the transpose of s[columns][rows]. */
static void FN(transpose_block)(float *d, int64_t ds, const float *s, int64_t ss, int64_t rows, int64_t columns) {
  const int64_t whole = rows / 8 * 8, across = columns / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    for (int64_t j = 0; j < across; j += 8) FN(transpose8)(d + i * ds + j, ds, s + j * ss + i, ss);
    FN(transpose_rest)(d + i * ds + across, ds, s + across * ss + i, ss, 8, columns - across);
  }
  FN(transpose_rest)(d + whole * ds, ds, s + whole, ss, rows - whole, columns);
}

TI_KERNEL(to_blocked) {
  const blocked_layout_ints *const p = (const blocked_layout_ints *)ints;
  const int64_t blocks = ti_ceil(p->channels, VL), parts = ti_ceil(p->pixels, p->part);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % parts * p->part, block = item / parts % blocks, n = item / (parts * blocks);
    const float *const x = (const float *)args[1] + (n * p->channels + block * VL) * p->pixels + first;
    float *const y = (float *)args[0] + ((n * blocks + block) * p->pixels + first) * VL;
    FN(transpose_block)(y, VL, x, p->pixels, ti_min(p->part, p->pixels - first), ti_min(VL, p->channels - block * VL));
  }
  return TI_OK;
}

TI_KERNEL(from_blocked) {
  const blocked_layout_ints *const p = (const blocked_layout_ints *)ints;
  const int64_t blocks = ti_ceil(p->channels, VL), parts = ti_ceil(p->pixels, p->part);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % parts * p->part, block = item / parts % blocks, n = item / (parts * blocks);
    const float *const x = (const float *)args[1] + ((n * blocks + block) * p->pixels + first) * VL;
    float *const y = (float *)args[0] + (n * p->channels + block * VL) * p->pixels + first;
    FN(transpose_block)(y, p->pixels, x, VL, ti_min(VL, p->channels - block * VL), ti_min(p->part, p->pixels - first));
  }
  return TI_OK;
}
