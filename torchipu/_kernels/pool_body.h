/* Pooling over two dimensions; table/pool.py says what the kernels take. */
#include "table/pool.h"

#ifndef TORCHIPU_POOL_WINDOW
#define TORCHIPU_POOL_WINDOW
/* Bounds of window i along one dimension: first position and end, clipped to the image. */
static inline void ti_window(int64_t i, int64_t size, int64_t window, int64_t stride, int64_t padding, int64_t dilation,
                             int64_t *first, int64_t *end) {
  *first = i * stride - padding;
  *end = ti_min(*first + (window - 1) * dilation + 1, size);
  while (*first < 0) *first += dilation;
}
#endif

/* n <= VL floats that lie `step` apart; nothing beyond them is read. */
TI_INLINE VF FN(strided)(const float *p, int64_t step, int n) {
  if (step == 1) return FN(load_most)(p, n);
#if VL == 16
  if (step <= 4) {
    /* From two vectors each, then from both: lanes that the first two do not reach are those of the others. */
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)step));
    if (step == 2 && n == VL)
      return (VF)_mm512_permutex2var_ps(_mm512_loadu_ps(p), at, _mm512_maskz_loadu_ps(0x7fff, p + 16));
    const uint64_t bits = (((uint64_t)1 << (step * (n - 1))) << 1) - 1;
    const __m512 a = _mm512_maskz_loadu_ps((__mmask16)bits, p), b = _mm512_maskz_loadu_ps((__mmask16)(bits >> 16), p + 16);
    const __m512 near = _mm512_permutex2var_ps(a, at, b);
    if (step == 2) return (VF)near;
    const __m512 c = _mm512_maskz_loadu_ps((__mmask16)(bits >> 32), p + 32), d = _mm512_maskz_loadu_ps((__mmask16)(bits >> 48), p + 48);
    const __m512 far = _mm512_permutex2var_ps(c, at, d);  /* places go round after 32 */
    return (VF)_mm512_mask_mov_ps(near, _mm512_cmpgt_epi32_mask(at, _mm512_set1_epi32(31)), far);
  }
#else
  if (step == 2) {
    const int count = 2 * n - 1, low = count < VL ? count : VL;
    const __m256 a = (__m256)FN(load_part)(p, low), b = count > VL ? (__m256)FN(load_part)(p + VL, count - VL) : a;
    return (VF)_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xd8));
  }
#endif
  VF v = {0};
  for (int i = 0; i < n; i++) v[i] = p[i * step];
  return v;
}

/* One window: the first of the largest values, or the last NaN, as ATen has it. */
static void FN(max_one)(const pool_ints *s, const float *x, int64_t oh, int64_t ow, float *y, int64_t *index) {
  int64_t h0, h1, w0, w1;
  ti_window(oh, s->h, s->kh, s->sh, s->ph, s->dh, &h0, &h1);
  ti_window(ow, s->w, s->kw, s->sw, s->pw, s->dw, &w0, &w1);
  float most = -INFINITY;
  int64_t at = h0 * s->w + w0;
  for (int64_t h = h0; h < h1; h += s->dh)
    for (int64_t w = w0; w < w1; w += s->dw) {
      const float v = x[h * s->w + w];
      if (v > most || isnan(v)) { most = v; at = h * s->w + w; }
    }
  *y = most;
  if (index) *index = at;
}

/* Writes n <= VL values and their positions, which memory holds as int64. */
TI_INLINE void FN(store_max)(VF value, VI at, int n, float *y, int64_t *index) {
#if VL == 16
  const __mmask16 there = (__mmask16)((1u << n) - 1);
  _mm512_mask_storeu_ps(y, there, (__m512)value);
  _mm512_mask_storeu_epi64(index, (__mmask8)there, _mm512_cvtepi32_epi64(_mm512_castsi512_si256((__m512i)at)));
  if (n > 8)
    _mm512_mask_storeu_epi64(index + 8, (__mmask8)(there >> 8), _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64((__m512i)at, 1)));
#else
  if (n == VL) {
    FN(store)(y, value);
    _mm256_storeu_si256((__m256i *)index, _mm256_cvtepi32_epi64(_mm256_castsi256_si128((__m256i)at)));
    _mm256_storeu_si256((__m256i *)(index + 4), _mm256_cvtepi32_epi64(_mm256_extracti128_si256((__m256i)at, 1)));
    return;
  }
  for (int i = 0; i < n; i++) { y[i] = value[i]; index[i] = at[i]; }
