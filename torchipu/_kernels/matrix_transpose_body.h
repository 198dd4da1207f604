/* Matrices of words transposed through registers: of floats, or of pairs of bfloats. */
#ifndef TORCHIPU_MATRIX_TRANSPOSE
#define TORCHIPU_MATRIX_TRANSPOSE
enum { TI_FETCH = 128 };
#endif

/* A masked store costs more than a whole one. */
TI_INLINE void FN(store_rows)(float *p, VF v, const int n) {
  if (n == VL) FN(store)(p, v);
  else FN(store_part)(p, v, n);
}

/* Transposes a block of rows <= VL by VL columns in registers; `ahead` fetches from a block further along the rows. */
TI_INLINE void FN(transpose_block)(const float *s, ptrdiff_t ls, float *d, ptrdiff_t ld, const int rows, const int ahead) {
#if VL == 16
  __m512 r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    const float *row = s + (i < rows ? i : rows - 1) * ls;
    if (ahead) _mm_prefetch((const char *)(row + TI_FETCH), _MM_HINT_T0);
    r[i] = _mm512_loadu_ps(row);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
    const __m512d c = _mm512_castps_pd(t[4 * i + 2]), e = _mm512_castps_pd(t[4 * i + 3]);
    r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, e));
    r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, e));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
    t[8 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
    t[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[4 + i], 0x88);
    r[8 + i] = _mm512_shuffle_f32x4(t[i], t[4 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) FN(store_rows)(d + i * ld, (VF)r[i], rows);
#else
  __m256 r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(s + (i < rows ? i : rows - 1) * ls);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    FN(store_rows)(d + i * ld, (VF)_mm256_permute2f128_ps(r[i], r[4 + i], 0x20), rows);
    FN(store_rows)(d + (4 + i) * ld, (VF)_mm256_permute2f128_ps(r[i], r[4 + i], 0x31), rows);
  }
#endif
}

/* d[c * ld + r] = s[r * ls + c]; the last block of a side overlaps the one before it. */
static void FN(transpose)(const float *s, ptrdiff_t ls, float *d, ptrdiff_t ld, int64_t rows, int64_t cols) {
  if (rows < VL || cols < VL) {
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < cols; c++) d[c * ld + r] = s[r * ls + c];
    return;
  }
  for (int64_t i = 0; i < rows; i += VL) {
    const int64_t r = ti_min(i, rows - VL);
    for (int64_t j = 0; j < cols; j += VL) {
      const int64_t c = ti_min(j, cols - VL);
      FN(transpose_block)(s + r * ls + c, ls, d + c * ld + r, ld, VL, 1);
    }
  }
}
