/* Gradients of a convolution in front of a max-pool; table/sparse_conv.py says what the kernels take.
 *
 * The pool passes one value of each window on, so all other gradients of the convolution's results are zero and are
 * never written. The image lies channels-last, so that a row of the window is one run of kw * ic floats; each gradient
 * that is not zero then adds that run to the weight gradient, and the weights' run to the input gradient. Where an
 * operand holds infinities or NaNs the zeros take part as well, since 0 * inf is not 0.
 */
#include "gemm_body.h"

#ifndef TORCHIPU_SPARSE_CONV_SHAPE
#define TORCHIPU_SPARSE_CONV_SHAPE
static inline int64_t ti_sparse_image(const sparse_conv_ints *s) {
  const int64_t pixels = (s->h + 2 * s->ph) * (s->w + 2 * s->pw) + s->window.kw;
  return ti_ceil(pixels * s->window.lanes + TI_SPARSE_SLACK, 16) * 16;
}
static inline int64_t ti_sparse_list(const sparse_conv_ints *s) {
  return ti_ceil(s->together * s->window.oc * s->oh * s->ow + TI_SPARSE_SLACK, 16) * 16;
}
/* Whether so few gradients are not zero for each pixel that sorting them by pixel costs more than it saves. */
static inline int ti_has_few(const sparse_conv_ints *s) {
  return s->window.lanes % 16 == 0 && s->window.oc * s->pooled < 8 * (1 + s->has_relu) * s->oh * s->ow;
}
/* A gradient in the order of the pixels: its value and the place of its channel's weights. */
typedef struct { float value; int32_t weight; } ti_entry;
#endif

/* Whether any of n floats is infinite or NaN. */
static int FN(any_special)(const float *p, int64_t n) {
  VF sum[4] = {{0}, {0}, {0}, {0}};
  int64_t i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL)
    for (int j = 0; j < 4; j++) sum[j] += FN(load)(p + i + j * VL) * 0.0f;
  for (; i + VL <= n; i += VL) sum[0] += FN(load)(p + i) * 0.0f;
  float rest = FN(sum_lanes)((sum[0] + sum[1]) + (sum[2] + sum[3]));
  for (; i < n; i++) rest += p[i] * 0.0f;
  return rest != 0.0f;
}

static float FN(total)(const float *p, int64_t n) {
  VF sum = {0};
  int64_t i = 0;
  for (; i + VL <= n; i += VL) sum += FN(load)(p + i);
  float rest = FN(sum_lanes)(sum);
  for (; i < n; i++) rest += p[i];
  return rest;
}

static void FN(prefetch)(const float *p, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(p + i);
}

/* Runs of pixels that lie side by side in the image and in a copy of it with borders. */
static void FN(pixel_runs)(const sparse_conv_ints *s, int64_t *runs, int64_t *length) {
  const int is_whole = !s->ph && !s->pw;
  *runs = is_whole ? 1 : s->h;
  *length = is_whole ? s->h * s->w : s->w;
}

static void FN(to_channels_last)(const sparse_conv_ints *s, const float *x, float *last) {
  const int64_t wp = s->w + 2 * s->pw, plane = s->h * s->w, lanes = s->window.lanes, ic = s->window.ic;
  int64_t runs, length;
  FN(pixel_runs)(s, &runs, &length);
  for (int64_t r = 0; r < runs; r++) {
    float *d = last + ((r + s->ph) * wp + s->pw) * lanes;
    const float *from = x + r * length;
    if (lanes == 1) { memcpy(d, from, (size_t)length * 4); continue; }
    if (length < VL) {
      for (int64_t c = 0; c < ic; c++)
        for (int64_t w = 0; w < length; w++) d[w * lanes + c] = from[c * plane + w];
      continue;
    }
    for (int64_t j = 0; j < length; j += VL) {  /* the last block overlaps the one before it */
      const int64_t w = ti_min(j, length - VL);
      for (int64_t c = 0; c < ic; c += VL)
        FN(transpose_block)(from + c * plane + w, plane, d + w * lanes + c, lanes, (int)ti_min(VL, ic - c), 0);
    }
  }
}