#endif
}

/* A plane whose windows are 2 x 2, disjoint and within it: as many windows of a row at a time as a vector has lanes. */
#if VL == 16
/* The later of two candidates where it is larger or NaN. */
TI_INLINE void FN(take_larger)(__m512 *most, __m512i *at, __m512 v, __m512i place) {
  const __mmask16 take = _mm512_cmp_ps_mask(v, *most, _CMP_GT_OQ) | _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  *most = _mm512_mask_mov_ps(*most, take, v);
  *at = _mm512_mask_mov_epi32(*at, take, place);
}

/* Windows at `first` whose elements a, b (above) and c, d (below) are. */
TI_INLINE void FN(max_of_four)(__m512 a, __m512 b, __m512 c, __m512 d, __m512i first, int64_t w, int n, float *y, int64_t *index) {
  const __m512i one = _mm512_set1_epi32(1), row = _mm512_set1_epi32((int)w);
  __m512i at = first, below = _mm512_add_epi32(first, row);
  FN(take_larger)(&a, &at, b, _mm512_add_epi32(first, one));
  FN(take_larger)(&c, &below, d, _mm512_add_epi32(below, one));
  FN(take_larger)(&a, &at, c, below);
  FN(store_max)((VF)a, (VI)at, n, y, index);
}

/* Rows of eight: four rows of windows at a time. */
static void FN(max_plane_of_eights)(const pool_ints *s, const float *x, float *y, int64_t *index) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512i window = _mm512_setr_epi32(0, 2, 4, 6, 16, 18, 20, 22, 32, 34, 36, 38, 48, 50, 52, 54);
  for (int64_t oh = 0; oh < s->oh; oh += 4) {
    const int64_t rows = ti_min(4, s->oh - oh);
    __m512 v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) v[i] = _mm512_loadu_ps(x + 16 * (oh + ti_min(i, rows - 1)));  /* a row and the one below */
    const __m512 a0 = _mm512_shuffle_f32x4(v[0], v[1], 0x44), a1 = _mm512_shuffle_f32x4(v[2], v[3], 0x44);
    const __m512 b0 = _mm512_shuffle_f32x4(v[0], v[1], 0xee), b1 = _mm512_shuffle_f32x4(v[2], v[3], 0xee);
    FN(max_of_four)(_mm512_permutex2var_ps(a0, even, a1), _mm512_permutex2var_ps(a0, odd, a1), _mm512_permutex2var_ps(b0, even, b1),
                    _mm512_permutex2var_ps(b0, odd, b1), _mm512_add_epi32(window, _mm512_set1_epi32((int)(16 * oh))), 8,
                    (int)(4 * rows), y + 4 * oh, index + 4 * oh);
  }
}

static void FN(max_plane_2x2)(const pool_ints *s, const float *x, float *y, int64_t *index) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  if (s->w == 8 && s->ow == 4) { FN(max_plane_of_eights)(s, x, y, index); return; }
  for (int64_t ow = 0; ow < s->ow; ow += 16) {
    const int n = (int)ti_min(16, s->ow - ow);
    const uint64_t bits = n == 16 ? 0xffffffffull : (1ull << (2 * n)) - 1;
    const __mmask16 low = (__mmask16)bits, high = (__mmask16)(bits >> 16);
    for (int64_t oh = 0; oh < s->oh; oh++) {
      const float *p = x + 2 * oh * s->w + 2 * ow, *q = p + s->w;
      const __m512 a0 = _mm512_maskz_loadu_ps(low, p), b0 = _mm512_maskz_loadu_ps(low, q);
      const __m512 a1 = high ? _mm512_maskz_loadu_ps(high, p + 16) : a0, b1 = high ? _mm512_maskz_loadu_ps(high, q + 16) : b0;
      FN(max_of_four)(_mm512_permutex2var_ps(a0, even, a1), _mm512_permutex2var_ps(a0, odd, a1),
                      _mm512_permutex2var_ps(b0, even, b1), _mm512_permutex2var_ps(b0, odd, b1),
                      _mm512_add_epi32(even, _mm512_set1_epi32((int)(2 * oh * s->w + 2 * ow))), s->w, n,
                      y + oh * s->ow + ow, index + oh * s->ow + ow);
    }
  }
}
#else
/* Every second of sixteen floats, from the first or from the second one on. */
TI_INLINE __m256 FN(every_second)(__m256 a, __m256 b, const int from) {
  const __m256 mixed = from ? _mm256_shuffle_ps(a, b, 0xdd) : _mm256_shuffle_ps(a, b, 0x88);
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}

