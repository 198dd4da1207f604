/* Three-dimensional convolutions and their gradients: windows are laid out beside each other, a block at a time, and
 * meet the weights in register tiles. */
#include "gemm_body.h"

#ifndef TORCHIPU_VOLUME_SHAPE
#define TORCHIPU_VOLUME_SHAPE
/* The first twenty-two ints of the convolution kernels below; ic and oc count the channels of one group. */
typedef struct { int64_t n, g, ic, oc, size[3], out[3], window[3], stride[3], padding[3], dilation[3]; } ti_volume;
enum { TI_VOLUME_INTS = 22, TI_VOLUME_SUMMANDS = 512 };
static inline ti_volume ti_volume_of(const int64_t *ints) { ti_volume s; memcpy(&s, ints, sizeof s); return s; }
static inline int64_t ti_product(const int64_t *sizes) { return sizes[0] * sizes[1] * sizes[2]; }
/* Outputs [lo, hi) along one dimension for which tap k of the window lies within the input. */
static inline void ti_reach(const ti_volume *s, int dim, int64_t k, int64_t *lo, int64_t *hi) {
  const int64_t left = s->padding[dim] - k * s->dilation[dim], stride = s->stride[dim];
  *lo = ti_min(s->out[dim], left > 0 ? ti_ceil(left, stride) : 0);
  *hi = ti_max(*lo, ti_min(s->out[dim], s->size[dim] + left > 0 ? ti_ceil(s->size[dim] + left, stride) : 0));
}
/* Tap and channel of summand k. */
static inline int64_t ti_tap(const ti_volume *s, int64_t k, int64_t tap[3]) {
  for (int dim = 2; dim >= 0; dim--) { tap[dim] = k % s->window[dim]; k /= s->window[dim]; }
  return k;
}
#endif

/* The run of input that summand `tap` takes along one row of outputs: outputs [lo, hi) read p[(ow - lo) * stride].
 * Returns NULL when the row lies in the padding. */
static inline const float *FN(volume_row)(const ti_volume *s, const float *x, const int64_t tap[3], int64_t row, int64_t lo) {
  const int64_t od = row / s->out[1], oh = row % s->out[1];
  const int64_t d = od * s->stride[0] + tap[0] * s->dilation[0] - s->padding[0];
  const int64_t h = oh * s->stride[1] + tap[1] * s->dilation[1] - s->padding[1];
  if (d < 0 || d >= s->size[0] || h < 0 || h >= s->size[1]) return NULL;
  return x + (d * s->size[1] + h) * s->size[2] + lo * s->stride[2] + tap[2] * s->dilation[2] - s->padding[2];
}

/* Summands [k0, k0 + count) of output rows [row0, row0 + rows), element (k, position) at e[k * along + position * across]. */
static void FN(volume_expand)(const ti_volume *s, const float *x, int64_t k0, int64_t count, int64_t row0, int64_t rows, float *e,
                              int64_t along, int64_t across) {
  for (int64_t k = 0; k < count; k++) {
    int64_t tap[3], lo, hi;
    const float *plane = x + ti_tap(s, k0 + k, tap) * ti_product(s->size);
    ti_reach(s, 2, tap[2], &lo, &hi);
    for (int64_t r = 0; r < rows; r++) {
      float *d = e + k * along + r * s->out[2] * across;
      const float *p = FN(volume_row)(s, plane, tap, row0 + r, lo);
      const int64_t first = p ? lo : 0, last = p ? hi : 0;
      for (int64_t i = 0; i < first; i++) d[i * across] = 0;
      for (int64_t i = first; i < last; i++) d[i * across] = p[(i - first) * s->stride[2]];
      for (int64_t i = last; i < s->out[2]; i++) d[i * across] = 0;
    }
  }
}

/* volume_forward: y = conv(x, w) + bias
 *   args     y [n][g * oc][outputs], x [n][g * ic][inputs], w [g * oc][ic * taps], bias [g * oc] when ints[22]
 *   ints     the shape; whether there is a bias; rows of outputs (a row is out[2] long) in an item
 *   items    n * g * blocks of rows
 *   scratch  min(ic * taps, 512) * rows * out[2] floats */
TI_KERNEL(volume_forward) {
  const ti_volume s = ti_volume_of(ints);
  const int64_t at_once = ints[TI_VOLUME_INTS + 1], all = s.out[0] * s.out[1], blocks = ti_ceil(all, at_once);
  const int64_t summands = s.ic * ti_product(s.window), outputs = ti_product(s.out);
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t row0 = item % blocks * at_once, image = item / blocks, group = image % s.g, rows = ti_min(at_once, all - row0);
    const float *x = (const float *)args[1] + image * s.ic * ti_product(s.size);
    const int64_t width = rows * s.out[2];
    for (int64_t k0 = 0; k0 < summands; k0 += TI_VOLUME_SUMMANDS) {
      const int64_t count = ti_min(TI_VOLUME_SUMMANDS, summands - k0);
      FN(volume_expand)(&s, x, k0, count, row0, rows, (float *)scratch, width, 1);
      ti_tile t = {.a = (const float *)args[2] + group * s.oc * summands + k0, .as = summands, .ak = 1, .b = (const float *)scratch,
                   .bs = width, .c = (float *)args[0] + image * s.oc * outputs + row0 * s.out[2], .ldc = outputs, .k = count, .n1 = 1,
                   .n2 = 1, .accumulate = k0 > 0,
                   .row_bias = k0 == 0 && ints[TI_VOLUME_INTS] ? (const float *)args[3] + group * s.oc : NULL};
      FN(tiles_k_rows)(t, s.oc, width);
    }
  }
  return TI_OK;
}

