/* Prints what the vector operations give that portable.h stands in for, on values of every kind: see test_portable.py. */
#ifdef TI_PORTABLE
#include "portable.h"
#else
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint32_t words[4096] __attribute__((aligned(32)));

static void fill(void) {
  static const uint32_t special[] = {
    0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x3f800000,
    0x3f000000, 0xbf000000, 0x3fc00000, 0x40200000, 0xc0200000, 0x4b000001, 0x4f000000, 0xcf000000, 0x4effffff, 0x33000000,
    0x33000001, 0x32ffffff, 0x33800000, 0x33c00000, 0x387fffff, 0x38800000, 0x477fdfff, 0x477fe000, 0x477fefff, 0x477ff000,
    0x47800000, 0x38000fff, 0x38001000, 0x38002000, 0x38003000, 0x7fffffff, 0xffffffff, 0x7fe12345,
  };
  const int known = (int)(sizeof special / sizeof *special);
  uint32_t state = 12345;
  for (int i = 0; i < 4096; i++) {
    state = state * 1664525u + 1013904223u;
    /* all of the special ones, words of any bits, and floats about as large as halves are */
    words[i] = i % 3 == 0 ? special[(i / 3 * 7 + i / 160) % known] : i % 3 == 1 ? state ^ state >> 15
               : (state & 0x807fffff) | ((state >> 9 & 31) + 103) << 23;
  }
}

static void print(const char *name, const void *lanes, int count) {
  printf("%s", name);
  for (int i = 0; i < count; i++) {
    uint32_t word;
    memcpy(&word, (const char *)lanes + 4 * i, 4);
    printf(" %08x", word);
  }
  printf("\n");
}

/* Which NaN comes of arithmetic is the machine's own affair. */
static void print_floats(const char *name, __m256 v) {
  float lanes[8];
  _mm256_storeu_ps(lanes, v);
  for (int i = 0; i < 8; i++) if (lanes[i] != lanes[i]) lanes[i] = NAN;
  print(name, lanes, 8);
}
static void print_four(const char *name, __m128 v) {
  float lanes[4];
  _mm_storeu_ps(lanes, v);
  for (int i = 0; i < 4; i++) if (lanes[i] != lanes[i]) lanes[i] = NAN;
  print(name, lanes, 4);
}
static void print_words(const char *name, __m256i v) {
  int32_t lanes[8];
  _mm256_storeu_si256((__m256i *)lanes, v);
  print(name, lanes, 8);
}
static void print_eight_shorts(const char *name, __m128i v) {
  int32_t lanes[4];
  _mm_storeu_si128((__m128i *)lanes, v);
  print(name, lanes, 4);
}

#define F(call) print_floats(#call, call)
#define Q(call) print_four(#call, call)
#define W(call) print_words(#call, call)
#define S(call) print_eight_shorts(#call, call)
#define I(call) do { const uint32_t one = (uint32_t)(call); print(#call, &one, 1); } while (0)