static void FN(max_plane_2x2)(const pool_ints *s, const float *x, float *y, int64_t *index) {
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
  const int apart[3] = {1, (int)s->w, (int)s->w + 1};
  for (int64_t oh = 0; oh < s->oh; oh++)
    for (int64_t ow = 0; ow < s->ow; ow += VL) {
      const int n = (int)ti_min(VL, s->ow - ow), low = (int)ti_min(VL, 2 * n), high = 2 * n - low;
      const float *p = x + 2 * oh * s->w + 2 * ow, *q = p + s->w;
      const __m256 a0 = (__m256)FN(load_part)(p, low), b0 = (__m256)FN(load_part)(q, low);
      const __m256 a1 = high ? (__m256)FN(load_part)(p + VL, high) : a0, b1 = high ? (__m256)FN(load_part)(q + VL, high) : b0;
      const __m256 v[3] = {FN(every_second)(a0, a1, 1), FN(every_second)(b0, b1, 0), FN(every_second)(b0, b1, 1)};
      const __m256i first = _mm256_add_epi32(even, _mm256_set1_epi32((int)(2 * oh * s->w + 2 * ow)));
      __m256 most = FN(every_second)(a0, a1, 0);
      __m256i at = first;
#pragma GCC unroll 3
      for (int k = 0; k < 3; k++) {
        const __m256 take = _mm256_or_ps(_mm256_cmp_ps(v[k], most, _CMP_GT_OQ), _mm256_cmp_ps(v[k], v[k], _CMP_UNORD_Q));
        most = _mm256_blendv_ps(most, v[k], take);
        at = _mm256_blendv_epi8(at, _mm256_add_epi32(first, _mm256_set1_epi32(apart[k])), _mm256_castps_si256(take));
      }
      FN(store_max)((VF)most, (VI)at, n, y + oh * s->ow + ow, index + oh * s->ow + ow);
    }
}
#endif

/* Whether windows are 2 x 2, disjoint and within the plane. */
TI_INLINE int FN(is_2x2)(const pool_ints *s) {
  return s->kh == 2 && s->kw == 2 && s->sh == 2 && s->sw == 2 && !s->ph && !s->pw && s->dh == 1 && s->dw == 1 &&
         2 * s->ow <= s->w && 2 * s->oh <= s->h;
}

/* A row of windows, of which those of columns lo to hi lie within the image and are taken VL at a time. */
TI_INLINE void FN(max_row)(const pool_ints *s, const float *x, int64_t oh, int64_t lo, int64_t hi, const int has_indices,
                           const int64_t step, float *y, int64_t *index) {
  int64_t h0, h1, ow = 0;
  ti_window(oh, s->h, s->kh, s->sh, s->ph, s->dh, &h0, &h1);
  for (; ow < lo; ow++) FN(max_one)(s, x, oh, ow, y + ow, has_indices ? index + ow : NULL);
  for (; ow < hi; ow += VL) {
    const int n = (int)ti_min(VL, hi - ow);
    const int64_t column = ow * s->sw - s->pw;
    VF most = FN(set)(-INFINITY);
    VI base = {0}, at = {0};
    if (has_indices) {
      for (int i = 0; i < VL; i++) base[i] = (int32_t)(column + i * s->sw);
      at = base + (int32_t)(h0 * s->w);
    }
    for (int64_t h = h0; h < h1; h += s->dh)
      for (int64_t k = 0; k < s->kw; k++) {
        const VF v = FN(strided)(x + h * s->w + column + k * s->dw, step, n);
        if (!has_indices) { most = FN(maximum)(most, v); continue; }
        const VI take = (VI)((v > most) | (v != v)), here = base + (int32_t)(h * s->w + k * s->dw);
        most = (VF)(((VI)v & take) | ((VI)most & ~take));
        at = (here & take) | (at & ~take);
      }
    if (has_indices) FN(store_max)(most, at, n, y + ow, index + ow);
    else FN(store_most)(y + ow, most, n);
  }
  for (ow = ti_min(ow, hi); ow < s->ow; ow++) FN(max_one)(s, x, oh, ow, y + ow, has_indices ? index + ow : NULL);
}