/* Adds column `tap` of a block of output rows where the window took it from. */
static void FN(volume_fold)(const ti_volume *s, const float *col, const int64_t tap[3], int64_t row0, int64_t rows, float *dx) {
  int64_t lo, hi;
  ti_reach(s, 2, tap[2], &lo, &hi);
  for (int64_t r = 0; r < rows; r++, col += s->out[2]) {
    float *d = (float *)FN(volume_row)(s, dx, tap, row0 + r, lo);
    if (d) for (int64_t i = lo; i < hi; i++) d[(i - lo) * s->stride[2]] += col[i];
  }
}

/* volume_input: gradient of the input, w^T dy folded back
 *   args     dx [n][g * ic][inputs], dy [n][g * oc][outputs], w [g * oc][ic * taps]
 *   ints     the shape; channels of an item; rows of outputs at a time
 *   items    n * g * blocks of channels
 *   scratch  channels * taps * rows * out[2] floats */
TI_KERNEL(volume_input) {
  const ti_volume s = ti_volume_of(ints);
  const int64_t at_once = ints[TI_VOLUME_INTS], most = ints[TI_VOLUME_INTS + 1], parts = ti_ceil(s.ic, at_once);
  const int64_t taps = ti_product(s.window), inputs = ti_product(s.size), outputs = ti_product(s.out), all = s.out[0] * s.out[1];
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t c0 = item % parts * at_once, image = item / parts, channels = ti_min(at_once, s.ic - c0), group = image % s.g;
    float *dx = (float *)args[0] + (image * s.ic + c0) * inputs, *col = (float *)scratch;
    memset(dx, 0, sizeof(float) * (size_t)(channels * inputs));
    for (int64_t row0 = 0; row0 < all; row0 += most) {
      const int64_t rows = ti_min(most, all - row0), width = rows * s.out[2];
      ti_tile t = {.a = (const float *)args[2] + group * s.oc * s.ic * taps + c0 * taps, .as = 1, .ak = s.ic * taps,
                   .b = (const float *)args[1] + image * s.oc * outputs + row0 * s.out[2], .bs = outputs, .c = col, .ldc = width,
                   .k = s.oc, .n1 = 1, .n2 = 1};
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

/* volume_weight: gradient of the weights, over all samples and outputs in one order
 *   args     dw [g * oc][ic * taps], dy [n][g * oc][outputs], x [n][g * ic][inputs]
 *   ints     the shape; summands of an item; rows of outputs at a time
 *   items    g * blocks of summands
 *   scratch  summands * rows * out[2] floats */
TI_KERNEL(volume_weight) {
  const ti_volume s = ti_volume_of(ints);
  const int64_t at_once = ints[TI_VOLUME_INTS], most = ints[TI_VOLUME_INTS + 1], summands = s.ic * ti_product(s.window);
  const int64_t blocks = ti_ceil(summands, at_once), outputs = ti_product(s.out), all = s.out[0] * s.out[1];
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t k0 = item % blocks * at_once, group = item / blocks, count = ti_min(at_once, summands - k0);
    for (int64_t image = 0; image < s.n; image++)
      for (int64_t row0 = 0; row0 < all; row0 += most) {
        const int64_t rows = ti_min(most, all - row0), place = image * s.g + group;
        FN(volume_expand)(&s, (const float *)args[2] + place * s.ic * ti_product(s.size), k0, count, row0, rows, (float *)scratch, 1, count);
        ti_tile t = {.a = (const float *)args[1] + place * s.oc * outputs + row0 * s.out[2], .as = outputs, .ak = 1,
                     .b = (const float *)scratch, .bs = count, .c = (float *)args[0] + group * s.oc * summands + k0, .ldc = summands,
                     .k = rows * s.out[2], .n1 = 1, .n2 = 1, .accumulate = image > 0 || row0 > 0};
        FN(tiles_k_rows)(t, s.oc, count);
      }
  }
  return TI_OK;
}

/* volume_bias: y += bias, one value for each channel; y is read and written
 *   args   y [n * channels][positions], bias [channels]
 *   ints   channels, positions
 *   items  n * channels */
TI_KERNEL(volume_bias) {
  const int64_t channels = ints[0], positions = ints[1];
  (void)scalars; (void)scratch;
  for (int64_t row = begin; row < end; row++) {
    float *y = (float *)args[0] + row * positions;
    const float bias = ((const float *)args[1])[row % channels];
    for (int64_t i = 0; i < positions; i++) y[i] += bias;
  }
  return TI_OK;
}
