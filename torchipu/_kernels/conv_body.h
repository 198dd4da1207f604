/* Two-dimensional convolutions of few channels, and their gradients; conv_product_body.h serves many channels.
 *
 * An image (or a block of its output) is copied once for each column of the window, so that every summand of the
 * convolution reads a contiguous run of pixels, and channels meet pixels in register tiles. What conv_near_body.h serves
 * is read where it lies.
 */
#include "gemm_body.h"
#include "runs_body.h"
#include "rounding_body.h"

#ifndef TORCHIPU_CONV_SHAPE
#define TORCHIPU_CONV_SHAPE
enum { TI_CONV_TAPS = 64 };
/* a / stride rounded up; most strides are 1, and a division costs as much as copying a row. */
static inline int64_t ti_steps(int64_t a, int64_t stride) { return stride == 1 ? a : ti_ceil(a, stride); }
static inline int64_t ti_conv_span(const conv_shape *s, int64_t rows) { return rows + (s->sh == 1 ? (s->kh - 1) * s->dh : (s->kh - 1) * s->dh / s->sh); }
/* Floats of one expanded block. */
static inline int64_t ti_conv_expanded(const conv_shape *s) {
  return s->direct ? 0 : s->ic * s->kw * s->sh * ti_conv_span(s, s->rows) * s->cols;
}
#endif

/* Bits of the lanes [lo, hi) of a vector that begins at lane 0; bounds may lie outside. */
TI_INLINE uint32_t FN(lanes)(int64_t lo, int64_t hi) {
  lo = ti_max(0, ti_min(VL, lo)); hi = ti_max(lo, ti_min(VL, hi));
  return (uint32_t)((1ull << hi) - (1ull << lo));
}

/* Expands the channels at x for outputs [oh0, oh0 + rows) x [ow0, ow0 + cols):
 * e[channel][window column][phase of the row stride][row][col]. */
static void FN(expand)(const conv_shape *s, const float *x, int64_t oh0, int64_t rows, int64_t ow0, int64_t cols, float *e) {
  const int64_t most = ti_conv_span(s, s->rows);
  for (int64_t c = 0; c < s->ic; c++, x += s->h * s->w)
    for (int64_t kw = 0; kw < s->kw; kw++) {
      const int64_t left = s->pw - kw * s->dw - ow0 * s->sw;  /* input column = col * sw - left */
      const int64_t lo = ti_min(cols, left > 0 ? ti_steps(left, s->sw) : 0);
      const int64_t hi = ti_max(lo, ti_min(cols, s->w + left > 0 ? ti_steps(s->w + left, s->sw) : 0));
      for (int64_t phase = 0; phase < s->sh; phase++) {
        float *d = e + ((c * s->kw + kw) * s->sh + phase) * most * s->cols;
        int64_t reach = -1;                                   /* farthest row of this phase that the window uses */
        if (s->sh == 1) reach = (s->kh - 1) * s->dh;
        else
          for (int64_t kh = 0; kh < s->kh; kh++) if (kh * s->dh % s->sh == phase) reach = kh * s->dh / s->sh;
        if (reach < 0) continue;
        const int64_t top = s->ph - phase - oh0 * s->sh, all = rows + reach;  /* input row = row * sh - top */
        const int64_t r0 = ti_min(all, top > 0 ? ti_steps(top, s->sh) : 0);
        const int64_t r1 = ti_max(r0, ti_min(all, s->h + top > 0 ? ti_steps(s->h + top, s->sh) : 0));
        FN(zero_run)(d, r0 * cols);
        FN(zero_run)(d + r1 * cols, (all - r1) * cols);
        if (s->sw == 1 && lo == 0 && hi == cols && cols % 8 == 0) {  /* whole rows, without a mask */
        const float *from = x - top * s->w - left;
        for (int64_t r = r0; r < r1; r++)
          for (int64_t v = 0; v < cols; v += 8) _mm256_storeu_ps(d + r * cols + v, _mm256_loadu_ps(from + r * s->sh * s->w + v));
        continue;
      }
      if (s->sw == 1) {  /* the zeros beside the image come from lanes that are masked out */
          for (int64_t v = 0; v < cols; v += VL) {
            const uint32_t bits = FN(lanes)(lo - v, hi - v);
            const int width = (int)ti_min(VL, cols - v);
            const float *from = x - top * s->w - left + v;
            for (int64_t r = r0; r < r1; r++) FN(store_part)(d + r * cols + v, FN(load_lanes)(from + r * s->sh * s->w, bits), width);
          }
          continue;
        }
        for (int64_t r = r0; r < r1; r++) {
          float *p = d + r * cols;
          FN(zero_run)(p, lo);
          FN(copy_run)(p + lo, x + (r * s->sh - top) * s->w + lo * s->sw - left, hi - lo, s->sw);
          FN(zero_run)(p + hi, cols - hi);
        }
      }
    }
}

