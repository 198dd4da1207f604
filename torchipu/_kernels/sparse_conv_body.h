/* Gradients of a convolution whose output gradient is mostly zero, as it is behind a max-pool.
 *
 * The image lies channels-last, so that a row of the window is one run of kw * ic floats; each gradient that is not
 * zero then adds that run to the weight gradient, and the weights' run to the input gradient. Where an operand holds
 * infinities or NaNs the zeros take part as well, since 0 * inf is not 0.
 */
#include "gemm_body.h"

#ifndef TORCHIPU_SPARSE_CONV_SHAPE
#define TORCHIPU_SPARSE_CONV_SHAPE
/* n, ic, oc: sizes; run: floats kept for kw * ic, a multiple of 16; images: images of a chunk. */
typedef struct {
  int64_t n, ic, oc, h, w, oh, ow, kh, kw, sh, sw, ph, pw, run, images, want_dx;
} ti_sparse_conv;
enum { TI_SPARSE_LANES = 8, TI_SPARSE_SLACK = 32 };
static inline int64_t ti_sparse_image(const ti_sparse_conv *s) {
  return ((s->h + 2 * s->ph) * (s->w + 2 * s->pw) * s->ic + s->kw * s->ic + TI_SPARSE_SLACK + 15) / 16 * 16;
}
static inline int64_t ti_sparse_list(const ti_sparse_conv *s) { return (s->oh * s->ow + TI_SPARSE_SLACK + 15) / 16 * 16; }
#endif

/* Whether any of n floats is infinite or NaN. */
static int FN(any_special)(const float *p, int64_t n) {
  FN(vf) sum = {0};
  int64_t i = 0;
  for (; i + VL <= n; i += VL) sum += FN(load)(p + i) * 0.0f;
  float rest = FN(sum)(sum);
  for (; i < n; i++) rest += p[i] * 0.0f;
  return rest != 0.0f;
}

static void FN(to_channels_last)(const ti_sparse_conv *s, const float *x, float *last) {
  const int64_t wp = s->w + 2 * s->pw;
  for (int64_t c = 0; c < s->ic; c++)
    for (int64_t h = 0; h < s->h; h++) {
      float *d = last + ((h + s->ph) * wp + s->pw) * s->ic + c;
      const float *row = x + (c * s->h + h) * s->w;
      if (s->ic == 1) memcpy(d, row, (size_t)s->w * 4);
      else for (int64_t w = 0; w < s->w; w++) d[w * s->ic] = row[w];
    }
}

static void FN(from_channels_last)(const ti_sparse_conv *s, const float *last, float *x) {
  const int64_t wp = s->w + 2 * s->pw;
  for (int64_t c = 0; c < s->ic; c++)
    for (int64_t h = 0; h < s->h; h++) {
      const float *d = last + ((h + s->ph) * wp + s->pw) * s->ic + c;
      float *row = x + (c * s->h + h) * s->w;
      for (int64_t w = 0; w < s->w; w++) row[w] = d[w * s->ic];
    }
}

/* Lists the gradients of one channel and where their windows begin; returns how many there are. */
static int64_t FN(list_gradients)(const ti_sparse_conv *s, const float *dy, int all, float *value, int32_t *at) {
  const int64_t step = s->sw * s->ic, wp = (s->w + 2 * s->pw) * s->ic * s->sh;
  int64_t count = 0;
  for (int64_t h = 0; h < s->oh; h++, dy += s->ow) {
    int64_t w = 0;
#if VL == 16
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (; w < s->ow; w += 16) {
      const int left = (int)(s->ow - w < 16 ? s->ow - w : 16);
      const __mmask16 there = (__mmask16)((1u << left) - 1);
      const __m512 v = _mm512_maskz_loadu_ps(there, dy + w);
      const __mmask16 kept = all ? there : _mm512_mask_cmp_ps_mask(there, v, _mm512_setzero_ps(), _CMP_NEQ_UQ);
      const __m512i p = _mm512_add_epi32(_mm512_set1_epi32((int)(h * wp + w * step)),
                                         _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)step)));
      _mm512_storeu_ps(value + count, _mm512_maskz_compress_ps(kept, v));
      _mm512_storeu_si512(at + count, _mm512_maskz_compress_epi32(kept, p));
      count += __builtin_popcount(kept);
    }