TI_INLINE void FN(max_plane)(const pool_ints *s, const float *x, const int has_indices, float *y, int64_t *index) {
  const int64_t lo = ti_min(s->ow, (s->pw + s->sw - 1) / s->sw), room = s->w + s->pw - (s->kw - 1) * s->dw - 1;
  const int64_t hi = room < 0 ? lo : ti_max(lo, ti_min(s->ow, room / s->sw + 1));
  for (int64_t oh = 0; oh < s->oh; oh++) {
    float *const row = y + oh * s->ow;
    int64_t *const places = has_indices ? index + oh * s->ow : NULL;
    if (s->sw == 1) FN(max_row)(s, x, oh, lo, hi, has_indices, 1, row, places);
    else if (s->sw == 2) FN(max_row)(s, x, oh, lo, hi, has_indices, 2, row, places);
    else FN(max_row)(s, x, oh, lo, hi, has_indices, s->sw, row, places);
  }
}

TI_KERNEL(max_pool) {
  const pool_ints *const s = (const pool_ints *)ints;
  const int is_2x2 = FN(is_2x2)(s);
  (void)scalars; (void)scratch;
  for (int64_t plane = begin; plane < end; plane++) {
    const float *x = (const float *)args[2] + plane * s->h * s->w;
    float *const y = (float *)args[0] + plane * s->oh * s->ow;
    int64_t *const index = (int64_t *)args[1] + plane * s->oh * s->ow;
    if (is_2x2) FN(max_plane_2x2)(s, x, y, index);
    else FN(max_plane)(s, x, 1, y, index);
  }
  return TI_OK;
}

TI_KERNEL(max_pool_values) {
  const pool_ints *const s = (const pool_ints *)ints;
  /* where rows are taken together, which is worth places that nobody reads */
  const int is_2x2 = FN(is_2x2)(s);
  (void)scalars;
  for (int64_t plane = begin; plane < end; plane++) {
    const float *x = (const float *)args[1] + plane * s->h * s->w;
    float *const y = (float *)args[0] + plane * s->oh * s->ow;
    if (is_2x2) FN(max_plane_2x2)(s, x, y, (int64_t *)scratch);
    else FN(max_plane)(s, x, 0, y, NULL);
  }
  return TI_OK;
}

TI_KERNEL(max_pool_backward) {
  const placing_ints *const shape = (const placing_ints *)ints;
  const int64_t pixels = shape->outputs, outputs = shape->inputs;
  (void)scalars; (void)scratch;
  for (int64_t plane = begin; plane < end; plane++) {
    float *dx = (float *)args[0] + plane * pixels;
    const float *dy = (const float *)args[1] + plane * outputs;
    const int64_t *index = (const int64_t *)args[2] + plane * outputs;
    memset(dx, 0, sizeof(float) * (size_t)pixels);
    for (int64_t i = 0; i < outputs; i++) {
      if ((uint64_t)index[i] >= (uint64_t)pixels) return TI_TRAP_INDEX;
      dx[index[i]] += dy[i];
    }
  }
  return TI_OK;
}

/* Divisor of an average: the given one, the window with its padding, or the pixels in it. */
static inline float FN(divisor)(const average_pool_ints *p, int64_t oh, int64_t ow, int64_t pixels) {
  if (p->divisor) return (float)p->divisor;
  if (!p->counts_padding) return (float)pixels;
  const pool_ints *const s = &p->window;
  const int64_t h = ti_min(oh * s->sh - s->ph + s->kh, s->h + s->ph) - (oh * s->sh - s->ph);
  const int64_t w = ti_min(ow * s->sw - s->pw + s->kw, s->w + s->pw) - (ow * s->sw - s->pw);
  return (float)(h * w);
}

/* The sum of what lies one behind the other, in the lanes of a vector first. */
static inline float FN(sum_run)(const float *x, int64_t count) {
  VF sum = FN(set)(0.0f);
  for (int64_t i = 0; i < count; i += VL) sum += FN(load_most)(x + i, count - i);
  return FN(sum_lanes)(sum);
}

/* The average of one window; 0 where none of the image is in it. */
static inline float FN(average_one)(const average_pool_ints *p, const float *x, int64_t h0, int64_t h1, int64_t oh, int64_t ow) {
  const pool_ints *const s = &p->window;
  const int64_t w0 = ti_max(0, ow * s->sw - s->pw), w1 = ti_min(s->w, ow * s->sw - s->pw + s->kw);
  float sum = 0;
  if (h0 >= h1 || w0 >= w1) return 0;
  if (w1 - w0 == s->w) sum = FN(sum_run)(x + h0 * s->w, (h1 - h0) * s->w);
  else
    for (int64_t h = h0; h < h1; h++)
      for (int64_t w = w0; w < w1; w++) sum += x[h * s->w + w];
  return sum / FN(divisor)(p, oh, ow, (h1 - h0) * (w1 - w0));
}

