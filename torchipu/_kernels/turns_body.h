/* Floats that take turns in memory, as parts of complex numbers do, one kind beside the other; and back. */
#ifndef TI_AHEAD
#define TI_AHEAD 4096
#endif
TI_INLINE void FN(load_turns)(float *first, float *second, const float *src, long n) {
  long i = 0;
#if VL == 16
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  for (; i + VL <= n; i += VL) {
    /* what the next block reads: operands take turns, and the processor does not see a stream in any of them */
    _mm_prefetch((const char *)(src + 2 * i) + TI_AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)(src + 2 * i) + TI_AHEAD + 64, _MM_HINT_T0);
    const __m512 a = (__m512)FN(load)(src + 2 * i), b = (__m512)FN(load)(src + 2 * i + VL);
    _mm512_storeu_ps(first + i, _mm512_permutex2var_ps(a, even, b));
    _mm512_storeu_ps(second + i, _mm512_permutex2var_ps(a, odd, b));
  }
#else
  for (; i + VL <= n; i += VL) {
    _mm_prefetch((const char *)(src + 2 * i) + TI_AHEAD, _MM_HINT_T0);
    const __m256 a = _mm256_loadu_ps(src + 2 * i), b = _mm256_loadu_ps(src + 2 * i + VL);
    const __m256d evens = (__m256d)_mm256_shuffle_ps(a, b, 0x88), odds = (__m256d)_mm256_shuffle_ps(a, b, 0xdd);
    _mm256_storeu_ps(first + i, (__m256)_mm256_permute4x64_pd(evens, 0xd8));
    _mm256_storeu_ps(second + i, (__m256)_mm256_permute4x64_pd(odds, 0xd8));
  }
#endif
  for (; i < n; i++) first[i] = src[2 * i], second[i] = src[2 * i + 1];
}
TI_INLINE void FN(store_turns)(float *dst, const float *first, const float *second, long n) {
  long i = 0;
#if VL == 16
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (; i + VL <= n; i += VL) {
    const __m512 a = _mm512_loadu_ps(first + i), b = _mm512_loadu_ps(second + i);
    _mm512_storeu_ps(dst + 2 * i, _mm512_permutex2var_ps(a, low, b));
    _mm512_storeu_ps(dst + 2 * i + VL, _mm512_permutex2var_ps(a, high, b));
  }
#else
  for (; i + VL <= n; i += VL) {
    const __m256 a = _mm256_loadu_ps(first + i), b = _mm256_loadu_ps(second + i);
    const __m256 low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    _mm256_storeu_ps(dst + 2 * i, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(dst + 2 * i + VL, _mm256_permute2f128_ps(low, high, 0x31));
  }
#endif
  for (; i < n; i++) dst[2 * i] = first[i], dst[2 * i + 1] = second[i];
}
