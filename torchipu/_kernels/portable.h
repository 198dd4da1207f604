/* Where there is no AVX2: what the bodies use of it, in C with GCC's vector types, for any machine that GCC compiles for.
 *
 * The bodies are written for eight floats a vector, and name what they need after AVX2's own. Here each of these names is a
 * function of the same meaning, which the compiler makes two instructions of on a machine with vectors of four. Sums are
 * fused as there (fmaf), so that results differ from AVX2's in no more than the compiler's own choice of fusing. A body that
 * needs another adds it here.
 */
#ifndef TORCHIPU_PORTABLE_H
#define TORCHIPU_PORTABLE_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#define TI_P static inline __attribute__((always_inline))

typedef float __m256 __attribute__((vector_size(32), may_alias));
typedef double __m256d __attribute__((vector_size(32), may_alias));
typedef int64_t __m256i __attribute__((vector_size(32), may_alias));
typedef float __m128 __attribute__((vector_size(16), may_alias));
typedef int64_t __m128i __attribute__((vector_size(16), may_alias));
typedef float __m64 __attribute__((vector_size(8), may_alias));
typedef int32_t ti_words __attribute__((vector_size(32), may_alias));
typedef uint32_t ti_bare_words __attribute__((vector_size(32), may_alias));
typedef uint64_t ti_bare_longs __attribute__((vector_size(32), may_alias));
typedef int8_t ti_bytes __attribute__((vector_size(32), may_alias));
typedef int32_t ti_four __attribute__((vector_size(16), may_alias));
typedef int16_t ti_shorts __attribute__((vector_size(16), may_alias));

/* Subnormal floats flush to zero, in and out; halves are no concern of these bits. */
#if defined __x86_64__
#define TI_FLUSH_SUBNORMALS 0x8040u
TI_P unsigned int _mm_getcsr(void) { return __builtin_ia32_stmxcsr(); }
TI_P void _mm_setcsr(unsigned int state) { __builtin_ia32_ldmxcsr(state); }
TI_P void _mm_pause(void) { __builtin_ia32_pause(); }
#elif defined __aarch64__
#define TI_FLUSH_SUBNORMALS (1u << 24)
TI_P unsigned int _mm_getcsr(void) {
  uint64_t state;
  __asm__ volatile("mrs %0, fpcr" : "=r"(state));
  return (unsigned int)state;
}
TI_P void _mm_setcsr(unsigned int state) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)state)); }
TI_P void _mm_pause(void) { __asm__ volatile("yield"); }
#else
#error "say here how this machine flushes subnormal floats to zero"
#endif

#define _MM_HINT_T0 3
#define _MM_HINT_T1 2
#define _mm_prefetch(p, hint) __builtin_prefetch(p, 0, hint)

/* Loads and stores of whole vectors, from any address, and of some of their lanes. */
#define TI_LOADED(type, p) ({ type ti_v; memcpy(&ti_v, p, sizeof ti_v); ti_v; })
TI_P __m256 _mm256_loadu_ps(const float *p) { return TI_LOADED(__m256, p); }
TI_P __m256 _mm256_load_ps(const float *p) { return TI_LOADED(__m256, p); }
TI_P __m256i _mm256_loadu_si256(const __m256i *p) { return TI_LOADED(__m256i, (const void *)p); }
TI_P __m128 _mm_loadu_ps(const float *p) { return TI_LOADED(__m128, p); }
TI_P __m128i _mm_loadu_si128(const __m128i *p) { return TI_LOADED(__m128i, (const void *)p); }
TI_P __m128i _mm_loadl_epi64(const __m128i *p) { return (__m128i){TI_LOADED(int64_t, (const void *)p), 0}; }
TI_P void _mm256_storeu_ps(float *p, __m256 v) { memcpy(p, &v, sizeof v); }
TI_P void _mm256_storeu_si256(__m256i *p, __m256i v) { memcpy((void *)p, &v, sizeof v); }
TI_P void _mm_storeu_ps(float *p, __m128 v) { memcpy(p, &v, sizeof v); }
TI_P void _mm_storeu_si128(__m128i *p, __m128i v) { memcpy((void *)p, &v, sizeof v); }
TI_P void _mm_storel_epi64(__m128i *p, __m128i v) { memcpy((void *)p, &v, 8); }
TI_P void _mm_storel_pi(__m64 *p, __m128 v) { memcpy((void *)p, &v, 8); }
TI_P void _mm_store_ss(float *p, __m128 v) { *p = v[0]; }
TI_P __m256 _mm256_maskload_ps(const float *p, __m256i mask) {
  __m256 v = {0};
  for (int i = 0; i < 8; i++) if (((ti_words)mask)[i] < 0) v[i] = p[i];
  return v;
}
TI_P __m128 _mm256_i64gather_ps(const float *p, __m256i at, int scale) {
  (void)scale;  /* of whole floats */
  return (__m128){p[at[0]], p[at[1]], p[at[2]], p[at[3]]};
}
TI_P __m256 _mm256_mask_i32gather_ps(__m256 others, const float *p, __m256i at, __m256 mask, int scale) {
  (void)scale;  /* of whole floats */
  for (int i = 0; i < 8; i++) if (((ti_words)mask)[i] < 0) others[i] = p[((ti_words)at)[i]];
  return others;
}

