/* Three-dimensional convolutions and their gradients: windows are laid out beside each other, a block at a time, and
 * meet the weights in register tiles. */
#include "gemm_body.h"
#include "taken_run_body.h"

#ifndef TORCHIPU_VOLUME_SHAPE
#define TORCHIPU_VOLUME_SHAPE
static inline int64_t ti_product(const int64_t *sizes) { return sizes[0] * sizes[1] * sizes[2]; }
/* Outputs [lo, hi) along one dimension for which tap k of the window lies within the input. */
static inline void ti_reach(const volume_ints *s, int dim, int64_t k, int64_t *lo, int64_t *hi) {
  const int64_t left = s->padding[dim] - k * s->dilation[dim], stride = s->stride[dim];
  *lo = ti_min(s->out[dim], left > 0 ? ti_ceil(left, stride) : 0);
  *hi = ti_max(*lo, ti_min(s->out[dim], s->size[dim] + left > 0 ? ti_ceil(s->size[dim] + left, stride) : 0));
}
/* Tap and channel of summand k. */
static inline int64_t ti_tap(const volume_ints *s, int64_t k, int64_t tap[3]) {
  for (int dim = 2; dim >= 0; dim--) { tap[dim] = k % s->window[dim]; k /= s->window[dim]; }
  return k;
}
#endif

/* The run of input that summand `tap` takes along row `oh` of plane `od` of outputs: outputs [lo, hi) read
 * p[(ow - lo) * stride]. Returns NULL when the row lies in the padding. */
TI_INLINE const float *FN(volume_row)(const volume_ints *s, const float *x, const int64_t tap[3], int64_t od, int64_t oh, int64_t lo) {
  const int64_t d = od * s->stride[0] + tap[0] * s->dilation[0] - s->padding[0];
  const int64_t h = oh * s->stride[1] + tap[1] * s->dilation[1] - s->padding[1];
  if (d < 0 || d >= s->size[0] || h < 0 || h >= s->size[1]) return NULL;
  return x + (d * s->size[1] + h) * s->size[2] + lo * s->stride[2] + tap[2] * s->dilation[2] - s->padding[2];
}

/* The next row of outputs: a division for each would take as long as the row. */
TI_INLINE void FN(next_row)(const volume_ints *s, int64_t *od, int64_t *oh) {
  if (++*oh < s->out[1]) return;
  *oh = 0;
  ++*od;
}

/* Summands [k0, k0 + count) of output rows [row0, row0 + rows): a row of positions for each. */
static void FN(volume_expand)(const volume_ints *ints, const float *x, int64_t k0, int64_t count, int64_t row0, int64_t rows, float *e) {
  const volume_ints own = *ints, *const s = &own;  /* which no store of a vector can have changed */
  const int64_t length = s->out[2];
  for (int64_t k = 0; k < count; k++) {
    int64_t tap[3], lo, hi;
    const float *plane = x + ti_tap(s, k0 + k, tap) * ti_product(s->size);
    ti_reach(s, 2, tap[2], &lo, &hi);
    int64_t od = row0 / s->out[1], oh = row0 % s->out[1];
    for (int64_t r = 0; r < rows; r++, e += length, FN(next_row)(s, &od, &oh)) {
      const float *p = FN(volume_row)(s, plane, tap, od, oh, lo);
      const int64_t first = p ? lo : 0, last = p ? hi : 0;
      for (int64_t i = 0; i < first; i++) e[i] = 0;
      FN(take_run)(p, s->stride[2], last - first, e + first);
      for (int64_t i = last; i < length; i++) e[i] = 0;
    }
  }
}

TI_KERNEL(volume_forward) {
  const volume_ints s = *(const volume_ints *)ints;
  const int64_t at_once = s.rows, all = s.out[0] * s.out[1], blocks = ti_ceil(all, at_once);
  const int64_t summands = s.in_channels * ti_product(s.window), outputs = ti_product(s.out);
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t row0 = item % blocks * at_once, image = item / blocks, group = image % s.groups, rows = ti_min(at_once, all - row0);
    const float *x = (const float *)args[1] + image * s.in_channels * ti_product(s.size);
    const int64_t width = rows * s.out[2];
    for (int64_t k0 = 0; k0 < summands; k0 += TI_VOLUME_SUMMANDS) {
      const int64_t count = ti_min(TI_VOLUME_SUMMANDS, summands - k0);
      FN(volume_expand)(&s, x, k0, count, row0, rows, (float *)scratch);
      ti_tile t = {.a = (const float *)args[2] + group * s.out_channels * summands + k0, .as = summands, .ak = 1, .b = (const float *)scratch,
                   .bs = width, .c = (float *)args[0] + image * s.out_channels * outputs + row0 * s.out[2], .ldc = outputs, .k = count, .accumulate = k0 > 0,
                   .row_bias = k0 == 0 && s.has_bias ? (const float *)args[3] + group * s.out_channels : NULL};
      FN(tiles_k_rows)(t, s.out_channels, width);
    }
  }
  return TI_OK;
}