/* Where each summand of the window begins within an expanded block of row length `cols`. */
static void FN(window_offsets)(const conv_shape *s, int64_t cols, int32_t *offsets) {
  const int64_t most = ti_conv_span(s, s->rows);
  for (int64_t c = 0, k = 0; c < s->ic; c++)
    for (int64_t kh = 0; kh < s->kh; kh++)
      for (int64_t kw = 0; kw < s->kw; kw++, k++)
        offsets[k] = (int32_t)(s->direct ? c * s->h * s->w + kh * s->dh * s->w
                                         : ((c * s->kw + kw) * s->sh + kh * s->dh % s->sh) * most * s->cols + kh * s->dh / s->sh * cols);
}

#include "conv_near_body.h"

/* A convolution over an expanded block, or over the image as it lies; `known` says for which blocks the offsets hold. */
static void FN(conv_block)(const conv_shape *s, char *const *args, int has_bias, int64_t item, int64_t *known, void *scratch) {
  const int64_t K = s->ic * s->kh * s->kw, ohw = s->oh * s->ow, across = ti_ceil(s->ow, s->cols), down = ti_ceil(s->oh, s->rows);
  int32_t *offsets = (int32_t *)scratch;
  float *e = (float *)scratch + (K + 15) / 16 * 16;
  const int64_t ow0 = item % across * s->cols, oh0 = item / across % down * s->rows, image = item / (across * down);
  const int64_t rows = ti_min(s->rows, s->oh - oh0), cols = ti_min(s->cols, s->ow - ow0), group = image % s->g;
  const float *x = (const float *)args[1] + image * s->ic * s->h * s->w;
  if (ti_is_near(s)) {
    const int64_t kind = rows * s->ow + cols;
    FN(near_block)(s, x, (const float *)args[2] + group * K * s->oc, has_bias ? (const float *)args[3] + group * s->oc : NULL,
                   (float *)args[0] + image * s->oc * ohw, oh0, rows, ow0, offsets, kind == *known, e);
    *known = kind;
    return;
  }
  if (cols != *known) { FN(window_offsets)(s, cols, offsets); *known = cols; }
  if (!s->direct) FN(expand)(s, x, oh0, rows, ow0, cols, e);
  for (int64_t k0 = 0; k0 < K; k0 += TI_SUM_BLOCK) {
    ti_tile t = {.a = (const float *)args[2] + (group * K + k0) * s->oc, .b = s->direct ? x + oh0 * s->w : e, .offsets = offsets + k0,
                 .c = (float *)args[0] + image * s->oc * ohw + oh0 * s->ow + ow0, .as = 1, .ak = s->oc, .ldc = ohw,
                 .k = ti_min(TI_SUM_BLOCK, K - k0), .accumulate = k0 > 0,
                 .row_bias = has_bias ? (const float *)args[3] + group * s->oc : NULL};
    FN(tiles_g_rows)(t, s->oc, rows * cols);
  }
}