/* Vectors of one value, or of values given, and halves of vectors. */
TI_P __m256 _mm256_setzero_ps(void) { return (__m256){0}; }
TI_P __m256 _mm256_set1_ps(float a) { return a - (__m256){0}; }
TI_P __m256 _mm256_broadcast_ss(const float *p) { return _mm256_set1_ps(*p); }
TI_P __m256i _mm256_set1_epi32(int a) { return (__m256i)(a + (ti_words){0}); }
TI_P __m256i _mm256_set1_epi64x(int64_t a) { return a + (__m256i){0}; }
TI_P __m256i _mm256_setzero_si256(void) { return (__m256i){0}; }
TI_P __m128 _mm_setzero_ps(void) { return (__m128){0}; }
TI_P __m256i _mm256_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h) {
  return (__m256i)(ti_words){a, b, c, d, e, f, g, h};
}
TI_P __m256i _mm256_setr_epi64x(int64_t a, int64_t b, int64_t c, int64_t d) { return (__m256i){a, b, c, d}; }
TI_P __m128 _mm256_extractf128_ps(__m256 v, const int upper) {
  return upper ? (__m128){v[4], v[5], v[6], v[7]} : (__m128){v[0], v[1], v[2], v[3]};
}
TI_P __m128i _mm256_extracti128_si256(__m256i v, const int upper) {
  return upper ? (__m128i){v[2], v[3]} : (__m128i){v[0], v[1]};
}
TI_P __m128 _mm256_castps256_ps128(__m256 v) { return _mm256_extractf128_ps(v, 0); }
TI_P __m128i _mm256_castsi256_si128(__m256i v) { return _mm256_extracti128_si256(v, 0); }
TI_P __m256d _mm256_castps_pd(__m256 v) { return (__m256d)v; }
TI_P __m256 _mm256_castpd_ps(__m256d v) { return (__m256)v; }
TI_P __m256i _mm256_castps_si256(__m256 v) { return (__m256i)v; }

