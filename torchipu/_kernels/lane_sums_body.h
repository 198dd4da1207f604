/* sums[v] = the sum of the lanes of held[v], for up to 16 vectors: those of FN(sum_lanes), halves added up again and again. */
#if VL == 16
TI_INLINE void FN(sums_of)(const int count, const VF *held, float *sums) {
  __m512 v[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    const __m512 a = (__m512)held[2 * i < count ? 2 * i : 0], b = (__m512)held[2 * i + 1 < count ? 2 * i + 1 : 0];
    v[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)  /* quarters of a, a, b, b, c, c, d, d to one each */
    v[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88), _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xdd));
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++)
    v[i] = _mm512_add_ps(_mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0x44), _mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0xee));
  const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd));
  /* lane 4 g + r holds the sum of vector 4 r + g */
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_mask_storeu_ps(sums, (__mmask16)((1u << count) - 1), _mm512_permutexvar_ps(order, all));
}
#else
TI_INLINE void FN(sums_of)(const int count, const VF *held, float *sums) {
#pragma GCC unroll 16
  for (int i = 0; i < count; i++) sums[i] = FN(sum_lanes)(held[i]);
}
#endif
