/* Vectors of VL floats: partial loads and stores, sums in a fixed order, the exponential, and moments of a row. */
#include "rowmath.h"

TI_INLINE VF FN(set)(float value) { return (VF){0} + value; }
TI_INLINE VF FN(ld)(const float *p) { return *(const VF *)p; }
TI_INLINE void FN(st)(float *p, VF v) { *(VF *)p = v; }

#if VL == 16
/* The first n < VL elements; the other lanes hold those of `fill`. */
TI_INLINE VF FN(ldn)(const float *p, int64_t n, VF fill) {
  return (VF)_mm512_mask_loadu_ps((__m512)fill, (__mmask16)((1u << n) - 1), p);
}
TI_INLINE void FN(stn)(float *p, VF v, int64_t n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v); }
/* The larger one; b where either is NaN. */
TI_INLINE VF FN(max)(VF a, VF b) { return (VF)_mm512_max_ps((__m512)a, (__m512)b); }
TI_INLINE VF FN(min)(VF a, VF b) { return (VF)_mm512_min_ps((__m512)a, (__m512)b); }
TI_INLINE VF FN(vsqrt)(VF a) { return (VF)_mm512_sqrt_ps((__m512)a); }
TI_INLINE VF FN(round)(VF a) { return (VF)_mm512_roundscale_ps((__m512)a, 8); }
TI_INLINE VF FN(scale2)(VF a, VF n) { return (VF)_mm512_scalef_ps((__m512)a, (__m512)n); }
TI_INLINE float FN(hsum)(VF v) { return _mm512_reduce_add_ps((__m512)v); }
TI_INLINE float FN(hmax)(VF v) { return _mm512_reduce_max_ps((__m512)v); }
TI_INLINE VF FN(ldh)(const uint16_t *p) { return (VF)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
TI_INLINE void FN(sth)(uint16_t *p, VF v) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, 8)); }
#else
TI_INLINE __m256i FN(mask)(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
TI_INLINE VF FN(ldn)(const float *p, int64_t n, VF fill) {
  const __m256i mask = FN(mask)(n);
  return (VF)_mm256_blendv_ps((__m256)fill, _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask));
}
TI_INLINE void FN(stn)(float *p, VF v, int64_t n) { _mm256_maskstore_ps(p, FN(mask)(n), (__m256)v); }
TI_INLINE VF FN(max)(VF a, VF b) { return (VF)_mm256_max_ps((__m256)a, (__m256)b); }
TI_INLINE VF FN(min)(VF a, VF b) { return (VF)_mm256_min_ps((__m256)a, (__m256)b); }
TI_INLINE VF FN(vsqrt)(VF a) { return (VF)_mm256_sqrt_ps((__m256)a); }
TI_INLINE VF FN(round)(VF a) { return (VF)_mm256_round_ps((__m256)a, 8); }
/* In two halves, since 2^n alone may be too small or too large for a float. */
TI_INLINE VF FN(scale2)(VF a, VF n) {
  const __m256i whole = _mm256_cvtps_epi32((__m256)n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
  const __m256i low = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i high = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return a * (VF)_mm256_castsi256_ps(low) * (VF)_mm256_castsi256_ps(high);
}
TI_INLINE float FN(hsum)(VF v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
TI_INLINE float FN(hmax)(VF v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
TI_INLINE VF FN(ldh)(const uint16_t *p) { return (VF)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
TI_INLINE void FN(sth)(uint16_t *p, VF v) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, 8)); }
#endif

/* exp(x) within 2 ulp; 0 at -inf, inf above the range, NaN at NaN. Argument reduction by ln 2 in two parts, then the
 * Taylor polynomial of degree 7, whose remainder at ln(2)/2 is below half an ulp. */
TI_INLINE VF FN(vexp)(VF x) {
  x = FN(min)(FN(set)(89.0f), FN(max)(FN(set)(-104.0f), x));
  const VF n = FN(round)(x * 1.44269504088896341f);
  VF r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  VF p = FN(set)(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return FN(scale2)(p, n);
}

/* s[0..3] += x[0..n) */
TI_INLINE void FN(add_sum)(const float *x, int64_t n, VF *s) {
  VF a = s[0], b = s[1], c = s[2], d = s[3];
  int64_t i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL) {
    a += FN(ld)(x + i);
    b += FN(ld)(x + i + VL);
    c += FN(ld)(x + i + 2 * VL);
    d += FN(ld)(x + i + 3 * VL);
  }
  for (; i + VL <= n; i += VL) a += FN(ld)(x + i);
  if (i < n) b += FN(ldn)(x + i, n - i, (VF){0});
  s[0] = a, s[1] = b, s[2] = c, s[3] = d;
}

/* s[0..1] += x - centre, s[2..3] += (x - centre)^2 */
TI_INLINE void FN(add_squares)(const float *x, int64_t n, VF centre, VF *s) {
  VF a = s[0], b = s[1], c = s[2], d = s[3];
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    const VF p = FN(ld)(x + i) - centre, q = FN(ld)(x + i + VL) - centre;
    a += p, b += q;
    c += p * p, d += q * q;
  }
  for (; i + VL <= n; i += VL) {
    const VF p = FN(ld)(x + i) - centre;
    a += p, c += p * p;
  }
  if (i < n) {
    const VF p = FN(ldn)(x + i, n - i, centre) - centre;
    b += p, d += p * p;
  }
  s[0] = a, s[1] = b, s[2] = c, s[3] = d;
}

/* s[0..1] += g, s[2..3] += g (x - centre) */
TI_INLINE void FN(add_products)(const float *g, const float *x, int64_t n, VF centre, VF *s) {
  VF a = s[0], b = s[1], c = s[2], d = s[3];
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    const VF p = FN(ld)(g + i), q = FN(ld)(g + i + VL);
    a += p, b += q;
    c += p * (FN(ld)(x + i) - centre), d += q * (FN(ld)(x + i + VL) - centre);
  }
  for (; i + VL <= n; i += VL) {
    const VF p = FN(ld)(g + i);
    a += p, c += p * (FN(ld)(x + i) - centre);
  }
  if (i < n) {
    const VF p = FN(ldn)(g + i, n - i, (VF){0});
    b += p, d += p * (FN(ldn)(x + i, n - i, centre) - centre);
  }
  s[0] = a, s[1] = b, s[2] = c, s[3] = d;
}

/* Mean, and sum of squared distances from it, of `rows` rows of n elements `stride` apart. Two passes: the first
 * mean only centres the data, and the second pass corrects it, so that neither loses digits to a large mean. */
TI_INLINE void FN(moments)(const float *x, int64_t rows, int64_t stride, int64_t n, float *mean, float *squares) {
  const double count = (double)rows * (double)n;
  VF s[4] = {{0}, {0}, {0}, {0}};
  for (int64_t r = 0; r < rows; r++) FN(add_sum)(x + r * stride, n, s);
  const float centre = (float)(FN(hsum)((s[0] + s[1]) + (s[2] + s[3])) / count);
  VF t[4] = {{0}, {0}, {0}, {0}};
  for (int64_t r = 0; r < rows; r++) FN(add_squares)(x + r * stride, n, FN(set)(centre), t);
  const double rest = FN(hsum)(t[0] + t[1]);
  const double around = FN(hsum)(t[2] + t[3]) - rest * rest / count;
  *mean = (float)(centre + rest / count);
  *squares = around < 0 ? 0.0f : (float)around;
}