/* Arithmetic. */
TI_P __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c) {
  __m256 v = {0};
  for (int i = 0; i < 8; i++) v[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return v;
}
#define TI_EACH_LANE(name, call) \
  TI_P __m256 name(__m256 a) { \
    __m256 v = {0}; \
    for (int i = 0; i < 8; i++) v[i] = call(a[i]); \
    return v; \
  }
TI_EACH_LANE(_mm256_sqrt_ps, __builtin_sqrtf)
TI_EACH_LANE(ti_lanes_nearest, __builtin_rintf)  /* to even: nobody changes the mode */
TI_EACH_LANE(ti_lanes_floor, __builtin_floorf)
TI_EACH_LANE(ti_lanes_ceil, __builtin_ceilf)
TI_EACH_LANE(ti_lanes_trunc, __builtin_truncf)
TI_P __m256 _mm256_round_ps(__m256 a, const int mode) {
  return mode == 8 ? ti_lanes_nearest(a) : mode == 9 ? ti_lanes_floor(a) : mode == 10 ? ti_lanes_ceil(a) : ti_lanes_trunc(a);
}
/* What no int32 holds, NaN among it, becomes the least one. */
TI_P __m256i _mm256_cvtps_epi32(__m256 a) {
  const __m256 whole = ti_lanes_nearest(a);
  ti_words v = {0};
  for (int i = 0; i < 8; i++) v[i] = whole[i] >= -0x1p31f && whole[i] < 0x1p31f ? (int32_t)whole[i] : INT32_MIN;
  return (__m256i)v;
}
TI_P __m256 _mm256_cvtepi32_ps(__m256i a) { return __builtin_convertvector((ti_words)a, __m256); }
TI_P __m256i _mm256_cvtepi32_epi64(__m128i a) { return __builtin_convertvector((ti_four)a, __m256i); }
TI_P __m256i _mm256_cvtepu8_epi32(__m128i a) {
  uint8_t bytes[16];
  memcpy(bytes, &a, 16);
  return (__m256i)(ti_words){bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]};
}
TI_P __m256i _mm256_add_epi32(__m256i a, __m256i b) { return (__m256i)((ti_bare_words)a + (ti_bare_words)b); }
TI_P __m256i _mm256_add_epi64(__m256i a, __m256i b) { return (__m256i)((ti_bare_longs)a + (ti_bare_longs)b); }
TI_P __m256i _mm256_mul_epu32(__m256i a, __m256i b) {
  return (__m256i)(((ti_bare_longs)a & 0xffffffffu) * ((ti_bare_longs)b & 0xffffffffu));
}
TI_P __m256i _mm256_srli_epi64(__m256i a, int by) { return (__m256i)((ti_bare_longs)a >> by); }
TI_P __m256i _mm256_slli_epi64(__m256i a, int by) { return (__m256i)((ti_bare_longs)a << by); }
TI_P __m256i _mm256_srli_epi32(__m256i a, int by) { return (__m256i)((ti_bare_words)a >> by); }
TI_P __m256i _mm256_and_si256(__m256i a, __m256i b) { return a & b; }
TI_P __m256i _mm256_or_si256(__m256i a, __m256i b) { return a | b; }
TI_P __m256 _mm256_or_ps(__m256 a, __m256 b) { return (__m256)((__m256i)a | (__m256i)b); }
TI_P __m128 _mm_add_ps(__m128 a, __m128 b) { return a + b; }
TI_P __m128 _mm_add_ss(__m128 a, __m128 b) { a[0] += b[0]; return a; }
TI_P __m128 _mm_max_ss(__m128 a, __m128 b) { a[0] = a[0] > b[0] ? a[0] : b[0]; return a; }
TI_P float _mm_cvtss_f32(__m128 a) { return a[0]; }