static void FN(from_channels_last)(const sparse_conv_ints *s, const float *last, float *x) {
  const int64_t wp = s->w + 2 * s->pw, plane = s->h * s->w, lanes = s->window.lanes, ic = s->window.ic;
  int64_t runs, length;
  FN(pixel_runs)(s, &runs, &length);
  for (int64_t r = 0; r < runs; r++) {
    const float *from = last + ((r + s->ph) * wp + s->pw) * lanes;
    float *d = x + r * length;
    if (length < VL || lanes % VL) {
      for (int64_t c = 0; c < ic; c++)
        for (int64_t w = 0; w < length; w++) d[c * plane + w] = from[w * lanes + c];
      continue;
    }
    for (int64_t j = 0; j < length; j += VL) {
      const int64_t w = ti_min(j, length - VL);
      for (int64_t c = 0; c < ic; c += VL) {
        float turned[VL * VL];
        FN(transpose_block)(from + w * lanes + c, lanes, turned, VL, VL, 0);
        for (int64_t k = 0; k < ti_min(VL, ic - c); k++) FN(store)(d + (c + k) * plane + w, FN(load)(turned + k * VL));
      }
    }
  }
}

/* Lists the gradients of one channel of an image, whose pixels are counted from `first` on: value and pixel; returns how many
 * there are, or -1 for a bad index. With `passed`, the results of a ReLU, only gradients of those above zero (or NaN) count.
 * Their sum is added to `total` as they pass: a list that has just been packed together would be waited for. */
static int64_t FN(list_gradients)(const sparse_conv_ints *s, const float *dy, const int64_t *index, const float *passed, int all,
                                  float *value, int32_t *pixel, int32_t first, float *total) {
  const int64_t pixels = s->oh * s->ow;
  int64_t count = 0, i = 0;
  if (all) {
    for (; i < pixels; i++) { value[i] = 0; pixel[i] = first + (int32_t)i; }
    for (i = 0; i < s->pooled; i++) {
      if ((uint64_t)index[i] >= (uint64_t)pixels) return -1;
      value[index[i]] += passed && passed[i] <= 0.0f ? 0.0f : dy[i];
    }
    *total += FN(total)(value, pixels);
    return pixels;
  }
#if VL == 16
  __mmask16 bad = 0;
  __m512 sum = _mm512_setzero_ps();
  for (; i < s->pooled; i += 16) {
    const int left = (int)ti_min(16, s->pooled - i);
    const __mmask16 there = (__mmask16)((1u << left) - 1);
    const __m512 v = _mm512_maskz_loadu_ps(there, dy + i);
    const __m256i low = _mm512_cvtepi64_epi32(_mm512_maskz_loadu_epi64((__mmask8)there, index + i));
    const __m256i high = _mm512_cvtepi64_epi32(_mm512_maskz_loadu_epi64((__mmask8)(there >> 8), index + i + 8));
    const __m512i at = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    __mmask16 kept = _mm512_mask_cmp_ps_mask(there, v, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    if (passed) kept = _mm512_mask_cmp_ps_mask(kept, _mm512_maskz_loadu_ps(there, passed + i), _mm512_setzero_ps(), _CMP_NLE_UQ);
    sum = _mm512_mask_add_ps(sum, kept, sum, v);
    bad |= _mm512_cmpge_epu32_mask(at, _mm512_set1_epi32((int)pixels));
    _mm512_storeu_ps(value + count, _mm512_maskz_compress_ps(kept, v));
    _mm512_storeu_si512(pixel + count, _mm512_maskz_compress_epi32(kept, _mm512_add_epi32(at, _mm512_set1_epi32(first))));
    count += __builtin_popcount(kept);
  }
  if (bad) return -1;
  *total += FN(sum_lanes)(sum);
#else
  for (; i < s->pooled; i++) {
    if ((uint64_t)index[i] >= (uint64_t)pixels) return -1;
    if (dy[i] != 0.0f && !(passed && passed[i] <= 0.0f)) { value[count] = dy[i]; pixel[count++] = first + (int32_t)index[i]; }
  }
  *total += FN(total)(value, count);
#endif
  return count;
}

/* Rows of the window that are summed at a time, of nb vectors each: as many as registers hold beside a factor. Every
 * further pass over a list of entries asks anew how long that is, which no processor foresees. */
enum { FN(SUMS) = VL == 16 ? 25 : 12, FN(MOST_VECTORS) = 6 };
static inline int FN(rows_at_once)(int64_t rows, int64_t nb) {
  const int most = (int)ti_min(rows, FN(SUMS) / nb);
  return most >= 5 ? 5 : most >= 3 ? 3 : most >= 2 ? 2 : 1;
}

/* Vectors of a row of the window that are summed at a time, of so many that are left: nearly the same number each time. */
static inline int64_t FN(vectors_at_once)(int64_t left) { return ti_ceil(left, ti_ceil(left, FN(MOST_VECTORS))); }

/* The compiler would take each of many neighbours' places for a sum of its own, and keep what it adds on the stack. */
TI_INLINE const float *FN(next_row)(const float *at, int64_t apart) {
  at += apart;
  __asm__("" : "+r"(at));
  return at;
}

/* dw += sum of value[e] * x[begins[pixel[e]]] for a run of nb vectors of some rows of the window, which lie `wp` apart in the
 * image and `run` apart in dw. */
TI_INLINE void FN(gather_runs)(const int rows, const int nb, int64_t count, const float *value, const int32_t *pixel,
                               const int32_t *begins, const float *x, int64_t wp, int64_t run, float *dw) {
  VF sum[FN(SUMS)];
#pragma GCC unroll 5
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int j = 0; j < nb; j++) sum[r * nb + j] = FN(load)(dw + r * run + j * VL);
  for (int64_t e = 0; e < count; e++) {
    const VF g = FN(broadcast)(value + e);
    const float *at = x + begins[pixel[e]];
#pragma GCC unroll 5
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
      for (int j = 0; j < nb; j++) sum[r * nb + j] = FN(fma)(g, FN(load)(at + j * VL), sum[r * nb + j]);
      at = FN(next_row)(at, wp);
    }
  }