/* A row of averages. Those of columns whose windows lie within the image, from `inner` on, have one divisor, and are taken
 * as many at a time as a vector has lanes: each adds up in the same order as alone. */
static void FN(average_row)(const average_pool_ints *p, const float *x, int64_t oh, int64_t inner, int64_t outer, float *y) {
  const pool_ints *const s = &p->window;
  const int64_t h0 = ti_max(0, oh * s->sh - s->ph), h1 = ti_min(s->h, oh * s->sh - s->ph + s->kh);
  int64_t ow = 0;
  for (; ow < inner; ow++) y[ow] = FN(average_one)(p, x, h0, h1, oh, ow);
  const VF divisor = FN(set)(ow < outer && h0 < h1 ? FN(divisor)(p, oh, ow, (h1 - h0) * s->kw) : 1.0f);
  for (; ow < outer; ow += VL) {
    const int n = (int)ti_min(VL, outer - ow);
    VF sum = FN(set)(0.0f);
    for (int64_t h = h0; h < h1; h++)
      for (int64_t k = 0; k < s->kw; k++) sum += FN(strided)(x + h * s->w + ow * s->sw - s->pw + k, s->sw, n);
    FN(store_part)(y + ow, sum / divisor, n);
  }
  for (ow = outer; ow < s->ow; ow++) y[ow] = FN(average_one)(p, x, h0, h1, oh, ow);
}

TI_KERNEL(avg_pool) {
  const average_pool_ints *const p = (const average_pool_ints *)ints;
  const pool_ints s = p->window;
  const int64_t inner = ti_min(s.ow, ti_ceil(s.pw, s.sw)), room = s.w + s.pw - s.kw;
  /* a window as wide as the image has no neighbour to share a vector with, and is one run itself */
  const int64_t outer = room < 0 || s.kw == s.w ? inner : ti_max(inner, ti_min(s.ow, room / s.sw + 1));
  (void)scalars; (void)scratch;
  for (int64_t plane = begin; plane < end; plane++)
    for (int64_t oh = 0; oh < s.oh; oh++)
      FN(average_row)(p, (const float *)args[1] + plane * s.h * s.w, oh, inner, outer, (float *)args[0] + (plane * s.oh + oh) * s.ow);
  return TI_OK;
}

/* What a row of windows gives to each row of the image that it covers. */
static void FN(share_row)(const average_pool_ints *p, const float *dy, int64_t oh, int64_t rows, float *shares, float *row) {
  const pool_ints *const s = &p->window;
  for (int64_t ow = 0; ow < s->ow; ow++) {
    const int64_t pixels = ti_min(s->w, ow * s->sw - s->pw + s->kw) - ti_max(0, ow * s->sw - s->pw);
    shares[ow] = pixels > 0 ? dy[ow] / FN(divisor)(p, oh, ow, rows * pixels) : 0;
  }
  memset(row, 0, sizeof(float) * (size_t)s->w);
  for (int64_t k = 0; k < s->kw; k++) {
    const int64_t first = ti_max(0, ti_ceil(ti_max(0, s->pw - k), s->sw)), room = s->w - 1 + s->pw - k;
    const int64_t last = room < 0 ? first : ti_min(s->ow, room / s->sw + 1);
    float *const to = row + k - s->pw;
    if (s->sw == 1) for (int64_t ow = first; ow < last; ow++) to[ow] += shares[ow];
    else for (int64_t ow = first; ow < last; ow++) to[ow * s->sw] += shares[ow];
  }
}