/* Adds column `tap` of a block of output rows where the window took it from. */
static void FN(volume_fold)(const volume_ints *ints, const float *col, const int64_t tap[3], int64_t row0, int64_t rows, float *dx) {
  const volume_ints own = *ints, *const s = &own;
  int64_t lo, hi;
  ti_reach(s, 2, tap[2], &lo, &hi);
  int64_t od = row0 / s->out[1], oh = row0 % s->out[1];
  for (int64_t r = 0; r < rows; r++, col += s->out[2], FN(next_row)(s, &od, &oh)) {
    float *d = (float *)FN(volume_row)(s, dx, tap, od, oh, lo);
    if (!d) continue;
    if (s->stride[2] == 1)
      for (int64_t i = lo; i < hi; i += VL, d += VL) FN(store_most)(d, FN(load_most)(d, hi - i) + FN(load_most)(col + i, hi - i), hi - i);
    else for (int64_t i = lo; i < hi; i++) d[(i - lo) * s->stride[2]] += col[i];
  }
}

/* w^T dy folded back. */
TI_KERNEL(volume_input) {
  const volume_ints s = *(const volume_ints *)ints;
  const int64_t at_once = s.block, most = s.rows, parts = ti_ceil(s.in_channels, at_once);
  const int64_t taps = ti_product(s.window), inputs = ti_product(s.size), outputs = ti_product(s.out), all = s.out[0] * s.out[1];
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t c0 = item % parts * at_once, image = item / parts, channels = ti_min(at_once, s.in_channels - c0), group = image % s.groups;
    float *dx = (float *)args[0] + (image * s.in_channels + c0) * inputs, *col = (float *)scratch;
    memset(dx, 0, sizeof(float) * (size_t)(channels * inputs));
    for (int64_t row0 = 0; row0 < all; row0 += most) {
      const int64_t rows = ti_min(most, all - row0), width = rows * s.out[2];
      ti_tile t = {.a = (const float *)args[2] + group * s.out_channels * s.in_channels * taps + c0 * taps, .as = 1, .ak = s.in_channels * taps,
                   .b = (const float *)args[1] + image * s.out_channels * outputs + row0 * s.out[2], .bs = outputs, .c = col, .ldc = width,
                   .k = s.out_channels};
      FN(tiles_i_rows)(t, channels * taps, width);
      for (int64_t k = 0; k < channels * taps; k++) {
        int64_t tap[3];
        const int64_t channel = ti_tap(&s, k, tap);
        FN(volume_fold)(&s, col + k * width, tap, row0, rows, dx + channel * inputs);
      }
    }
  }
  return TI_OK;
}

TI_KERNEL(volume_weight) {
  const volume_ints s = *(const volume_ints *)ints;
  const int64_t at_once = s.block, most = s.rows, summands = s.in_channels * ti_product(s.window);
  const int64_t blocks = ti_ceil(summands, at_once), outputs = ti_product(s.out), all = s.out[0] * s.out[1];
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t k0 = item % blocks * at_once, group = item / blocks, count = ti_min(at_once, summands - k0);
    for (int64_t image = 0; image < s.samples; image++)
      for (int64_t row0 = 0; row0 < all; row0 += most) {
        const int64_t rows = ti_min(most, all - row0), place = image * s.groups + group;
        float *const expanded = (float *)scratch, *const turned = expanded + at_once * most * s.out[2];
        FN(volume_expand)(&s, (const float *)args[2] + place * s.in_channels * ti_product(s.size), k0, count, row0, rows, expanded);
        FN(transpose)(expanded, rows * s.out[2], turned, count, count, rows * s.out[2]);
        ti_tile t = {.a = (const float *)args[1] + place * s.out_channels * outputs + row0 * s.out[2], .as = outputs, .ak = 1,
                     .b = turned, .bs = count, .c = (float *)args[0] + group * s.out_channels * summands + k0, .ldc = summands,
                     .k = rows * s.out[2], .accumulate = image > 0 || row0 > 0};
        FN(tiles_k_rows)(t, s.out_channels, count);
      }
  }
  return TI_OK;
}

TI_KERNEL(volume_bias) {
  const volume_bias_ints *const shape = (const volume_bias_ints *)ints;
  const int64_t channels = shape->channels, positions = shape->positions;
  (void)scalars; (void)scratch;
  for (int64_t row = begin; row < end; row++) {
    float *y = (float *)args[0] + row * positions;
    const float bias = ((const float *)args[1])[row % channels];
    for (int64_t i = 0; i < positions; i++) y[i] += bias;
  }
  return TI_OK;
}