#pragma GCC unroll 5
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int j = 0; j < nb; j++) FN(store)(dw + r * run + j * VL, sum[r * nb + j]);
}

/* dx += sum of value * weights of the entries of one pixel, for a run of nb vectors of some rows. */
TI_INLINE void FN(scatter_runs)(const int rows, const int nb, const ti_entry *entry, const ti_entry *end, float *dx, int64_t wp,
                                const float *w, int64_t run) {
  VF sum[FN(SUMS)];
#pragma GCC unroll 5
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int j = 0; j < nb; j++) sum[r * nb + j] = FN(load)(dx + r * wp + j * VL);
  for (; entry < end; entry++) {
    const VF g = FN(broadcast)(&entry->value);
    const float *row = w + entry->weight;
#pragma GCC unroll 5
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
      for (int j = 0; j < nb; j++) sum[r * nb + j] = FN(fma)(g, FN(load)(row + j * VL), sum[r * nb + j]);
      row = FN(next_row)(row, run);
    }
  }
#pragma GCC unroll 5
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int j = 0; j < nb; j++) FN(store)(dx + r * wp + j * VL, sum[r * nb + j]);
}

/* dx[begins[pixel[e]]] += value[e] * weights, for a run of nb vectors of some rows. */
TI_INLINE void FN(spread_runs)(const int rows, const int nb, int64_t count, const float *value, const int32_t *pixel,
                               const int32_t *begins, float *dx, int64_t wp, const float *w, int64_t run) {
  VF weight[FN(SUMS)];
#pragma GCC unroll 5
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int j = 0; j < nb; j++) weight[r * nb + j] = FN(load)(w + r * run + j * VL);
  for (int64_t e = 0; e < count; e++) {
    const VF g = FN(broadcast)(value + e);
    float *at = dx + begins[pixel[e]];
#pragma GCC unroll 5
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
      for (int j = 0; j < nb; j++) FN(store)(at + j * VL, FN(fma)(g, weight[r * nb + j], FN(load)(at + j * VL)));
      at = (float *)FN(next_row)(at, wp);
    }
  }
}

/* verb(rows, nb, ...) with both known to the compiler. */
#define TI_RUN(verb, rows_, nb_, ...) \
  case nb_: if (rows_ * nb_ <= FN(SUMS)) FN(verb)(rows_ * nb_ <= FN(SUMS) ? rows_ : 1, nb_, __VA_ARGS__); break;
#define TI_RUNS_OF(verb, rows_, ...) \
  switch (nb) { \
    TI_RUN(verb, rows_, 1, __VA_ARGS__) TI_RUN(verb, rows_, 2, __VA_ARGS__) TI_RUN(verb, rows_, 3, __VA_ARGS__) \
    TI_RUN(verb, rows_, 4, __VA_ARGS__) TI_RUN(verb, rows_, 5, __VA_ARGS__) TI_RUN(verb, rows_, 6, __VA_ARGS__) \
  }
