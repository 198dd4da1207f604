/* Vector arithmetic of all kernel bodies: loads of partial vectors, masks, halves and elementary functions.
 *
 * Comes with isa_build.h, once for each instruction set. Polynomials are Chebyshev interpolants of our own in the
 * reduced argument. Normal results stay within the bounds of tests/kernels/test_vector_math.py, 2.5 units in the last
 * place at most and 1 for exp and the logarithms; NaN, infinity and zero are treated as libm does.
 */
#if VL == 16
typedef __mmask16 FN(vm);
typedef __m256i FN(halves);
TI_INLINE VF FN(fma)(VF a, VF b, VF c) { return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
TI_INLINE VF FN(sel)(VM m, VF a, VF b) { return (VF)_mm512_mask_blend_ps(m, (__m512)b, (__m512)a); }
TI_INLINE VI FN(isel)(VM m, VI a, VI b) { return (VI)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a); }
TI_INLINE VM FN(lt)(VF a, VF b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
TI_INLINE VM FN(le)(VF a, VF b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ); }
TI_INLINE VM FN(eq)(VF a, VF b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ); }
TI_INLINE VM FN(ne)(VF a, VF b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NEQ_UQ); }
/* Whether either is no number. */
TI_INLINE VM FN(unordered)(VF a, VF b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q); }
TI_INLINE VM FN(mor)(VM a, VM b) { return a | b; }
TI_INLINE VM FN(mand)(VM a, VM b) { return a & b; }
TI_INLINE VM FN(ieq)(VI a, VI b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
TI_INLINE uint32_t FN(bits)(VM m) { return m; }
TI_INLINE VF FN(sqrt)(VF a) { return (VF)_mm512_sqrt_ps((__m512)a); }
/* The second operand comes back when either is NaN. */
TI_INLINE VF FN(min)(VF a, VF b) { return (VF)_mm512_min_ps((__m512)a, (__m512)b); }
TI_INLINE VF FN(max)(VF a, VF b) { return (VF)_mm512_max_ps((__m512)a, (__m512)b); }
TI_INLINE VF FN(nearest)(VF a) { return (VF)_mm512_roundscale_ps((__m512)a, 8); }
TI_INLINE VF FN(floor)(VF a) { return (VF)_mm512_roundscale_ps((__m512)a, 9); }
TI_INLINE VF FN(ceil)(VF a) { return (VF)_mm512_roundscale_ps((__m512)a, 10); }
TI_INLINE VF FN(trunc)(VF a) { return (VF)_mm512_roundscale_ps((__m512)a, 11); }
TI_INLINE VI FN(toint)(VF a) { return (VI)_mm512_cvtps_epi32((__m512)a); }
TI_INLINE VF FN(tofloat)(VI a) { return (VF)_mm512_cvtepi32_ps((__m512i)a); }
TI_INLINE VM FN(mask_of)(const uint8_t *p) {
  __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  return _mm_test_epi8_mask(bytes, bytes);
}
TI_INLINE void FN(mask_to)(uint8_t *p, VM m) {
  _mm_storeu_si128((__m128i *)p, _mm_maskz_set1_epi8(m, 1));
}
/* The first n <= VL lanes; loads and stores of them touch nothing beyond. The other lanes hold those of `fill`, or 0. */
TI_INLINE VM FN(first)(int64_t n) { return (VM)((1u << n) - 1); }
TI_INLINE VF FN(load_filled)(const float *p, int64_t n, VF fill) { return (VF)_mm512_mask_loadu_ps((__m512)fill, FN(first)(n), p); }
/* The lanes of p whose bits are set; the others are 0 and are not read. */
TI_INLINE VF FN(load_lanes)(const float *p, uint32_t bits) { return (VF)_mm512_maskz_loadu_ps((VM)bits, p); }
TI_INLINE VF FN(load_part)(const float *p, int64_t n) { return (VF)_mm512_maskz_loadu_ps(FN(first)(n), p); }
TI_INLINE void FN(store_part)(float *p, VF v, int64_t n) { _mm512_mask_storeu_ps(p, FN(first)(n), (__m512)v); }
TI_INLINE float FN(sum_lanes)(VF v) { return _mm512_reduce_add_ps((__m512)v); }
TI_INLINE float FN(max_lanes)(VF v) { return _mm512_reduce_max_ps((__m512)v); }
/* p * 2^n for whole n in [-252, 254]; denormals and overflow come out right. */
TI_INLINE VF FN(ldexp)(VF p, VF n) { return (VF)_mm512_scalef_ps((__m512)p, (__m512)n); }
TI_INLINE FN(halves) FN(nearest_halves)(VF v) { return _mm512_cvtps_ph((__m512)v, 8); }
TI_INLINE VF FN(of_halves)(FN(halves) halves) { return (VF)_mm512_cvtph_ps(halves); }
TI_INLINE FN(halves) FN(load_halves)(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
TI_INLINE void FN(store_halves)(void *p, FN(halves) halves) { _mm256_storeu_si256((__m256i *)p, halves); }
#else
typedef VF FN(vm);
typedef __m128i FN(halves);
TI_INLINE VF FN(fma)(VF a, VF b, VF c) { return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
TI_INLINE VF FN(sel)(VM m, VF a, VF b) { return (VF)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m); }
TI_INLINE VI FN(isel)(VM m, VI a, VI b) { return (VI)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)m); }
TI_INLINE VM FN(lt)(VF a, VF b) { return (VF)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LT_OQ); }
TI_INLINE VM FN(le)(VF a, VF b) { return (VF)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LE_OQ); }
TI_INLINE VM FN(eq)(VF a, VF b) { return (VF)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_EQ_OQ); }
TI_INLINE VM FN(ne)(VF a, VF b) { return (VF)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NEQ_UQ); }
TI_INLINE VM FN(unordered)(VF a, VF b) { return (VF)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q); }
TI_INLINE VM FN(mor)(VM a, VM b) { return (VF)((VI)a | (VI)b); }
TI_INLINE VM FN(mand)(VM a, VM b) { return (VF)((VI)a & (VI)b); }
TI_INLINE VM FN(ieq)(VI a, VI b) { return (VF)_mm256_cmpeq_epi32((__m256i)a, (__m256i)b); }
TI_INLINE uint32_t FN(bits)(VM m) { return (uint32_t)_mm256_movemask_ps((__m256)m); }
TI_INLINE VF FN(sqrt)(VF a) { return (VF)_mm256_sqrt_ps((__m256)a); }
TI_INLINE VF FN(min)(VF a, VF b) { return (VF)_mm256_min_ps((__m256)a, (__m256)b); }
TI_INLINE VF FN(max)(VF a, VF b) { return (VF)_mm256_max_ps((__m256)a, (__m256)b); }
TI_INLINE VF FN(nearest)(VF a) { return (VF)_mm256_round_ps((__m256)a, 8); }
TI_INLINE VF FN(floor)(VF a) { return (VF)_mm256_round_ps((__m256)a, 9); }
TI_INLINE VF FN(ceil)(VF a) { return (VF)_mm256_round_ps((__m256)a, 10); }
TI_INLINE VF FN(trunc)(VF a) { return (VF)_mm256_round_ps((__m256)a, 11); }
TI_INLINE VI FN(toint)(VF a) { return (VI)_mm256_cvtps_epi32((__m256)a); }
TI_INLINE VF FN(tofloat)(VI a) { return (VF)_mm256_cvtepi32_ps((__m256i)a); }
TI_INLINE VM FN(mask_of)(const uint8_t *p) {
  __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
  return (VF)_mm256_cmpgt_epi32(wide, _mm256_setzero_si256());
}
TI_INLINE void FN(mask_to)(uint8_t *p, VM m) {
  __m256i bits = _mm256_srli_epi32((__m256i)m, 31);
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}
TI_INLINE __m256i FN(first_words)(int64_t n) { return _mm256_loadu_si256((const __m256i *)(TI_FIRST + 8 - n)); }
TI_INLINE VM FN(first)(int64_t n) { return (VM)FN(first_words)(n); }
TI_INLINE VF FN(load_part)(const float *p, int64_t n) { return (VF)_mm256_maskload_ps(p, FN(first_words)(n)); }
TI_INLINE VF FN(load_filled)(const float *p, int64_t n, VF fill) { return FN(sel)(FN(first)(n), FN(load_part)(p, n), fill); }
TI_INLINE VF FN(load_lanes)(const float *p, uint32_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return (VF)_mm256_maskload_ps(p, _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), lane), lane));
}
/* In pieces: processors of AMD take tens of cycles for a store under a mask, whatever the mask. */
TI_INLINE void FN(store_part)(float *p, VF v, int64_t n) {
  if (n >= VL) { _mm256_storeu_ps(p, (__m256)v); return; }
  __m128 rest = _mm256_castps256_ps128((__m256)v);
  if (n & 4) { _mm_storeu_ps(p, rest); rest = _mm256_extractf128_ps((__m256)v, 1); p += 4; }
  if (n & 2) { _mm_storel_pi((__m64 *)p, rest); rest = _mm_movehl_ps(rest, rest); p += 2; }
  if (n & 1) _mm_store_ss(p, rest);
}
TI_INLINE float FN(sum_lanes)(VF v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
TI_INLINE float FN(max_lanes)(VF v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
/* In two steps, since 2^n alone may be too small or too large for a float. */
TI_INLINE VF FN(ldexp)(VF p, VF n) {
  const VI whole = FN(toint)(n), half = whole >> 1;
  return p * (VF)((half + 127) << 23) * (VF)((whole - half + 127) << 23);
}
TI_INLINE FN(halves) FN(nearest_halves)(VF v) { return _mm256_cvtps_ph((__m256)v, 8); }
TI_INLINE VF FN(of_halves)(FN(halves) halves) { return (VF)_mm256_cvtph_ps(halves); }
TI_INLINE FN(halves) FN(load_halves)(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
TI_INLINE void FN(store_halves)(void *p, FN(halves) halves) { _mm_storeu_si128((__m128i *)p, halves); }
#endif
TI_INLINE VF FN(set)(float value) { return value - (VF){0}; }
TI_INLINE VI FN(iset)(int32_t value) { return value + (VI){0}; }
TI_INLINE VF FN(load)(const float *p) { return *(const VF *)p; }
TI_INLINE void FN(store)(float *p, VF value) { *(VF *)p = value; }
/* The same of as many lanes as there are: n may be more than a vector has. */
TI_INLINE VF FN(load_most)(const float *p, int64_t n) { return n < VL ? FN(load_part)(p, n) : FN(load)(p); }
TI_INLINE VF FN(load_most_filled)(const float *p, int64_t n, VF fill) { return n < VL ? FN(load_filled)(p, n, fill) : FN(load)(p); }
TI_INLINE void FN(store_most)(float *p, VF v, int64_t n) {
  if (n < VL) FN(store_part)(p, v, n);
  else FN(store)(p, v);
}
TI_INLINE VF FN(keep_most)(VF v, int64_t n) { return n < VL ? FN(sel)(FN(first)(n), v, (VF){0}) : v; }
TI_INLINE VF FN(from_half)(const void *p) { return FN(of_halves)(FN(load_halves)(p)); }
TI_INLINE void FN(to_half)(void *p, VF v) { FN(store_halves)(p, FN(nearest_halves)(v)); }
/* Bfloats are the upper halves of floats: these, rounded to nearest even; a NaN stays one. */
typedef uint16_t FN(few_words) __attribute__((vector_size(VL * 2), aligned(2), may_alias));
#ifdef TI_PORTABLE
TI_INLINE VU FN(of_words)(FN(few_words) x) { return __builtin_convertvector(x, VU); }
TI_INLINE FN(few_words) FN(low_words)(VU x) { return __builtin_convertvector(x, FN(few_words)); }
#elif VL == 16
TI_INLINE VU FN(of_words)(FN(few_words) x) { return (VU)_mm512_cvtepu16_epi32((__m256i)x); }
TI_INLINE FN(few_words) FN(low_words)(VU x) { return (FN(few_words))_mm512_cvtepi32_epi16((__m512i)x); }
#else
TI_INLINE VU FN(of_words)(FN(few_words) x) { return (VU)_mm256_cvtepu16_epi32((__m128i)x); }
TI_INLINE FN(few_words) FN(low_words)(VU x) {  /* none of which has a bit above */
  const __m256i packed = _mm256_packus_epi32((__m256i)x, (__m256i)x);
  return (FN(few_words))_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 8));
}
#endif
TI_INLINE VF FN(from_bfloat)(const void *p) { return (VF)(FN(of_words)(*(const FN(few_words) *)p) << 16); }
TI_INLINE void FN(to_bfloats)(void *p, VF v) {
  const VU bits = (VU)v, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const VU is_nan = (VU)((VI)(bits & 0x7fffffff) > FN(iset)(0x7f800000));
  *(FN(few_words) *)p = FN(low_words)((rounded & ~is_nan) | (0x7fc0 & is_nan));
}
TI_INLINE VF FN(abs)(VF x) { return (VF)((VI)x & FN(iset)(0x7fffffff)); }
TI_INLINE VF FN(copysign)(VF magnitude, VF sign) {
  return (VF)(((VI)magnitude & FN(iset)(0x7fffffff)) | ((VI)sign & FN(iset)((int32_t)0x80000000)));
}
TI_INLINE VM FN(isnan)(VF x) { return FN(ne)(x, x); }
TI_INLINE int FN(any)(VM m) { return FN(bits)(m) != 0; }
/* As torch.maximum and torch.minimum: a NaN in either operand wins. */
TI_INLINE VF FN(maximum)(VF a, VF b) { return FN(sel)(FN(mor)(FN(lt)(a, b), FN(isnan)(b)), b, a); }
TI_INLINE VF FN(minimum)(VF a, VF b) { return FN(sel)(FN(mor)(FN(lt)(b, a), FN(isnan)(b)), b, a); }
TI_INLINE VF FN(relu)(VF x) { return FN(sel)(FN(lt)(x, FN(set)(0.f)), FN(set)(0.f), x); } /* NaN passes */
/* 0 where a gate is not above 0, as a ReLU hands gradients on; a gate that is NaN passes. */
TI_INLINE VF FN(gated)(VF v, VF gate) { return (VF)((VI)v & ~(VI)(gate <= 0)); }
/* 2^n for whole n in [-126, 127]. */
TI_INLINE VF FN(pow2)(VF n) { return (VF)((FN(toint)(n) + 127) << 23); }
#define TI_LN2_HI 0.6931471824645996f
#define TI_LN2_LO -1.9046542121259336e-09f
/* Splits x = n ln 2 + r and gives (exp(r) - 1 - r) / r^2. */
TI_INLINE VF FN(exp_reduce)(VF x, VF *n, VF *r) {
  *n = FN(nearest)(x * FN(set)(1.44269504f));
  *r = FN(fma)(*n, FN(set)(-TI_LN2_HI), x);
  *r = FN(fma)(*n, FN(set)(-TI_LN2_LO), *r);
  VF q = FN(set)(0.000198919806f);
  q = FN(fma)(q, *r, FN(set)(0.00139345415f));
  q = FN(fma)(q, *r, FN(set)(0.00833331048f));
  q = FN(fma)(q, *r, FN(set)(0.0416664556f));
  q = FN(fma)(q, *r, FN(set)(0.166666672f));
  return FN(fma)(q, *r, FN(set)(0.5f));
}
TI_INLINE VF FN(exp)(VF x) {
  VF n, r;
  x = FN(min)(FN(set)(89.f), FN(max)(FN(set)(-104.f), x));
  VF q = FN(exp_reduce)(x, &n, &r);
  return FN(ldexp)(FN(fma)(FN(fma)(q, r, FN(set)(1.f)), r, FN(set)(1.f)), n);
}
TI_INLINE VF FN(expm1)(VF x) {
  VF n, r, t = FN(min)(FN(set)(89.f), FN(max)(FN(set)(-20.f), x));
  VF q = FN(exp_reduce)(t, &n, &r);
  VF p = FN(fma)(q, r * r, r);
  VF half = FN(pow2)(n - 1.f);
  VF result = FN(fma)(p, half, half - 0.5f) * 2.f;
  return FN(sel)(FN(lt)(FN(abs)(x), FN(set)(1e-8f)), x, result);
}
/* Splits a positive x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)) and gives log(1 + f) - f. */
TI_INLINE VF FN(log_reduce)(VF x, VF *e, VF *f) {
  VM tiny = FN(lt)(x, FN(set)(1.17549435e-38f));
  VF scaled = FN(sel)(tiny, x * 8388608.f, x);
  VI bits = (VI)scaled - 0x3f3504f3;
  *e = FN(tofloat)(bits >> 23) - FN(sel)(tiny, FN(set)(23.f), FN(set)(0.f));
  VF m = (VF)((bits & 0x007fffff) + 0x3f3504f3);
  *f = m - 1.f;
  VF q = FN(set)(0.0697161183f);
  q = FN(fma)(q, *f, FN(set)(-0.114797339f));
  q = FN(fma)(q, *f, FN(set)(0.116854198f));
  q = FN(fma)(q, *f, FN(set)(-0.124256872f));
  q = FN(fma)(q, *f, FN(set)(0.142490581f));
  q = FN(fma)(q, *f, FN(set)(-0.166678026f));
  q = FN(fma)(q, *f, FN(set)(0.200007156f));
  q = FN(fma)(q, *f, FN(set)(-0.24999997f));
  q = FN(fma)(q, *f, FN(set)(0.333333313f));
  VF s = *f * *f;
  return FN(fma)(s, FN(set)(-0.5f), q * (s * *f));
}
/* Puts log's values at zero, infinity, negative numbers and NaN in place. */
TI_INLINE VF FN(log_edges)(VF x, VF result) {
  result = FN(sel)(FN(lt)(x, FN(set)(INFINITY)), result, x);
  result = FN(sel)(FN(lt)(x, FN(set)(0.f)), FN(set)(NAN), result);
  return FN(sel)(FN(eq)(x, FN(set)(0.f)), FN(set)(-INFINITY), result);
}
TI_INLINE VF FN(log)(VF x) {
  VF e, f, t = FN(log_reduce)(x, &e, &f);
  t = FN(fma)(e, FN(set)(TI_LN2_LO), t);
  return FN(log_edges)(x, FN(fma)(e, FN(set)(TI_LN2_HI), t + f));
}
TI_INLINE VF FN(log2)(VF x) {
  VF e, f, t = FN(log_reduce)(x, &e, &f);
  VF hi = f * 1.44269502f, lo = FN(fma)(f, FN(set)(1.44269502f), -hi);
  lo = FN(fma)(f, FN(set)(1.92596303e-8f), lo);
  return FN(log_edges)(x, e + (hi + FN(fma)(t, FN(set)(1.44269504f), lo)));
}
TI_INLINE VF FN(log10)(VF x) {
  VF e, f, t = FN(log_reduce)(x, &e, &f);
  VF hi = f * 0.434294492f, lo = FN(fma)(f, FN(set)(0.434294492f), -hi);
  lo = FN(fma)(f, FN(set)(-1.01032e-8f), lo);
  lo = FN(fma)(e, FN(set)(-1.4320989e-8f), lo);
  return FN(log_edges)(x, FN(fma)(e, FN(set)(0.301030010f), hi + FN(fma)(t, FN(set)(0.434294482f), lo)));
}
TI_INLINE VF FN(log1p)(VF x) {
  VF u = x + 1.f, e, f, t = FN(log_reduce)(u, &e, &f);
  VF lost = (x - (u - 1.f)) / u;  /* what the rounding of 1 + x took away */
  t = FN(fma)(e, FN(set)(TI_LN2_LO), t) + lost;
  VF result = FN(log_edges)(u, FN(fma)(e, FN(set)(TI_LN2_HI), t + f));
  return FN(sel)(FN(lt)(FN(abs)(x), FN(set)(1e-8f)), x, result);
}
TI_INLINE VF FN(tanh)(VF x) {
  VF a = FN(abs)(x), s = x * x;
  VF p = FN(set)(-0.00599296112f);
  p = FN(fma)(p, s, FN(set)(0.0209241491f));
  p = FN(fma)(p, s, FN(set)(-0.0538351424f));
  p = FN(fma)(p, s, FN(set)(0.133326635f));
  p = FN(fma)(p, s, FN(set)(-0.333333284f));
  p = FN(fma)(p * s, a, a);
  VF big = 1.f - 2.f / (FN(exp)(a + a) + 1.f);
  return FN(copysign)(FN(sel)(FN(lt)(a, FN(set)(0.625f)), p, big), x);
}
TI_INLINE VF FN(sigmoid)(VF x) { return 1.f / (1.f + FN(exp)(-x)); }
TI_INLINE VF FN(erf)(VF x) {
  VF a = FN(abs)(x), s = x * x;
  VF p = FN(set)(-0.000596731086f);
  p = FN(fma)(p, s, FN(set)(0.00498890597f));
  p = FN(fma)(p, s, FN(set)(-0.0267639942f));
  p = FN(fma)(p, s, FN(set)(0.112817541f));
  p = FN(fma)(p, s, FN(set)(-0.376124889f));
  p = FN(fma)(p, s, FN(set)(0.128379151f));
  p = FN(fma)(p, x, x);
  VF t = FN(min)(FN(set)(4.f), a), q = FN(set)(1.6435697e-06f);  /* log(erfc(t)) */
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
/* h(a) = Phi(a) - 1/2 of the normal distribution: a polynomial about the middle of each interval, for each a column of
 * the table. Vectors of eight lanes look into both halves of it: results are the same bits for all lengths of vectors. */
enum { FN(PHI_DEGREE) = 5 };
static const float FN(phi_table)[FN(PHI_DEGREE) + 1][16] __attribute__((aligned(64))) = {
  {-1.42838723e-17f, 0.155421734f, 0.288144588f, 0.384930342f, 0.445200711f, 0.477249861f, 0.491802454f, 0.497444868f, 0.499312848f, 0.499840885f, 0.49996832f, 0.499994576f, 0.499999195f, 0.499999911f, 0.5f, 0.5f},
  {0.398942292f, 0.368270129f, 0.289691567f, 0.194186062f, 0.110920839f, 0.0539909676f, 0.0223945305f, 0.00791545119f, 0.00238408823f, 0.000611901982f, 0.000133830283f, 2.49424957e-05f, 3.96130736e-06f, 5.36105688e-07f, 6.18266398e-08f, 6.07595396e-09f},
  {-3.22121908e-15f, -0.0736515746f, -0.115874022f, -0.116510853f, -0.0887375548f, -0.0539921746f, -0.0268740691f, -0.0110816881f, -0.00381437619f, -0.00110127684f, -0.000267585972f, -5.48463358e-05f, -9.49953665e-06f, -1.39218548e-06f, -1.72810971e-07f, -1.81832203e-08f},
  {-0.0664893165f, -0.0515572838f, -0.0173818991f, 0.0142395627f, 0.028839048f, 0.0269955881f, 0.0177665763f, 0.00902375951f, 0.00367151899f, 0.00121970009f, 0.000334552635f, 7.6312841e-05f, 1.45474069e-05f, 2.32572188e-06f, 3.12644914e-07f, 3.54107961e-08f},
  {1.40623068e-13f, 0.0172675177f, 0.0226157829f, 0.0150945084f, 0.00331301335f, -0.00441857148f, -0.00613866793f, -0.00446588499f, -0.00231245789f, -0.000923963031f, -0.000294927711f, -7.66148733e-05f, -1.63810437e-05f, -2.90424964e-06f, -4.2919595e-07f, -5.30718083e-08f},
  {0.00990262814f, 0.00630341237f, -0.001011902f, -0.00572129339f, -0.00534244906f, -0.00225659413f, 0.000285319809f, 0.00113979029f, 0.000920661725f, 0.000476882298f, 0.000183315118f, 5.5125849e-05f, 1.33098083e-05f, 2.619425e-06f, 4.24300964e-07f, 5.69491121e-08f},
};
#if VL == 16
TI_INLINE VF FN(look_up)(const float *table, VI column) { return (VF)_mm512_permutexvar_ps((__m512i)column, _mm512_load_ps(table)); }
#else
TI_INLINE VF FN(look_up)(const float *table, VI column) {
  const __m256 first = _mm256_permutevar8x32_ps(_mm256_load_ps(table), (__m256i)column);
  const __m256 second = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), (__m256i)column);
  return (VF)_mm256_blendv_ps(first, second, (__m256)((VU)column << 28)); /* by the highest of four bits */
}
#endif
/* A polynomial about the middle of each of 16 intervals of this width, the first about zero: t * what is returned + middle. */
TI_INLINE VF FN(in_pieces)(const float (*table)[16], const int degree, const float width, VF a, VF *t, VF *middle) {
  const VF shifted = FN(fma)(a, FN(set)(1.f / width), FN(set)(0x1.8p23f)); /* the interval is in the low bits */
  *t = FN(fma)(shifted - 0x1.8p23f, FN(set)(-width), a);
  *middle = FN(look_up)(table[0], (VI)shifted);
  VF h = FN(look_up)(table[degree], (VI)shifted);
#pragma GCC unroll 8
  for (int i = degree - 1; i > 0; i--) h = FN(fma)(h, *t, FN(look_up)(table[i], (VI)shifted));
  return h;
}
/* Phi(x), off by 1e-7 at most, half of what 0.5 (1 + erf) is. */
TI_INLINE VF FN(phi)(VF x) {
  const VF a = FN(min)(FN(set)(6.f), FN(abs)(x));
  VF t, middle, slope = FN(in_pieces)(FN(phi_table), FN(PHI_DEGREE), 6.f / 15, a, &t, &middle);
  return FN(copysign)(FN(fma)(slope, t, middle), x) + 0.5f;
}
TI_INLINE VF FN(gelu)(VF x) { return x * FN(phi)(x); }
/* Sine, or cosine with quarter = 1, for |x| < 32768. */
TI_INLINE VF FN(sine)(VF x, int quarter) {
  VF n = FN(nearest)(x * FN(set)(0.636619772f));
  VF r = FN(fma)(n, FN(set)(-1.5707963705062866f), x);
  r = FN(fma)(n, FN(set)(4.371138828673793e-08f), r);
  r = FN(fma)(n, FN(set)(1.7151245e-15f), r);
  VI k = FN(toint)(n) + quarter;
  VF s = r * r;
  VF p = FN(set)(2.72493139e-06f);
  p = FN(fma)(p, s, FN(set)(-0.000198400827f));
  p = FN(fma)(p, s, FN(set)(0.00833333191f));
  p = FN(fma)(p, s, FN(set)(-0.166666672f));
  p = FN(fma)(p * s, r, r);
  VF c = FN(set)(-2.73004474e-07f);
  c = FN(fma)(c, s, FN(set)(2.48005963e-05f));
  c = FN(fma)(c, s, FN(set)(-0.00138888881f));
  c = FN(fma)(c, s, FN(set)(0.0416666679f));
  c = FN(fma)(c, s * s, FN(fma)(s, FN(set)(-0.5f), FN(set)(1.f)));
  VF value = FN(sel)(FN(ieq)(k & 1, FN(iset)(1)), c, p);
  return (VF)((VI)value ^ ((k & 2) << 30));
}
/* Replaces the lanes under a mask by what a scalar function gives for lane j: for arguments too rare to deserve more. The
 * others stay: what becomes of an element must not depend on those beside it.
 */
#define TI_RARE_LANES(result, lanes, call) do { \
    const uint32_t ti_rare = FN(bits)(lanes); \
    if (__builtin_expect(ti_rare != 0, 0)) { \
      VF ti_r = result; \
      for (uint32_t ti_left = ti_rare; ti_left; ti_left &= ti_left - 1) { const int j = __builtin_ctz(ti_left); ti_r[j] = call; } \
      result = ti_r; \
    } \
  } while (0)
TI_INLINE VF FN(sin)(VF x) {
  VF r = FN(sel)(FN(eq)(x, FN(set)(0.f)), x, FN(sine)(x, 0));
  TI_RARE_LANES(r, FN(lt)(FN(set)(32768.f), FN(abs)(x)), sinf(x[j]));
  return r;
}
TI_INLINE VF FN(cos)(VF x) {
  VF r = FN(sine)(x, 1);
  TI_RARE_LANES(r, FN(lt)(FN(set)(32768.f), FN(abs)(x)), cosf(x[j]));
  return r;
}