/* Comparisons, whose results are lanes of ones or of zeros, and choices by them. */
enum { _CMP_EQ_OQ, _CMP_LT_OQ, _CMP_LE_OQ, _CMP_UNORD_Q, _CMP_NEQ_UQ, _CMP_GT_OQ };
TI_P __m256 _mm256_cmp_ps(__m256 a, __m256 b, const int how) {
  return how == _CMP_EQ_OQ ? (__m256)(a == b) : how == _CMP_LT_OQ ? (__m256)(a < b) : how == _CMP_LE_OQ ? (__m256)(a <= b)
         : how == _CMP_NEQ_UQ ? (__m256)(a != b) : how == _CMP_GT_OQ ? (__m256)(a > b) : (__m256)((a != a) | (b != b));
}
TI_P __m256i _mm256_cmpeq_epi32(__m256i a, __m256i b) { return (__m256i)((ti_words)a == (ti_words)b); }
TI_P __m256i _mm256_cmpgt_epi32(__m256i a, __m256i b) { return (__m256i)((ti_words)a > (ti_words)b); }
TI_P __m256i _mm256_cmpgt_epi64(__m256i a, __m256i b) { return (__m256i)(a > b); }
TI_P int _mm256_testz_si256(__m256i a, __m256i b) {
  const __m256i both = a & b;
  return (both[0] | both[1] | both[2] | both[3]) == 0;
}
TI_P int _mm256_movemask_ps(__m256 a) {
  int bits = 0;
  for (int i = 0; i < 8; i++) bits |= (((ti_words)a)[i] < 0) << i;
  return bits;
}
TI_P __m256i ti_chosen(__m256i no, __m256i yes, __m256i mask) { return (yes & mask) | (no & ~mask); }
TI_P __m256 _mm256_blendv_ps(__m256 no, __m256 yes, __m256 mask) {
  return (__m256)ti_chosen((__m256i)no, (__m256i)yes, (__m256i)((ti_words)mask >> 31));
}
TI_P __m256i _mm256_blendv_epi8(__m256i no, __m256i yes, __m256i mask) {
  return ti_chosen(no, yes, (__m256i)((ti_bytes)mask >> 7));
}
TI_P __m256i _mm256_blend_epi32(__m256i no, __m256i yes, const int bits) {
  const ti_words lane = {1, 2, 4, 8, 16, 32, 64, 128};
  return ti_chosen(no, yes, (__m256i)((lane & bits) != 0));
}
/* The second operand comes back when either is NaN. */
TI_P __m256 _mm256_min_ps(__m256 a, __m256 b) { return _mm256_blendv_ps(b, a, (__m256)(a < b)); }
TI_P __m256 _mm256_max_ps(__m256 a, __m256 b) { return _mm256_blendv_ps(b, a, (__m256)(a > b)); }
TI_P __m128 _mm_max_ps(__m128 a, __m128 b) {
  const ti_four larger = a > b;
  return (__m128)((larger & (ti_four)a) | (~larger & (ti_four)b));
}

/* Lanes that change places; as there, most stay within their half of the vector. GCC before 12 has no shufflevector, and
 * Clang no shuffle. */
#ifdef __clang__
#define TI_PICKED(type, words, a, b, ...) __builtin_shufflevector((type)(a), (type)(b), __VA_ARGS__)
TI_P __m256 _mm256_permutevar8x32_ps(__m256 a, __m256i c) {
  __m256 v;
  for (int i = 0; i < 8; i++) v[i] = a[((ti_words)c)[i] & 7];
  return v;
}
#else
#define TI_PICKED(type, words, a, b, ...) __builtin_shuffle((type)(a), (type)(b), (words){__VA_ARGS__})
TI_P __m256 _mm256_permutevar8x32_ps(__m256 a, __m256i c) { return __builtin_shuffle(a, (ti_words)c); }
#endif
TI_P __m256 _mm256_unpacklo_ps(__m256 a, __m256 b) { return TI_PICKED(__m256, ti_words, a, b, 0, 8, 1, 9, 4, 12, 5, 13); }
TI_P __m256 _mm256_unpackhi_ps(__m256 a, __m256 b) { return TI_PICKED(__m256, ti_words, a, b, 2, 10, 3, 11, 6, 14, 7, 15); }
#define _mm256_shuffle_ps(a, b, c) \
  TI_PICKED(__m256, ti_words, a, b, (c) & 3, (c) >> 2 & 3, 8 + ((c) >> 4 & 3), 8 + ((c) >> 6 & 3), 4 + ((c) & 3), \
            4 + ((c) >> 2 & 3), 12 + ((c) >> 4 & 3), 12 + ((c) >> 6 & 3))
#define _mm256_permute2f128_ps(a, b, c) \
  TI_PICKED(__m256, ti_words, a, b, 4 * ((c) & 3), 4 * ((c) & 3) + 1, 4 * ((c) & 3) + 2, 4 * ((c) & 3) + 3, \
            4 * ((c) >> 4 & 3), 4 * ((c) >> 4 & 3) + 1, 4 * ((c) >> 4 & 3) + 2, 4 * ((c) >> 4 & 3) + 3)