TI_KERNEL(conv_forward) {
  const conv_forward_ints *const p = (const conv_forward_ints *)ints;
  const conv_shape s = p->shape;
  int64_t known = -1;  /* row length for which the offsets in scratch hold */
  (void)scalars;
  for (int64_t item = begin; item < end; item++) FN(conv_block)(&s, args, (int)p->has_bias, item, &known, scratch);
  return TI_OK;
}

/* Folds a block of outputs back for windows that move by single columns: each row of the image gathers what belongs to it. */
static void FN(fold_rows)(const conv_shape *s, const float *col, int64_t ldc, int64_t channels, int64_t oh0, int64_t rows, float *dx) {
  const int64_t first = ti_max(0, oh0 * s->sh - s->ph), last = ti_min(s->h, (oh0 + rows - 1) * s->sh + (s->kh - 1) * s->dh - s->ph + 1);
  for (int64_t v = 0; v < s->w; v += VL) {
    uint32_t bits[TI_CONV_TAPS];
    const int width = (int)ti_min(VL, s->w - v);
    for (int64_t kw = 0; kw < s->kw; kw++) {
      const int64_t shift = kw * s->dw - s->pw - v;  /* lane of output column 0 */
      bits[kw] = FN(lanes)(shift, ti_min(width, s->ow + shift));
    }
    for (int64_t c = 0; c < channels; c++)
      for (int64_t ih = first; ih < last; ih++) {
        float *d = dx + (c * s->h + ih) * s->w + v;
        VF sum = FN(load_part)(d, width), other = FN(set)(0);
        for (int64_t kh = 0; kh < s->kh; kh++) {
          const int64_t at = ih + s->ph - kh * s->dh, oh = s->sh == 1 ? at : at / s->sh;
          if (at < 0 || oh * s->sh != at || oh < oh0 || oh >= oh0 + rows) continue;
          const float *p = col + ((c * s->kh + kh) * s->kw) * ldc + (oh - oh0) * s->ow + v + s->pw;
          int64_t kw = 0;
          for (; kw + 2 <= s->kw; kw += 2) {
            sum += FN(load_lanes)(p + kw * (ldc - s->dw), bits[kw]);
            other += FN(load_lanes)(p + (kw + 1) * (ldc - s->dw), bits[kw + 1]);
          }
          if (kw < s->kw) sum += FN(load_lanes)(p + kw * (ldc - s->dw), bits[kw]);
        }
        FN(store_part)(d, sum + other, width);
      }
  }
}

/* Adds the columns of a block of outputs where the window took them from. */
static void FN(fold)(const conv_shape *s, const float *col, int64_t ldc, int64_t channels, int64_t oh0, int64_t rows, float *dx) {
  if (s->sw == 1 && s->kw <= TI_CONV_TAPS) { FN(fold_rows)(s, col, ldc, channels, oh0, rows, dx); return; }
  for (int64_t c = 0; c < channels; c++, dx += s->h * s->w)
    for (int64_t kh = 0; kh < s->kh; kh++)
      for (int64_t kw = 0; kw < s->kw; kw++, col += ldc) {
        const int64_t left = s->pw - kw * s->dw;
        const int64_t lo = ti_min(s->ow, left > 0 ? ti_ceil(left, s->sw) : 0);
        const int64_t hi = ti_max(lo, ti_min(s->ow, s->w + left > 0 ? ti_ceil(s->w + left, s->sw) : 0));
        for (int64_t r = 0; r < rows; r++) {
          const int64_t ih = (oh0 + r) * s->sh + kh * s->dh - s->ph;
          if (ih < 0 || ih >= s->h) continue;
          float *d = dx + ih * s->w + lo * s->sw - left;
          const float *v = col + r * s->ow + lo;
          const int64_t n = hi - lo;
          for (int64_t i = 0; i < n; i++) d[i * s->sw] += v[i];
        }
      }
}