#else
    for (; w < s->ow; w++)
      if (all || dy[w] != 0.0f) {
        value[count] = dy[w];
        at[count++] = (int32_t)(h * wp + w * step);
      }
#endif
  }
  return count;
}

/* dw[row r] += sum of value[e] * x[at[e] + from[r]], for nb vectors. */
TI_INLINE void FN(gather_runs)(const int nb, int64_t count, const float *value, const int32_t *at, const float *x,
                               const int64_t *from, float *const *dw) {
  FN(vf) sum[8];
  const float *base[8];
#pragma GCC unroll 8
  for (int j = 0; j < nb; j++) { sum[j] = FN(load)(dw[j]); base[j] = x + from[j]; }
  for (int64_t e = 0; e < count; e++) {
    const FN(vf) g = FN(broadcast)(value + e);
    const int64_t o = at[e];
#pragma GCC unroll 8
    for (int j = 0; j < nb; j++) sum[j] = FN(fma)(g, FN(load)(base[j] + o), sum[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < nb; j++) FN(store)(dw[j], sum[j]);
}

/* dx[at[e] + from[r]] += value[e] * w[row r], for nb vectors. Neighbouring entries of the list overlap in memory, and
 * a load that overlaps a store in flight waits for it: entries are taken from TI_SPARSE_LANES places in turn. */
TI_INLINE void FN(scatter_runs)(const int nb, int64_t count, const float *value, const int32_t *at, float *dx,
                                const int64_t *from, const float *const *w) {
  FN(vf) weight[8];
  float *base[8];
#pragma GCC unroll 8
  for (int j = 0; j < nb; j++) { weight[j] = FN(load)(w[j]); base[j] = dx + from[j]; }
  const int64_t lane = ti_ceil(count, TI_SPARSE_LANES);
  for (int64_t first = 0; first < lane; first++)
    for (int64_t e = first; e < count; e += lane) {
      const FN(vf) g = FN(broadcast)(value + e);
      const int64_t o = at[e];
#pragma GCC unroll 8
      for (int j = 0; j < nb; j++) FN(store)(base[j] + o, FN(fma)(g, weight[j], FN(load)(base[j] + o)));
    }
}

#define TI_RUNS(verb, ...) \
  switch (nb) { \
    case 1: FN(verb)(1, __VA_ARGS__); break; case 2: FN(verb)(2, __VA_ARGS__); break; \
    case 3: FN(verb)(3, __VA_ARGS__); break; case 4: FN(verb)(4, __VA_ARGS__); break; \
    case 5: FN(verb)(5, __VA_ARGS__); break; case 6: FN(verb)(6, __VA_ARGS__); break; \
    case 7: FN(verb)(7, __VA_ARGS__); break; default: FN(verb)(8, __VA_ARGS__); }

static void FN(one_channel)(const ti_sparse_conv *s, int64_t count, const float *value, const int32_t *at, const float *x,
                            float *dx, const float *w, float *dw) {
  const int64_t wp = (s->w + 2 * s->pw) * s->ic, vectors = ti_ceil(s->kw * s->ic, VL), pairs = s->kh * vectors;
  for (int64_t p = 0; p < pairs; p += 8) {
    const int nb = (int)ti_min(8, pairs - p);
    int64_t from[8];
    float *to[8];
    const float *weight[8];
    for (int j = 0; j < nb; j++) {
      const int64_t row = (p + j) / vectors, v = (p + j) % vectors * VL;
      from[j] = row * wp + v;
      to[j] = dw + row * s->run + v;
      weight[j] = w + row * s->run + v;
    }
    TI_RUNS(gather_runs, count, value, at, x, from, to)
    if (dx) { TI_RUNS(scatter_runs, count, value, at, dx, from, weight) }
  }
}

/* args: dx [n, ic, h, w] (ignored unless want_dx), partial dw [chunks, oc, kh, run], partial db [chunks, oc];
 *       dy [n, oc, oh, ow], x [n, ic, h, w], packed weights [oc, kh, run]
 * ints: ti_sparse_conv; items: chunks of `images` images; scratch: two images and two lists. */
int FN(sparse_conv_backward)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                             void *scratch) {
  ti_sparse_conv s;
  memcpy(&s, ints, sizeof s);
  float *dx = (float *)args[0], *last = (float *)scratch, *dlast = last + ti_sparse_image(&s);
  float *value = dlast + ti_sparse_image(&s);
  int32_t *at = (int32_t *)(value + ti_sparse_list(&s));
  const float *dy = (const float *)args[3], *x = (const float *)args[4], *w = (const float *)args[5];
  const int64_t size = s.kh * s.run, image = s.ic * s.h * s.w, plane = s.oh * s.ow;
  const int special_w = s.want_dx && FN(any_special)(w, s.oc * size);
  memset(last, 0, (size_t)ti_sparse_image(&s) * 4);
  for (int64_t chunk = begin; chunk < end; chunk++) {
    float *dw = (float *)args[1] + chunk * s.oc * size, *db = (float *)args[2] + chunk * s.oc;
    memset(dw, 0, (size_t)(s.oc * size) * 4);
    memset(db, 0, (size_t)s.oc * 4);
    for (int64_t i = chunk * s.images; i < ti_min(s.n, (chunk + 1) * s.images); i++) {
      FN(to_channels_last)(&s, x + i * image, last);
      const int all = special_w || FN(any_special)(x + i * image, image);
      if (s.want_dx) memset(dlast, 0, (size_t)ti_sparse_image(&s) * 4);
      for (int64_t o = 0; o < s.oc; o++) {
        const int64_t count = FN(list_gradients)(&s, dy + (i * s.oc + o) * plane, all, value, at);
        float sum = 0;
        for (int64_t e = 0; e < count; e++) sum += value[e];
        db[o] += sum;
        FN(one_channel)(&s, count, value, at, last, s.want_dx ? dlast : NULL, w + o * size, dw + o * size);
      }
      if (s.want_dx) FN(from_channels_last)(&s, dlast, dx + i * image);
    }
  }
  return TI_OK;
}

/* args: packed [oc, kh, run]; weight [oc, ic, kh, kw]. ints: oc, ic, kh, kw, run. items: oc. */
int FN(sparse_conv_pack)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                         void *scratch) {
  const int64_t ic = ints[1], kh = ints[2], kw = ints[3], run = ints[4];
  for (int64_t o = begin; o < end; o++) {
    float *d = (float *)args[0] + o * kh * run;
    const float *w = (const float *)args[1] + o * ic * kh * kw;
    memset(d, 0, (size_t)(kh * run) * 4);
    for (int64_t c = 0; c < ic; c++)
      for (int64_t y = 0; y < kh; y++)
        for (int64_t z = 0; z < kw; z++) d[y * run + z * ic + c] = w[(c * kh + y) * kw + z];
  }
  return TI_OK;
}

/* Adds the chunks in their order. args: dw [oc, ic, kh, kw], db [oc]; partial dw, partial db.
 * ints: oc, ic, kh, kw, run, chunks. items: oc; scratch: kh * run floats. */
int FN(sparse_conv_reduce)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                           void *scratch) {
  const int64_t oc = ints[0], ic = ints[1], kh = ints[2], kw = ints[3], run = ints[4], chunks = ints[5], size = kh * run;
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
        for (int64_t z = 0; z < kw; z++) dw[(c * kh + y) * kw + z] = sum[y * run + z * ic + c];
  }
  return TI_OK;
}