#define TI_RUNS(verb, ...) \
  if (rows == 5) { TI_RUNS_OF(verb, 5, __VA_ARGS__) } \
  else if (rows == 3) { TI_RUNS_OF(verb, 3, __VA_ARGS__) } \
  else if (rows == 2) { TI_RUNS_OF(verb, 2, __VA_ARGS__) } \
  else { TI_RUNS_OF(verb, 1, __VA_ARGS__) }

#if VL == 16
/* The same for windows whose rows fit half a vector: shorter loads seldom cross a cache line. */
TI_INLINE void FN(gather_short)(const int nb, int64_t count, const float *value, const int32_t *pixel, const int32_t *begins,
                                const float *x, int64_t wp, int64_t run, float *dw) {
  __m256 sum[8];
#pragma GCC unroll 8
  for (int j = 0; j < nb; j++) sum[j] = _mm256_loadu_ps(dw + j * run);
  for (int64_t e = 0; e < count; e++) {
    const __m256 g = _mm256_broadcast_ss(value + e);
    const float *at = x + begins[pixel[e]];
#pragma GCC unroll 8
    for (int j = 0; j < nb; j++) sum[j] = _mm256_fmadd_ps(g, _mm256_loadu_ps(at + j * wp), sum[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < nb; j++) _mm256_storeu_ps(dw + j * run, sum[j]);
}
#endif

static void FN(weight_gradient)(const sparse_conv_ints *s, int64_t count, const float *value, const int32_t *pixel,
                                const int32_t *begins, const float *x, float *dw) {
  const int64_t wp = (s->w + 2 * s->pw) * s->window.lanes, vectors = ti_ceil(s->window.kw * s->window.lanes, VL);
#if VL == 16
  if (s->window.kw * s->window.lanes <= 8 && s->window.kh <= 8) {
    switch (s->window.kh) {
#define TI_SHORT(kh_) case kh_: FN(gather_short)(kh_, count, value, pixel, begins, x, wp, s->window.run, dw); break;
      TI_SHORT(1) TI_SHORT(2) TI_SHORT(3) TI_SHORT(4) TI_SHORT(5) TI_SHORT(6) TI_SHORT(7) TI_SHORT(8)
#undef TI_SHORT
    }
    return;
  }
#endif
  for (int64_t v = 0, nb; v < vectors; v += nb) {
    nb = FN(vectors_at_once)(vectors - v);
    for (int64_t row = 0, rows; row < s->window.kh; row += rows) {
      rows = FN(rows_at_once)(s->window.kh - row, nb);
      TI_RUNS(gather_runs, count, value, pixel, begins, x + row * wp + v * VL, wp, s->window.run, dw + row * s->window.run + v * VL)
    }
  }
}

/* Channel by channel, its weights in registers: each gradient reads and writes its window of dx. Pixels are whole vectors,
 * so that what one window has left in a store can be loaded for the next. */
static void FN(few_input_gradients)(const sparse_conv_ints *s, const int32_t *counts, const float *value, const int32_t *pixel,
                                    const int32_t *begins, const float *w, float *dx) {
  const int64_t wp = (s->w + 2 * s->pw) * s->window.lanes, vectors = s->window.kw * s->window.lanes / VL;
  for (int64_t o = 0; o < s->window.oc; value += counts[o], pixel += counts[o], o++, w += s->window.kh * s->window.run)
    for (int64_t v = 0, nb; v < vectors; v += nb) {
      nb = FN(vectors_at_once)(vectors - v);
      for (int64_t row = 0, rows; row < s->window.kh; row += rows) {
        rows = FN(rows_at_once)(s->window.kh - row, nb);
        TI_RUNS(spread_runs, counts[o], value, pixel, begins, dx + row * wp + v * VL, wp, w + row * s->window.run + v * VL, s->window.run)
      }
    }
}

/* Sorts the entries of all channels by pixel, so that each pixel's window of dx is read and written once; pixel by
 * pixel and not vector by vector, since windows overlap and a load behind a store in flight would wait for it. */
static void FN(input_gradient)(const sparse_conv_ints *s, const int32_t *counts, const float *value, const int32_t *pixel,
                               const int32_t *begins, int32_t *first, ti_entry *sorted, const float *w, float *dx) {
  const int64_t wp = (s->w + 2 * s->pw) * s->window.lanes, vectors = ti_ceil(s->window.kw * s->window.lanes, VL);
  const int64_t pixels = s->together * s->oh * s->ow, size = s->window.kh * s->window.run;
  int64_t total = 0;
  for (int64_t o = 0; o < s->window.oc; o++) total += counts[o];
  memset(first, 0, (size_t)(pixels + 1) * 4);
  for (int64_t e = 0; e < total; e++) first[pixel[e] + 1]++;
  for (int64_t p = 0; p < pixels; p++) first[p + 1] += first[p];
  for (int64_t o = 0, e = 0; o < s->window.oc; o++)
    for (int64_t i = 0; i < counts[o]; i++, e++) {
      ti_entry *entry = sorted + first[pixel[e]]++;
      entry->value = value[e];
      entry->weight = (int32_t)(o * size);
    }
  /* The weights are padded with zeros up to whole vectors: harmless, unless an infinity or a NaN meets them. */
  const int special = FN(any_special)(value, total);
  for (int64_t q = 0, begin = 0; q < pixels; begin = first[q++]) {
    if (first[q] == begin) continue;
    float *at = dx + begins[q];
    if (special) {
      for (int64_t e = begin; e < first[q]; e++)
        for (int64_t row = 0; row < s->window.kh; row++)
          for (int64_t i = 0; i < s->window.kw * s->window.lanes; i++)
            at[row * wp + i] += sorted[e].value * w[sorted[e].weight + row * s->window.run + i];
      continue;
    }
    for (int64_t v = 0, nb; v < vectors; v += nb) {
      nb = FN(vectors_at_once)(vectors - v);
      for (int64_t row = 0, rows; row < s->window.kh; row += rows) {
        rows = FN(rows_at_once)(s->window.kh - row, nb);
        TI_RUNS(scatter_runs, sorted + begin, sorted + first[q], at + row * wp + v * VL, wp, w + row * s->window.run + v * VL, s->window.run)
      }
    }
  }
}

/* Where each window of a group of images begins in their copies. */
static void FN(window_begins)(const sparse_conv_ints *s, int32_t *begins) {
  const int64_t lanes = s->window.lanes, row = s->sh * (s->w + 2 * s->pw) * lanes, image = ti_sparse_image(s);
  for (int64_t g = 0; g < s->together; g++)
    for (int64_t oh = 0; oh < s->oh; oh++)
      for (int64_t ow = 0; ow < s->ow; ow++) *begins++ = (int32_t)(g * image + oh * row + ow * s->sw * lanes);
}

/* Lists the gradients of one channel of all images of a group; returns how many there are, or -1 for a bad index. */
static int64_t FN(list_group)(const sparse_conv_ints *s, char *const *args, int64_t image, int64_t group, int64_t o, int all,
                              float *value, int32_t *pixel, float *total) {
  int64_t count = 0;
  for (int64_t g = 0; g < group; g++) {
    const int64_t plane = ((image + g) * s->window.oc + o) * s->pooled;
    const float *passed = s->has_relu ? (const float *)args[7] + plane : NULL;
    const int64_t more = FN(list_gradients)(s, (const float *)args[3] + plane, (const int64_t *)args[4] + plane, passed, all,
                                            value + count, pixel + count, (int32_t)(g * s->oh * s->ow), total);
    if (more < 0) return -1;
    count += more;
  }
  return count;
}

/* The images of a chunk in groups: a channel's weights and their gradient are read and written once for a group. All lists
 * are made before the first is read, as nothing foresees how long one is. */
TI_KERNEL(sparse_conv_backward) {
  const sparse_conv_ints shape = *(const sparse_conv_ints *)ints, *const s = &shape;
  const int64_t length = ti_sparse_list(s), pixels = s->together * s->oh * s->ow, padded = ti_sparse_image(s);
  float *dx = (float *)args[0], *last = (float *)scratch, *dlast = last + s->together * padded;
  float *value = dlast + s->together * padded;
  int32_t *pixel = (int32_t *)(value + length), *begins = pixel + 3 * length, *first = begins + pixels, *counts = first + pixels + 1;
  ti_entry *sorted = (ti_entry *)(pixel + length);
  const float *dy = (const float *)args[3], *x = (const float *)args[5], *w = (const float *)args[6];
  const int64_t size = s->window.kh * s->window.run, image = s->window.ic * s->h * s->w, given = s->window.oc * s->pooled;
  const int special_w = s->wants_dx && FN(any_special)(w, s->window.oc * size);
  (void)scalars;
  memset(last, 0, (size_t)(s->together * padded) * 4);
  FN(window_begins)(s, begins);
  for (int64_t chunk = begin; chunk < end; chunk++) {
    float *dw = (float *)args[1] + chunk * s->window.oc * size, *db = (float *)args[2] + chunk * s->window.oc;
    const int64_t stop = ti_min(s->n, (chunk + 1) * s->images);
    memset(dw, 0, (size_t)(s->window.oc * size) * 4);
    memset(db, 0, (size_t)s->window.oc * 4);
    for (int64_t i = chunk * s->images; i < stop; i += s->together) {
      const int64_t group = ti_min(s->together, stop - i), next = i + group;
      for (int64_t g = 0; g < group; g++) FN(to_channels_last)(s, x + (i + g) * image, last + g * padded);
      FN(prefetch)(dy + next * given, (ti_min(s->n, next + s->together) - next) * given);  /* another core may hold it */
      const int all = special_w || FN(any_special)(x + i * image, group * image);
      for (int64_t o = 0, e = 0; o < s->window.oc; o++) {
        const int64_t count = FN(list_group)(s, args, i, group, o, all, value + e, pixel + e, db + o);
        if (count < 0) return TI_TRAP_INDEX;
        counts[o] = (int32_t)count;
        if (s->wants_dx) e += count;
        else FN(weight_gradient)(s, count, value, pixel, begins, last, dw + o * size);
      }
      if (!s->wants_dx) continue;
      for (int64_t o = 0, e = 0; o < s->window.oc; e += counts[o++])
        FN(weight_gradient)(s, counts[o], value + e, pixel + e, begins, last, dw + o * size);
      memset(dlast, 0, (size_t)(group * padded) * 4);
      if (ti_has_few(s)) FN(few_input_gradients)(s, counts, value, pixel, begins, w, dlast);
      else FN(input_gradient)(s, counts, value, pixel, begins, first, sorted, w, dlast);
      for (int64_t g = 0; g < group; g++) FN(from_channels_last)(s, dlast + g * padded, dx + (i + g) * image);
    }
  }
  return TI_OK;
}

TI_KERNEL(sparse_conv_pack) {
  const sparse_window *const p = (const sparse_window *)ints;
  const int64_t ic = p->ic, kh = p->kh, kw = p->kw, run = p->run, lanes = p->lanes;
  for (int64_t o = begin; o < end; o++) {
    float *d = (float *)args[0] + o * kh * run;
    const float *w = (const float *)args[1] + o * ic * kh * kw;
    memset(d, 0, (size_t)(kh * run) * 4);
    for (int64_t c = 0; c < ic; c++)
      for (int64_t y = 0; y < kh; y++)
        for (int64_t z = 0; z < kw; z++) d[y * run + z * lanes + c] = w[(c * kh + y) * kw + z];
  }
  return TI_OK;
}

TI_KERNEL(sparse_conv_reduce) {
  const sparse_window *const p = &((const sparse_conv_reduce_ints *)ints)->window;
  const int64_t oc = p->oc, ic = p->ic, kh = p->kh, kw = p->kw, run = p->run, lanes = p->lanes, size = kh * run;
  const int64_t chunks = ((const sparse_conv_reduce_ints *)ints)->chunks;
  float *sum = (float *)scratch;
  for (int64_t o = begin; o < end; o++) {
    const float *part = (const float *)args[2] + o * size;
    float bias = 0;
    memcpy(sum, part, (size_t)size * 4);
    for (int64_t c = 1; c < chunks; c++)
      for (int64_t i = 0; i < size; i += VL)
        FN(store)(sum + i, FN(load)(sum + i) + FN(load)(part + c * oc * size + i));
    for (int64_t c = 0; c < chunks; c++) bias += ((const float *)args[3])[c * oc + o];
    ((float *)args[1])[o] = bias;
    float *dw = (float *)args[0] + o * ic * kh * kw;
    for (int64_t c = 0; c < ic; c++)
      for (int64_t y = 0; y < kh; y++)
        for (int64_t z = 0; z < kw; z++) dw[(c * kh + y) * kw + z] = sum[y * run + z * lanes + c];
  }
  return TI_OK;
}