/* w^T dy folded back onto the image. */
TI_KERNEL(conv_input) {
  const conv_input_ints *const p = (const conv_input_ints *)ints;
  const conv_shape s = p->shape;
  const int64_t taps = s.kh * s.kw, K = s.ic * taps, ohw = s.oh * s.ow, at_once = p->channels, parts = ti_ceil(s.ic, at_once);
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t c0 = item % parts * at_once, image = item / parts, channels = ti_min(at_once, s.ic - c0), m = channels * taps;
    const int64_t even = ti_even(m, TI_MR);
    float *dx = (float *)args[0] + (image * s.ic + c0) * s.h * s.w, *col = (float *)scratch, *packed = col + at_once * taps * s.rows * s.ow;
    const float *dy = (const float *)args[1] + image * s.oc * ohw, *w = (const float *)args[2] + image % s.g * s.oc * K + c0 * taps;
    if (!s.direct) memset(dx, 0, sizeof(float) * (size_t)(channels * s.h * s.w));
    FN(pack_rows)(w, 1, K, m, even, 0, s.oc, s.oc, packed);
    for (int64_t oh0 = 0; oh0 < s.oh; oh0 += s.rows) {
      const int64_t rows = ti_min(s.rows, s.oh - oh0), pixels = rows * s.ow;
      float *c = s.direct ? dx + oh0 * s.ow : col;
      ti_tile t = {.a = packed, .b = dy + oh0 * s.ow, .c = c, .bs = ohw, .ldc = s.direct ? ohw : pixels, .k = s.oc};
      FN(packed_rows)(t, m, even, 0, s.oc, pixels);
      if (!s.direct) FN(fold)(&s, col, pixels, channels, oh0, rows, dx);
    }
  }
  return TI_OK;
}

/* mr rows of dy against nr rows of the expanded input: sums over the pixels of several units. */
TI_INLINE void FN(dot_tile)(const int mr, const int nr, const float *a, ptrdiff_t as, const float *b, const int32_t *offsets,
                            const int64_t *a_unit, const int64_t *b_unit, const int64_t *pixels, int64_t units, float *c, ptrdiff_t ldc) {
#if VL == 16
  enum { MOST = 5 };
#else
  enum { MOST = 3 };
#endif
  VF sum[MOST][MOST];
#pragma GCC unroll 5
  for (int i = 0; i < mr; i++)
#pragma GCC unroll 5
    for (int j = 0; j < nr; j++) sum[i][j] = FN(set)(0);
  for (int64_t u = 0; u < units; u++) {
    const float *p = a + a_unit[u], *q[MOST];
    const int64_t n = pixels[u];
#pragma GCC unroll 5
    for (int j = 0; j < nr; j++) q[j] = b + b_unit[u] + offsets[j];
    for (int64_t x = 0; x < n; x += VL) {
      const int width = (int)ti_min(VL, n - x);
      VF v[MOST];
#pragma GCC unroll 5
      for (int j = 0; j < nr; j++) v[j] = FN(load_part)(q[j] + x, width);
#pragma GCC unroll 5
      for (int i = 0; i < mr; i++) {
        const VF y = FN(load_part)(p + i * as + x, width);
#pragma GCC unroll 5
        for (int j = 0; j < nr; j++) sum[i][j] = FN(fma)(y, v[j], sum[i][j]);
      }
    }
  }
#pragma GCC unroll 5
  for (int i = 0; i < mr; i++)
#pragma GCC unroll 5
    for (int j = 0; j < nr; j++) c[i * ldc + j] += FN(sum_lanes)(sum[i][j]);
}
#undef TI_DOT
#undef TI_DOT_ROW
#define TI_DOT(M_, N_) \
  static __attribute__((noinline)) void FN(dot_##M_##_##N_)(const float *a, ptrdiff_t as, const float *b, const int32_t *o, \
      const int64_t *au, const int64_t *bu, const int64_t *px, int64_t u, float *c, ptrdiff_t ldc) { \
    FN(dot_tile)(M_, N_, a, as, b, o, au, bu, px, u, c, ldc); }
