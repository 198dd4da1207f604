/* Runs of floats: copied from places apart, and emptied. */
/* Copies n floats that lie `step` apart. */
TI_INLINE void FN(copy_run)(float *d, const float *s, int64_t n, int64_t step) {
  if (step == 1) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) FN(store)(d + i, FN(load)(s + i));
    if (i < n) FN(store_part)(d + i, FN(load_part)(s + i, (int)(n - i)), (int)(n - i));
    return;
  }
  int64_t i = 0;
#if VL == 16
  if (step == 2) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    for (; i + 16 < n; i += 16)
      _mm512_storeu_ps(d + i, _mm512_permutex2var_ps(_mm512_loadu_ps(s + 2 * i), even, _mm512_loadu_ps(s + 2 * i + 16)));
    for (; i < n; i += 16) {
      const int64_t left = n - i < 16 ? n - i : 16, count = 2 * left - 1;
      const __m512 a = (__m512)FN(load_part)(s + 2 * i, count < 16 ? count : 16);
      const __m512 b = count > 16 ? (__m512)FN(load_part)(s + 2 * i + 16, count - 16) : a;
      FN(store_part)(d + i, (VF)_mm512_permutex2var_ps(a, even, b), left);
    }
    return;
  }
#else
  if (step == 2)
    for (; i + 8 < n; i += 8) {
      const __m256 pairs = _mm256_shuffle_ps(_mm256_loadu_ps(s + 2 * i), _mm256_loadu_ps(s + 2 * i + 8), 0x88);
      _mm256_storeu_ps(d + i, _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(pairs), 0xd8)));
    }
#endif
  for (; i < n; i++) d[i] = s[i * step];
}

TI_INLINE void FN(zero_run)(float *d, int64_t n) {
  int64_t i = 0;
  for (; i + VL <= n; i += VL) FN(store)(d + i, FN(set)(0));
  if (i < n) FN(store_part)(d + i, FN(set)(0), (int)(n - i));
}
