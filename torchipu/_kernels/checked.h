/* In the checked flavour: loads and stores of some lanes alone, lane by lane in C.
 *
 * AddressSanitizer looks at accesses that the compiler sees, and takes an intrinsic of masked lanes, or of lanes that lie
 * apart, for arithmetic. These stand in for those that the bodies use; a body that needs another adds it here.
 */
#ifndef TORCHIPU_CHECKED_H
#define TORCHIPU_CHECKED_H
#include <immintrin.h>
#include <stdint.h>

static inline void ti_copy_lanes(void *to, const void *from, uint32_t lanes, int bytes) {
  for (int i = 0; lanes >> i; i++)
    if (!(lanes >> i & 1)) continue;
    else if (bytes == 8) ((int64_t *)to)[i] = ((const int64_t *)from)[i];
    else ((int32_t *)to)[i] = ((const int32_t *)from)[i];
}

#pragma GCC push_options
#pragma GCC target("avx2")
static inline __m256 ti_maskload_256(const float *p, __m256i mask) {
  float lanes[8] = {0};
  ti_copy_lanes(lanes, p, (uint32_t)_mm256_movemask_ps((__m256)mask), 4);
  return _mm256_loadu_ps(lanes);
}
static inline void ti_maskstore_256(float *p, __m256i mask, __m256 v) {
  float lanes[8];
  _mm256_storeu_ps(lanes, v);
  ti_copy_lanes(p, lanes, (uint32_t)_mm256_movemask_ps((__m256)mask), 4);
}
static inline __m128 ti_gather_256(const float *p, __m256i at) {
  int64_t place[4];
  _mm256_storeu_si256((__m256i *)place, at);
  return _mm_setr_ps(p[place[0]], p[place[1]], p[place[2]], p[place[3]]);
}
static inline __m256 ti_some_gather_256(__m256 others, const float *p, __m256i at, __m256 mask) {
  int32_t place[8];
  float lanes[8];
  _mm256_storeu_si256((__m256i *)place, at);
  _mm256_storeu_ps(lanes, others);
  for (int i = 0; i < 8; i++) if (_mm256_movemask_ps(mask) >> i & 1) lanes[i] = p[place[i]];
  return _mm256_loadu_ps(lanes);
}
static inline __m256i ti_load_epi16_256(uint32_t mask, const void *p) {
  int16_t lanes[16];
  for (int i = 0; i < 16; i++) lanes[i] = mask >> i & 1 ? ((const int16_t *)p)[i] : 0;
  return _mm256_loadu_si256((const __m256i *)lanes);
}
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx2")
static inline __m512 ti_load_512(__m512 others, __mmask16 mask, const void *p) {
  float lanes[16];
  _mm512_storeu_ps(lanes, others);
  ti_copy_lanes(lanes, p, mask, 4);
  return _mm512_loadu_ps(lanes);
}
static inline void ti_store_512(void *p, __mmask16 mask, __m512 v) {
  float lanes[16];
  _mm512_storeu_ps(lanes, v);
  ti_copy_lanes(p, lanes, mask, 4);
}
static inline __m512i ti_load_epi64_512(__mmask8 mask, const void *p) {
  int64_t lanes[8] = {0};
  ti_copy_lanes(lanes, p, mask, 8);
  return _mm512_loadu_si512(lanes);
}
static inline __m512i ti_load_epi16_512(__mmask32 mask, const void *p) {
  int16_t lanes[32];
  for (int i = 0; i < 32; i++) lanes[i] = mask >> i & 1 ? ((const int16_t *)p)[i] : 0;
  return _mm512_loadu_si512(lanes);
}
static inline void ti_store_epi64_512(void *p, __mmask8 mask, __m512i v) {
  int64_t lanes[8];
  _mm512_storeu_si512(lanes, v);
  ti_copy_lanes(p, lanes, mask, 8);
}
static inline __m512 ti_gather_512(__m512 others, __mmask16 mask, __m512i at, const float *p) {
  int32_t place[16];
  float lanes[16];
  _mm512_storeu_si512(place, at);
  _mm512_storeu_ps(lanes, others);
  for (int i = 0; i < 16; i++) if (mask >> i & 1) lanes[i] = p[place[i]];
  return _mm512_loadu_ps(lanes);
}
static inline __m256 ti_gather_i64_512(__m512i at, const float *p) {
  int64_t place[8];
  float lanes[8];
  _mm512_storeu_si512(place, at);
  for (int i = 0; i < 8; i++) lanes[i] = p[place[i]];
  return _mm256_loadu_ps(lanes);
}
#pragma GCC pop_options

/* Without optimisation some of them are macros of the compiler's. All gathers of the bodies are of whole floats. */
#undef _mm256_i64gather_ps
#undef _mm256_mask_i32gather_ps
#undef _mm512_i64gather_ps
#undef _mm512_mask_i32gather_ps
#define _mm256_maskload_ps(p, mask) ti_maskload_256(p, mask)
#define _mm256_maskstore_ps(p, mask, v) ti_maskstore_256(p, mask, v)
#define _mm256_i64gather_ps(p, at, scale) ti_gather_256(p, at)
#define _mm256_mask_i32gather_ps(others, p, at, mask, scale) ti_some_gather_256(others, p, at, mask)
#define _mm256_maskz_loadu_epi16(mask, p) ti_load_epi16_256(mask, p)
#define _mm512_mask_loadu_ps(others, mask, p) ti_load_512(others, mask, p)
#define _mm512_maskz_loadu_ps(mask, p) ti_load_512(_mm512_setzero_ps(), mask, p)
#define _mm512_mask_storeu_ps(p, mask, v) ti_store_512(p, mask, v)
#define _mm512_maskz_loadu_epi64(mask, p) ti_load_epi64_512(mask, p)
#define _mm512_maskz_loadu_epi16(mask, p) ti_load_epi16_512(mask, p)
#define _mm512_mask_storeu_epi64(p, mask, v) ti_store_epi64_512(p, mask, v)
#define _mm512_i64gather_ps(at, p, scale) ti_gather_i64_512(at, p)
#define _mm512_mask_i32gather_ps(others, mask, at, p, scale) ti_gather_512(others, mask, at, p)
#endif