static void all(const uint32_t *at) {
  const float *floats = (const float *)at;
  const __m256 a = _mm256_loadu_ps(floats), b = _mm256_loadu_ps(floats + 8), c = _mm256_loadu_ps(floats + 16);
  const __m256i k = _mm256_loadu_si256((const __m256i *)at), l = _mm256_loadu_si256((const __m256i *)(at + 8));
  const __m128 q = _mm_loadu_ps(floats), r = _mm_loadu_ps(floats + 4);
  const __m128i s = _mm_loadu_si128((const __m128i *)at), t = _mm_loadu_si128((const __m128i *)(at + 4));
  F(_mm256_fmadd_ps(a, b, c)); F(_mm256_sqrt_ps(a)); F(_mm256_min_ps(a, b)); F(_mm256_max_ps(a, b));
  F(_mm256_round_ps(a, 8)); F(_mm256_round_ps(a, 9)); F(_mm256_round_ps(a, 10)); F(_mm256_round_ps(a, 11));
  W(_mm256_cvtps_epi32(a)); F(_mm256_cvtepi32_ps(k)); W(_mm256_cvtepi32_epi64(s)); W(_mm256_cvtepu8_epi32(s));
  W(_mm256_add_epi32(k, l)); W(_mm256_add_epi64(k, l)); W(_mm256_mul_epu32(k, l)); W(_mm256_srli_epi64(k, 32));
  W(_mm256_slli_epi64(k, 32)); W(_mm256_srli_epi32(k, 31)); W(_mm256_and_si256(k, l)); W(_mm256_or_si256(k, l));
  W(_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ))); W(_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LE_OQ)));
  W(_mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_EQ_OQ))); W(_mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_NEQ_UQ)));
  W(_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ))); W(_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)));
  W(_mm256_cmpeq_epi32(k, _mm256_and_si256(k, l))); W(_mm256_cmpgt_epi32(k, l)); W(_mm256_cmpgt_epi64(k, l));
  I(_mm256_testz_si256(k, l)); I(_mm256_testz_si256(_mm256_setzero_si256(), l)); I(_mm256_movemask_ps(a));
  F(_mm256_blendv_ps(a, b, c)); W(_mm256_blendv_epi8(k, l, _mm256_castps_si256(c))); W(_mm256_blend_epi32(k, l, 0xaa));
  F(_mm256_or_ps(_mm256_set1_ps(1.0f), _mm256_set1_ps(-0.0f)));
  F(_mm256_unpacklo_ps(a, b)); F(_mm256_unpackhi_ps(a, b)); F(_mm256_shuffle_ps(a, b, 0x44)); F(_mm256_shuffle_ps(a, b, 0xee));
  F(_mm256_shuffle_ps(a, b, 0x88)); F(_mm256_shuffle_ps(a, b, 0xdd)); F(_mm256_permute2f128_ps(a, b, 0x20));
  F(_mm256_permute2f128_ps(a, b, 0x31)); F(_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8)));
  F(_mm256_permutevar8x32_ps(a, k)); F(_mm256_load_ps((const float *)((uintptr_t)(floats + 8) & ~(uintptr_t)31)));
  Q(_mm256_extractf128_ps(a, 1)); Q(_mm256_castps256_ps128(a)); S(_mm256_extracti128_si256(k, 1)); S(_mm256_castsi256_si128(k));
  Q(_mm_add_ps(q, r)); Q(_mm_max_ps(q, r)); Q(_mm_add_ss(q, r)); Q(_mm_max_ss(q, r)); Q(_mm_movehl_ps(q, r));
  Q(_mm_movehdup_ps(q)); S(_mm_packs_epi32(s, t)); S(_mm_packus_epi16(s, t)); S(_mm_loadl_epi64((const __m128i *)at));
  S(_mm256_cvtps_ph(a, 8)); S(_mm256_cvtps_ph(a, 11)); W(_mm256_castps_si256(_mm256_cvtph_ps(s)));
  I(_cvtss_sh(floats[5], 0)); F(_mm256_set1_ps(_cvtsh_ss((uint16_t)at[6])));
  W(_mm256_set1_epi32(-7)); W(_mm256_set1_epi64x(-7)); W(_mm256_setr_epi64x(1, -2, 3, -4));
  Q(_mm256_i64gather_ps(floats, _mm256_setr_epi64x(3, 0, 11, 7), 4)); F(_mm256_broadcast_ss(floats + 3));
  F(_mm256_maskload_ps(floats, _mm256_setr_epi32(-1, 0, -1, 1, (int)at[9], (int)at[10], 0, -1)));
  F(_mm256_mask_i32gather_ps(_mm256_set1_ps(7.0f), floats, _mm256_setr_epi32(3, -1, 11, 7, 0, 5, -1, 2),
                             (__m256)_mm256_setr_epi32(-1, 0, -1, 1, (int)at[9], -2, 0, -1), 4));
  F(_mm256_setzero_ps());
  I((int32_t)_mm_cvtss_f32(_mm_add_ss(_mm_setzero_ps(), _mm256_castps256_ps128(_mm256_set1_ps(3.0f)))));
  float few[4] = {0};
  _mm_storel_epi64((__m128i *)few, t);
  print("_mm_storel_epi64", few, 4);
  _mm_storel_pi((__m64 *)few, q);
  _mm_store_ss(few + 2, r);
  print("stores", few, 4);
}

int main(void) {
  fill();
  for (int i = 0; i + 24 <= 4096; i += 24) all(words + i);
  return 0;
}
