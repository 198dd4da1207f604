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

/* Copies `lanes` lanes of each pixel. */
TI_INLINE void FN(move_lanes)(float *y, const float *x, int64_t lanes, int64_t pixels) {
  for (int64_t i = 0; i < pixels; i++) FN(store_part)(y + i * VL, FN(load_part)(x + i * VL, lanes), lanes);
}

TI_KERNEL(move_blocked) {
  const move_blocked_ints *const p = (const move_blocked_ints *)ints;
  const int64_t first_block = p->target / VL, parts = ti_ceil(p->pixels, p->part);
  const int64_t blocks = ti_ceil(p->target + p->channels, VL) - first_block;
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t pixel = item % parts * p->part, block = first_block + item / parts % blocks, n = item / (parts * blocks);
    const int64_t pixels = ti_min(p->part, p->pixels - pixel);
    const int64_t first = ti_max(p->target, block * VL), last = ti_min(p->target + p->channels, (block + 1) * VL);
    /* Two blocks of the source at most have the channels of one of the target. */
    for (int64_t channel = first, count; channel < last; channel += count) {
      const int64_t from = channel - p->target + p->source;
      const float *const x = (const float *)args[1] + ((n * p->x_blocks + from / VL) * p->pixels + pixel) * VL;
      float *const y = (float *)args[0] + ((n * p->y_blocks + block) * p->pixels + pixel) * VL;
      count = ti_min(last - channel, VL - from % VL);
      if (count == VL) memcpy(y, x, sizeof(float) * (size_t)(pixels * VL));
      else FN(move_lanes)(y + channel % VL, x + from % VL, count, pixels);
    }
  }
  return TI_OK;
}