#if VL == 16
#define TI_DOT_ROW(M_) TI_DOT(M_, 1) TI_DOT(M_, 2) TI_DOT(M_, 3) TI_DOT(M_, 4) TI_DOT(M_, 5)
TI_DOT_ROW(1) TI_DOT_ROW(2) TI_DOT_ROW(3) TI_DOT_ROW(4) TI_DOT_ROW(5)
#else
#define TI_DOT_ROW(M_) TI_DOT(M_, 1) TI_DOT(M_, 2) TI_DOT(M_, 3)
TI_DOT_ROW(1) TI_DOT_ROW(2) TI_DOT_ROW(3)
#endif
typedef void (*FN(dot))(const float *, ptrdiff_t, const float *, const int32_t *, const int64_t *, const int64_t *, const int64_t *,
                        int64_t, float *, ptrdiff_t);
#undef TI_DOT_NAMES
#if VL == 16
enum { FN(DOT) = 5 };
#define TI_DOT_NAMES(M_) {FN(dot_##M_##_1), FN(dot_##M_##_2), FN(dot_##M_##_3), FN(dot_##M_##_4), FN(dot_##M_##_5)}
static const FN(dot) FN(dot_table)[5][5] = {TI_DOT_NAMES(1), TI_DOT_NAMES(2), TI_DOT_NAMES(3), TI_DOT_NAMES(4), TI_DOT_NAMES(5)};
#else
enum { FN(DOT) = 3 };
#define TI_DOT_NAMES(M_) {FN(dot_##M_##_1), FN(dot_##M_##_2), FN(dot_##M_##_3)}
static const FN(dot) FN(dot_table)[3][3] = {TI_DOT_NAMES(1), TI_DOT_NAMES(2), TI_DOT_NAMES(3)};
#endif

TI_KERNEL(conv_weight) {
  const conv_weight_ints *const p = (const conv_weight_ints *)ints;
  const conv_shape s = p->shape;
  const int64_t chunks = p->chunks, at_once = p->channels, together = p->together;
  const int64_t K = s.ic * s.kh * s.kw, ohw = s.oh * s.ow, parts = ti_ceil(s.oc, at_once);
  const int64_t across = ti_ceil(s.ow, s.cols), down = ti_ceil(s.oh, s.rows), units = s.n * across * down, size = ti_conv_expanded(&s);
  int32_t *offsets = (int32_t *)scratch;
  float *e = (float *)scratch + (K + 15) / 16 * 16;
  int64_t known = -1;
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t o0 = item % parts * at_once, group = item / parts % s.g, chunk = item / (parts * s.g);
    const int64_t rows_out = ti_min(at_once, s.oc - o0), first = units * chunk / chunks, last = units * (chunk + 1) / chunks;
    float *c = (float *)args[0] + ((chunk * s.g + group) * s.oc + o0) * K;
    const float *dy = (const float *)args[1] + (group * s.oc + o0) * ohw, *x = (const float *)args[2] + group * s.ic * s.h * s.w;
    memset(c, 0, sizeof(float) * (size_t)(rows_out * K));
    for (int64_t u0 = first; u0 < last;) {
      int64_t a_unit[TI_CONV_UNITS], b_unit[TI_CONV_UNITS], pixels[TI_CONV_UNITS], count = 0, width = -1;
      for (; count < together && u0 < last; u0++, count++) {
        const int64_t ow0 = u0 % across * s.cols, oh0 = u0 / across % down * s.rows, n = u0 / (across * down);
        const int64_t rows = ti_min(s.rows, s.oh - oh0), cols = ti_min(s.cols, s.ow - ow0);
        const float *image = x + n * s.g * s.ic * s.h * s.w;
        if (width >= 0 && cols != width) break;  /* the offsets depend on the row length */
        width = cols;
        a_unit[count] = n * s.g * s.oc * ohw + oh0 * s.ow + ow0;
        pixels[count] = rows * cols;
        if (s.direct) b_unit[count] = image + oh0 * s.w - x;
        else { b_unit[count] = count * size; FN(expand)(&s, image, oh0, rows, ow0, cols, e + count * size); }
      }
      if (width != known) { FN(window_offsets)(&s, width, offsets); known = width; }
      for (int64_t k = 0; k < K; k += FN(DOT)) {
        const int64_t nr = ti_min(FN(DOT), K - k);
        for (int64_t o = 0; o < rows_out; o += FN(DOT)) {
          const int64_t mr = ti_min(FN(DOT), rows_out - o);
          FN(dot_table)[mr - 1][nr - 1](dy + o * ohw, ohw, s.direct ? x : e, offsets + k, a_unit, b_unit, pixels, count, c + o * K + k, K);
        }
      }
    }
  }
  return TI_OK;
}

