/* Normalisation of each pixel over its channels, which lie in blocks. */
#include "table/layer_norm_blocked.h"

enum { FN(PIXELS_BESIDE) = 4 };  /* normalised together: their sums do not wait for each other */

/* What is the same for all pixels. */
typedef struct {
  int64_t blocks, plane;       /* floats from a block to the next */
  VI last;                     /* which lanes of the last block hold a channel */
  const float *scale, *shift;  /* of all lanes of the blocks */
  float channels, epsilon;
} FN(normalised);

/* The vector of block b; lanes without a channel are 0. */
TI_INLINE VF FN(channels_of)(const FN(normalised) *t, const float *x, int64_t b) {
  const VF v = FN(load)(x + b * t->plane);
  return b + 1 < t->blocks ? v : (VF)((VI)v & t->last);
}

TI_INLINE void FN(normalise_beside)(const int np, const FN(normalised) *t, const float *x, float *y) {
  VF sum[FN(PIXELS_BESIDE)], mean[FN(PIXELS_BESIDE)], factor[FN(PIXELS_BESIDE)];
#pragma GCC unroll 4
  for (int j = 0; j < np; j++) sum[j] = FN(set)(0);
  for (int64_t b = 0; b < t->blocks; b++)
#pragma GCC unroll 4
    for (int j = 0; j < np; j++) sum[j] += FN(channels_of)(t, x + j * VL, b);
#pragma GCC unroll 4
  for (int j = 0; j < np; j++) { mean[j] = FN(set)(FN(sum_lanes)(sum[j]) / t->channels); sum[j] = FN(set)(0); }
  for (int64_t b = 0; b + 1 < t->blocks; b++)
#pragma GCC unroll 4
    for (int j = 0; j < np; j++) {
      const VF d = FN(load)(x + j * VL + b * t->plane) - mean[j];
      sum[j] = FN(fma)(d, d, sum[j]);
    }
#pragma GCC unroll 4
  for (int j = 0; j < np; j++) {
    const VF d = (VF)((VI)(FN(load)(x + j * VL + (t->blocks - 1) * t->plane) - mean[j]) & t->last);
    factor[j] = FN(set)(1.f / sqrtf(FN(sum_lanes)(FN(fma)(d, d, sum[j])) / t->channels + t->epsilon));
  }
  for (int64_t b = 0; b < t->blocks; b++) {
    const VF scale = FN(load)(t->scale + b * VL), shift = FN(load)(t->shift + b * VL);
#pragma GCC unroll 4
    for (int j = 0; j < np; j++)
      FN(store)(y + j * VL + b * t->plane, FN(fma)((FN(load)(x + j * VL + b * t->plane) - mean[j]) * factor[j], scale, shift));
  }
}

/* Numbers of all lanes of the blocks: those of the channels, or one number alike. */
static void FN(spread_channels)(const float *given, int64_t channels, int64_t lanes, float otherwise, float *d) {
  for (int64_t i = 0; i < lanes; i++) d[i] = given && i < channels ? given[i] : otherwise;
}

TI_KERNEL(layer_norm_blocked) {
  const layer_norm_blocked_ints *const p = (const layer_norm_blocked_ints *)ints;
  const int64_t blocks = ti_ceil(p->channels, VL), parts = ti_ceil(p->pixels, p->part);
  float *const scale = (float *)scratch, *const shift = scale + blocks * VL;
  FN(normalised) t = {.blocks = blocks, .plane = p->pixels * VL, .scale = scale, .shift = shift, .channels = (float)p->channels,
                      .epsilon = (float)((const layer_norm_blocked_scalars *)scalars)->epsilon};
  for (int64_t l = 0; l < VL; l++) t.last[l] = (blocks - 1) * VL + l < p->channels ? -1 : 0;
  FN(spread_channels)(p->has_weight ? (const float *)args[2] : NULL, p->channels, blocks * VL, 1, scale);
  FN(spread_channels)(p->has_bias ? (const float *)args[2 + p->has_weight] : NULL, p->channels, blocks * VL, 0, shift);
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % parts * p->part, last = ti_min(first + p->part, p->pixels), image = item / parts * blocks * t.plane;
    const float *const x = (const float *)args[1] + image;
    float *const y = (float *)args[0] + image;
    int64_t i = first;
    for (; i + FN(PIXELS_BESIDE) <= last; i += FN(PIXELS_BESIDE)) FN(normalise_beside)(FN(PIXELS_BESIDE), &t, x + i * VL, y + i * VL);
    for (; i < last; i++) FN(normalise_beside)(1, &t, x + i * VL, y + i * VL);
  }
  return TI_OK;
}