TI_KERNEL(avg_pool_backward) {
  const average_pool_ints *const p = (const average_pool_ints *)ints;
  const pool_ints s = p->window;
  float *const shares = (float *)scratch, *const row = shares + s.ow;
  (void)scalars;
  for (int64_t plane = begin; plane < end; plane++) {
    float *dx = (float *)args[0] + plane * s.h * s.w;
    memset(dx, 0, sizeof(float) * (size_t)(s.h * s.w));
    for (int64_t oh = 0; oh < s.oh; oh++) {
      const int64_t h0 = ti_max(0, oh * s.sh - s.ph), h1 = ti_min(s.h, oh * s.sh - s.ph + s.kh);
      if (h0 >= h1) continue;
      if (s.ow == 1 && s.pw == 0 && s.kw == s.w && s.kh <= s.sh) {  /* rows that lie one behind the other have one share */
        const int64_t pixels = (h1 - h0) * s.w;
        const VF share = FN(set)(((const float *)args[1])[plane * s.oh + oh] / FN(divisor)(p, oh, 0, pixels));
        for (int64_t i = 0; i < pixels; i += VL) FN(store_most)(dx + h0 * s.w + i, share, pixels - i);
        continue;
      }
      FN(share_row)(p, (const float *)args[1] + (plane * s.oh + oh) * s.ow, oh, h1 - h0, shares, row);
      for (int64_t h = h0; h < h1; h++)
        for (int64_t w = 0; w < s.w; w++) dx[h * s.w + w] += row[w];
    }
  }
  return TI_OK;
}

/* A plane whose rows are added up first, in double, column by column: each is gone through as it lies. */
enum { FN(ADAPTIVE_COLUMNS) = 512 };
static void FN(adaptive_plane)(const adaptive_pool_ints *p, const float *x, float *y) {
  const int64_t H = p->h, W = p->w, OH = p->oh, OW = p->ow;
  double sums[FN(ADAPTIVE_COLUMNS)];
  for (int64_t oh = 0; oh < OH; oh++, y += OW) {
    const int64_t h0 = oh * H / OH, h1 = ((oh + 1) * H + OH - 1) / OH;
    for (int64_t w = 0; w < W; w++) sums[w] = (double)x[h0 * W + w];
    for (int64_t h = h0 + 1; h < h1; h++)
      for (int64_t w = 0; w < W; w++) sums[w] += (double)x[h * W + w];
    for (int64_t ow = 0; ow < OW; ow++) {
      const int64_t w0 = ow * W / OW, w1 = ((ow + 1) * W + OW - 1) / OW;
      double sum = 0;
      for (int64_t w = w0; w < w1; w++) sum += sums[w];
      y[ow] = (float)(sum / (double)((h1 - h0) * (w1 - w0)));
    }
  }
}
TI_KERNEL(adaptive_pool) {
  const adaptive_pool_ints *const p = (const adaptive_pool_ints *)ints;
  const int64_t H = p->h, W = p->w, OH = p->oh, OW = p->ow;
  (void)scalars; (void)scratch;
  for (int64_t plane = begin; plane < end; plane++) {
    const float *x = (const float *)args[1] + plane * H * W;
    float *y = (float *)args[0] + plane * OH * OW;
    if (W <= FN(ADAPTIVE_COLUMNS) && H > 0 && W > 0) {
      FN(adaptive_plane)(p, x, y);
      continue;
    }
    for (int64_t oh = 0; oh < OH; oh++)
      for (int64_t ow = 0; ow < OW; ow++) {
        const int64_t h0 = oh * H / OH, h1 = ((oh + 1) * H + OH - 1) / OH, w0 = ow * W / OW, w1 = ((ow + 1) * W + OW - 1) / OW;
        double sum = 0;
        for (int64_t h = h0; h < h1; h++)
          for (int64_t w = w0; w < w1; w++) sum += x[h * W + w];
        y[oh * OW + ow] = (float)(sum / (double)((h1 - h0) * (w1 - w0)));
      }
  }
  return TI_OK;
}

TI_KERNEL(adaptive_pool_backward) {
  const adaptive_pool_ints *const p = (const adaptive_pool_ints *)ints;
  const int64_t H = p->h, W = p->w, OH = p->oh, OW = p->ow;
  (void)scalars; (void)scratch;
  for (int64_t plane = begin; plane < end; plane++) {
    float *dx = (float *)args[0] + plane * H * W;
    const float *dy = (const float *)args[1] + plane * OH * OW;
    memset(dx, 0, sizeof(float) * (size_t)(H * W));
    for (int64_t oh = 0; oh < OH; oh++)
      for (int64_t ow = 0; ow < OW; ow++) {
        const int64_t h0 = oh * H / OH, h1 = ((oh + 1) * H + OH - 1) / OH, w0 = ow * W / OW, w1 = ((ow + 1) * W + OW - 1) / OW;
        const float share = dy[oh * OW + ow] / (float)((h1 - h0) * (w1 - w0));
        for (int64_t h = h0; h < h1; h++)
          for (int64_t w = w0; w < w1; w++) dx[h * W + w] += share;
      }
  }
  return TI_OK;
}