TI_KERNEL(conv_reduce) {
  const conv_reduce_ints *const sizes = (const conv_reduce_ints *)ints;
  const int64_t chunks = sizes->chunks, count = sizes->elements, block = sizes->block;
  float *d = (float *)args[0];
  const float *p = (const float *)args[1];
  (void)scalars; (void)scratch;
  for (int64_t i = begin * block; i < ti_min(count, end * block); i += VL) {
    const int n = (int)ti_min(VL, count - i);
    VF v = FN(load_part)(p + i, n);
    for (int64_t c = 1; c < chunks; c++) v += FN(load_part)(p + c * count + i, n);
    FN(store_part)(d + i, v, n);
  }
  return TI_OK;
}

TI_KERNEL(conv_bias) {
  const conv_bias_ints *const sizes = (const conv_bias_ints *)ints;
  const int64_t num = sizes->n, channels = sizes->channels, pixels = sizes->pixels;
  (void)scalars; (void)scratch;
  for (int64_t c = begin; c < end; c++) {
    double total = 0;
    for (int64_t n = 0; n < num; n++) {
      const float *p = (const float *)args[1] + (n * channels + c) * pixels;
      VF a = FN(set)(0), b = a;
      int64_t i = 0;
      for (; i + 2 * VL <= pixels; i += 2 * VL) { a += FN(load)(p + i); b += FN(load)(p + i + VL); }
      for (; i < pixels; i += VL) a += FN(load_part)(p + i, (int)ti_min(VL, pixels - i));
      total += FN(sum_lanes)(a + b);
    }
    ((float *)args[0])[c] = (float)total;
  }
  return TI_OK;
}

#include "pool_body.h"

/* Negative numbers become zero; NaNs stay. */
static void FN(relu_run)(float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = y[i] < 0.0f ? 0.0f : y[i];
}

TI_KERNEL(conv_max_pool) {
  const conv_max_pool_ints *const p = (const conv_max_pool_ints *)ints;
  const conv_shape s = p->shape;
  const pool_ints *const pool = &p->pool;
  const int64_t planes = s.oc, size = planes * s.oh * s.ow, kept = planes * pool->oh * pool->ow;
  float *image = (float *)scratch, *rest = image + (size + 15) / 16 * 16;
  const int64_t *const state = p->is_random ? (const int64_t *)args[4 + p->has_bias] : NULL;
  const int is_random = !FN(rounds_to_nearest)(state);
  const FN(keys) keys = is_random ? FN(keys_of)(state) : (FN(keys)){0, 0};
  int64_t known = -1;
  for (int64_t i = begin; i < end; i++) {
    /* The convolution is given the whole result's address, from which it finds this image's. */
    char *const convolve[] = {(char *)image - i * size * 4, args[2], args[3], p->has_bias ? args[4] : NULL};
    char *const reduce[] = {(char *)((float *)args[0] + i * kept), (char *)((int64_t *)args[1] + i * kept), (char *)image};
    FN(conv_block)(&s, convolve, (int)p->has_bias, i, &known, rest);
    if (is_random) FN(round_from)(image - i * size, NULL, 1, keys, i * size, size, 1, 0, (int)p->overflow);
    else if (p->is_rounded) FN(round_nearest_here)(image, NULL, size, (int)p->overflow);
    const int trap = FN(max_pool)(reduce, (const int64_t *)pool, scalars, 0, planes, rest);
    if (trap) return trap;
    if (p->has_relu) FN(relu_run)((float *)args[0] + i * kept, kept);
  }
  return TI_OK;
}
