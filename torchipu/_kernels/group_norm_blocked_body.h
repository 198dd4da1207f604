/* Normalisation over groups of channels, which lie in blocks; table/group_norm_blocked.py says what the kernels take. */
#include "table/norm.h"
#include "table/group_norm_blocked.h"

enum { FN(SUMS_BESIDE) = 4 };  /* that do not wait for each other */

/* Mean of n pixels for each lane, and squares around it. Two passes over what lies in the cache: the first mean only
 * centres the pixels, the second pass corrects it. */
TI_INLINE void FN(plane_moments)(const float *x, int64_t n, float *mean, float *squares) {
  enum { BESIDE = FN(SUMS_BESIDE) };
  VF sum[BESIDE], around[BESIDE];
#pragma GCC unroll 4
  for (int k = 0; k < BESIDE; k++) sum[k] = around[k] = FN(set)(0);
  int64_t i = 0;
  for (; i + BESIDE <= n; i += BESIDE)
#pragma GCC unroll 4
    for (int k = 0; k < BESIDE; k++) sum[k] += FN(load)(x + (i + k) * VL);
  for (; i < n; i++) sum[0] += FN(load)(x + i * VL);
  const VF count = FN(set)((float)n), centre = ((sum[0] + sum[1]) + (sum[2] + sum[3])) / count;
#pragma GCC unroll 4
  for (int k = 0; k < BESIDE; k++) sum[k] = FN(set)(0);
  for (i = 0; i + BESIDE <= n; i += BESIDE)
#pragma GCC unroll 4
    for (int k = 0; k < BESIDE; k++) {
      const VF d = FN(load)(x + (i + k) * VL) - centre;
      sum[k] += d, around[k] = FN(fma)(d, d, around[k]);
    }
  for (; i < n; i++) {
    const VF d = FN(load)(x + i * VL) - centre;
    sum[0] += d, around[0] = FN(fma)(d, d, around[0]);
  }
  const VF rest = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  FN(store)(mean, centre + rest / count);
  FN(store)(squares, (around[0] + around[1]) + (around[2] + around[3]) - rest * rest / count);
}

TI_KERNEL(group_moments_blocked) {
  const group_norm_blocked_ints *const p = (const group_norm_blocked_ints *)ints;
  const int64_t parts = ti_ceil(p->pixels, p->part);
  (void)scalars, (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % parts * p->part, count = ti_min(p->part, p->pixels - first);
    float *const mean = (float *)args[0] + item * 2 * VL;
    FN(plane_moments)((const float *)args[1] + (item / parts * p->pixels + first) * VL, count, mean, mean + VL);
  }
  return TI_OK;
}

TI_KERNEL(group_factors_blocked) {
  const group_norm_blocked_ints *const p = (const group_norm_blocked_ints *)ints;
  const float *const w = p->has_weight ? (const float *)args[5] : NULL;
  const float *const b = p->has_bias ? (const float *)args[5 + p->has_weight] : NULL;
  const int64_t parts = ti_ceil(p->pixels, p->part), lanes = ti_ceil(p->channels, VL) * VL, depth = p->channels / p->groups;
  (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t image = item / p->groups, from = item % p->groups * depth, to = from + depth;
    float *const factor = (float *)args[2] + image * lanes, *const shift = (float *)args[3] + image * lanes;
    double mean = 0, squares = 0, seen = 0;
    for (int64_t c = from; c < to; c++) {
      const float *of = (const float *)args[4] + (image * lanes + c / VL * VL) * parts * 2 + c % VL;
      for (int64_t part = 0; part < parts; part++, of += 2 * VL) {
        const double count = (double)ti_min(p->part, p->pixels - part * p->part);
        const double delta = of[0] - mean, share = count / (seen + count);
        squares += of[VL] + delta * delta * seen * share;
        mean += delta * share;
        seen += count;
      }
    }
    const double spread = squares < 0 ? 0 : squares;  /* NaN stays */
    const double r = 1.0 / sqrt(spread / seen + ((const norm_scalars *)scalars)->eps);
    ((float *)args[0])[item] = (float)mean, ((float *)args[1])[item] = (float)r;
    for (int64_t c = from; c < to; c++) {
      const double by = w ? r * w[c] : r;
      factor[c] = (float)by, shift[c] = (float)((b ? b[c] : 0.0) - mean * by);
    }
    for (int64_t c = to; to == p->channels && c < lanes; c++) factor[c] = shift[c] = 0;
  }
  return TI_OK;
}
