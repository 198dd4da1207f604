/* Planes of pixels brought into blocks of channels, and back; table/blocked_layout.py says what the kernels take. */
#include "table/blocked_layout.h"
#include "transpose_body.h"
#include "transpose_any_body.h"

TI_KERNEL(vector_lanes) {
  (void)ints; (void)scalars; (void)begin; (void)end; (void)scratch;
  *(int64_t *)args[0] = VL;
  return TI_OK;
}

TI_KERNEL(to_blocked) {
  const blocked_layout_ints *const p = (const blocked_layout_ints *)ints;
  const int64_t blocks = ti_ceil(p->channels, VL), parts = ti_ceil(p->pixels, p->part);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % parts * p->part, block = item / parts % blocks, n = item / (parts * blocks);
    const float *const x = (const float *)args[1] + (n * p->channels + block * VL) * p->pixels + first;
    float *const y = (float *)args[0] + ((n * blocks + block) * p->pixels + first) * VL;
    FN(transpose_any)(y, VL, x, p->pixels, ti_min(p->part, p->pixels - first), ti_min(VL, p->channels - block * VL));
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
    FN(transpose_any)(y, p->pixels, x, VL, ti_min(VL, p->channels - block * VL), ti_min(p->part, p->pixels - first));
  }
  return TI_OK;
}