#define _mm256_permute4x64_pd(a, c) \
  TI_PICKED(__m256d, __m256i, a, a, (c) & 3, (c) >> 2 & 3, (c) >> 4 & 3, (c) >> 6 & 3)
TI_P __m128 _mm_movehl_ps(__m128 a, __m128 b) { return (__m128){b[2], b[3], a[2], a[3]}; }
TI_P __m128 _mm_movehdup_ps(__m128 a) { return (__m128){a[1], a[1], a[3], a[3]}; }
TI_P __m128i _mm_packs_epi32(__m128i a, __m128i b) {
  ti_shorts v = {0};
  for (int i = 0; i < 8; i++) {
    const int32_t x = i < 4 ? ((ti_four)a)[i] : ((ti_four)b)[i - 4];
    v[i] = (int16_t)(x < INT16_MIN ? INT16_MIN : x > INT16_MAX ? INT16_MAX : x);
  }
  return (__m128i)v;
}
TI_P __m128i _mm_packus_epi16(__m128i a, __m128i b) {
  uint8_t v[16];
  for (int i = 0; i < 16; i++) {
    const int16_t x = i < 8 ? ((ti_shorts)a)[i] : ((ti_shorts)b)[i - 8];
    v[i] = (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
  }
  return TI_LOADED(__m128i, v);
}

/* Halves by whole numbers, since neither compilers nor machines agree on a type for them. */
TI_P uint16_t ti_nearest_half(uint32_t bits) {
  const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  float value;
  memcpy(&value, &size, 4);
  const uint32_t normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
  /* below 2^-14 it is a multiple of 2^-24 */
  const uint32_t tiny = size < 0x38800000 ? (uint32_t)__builtin_rintf(value * 0x1p24f) : 0;
  const uint32_t nan = 0x7e00 | (size >> 13 & 0x3ff);
  return (uint16_t)(sign | (size > 0x7f800000 ? nan : size >= 0x477ff000 ? 0x7c00 : size < 0x38800000 ? tiny : normal));
}
TI_P uint16_t ti_truncated_half(uint32_t bits) {
  const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  float value;
  memcpy(&value, &size, 4);
  const uint32_t tiny = size < 0x38800000 ? (uint32_t)(value * 0x1p24f) : 0, nan = 0x7e00 | (size >> 13 & 0x3ff);
  return (uint16_t)(sign | (size > 0x7f800000 ? nan : size == 0x7f800000 ? 0x7c00 : size >= 0x47800000 ? 0x7bff
                            : size < 0x38800000 ? tiny : (size - 0x38000000) >> 13));
}
TI_P uint32_t ti_of_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, size = half & 0x7fff;
  const float tiny = (float)(int32_t)size * 0x1p-24f;
  uint32_t bits;
  memcpy(&bits, &tiny, 4);
  return sign | (size > 0x7c00 ? 0x7fc00000 | size << 13 : size == 0x7c00 ? 0x7f800000
                 : size < 0x400 ? bits : (size << 13) + 0x38000000);
}
TI_P uint16_t _cvtss_sh(float value, const int mode) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return mode == 8 || mode == 0 ? ti_nearest_half(bits) : ti_truncated_half(bits);
}
TI_P float _cvtsh_ss(uint16_t half) {
  const uint32_t bits = ti_of_half(half);
  return TI_LOADED(float, &bits);
}
TI_P __m128i _mm256_cvtps_ph(__m256 a, const int mode) {
  uint16_t v[8];
  for (int i = 0; i < 8; i++) v[i] = mode == 8 ? ti_nearest_half(((ti_bare_words)a)[i]) : ti_truncated_half(((ti_bare_words)a)[i]);
  return TI_LOADED(__m128i, v);
}
TI_P __m256 _mm256_cvtph_ps(__m128i a) {
  uint16_t half[8];
  memcpy(half, &a, 16);
  ti_bare_words v = {0};
  for (int i = 0; i < 8; i++) v[i] = ti_of_half(half[i]);
  return (__m256)v;
}
#endif
