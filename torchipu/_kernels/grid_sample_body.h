/* Images taken at the places that a grid says, and gradients of both. What a block of points takes is worked out once for
 * all channels: a pixel for each tap, by what it counts, and by what that changes with the place.
 */
#include "table/grid_sample.h"

enum { FN(MOST_TAPS) = 16 };
typedef struct {
  int taps;
  int32_t at[FN(MOST_TAPS)][TI_SAMPLED_POINTS];  /* -1 for a tap beyond the border */
  float by[FN(MOST_TAPS)][TI_SAMPLED_POINTS], across[FN(MOST_TAPS)][TI_SAMPLED_POINTS], down[FN(MOST_TAPS)][TI_SAMPLED_POINTS];
} FN(sampled);

TI_INLINE VF FN(gather)(const float *p, VI at) {
#if VL == 16
  return (VF)_mm512_mask_i32gather_ps(_mm512_setzero_ps(), _mm512_cmpge_epi32_mask((__m512i)at, _mm512_setzero_si512()), (__m512i)at, p, 4);
#else
  return (VF)_mm256_mask_i32gather_ps(_mm256_setzero_ps(), p, (__m256i)at, (__m256)~at, 4);
#endif
}
/* A place in pixels, kept within the border; *slope is multiplied by how it changes with what it was made of. */
TI_INLINE VF FN(clipped)(VF x, float size, VF *slope) {
  const VF most = FN(set)(size - 1.f), zero = FN(set)(0.f);
  *slope = FN(sel)(FN(mand)(FN(lt)(zero, x), FN(lt)(x, most)), *slope, zero);
  x = FN(sel)(FN(lt)(zero, x), x, zero);  /* also what is no number */
  return FN(sel)(FN(lt)(x, most), x, most);
}
TI_INLINE VF FN(reflected)(VF x, float size, int aligned, VF *slope) {
  const float low = aligned ? 0.f : -0.5f, span = aligned ? size - 1.f : size;
  if (span == 0.f) { *slope = FN(set)(0.f); return FN(set)(0.f); }
  const VF from = x - low, far = FN(abs)(from), times = FN(floor)(far / span), rest = far - times * span;
  *slope = FN(sel)(FN(lt)(from, FN(set)(0.f)), -*slope, *slope);
  const VM is_odd = FN(ne)(times * 0.5f, FN(floor)(times * 0.5f));
  *slope = FN(sel)(is_odd, -*slope, *slope);
  return FN(sel)(is_odd, span - rest, rest) + low;
}
TI_INLINE VF FN(within)(VF x, float size, int aligned, int outside, VF *slope) {
  if (outside == TI_OUTSIDE_REFLECTION) x = FN(reflected)(x, size, aligned, slope);
  return outside == TI_OUTSIDE_ZEROS ? x : FN(clipped)(x, size, slope);
}
TI_INLINE void FN(put_tap)(FN(sampled) *t, int tap, long i, const grid_sample_ints *p, VF x, VF y, VF by, VF across, VF down) {
  const VF zero = FN(set)(0.f);
  const VM inside = FN(mand)(FN(mand)(FN(le)(zero, x), FN(le)(x, FN(set)((float)(p->width - 1)))),
                             FN(mand)(FN(le)(zero, y), FN(le)(y, FN(set)((float)(p->height - 1)))));
  const VI at = FN(toint)(FN(sel)(inside, y, zero)) * (int32_t)p->width + FN(toint)(FN(sel)(inside, x, zero));
  *(VI *)(t->at[tap] + i) = FN(isel)(inside, at, FN(iset)(-1));
  FN(store)(t->by[tap] + i, by), FN(store)(t->across[tap] + i, across), FN(store)(t->down[tap] + i, down);
}
/* What four neighbours count for a place between the second and the third, and how that changes along. */
TI_INLINE void FN(cubic)(VF t, VF by[4], VF slope[4]) {
  const float a = -0.75f;
  const VF far = t + 1.f, rest = 1.f - t, beyond = 2.f - t;
  by[0] = ((a * far - 5.f * a) * far + 8.f * a) * far - 4.f * a;
  by[1] = ((a + 2.f) * t - (a + 3.f)) * t * t + 1.f;
  by[2] = ((a + 2.f) * rest - (a + 3.f)) * rest * rest + 1.f;
  by[3] = ((a * beyond - 5.f * a) * beyond + 8.f * a) * beyond - 4.f * a;
  slope[0] = (3.f * a * far - 10.f * a) * far + 8.f * a;
  slope[1] = (3.f * (a + 2.f) * t - 2.f * (a + 3.f)) * t;
  slope[2] = -((3.f * (a + 2.f) * rest - 2.f * (a + 3.f)) * rest);
  slope[3] = -((3.f * a * beyond - 10.f * a) * beyond + 8.f * a);
}
/* Works out the taps of n points. */
static void FN(lay_taps)(FN(sampled) *t, const grid_sample_ints *p, const float *grid, long n) {
  const int aligned = (int)p->aligned, outside = (int)p->outside;
  const float width = (float)p->width, height = (float)p->height;
  const float x_scale = aligned ? (width - 1.f) * 0.5f : width * 0.5f, y_scale = aligned ? (height - 1.f) * 0.5f : height * 0.5f;
  const float less = aligned ? 0.f : 0.5f;
  t->taps = p->interpolation == TI_INTERPOLATION_NEAREST ? 1 : p->interpolation == TI_INTERPOLATION_BILINEAR ? 4 : 16;
  for (long i = 0; i < n; i += VL) {
    float columns[VL] = {0}, rows[VL] = {0};
    for (long j = 0; j < ti_min(VL, n - i); j++) columns[j] = grid[2 * (i + j)], rows[j] = grid[2 * (i + j) + 1];
    VF x = (FN(load)(columns) + 1.f) * x_scale - less, y = (FN(load)(rows) + 1.f) * y_scale - less;
    VF x_slope = FN(set)(x_scale), y_slope = FN(set)(y_scale);
    const VF zero = FN(set)(0.f), one = FN(set)(1.f);
    if (p->interpolation == TI_INTERPOLATION_BICUBIC) {
      const VF x0 = FN(floor)(x), y0 = FN(floor)(y);
      VF across[4], across_slope[4], down[4], down_slope[4];
      FN(cubic)(x - x0, across, across_slope), FN(cubic)(y - y0, down, down_slope);
      for (int tap = 0; tap < 16; tap++) {
        const int r = tap / 4, c = tap % 4;
        VF unused = one;
        FN(put_tap)(t, tap, i, p, FN(within)(x0 + (float)(c - 1), width, aligned, outside, &unused),
                    FN(within)(y0 + (float)(r - 1), height, aligned, outside, &unused), across[c] * down[r],
                    across_slope[c] * down[r] * x_slope, across[c] * down_slope[r] * y_slope);
      }
      continue;
    }
    x = FN(within)(x, width, aligned, outside, &x_slope), y = FN(within)(y, height, aligned, outside, &y_slope);
    if (p->interpolation == TI_INTERPOLATION_NEAREST) {
      FN(put_tap)(t, 0, i, p, FN(nearest)(x), FN(nearest)(y), one, zero, zero);
      continue;
    }
    const VF x0 = FN(floor)(x), y0 = FN(floor)(y), right = x - x0, below = y - y0;
    const VF columns_by[2] = {1.f - right, right}, rows_by[2] = {1.f - below, below};
    for (int tap = 0; tap < 4; tap++) {
      const VF across = columns_by[tap % 2], down = rows_by[tap / 2];
      FN(put_tap)(t, tap, i, p, x0 + (float)(tap % 2), y0 + (float)(tap / 2), across * down, x_slope * down * (tap % 2 ? 1.f : -1.f),
                  y_slope * across * (tap / 2 ? 1.f : -1.f));
    }
  }
}
TI_INLINE void FN(take_points)(float *out, const float *image, const FN(sampled) *t, long n, const int taps) {
  for (long i = 0; i < n; i += VL) {
    VF sum = FN(set)(0.f);
    for (int k = 0; k < taps; k++) sum = FN(fma)(FN(load)(t->by[k] + i), FN(gather)(image, *(const VI *)(t->at[k] + i)), sum);
    FN(store_most)(out + i, sum, n - i);
  }
}
TI_KERNEL(grid_sample) {
  const grid_sample_ints *const p = (const grid_sample_ints *)ints;
  const int64_t blocks = ti_ceil(p->points, TI_SAMPLED_POINTS), pixels = p->height * p->width;
  (void)scalars, (void)scratch;
  FN(sampled) t;
  for (int64_t item = begin; item < end; item++) {
    const int64_t sample = item / blocks, first = item % blocks * TI_SAMPLED_POINTS;
    const long n = (long)ti_min(TI_SAMPLED_POINTS, p->points - first);
    FN(lay_taps)(&t, p, (const float *)args[2] + 2 * (sample * p->points + first), n);
    const float *image = (const float *)args[1] + sample * p->channels * pixels;
    float *out = (float *)args[0] + sample * p->channels * p->points + first;
    for (int64_t c = 0; c < p->channels; c++, image += pixels, out += p->points) {
      if (t.taps == 1) FN(take_points)(out, image, &t, n, 1);
      else if (t.taps == 4) FN(take_points)(out, image, &t, n, 4);
      else FN(take_points)(out, image, &t, n, 16);
    }
  }
  return TI_OK;
}
/* Channels of one item are all that is added to them, point by point. */
TI_KERNEL(grid_sample_images) {
  const grid_sample_ints *const p = (const grid_sample_ints *)ints;
  const int64_t blocks = ti_ceil(p->channels, TI_SAMPLED_CHANNELS), pixels = p->height * p->width;
  (void)scalars, (void)scratch;
  FN(sampled) t;
  for (int64_t item = begin; item < end; item++) {
    const int64_t sample = item / blocks, first = item % blocks * TI_SAMPLED_CHANNELS;
    const int64_t channel = sample * p->channels + first, count = ti_min(TI_SAMPLED_CHANNELS, p->channels - first);
    float *const made = (float *)args[0] + channel * pixels;
    memset(made, 0, sizeof(float) * (size_t)(count * pixels));
    for (int64_t point = 0; point < p->points; point += TI_SAMPLED_POINTS) {
      const long n = (long)ti_min(TI_SAMPLED_POINTS, p->points - point);
      FN(lay_taps)(&t, p, (const float *)args[2] + 2 * (sample * p->points + point), n);
      for (int64_t c = 0; c < count; c++) {
        const float *const dy = (const float *)args[1] + (channel + c) * p->points + point;
        float *const dx = made + c * pixels;
        for (int k = 0; k < t.taps; k++)
          for (long i = 0; i < n; i++)
            if (t.at[k][i] >= 0) dx[t.at[k][i]] += t.by[k][i] * dy[i];
      }
    }
  }
  return TI_OK;
}
TI_INLINE void FN(add_slopes)(float *across, float *down, const float *image, const float *dy, const FN(sampled) *t, long n, const int taps) {
  for (long i = 0; i < n; i += VL) {
    VF x = FN(set)(0.f), y = FN(set)(0.f);
    for (int k = 0; k < taps; k++) {
      const VF value = FN(gather)(image, *(const VI *)(t->at[k] + i));
      x = FN(fma)(FN(load)(t->across[k] + i), value, x), y = FN(fma)(FN(load)(t->down[k] + i), value, y);
    }
    const VF by = FN(load_most)(dy + i, n - i);
    FN(store)(across + i, FN(fma)(by, x, FN(load)(across + i))), FN(store)(down + i, FN(fma)(by, y, FN(load)(down + i)));
  }
}
TI_KERNEL(grid_sample_grid) {
  const grid_sample_ints *const p = (const grid_sample_ints *)ints;
  const int64_t blocks = ti_ceil(p->points, TI_SAMPLED_POINTS), pixels = p->height * p->width;
  (void)scalars, (void)scratch;
  FN(sampled) t;
  for (int64_t item = begin; item < end; item++) {
    const int64_t sample = item / blocks, first = item % blocks * TI_SAMPLED_POINTS;
    const long n = (long)ti_min(TI_SAMPLED_POINTS, p->points - first);
    float across[TI_SAMPLED_POINTS] = {0}, down[TI_SAMPLED_POINTS] = {0};
    float *const made = (float *)args[0] + 2 * (sample * p->points + first);
    FN(lay_taps)(&t, p, (const float *)args[3] + 2 * (sample * p->points + first), n);
    const float *image = (const float *)args[2] + sample * p->channels * pixels;
    const float *dy = (const float *)args[1] + sample * p->channels * p->points + first;
    for (int64_t c = 0; c < p->channels && t.taps > 1; c++, image += pixels, dy += p->points) {
      if (t.taps == 4) FN(add_slopes)(across, down, image, dy, &t, n, 4);
      else FN(add_slopes)(across, down, image, dy, &t, n, 16);
    }
    for (long i = 0; i < n; i++) made[2 * i] = across[i], made[2 * i + 1] = down[i];
  }
  return TI_OK;
}
