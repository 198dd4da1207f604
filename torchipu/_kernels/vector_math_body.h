/* Vector arithmetic shared by kernel bodies: masks, loads of partial vectors and elementary functions.
 *
 * Included by <family>_body.h, once for each instruction set. Polynomials are Chebyshev interpolants of our own in
 * the reduced argument; all functions stay within 4 ulp and treat NaN, infinity and zero as libm does.
 */
#define V FN(vf)
#define VI FN(vi)
#if VL == 16
typedef __mmask16 FN(vm);
#define M FN(vm)
static inline V FN(fma)(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
static inline V FN(sel)(M m, V a, V b) { return (V)_mm512_mask_blend_ps(m, (__m512)b, (__m512)a); }
static inline VI FN(isel)(M m, VI a, VI b) { return (VI)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a); }
static inline M FN(lt)(V a, V b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
static inline M FN(le)(V a, V b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ); }
static inline M FN(eq)(V a, V b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ); }
static inline M FN(ne)(V a, V b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NEQ_UQ); }
static inline M FN(mor)(M a, M b) { return a | b; }
static inline M FN(mand)(M a, M b) { return a & b; }
static inline M FN(ieq)(VI a, VI b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
static inline int FN(any)(M m) { return m != 0; }
static inline V FN(sqrt)(V a) { return (V)_mm512_sqrt_ps((__m512)a); }
/* The second operand comes back when either is NaN. */
static inline V FN(min)(V a, V b) { return (V)_mm512_min_ps((__m512)a, (__m512)b); }
static inline V FN(max)(V a, V b) { return (V)_mm512_max_ps((__m512)a, (__m512)b); }
static inline V FN(nearest)(V a) { return (V)_mm512_roundscale_ps((__m512)a, 8); }
static inline V FN(floor)(V a) { return (V)_mm512_roundscale_ps((__m512)a, 9); }
static inline V FN(ceil)(V a) { return (V)_mm512_roundscale_ps((__m512)a, 10); }
static inline V FN(trunc)(V a) { return (V)_mm512_roundscale_ps((__m512)a, 11); }
static inline VI FN(toint)(V a) { return (VI)_mm512_cvtps_epi32((__m512)a); }
static inline V FN(tofloat)(VI a) { return (V)_mm512_cvtepi32_ps((__m512i)a); }
static inline V FN(from_half)(const void *p) { return (V)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline void FN(to_half)(void *p, V a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)a, 0)); }
static inline M FN(mask_of)(const uint8_t *p) {
  __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  return _mm_test_epi8_mask(bytes, bytes);
}
static inline void FN(mask_to)(uint8_t *p, M m) {
  _mm_storeu_si128((__m128i *)p, _mm_maskz_set1_epi8(m, 1));
}
#else
typedef V FN(vm);
#define M FN(vm)
static inline V FN(fma)(V a, V b, V c) { return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
static inline V FN(sel)(M m, V a, V b) { return (V)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m); }
static inline VI FN(isel)(M m, VI a, VI b) { return (VI)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)m); }
static inline M FN(lt)(V a, V b) { return (V)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LT_OQ); }
static inline M FN(le)(V a, V b) { return (V)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LE_OQ); }
static inline M FN(eq)(V a, V b) { return (V)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_EQ_OQ); }
static inline M FN(ne)(V a, V b) { return (V)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NEQ_UQ); }
static inline M FN(mor)(M a, M b) { return (V)((VI)a | (VI)b); }
static inline M FN(mand)(M a, M b) { return (V)((VI)a & (VI)b); }
static inline M FN(ieq)(VI a, VI b) { return (V)_mm256_cmpeq_epi32((__m256i)a, (__m256i)b); }
static inline int FN(any)(M m) { return _mm256_movemask_ps((__m256)m) != 0; }
static inline V FN(sqrt)(V a) { return (V)_mm256_sqrt_ps((__m256)a); }
static inline V FN(min)(V a, V b) { return (V)_mm256_min_ps((__m256)a, (__m256)b); }
static inline V FN(max)(V a, V b) { return (V)_mm256_max_ps((__m256)a, (__m256)b); }
static inline V FN(nearest)(V a) { return (V)_mm256_round_ps((__m256)a, 8); }
static inline V FN(floor)(V a) { return (V)_mm256_round_ps((__m256)a, 9); }
static inline V FN(ceil)(V a) { return (V)_mm256_round_ps((__m256)a, 10); }
static inline V FN(trunc)(V a) { return (V)_mm256_round_ps((__m256)a, 11); }
static inline VI FN(toint)(V a) { return (VI)_mm256_cvtps_epi32((__m256)a); }
static inline V FN(tofloat)(VI a) { return (V)_mm256_cvtepi32_ps((__m256i)a); }
static inline V FN(from_half)(const void *p) { return (V)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline void FN(to_half)(void *p, V a) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)a, 0)); }
static inline M FN(mask_of)(const uint8_t *p) {
  __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
  return (V)_mm256_cmpgt_epi32(wide, _mm256_setzero_si256());
}
static inline void FN(mask_to)(uint8_t *p, M m) {
  __m256i bits = _mm256_srli_epi32((__m256i)m, 31);
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}
#endif
static inline V FN(set)(float value) { return value - (V){0}; }
static inline VI FN(iset)(int32_t value) { return value + (VI){0}; }
static inline V FN(load)(const float *p) { return *(const V *)p; }
static inline void FN(store)(float *p, V value) { *(V *)p = value; }
/* The first n < VL lanes; nothing beyond them is touched in memory. */
#if VL == 16
static inline V FN(load_part)(const float *p, long n) { return (V)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
static inline void FN(store_part)(float *p, V v, long n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v); }
static inline float FN(sum_lanes)(V v) { return _mm512_reduce_add_ps((__m512)v); }
#else
static inline __m256i FN(part_mask)(long n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline V FN(load_part)(const float *p, long n) { return (V)_mm256_maskload_ps(p, FN(part_mask)(n)); }
static inline void FN(store_part)(float *p, V v, long n) { _mm256_maskstore_ps(p, FN(part_mask)(n), (__m256)v); }
static inline float FN(sum_lanes)(V v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
#endif
static inline V FN(abs)(V x) { return (V)((VI)x & FN(iset)(0x7fffffff)); }
static inline V FN(copysign)(V magnitude, V sign) {
  return (V)(((VI)magnitude & FN(iset)(0x7fffffff)) | ((VI)sign & FN(iset)((int32_t)0x80000000)));
}
static inline M FN(isnan)(V x) { return FN(ne)(x, x); }
/* 2^n for whole n in [-126, 127]. */
static inline V FN(pow2)(V n) { return (V)((FN(toint)(n) + 127) << 23); }
/* p * 2^n for n in [-252, 254], in two steps so that denormals and overflow come out right. */
static inline V FN(ldexp)(V p, V n) {
  V half = FN(nearest)(n * FN(set)(0.5f));
  return p * FN(pow2)(half) * FN(pow2)(n - half);
}
#define TI_LN2_HI 0.6931471824645996f
#define TI_LN2_LO -1.9046542121259336e-09f
/* Splits x = n ln 2 + r and gives exp(r) - 1 - r. */
static inline V FN(exp_reduce)(V x, V *n, V *r) {
  *n = FN(nearest)(x * FN(set)(1.44269504f));
  *r = FN(fma)(*n, FN(set)(-TI_LN2_HI), x);
  *r = FN(fma)(*n, FN(set)(-TI_LN2_LO), *r);
  V q = FN(set)(0.000198919806f);
  q = FN(fma)(q, *r, FN(set)(0.00139345415f));
  q = FN(fma)(q, *r, FN(set)(0.00833331048f));
  q = FN(fma)(q, *r, FN(set)(0.0416664556f));
  q = FN(fma)(q, *r, FN(set)(0.166666672f));
  q = FN(fma)(q, *r, FN(set)(0.5f));
  return q * (*r * *r);
}
static inline V FN(exp)(V x) {
  V n, r;
  x = FN(min)(FN(set)(89.f), FN(max)(FN(set)(-104.5f), x));
  V p = FN(exp_reduce)(x, &n, &r);
  p = p + r + 1.f;
#if VL == 16
  return (V)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  return FN(ldexp)(p, n);
#endif
}
static inline V FN(expm1)(V x) {
  V n, r, t = FN(min)(FN(set)(89.f), FN(max)(FN(set)(-20.f), x));
  V p = FN(exp_reduce)(t, &n, &r) + r;
  V half = FN(pow2)(n - 1.f);
  V result = FN(fma)(p, half, half - 0.5f) * 2.f;
  return FN(sel)(FN(lt)(FN(abs)(x), FN(set)(1e-8f)), x, result);
}
/* Splits a positive x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)) and gives log(1 + f) - f. */
static inline V FN(log_reduce)(V x, V *e, V *f) {
  M tiny = FN(lt)(x, FN(set)(1.17549435e-38f));
  V scaled = FN(sel)(tiny, x * 8388608.f, x);
  VI bits = (VI)scaled - 0x3f3504f3;
  *e = FN(tofloat)(bits >> 23) - FN(sel)(tiny, FN(set)(23.f), FN(set)(0.f));
  V m = (V)((bits & 0x007fffff) + 0x3f3504f3);
  *f = m - 1.f;
  V q = FN(set)(0.0697161183f);
  q = FN(fma)(q, *f, FN(set)(-0.114797339f));
  q = FN(fma)(q, *f, FN(set)(0.116854198f));
  q = FN(fma)(q, *f, FN(set)(-0.124256872f));
  q = FN(fma)(q, *f, FN(set)(0.142490581f));
  q = FN(fma)(q, *f, FN(set)(-0.166678026f));
  q = FN(fma)(q, *f, FN(set)(0.200007156f));
  q = FN(fma)(q, *f, FN(set)(-0.24999997f));
  q = FN(fma)(q, *f, FN(set)(0.333333313f));
  V s = *f * *f;
  return FN(fma)(s, FN(set)(-0.5f), q * (s * *f));
}
/* Puts log's values at zero, infinity, negative numbers and NaN in place. */
static inline V FN(log_edges)(V x, V result) {
  result = FN(sel)(FN(lt)(x, FN(set)(INFINITY)), result, x);
  result = FN(sel)(FN(lt)(x, FN(set)(0.f)), FN(set)(NAN), result);
  return FN(sel)(FN(eq)(x, FN(set)(0.f)), FN(set)(-INFINITY), result);
}
static inline V FN(log)(V x) {
  V e, f, t = FN(log_reduce)(x, &e, &f);
  t = FN(fma)(e, FN(set)(TI_LN2_LO), t);
  return FN(log_edges)(x, FN(fma)(e, FN(set)(TI_LN2_HI), t + f));
}
static inline V FN(log2)(V x) {
  V e, f, t = FN(log_reduce)(x, &e, &f);
  V hi = f * 1.44269502f, lo = FN(fma)(f, FN(set)(1.44269502f), -hi);
  lo = FN(fma)(f, FN(set)(1.92596303e-8f), lo);
  return FN(log_edges)(x, e + (hi + FN(fma)(t, FN(set)(1.44269504f), lo)));
}
static inline V FN(log10)(V x) {
  V e, f, t = FN(log_reduce)(x, &e, &f);
  V hi = f * 0.434294492f, lo = FN(fma)(f, FN(set)(0.434294492f), -hi);
  lo = FN(fma)(f, FN(set)(-1.01032e-8f), lo);
  lo = FN(fma)(e, FN(set)(-1.4320989e-8f), lo);
  return FN(log_edges)(x, FN(fma)(e, FN(set)(0.301030010f), hi + FN(fma)(t, FN(set)(0.434294482f), lo)));
}
static inline V FN(log1p)(V x) {
  V u = x + 1.f, e, f, t = FN(log_reduce)(u, &e, &f);
  V lost = (x - (u - 1.f)) / u;  /* what the rounding of 1 + x took away */
  t = FN(fma)(e, FN(set)(TI_LN2_LO), t) + lost;
  V result = FN(log_edges)(u, FN(fma)(e, FN(set)(TI_LN2_HI), t + f));
  return FN(sel)(FN(lt)(FN(abs)(x), FN(set)(1e-8f)), x, result);
}
static inline V FN(tanh)(V x) {
  V a = FN(abs)(x), s = x * x;
  V p = FN(set)(-0.00599296112f);
  p = FN(fma)(p, s, FN(set)(0.0209241491f));
  p = FN(fma)(p, s, FN(set)(-0.0538351424f));
  p = FN(fma)(p, s, FN(set)(0.133326635f));
  p = FN(fma)(p, s, FN(set)(-0.333333284f));
  p = FN(fma)(p * s, x, x);
  V big = 1.f - 2.f / (FN(exp)(a + a) + 1.f);
  return FN(sel)(FN(lt)(a, FN(set)(0.625f)), p, FN(copysign)(big, x));
}
static inline V FN(sigmoid)(V x) { return 1.f / (1.f + FN(exp)(-x)); }
static inline V FN(erf)(V x) {
  V a = FN(abs)(x), s = x * x;
  V p = FN(set)(-0.000596731086f);
  p = FN(fma)(p, s, FN(set)(0.00498890597f));
  p = FN(fma)(p, s, FN(set)(-0.0267639942f));
  p = FN(fma)(p, s, FN(set)(0.112817541f));
  p = FN(fma)(p, s, FN(set)(-0.376124889f));
  p = FN(fma)(p, s, FN(set)(0.128379151f));
  p = FN(fma)(p, x, x);
  V t = FN(min)(FN(set)(4.f), a), q = FN(set)(1.6435697e-06f);  /* log(erfc(t)) */
  q = FN(fma)(q, t, FN(set)(-4.61779127e-05f));
  q = FN(fma)(q, t, FN(set)(0.000597743492f));
  q = FN(fma)(q, t, FN(set)(-0.00476357527f));
  q = FN(fma)(q, t, FN(set)(0.0264310185f));
  q = FN(fma)(q, t, FN(set)(-0.11009448f));
  q = FN(fma)(q, t, FN(set)(-0.631814539f));
  q = FN(fma)(q, t, FN(set)(-1.13023758f));
  q = FN(fma)(q, t, FN(set)(0.000320441555f));
  return FN(sel)(FN(lt)(a, FN(set)(0.92f)), p, FN(copysign)(1.f - FN(exp)(q), x));
}
/* Sine, or cosine with quarter = 1, for |x| < 32768. */
static inline V FN(sine)(V x, int quarter) {
  V n = FN(nearest)(x * FN(set)(0.636619772f));
  V r = FN(fma)(n, FN(set)(-1.5707963705062866f), x);
  r = FN(fma)(n, FN(set)(4.371138828673793e-08f), r);
  r = FN(fma)(n, FN(set)(1.7763568394002505e-15f), r);
  VI k = FN(toint)(n) + quarter;
  V s = r * r;
  V p = FN(set)(2.72493139e-06f);
  p = FN(fma)(p, s, FN(set)(-0.000198400827f));
  p = FN(fma)(p, s, FN(set)(0.00833333191f));
  p = FN(fma)(p, s, FN(set)(-0.166666672f));
  p = FN(fma)(p * s, r, r);
  V c = FN(set)(-2.73004474e-07f);
  c = FN(fma)(c, s, FN(set)(2.48005963e-05f));
  c = FN(fma)(c, s, FN(set)(-0.00138888881f));
  c = FN(fma)(c, s, FN(set)(0.0416666679f));
  c = FN(fma)(c, s * s, FN(fma)(s, FN(set)(-0.5f), FN(set)(1.f)));
  V value = FN(sel)(FN(ieq)(k & 1, FN(iset)(1)), c, p);
  return (V)((VI)value ^ ((k & 2) << 30));
}
/* Applies a scalar function to the lanes; for arguments too rare to deserve more. */
#define TI_LANES(result, call) do { V ti_r = {0}; for (int j = 0; j < VL; j++) ti_r[j] = call; result = ti_r; } while (0)
static inline V FN(sin)(V x) {
  if (__builtin_expect(FN(any)(FN(lt)(FN(set)(32768.f), FN(abs)(x))), 0)) { V r; TI_LANES(r, sinf(x[j])); return r; }
  return FN(sel)(FN(eq)(x, FN(set)(0.f)), x, FN(sine)(x, 0));
}
static inline V FN(cos)(V x) {
  if (__builtin_expect(FN(any)(FN(lt)(FN(set)(32768.f), FN(abs)(x))), 0)) { V r; TI_LANES(r, cosf(x[j])); return r; }
  return FN(sine)(x, 1);
}
