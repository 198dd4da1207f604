/* Register tiles of few rows and many columns, for products of few rows or few summands: each row of B is read, or each
 * row of C written, in runs of several cache lines, and enough sums are under way at a time. Only whole vectors. */
#undef TI_WIDE_VECTORS
#if VL == 16
enum { FN(WIDE_ROWS) = 9, FN(WIDE_FEW) = 4 };
#define TI_WIDE_VECTORS(MR_) ((MR_) <= 4 ? 6 : 3)
#else
enum { FN(WIDE_ROWS) = 4, FN(WIDE_FEW) = 4 };
#define TI_WIDE_VECTORS(MR_) 3
#endif

#ifndef TORCHIPU_WIDE_TILE
#define TORCHIPU_WIDE_TILE
enum { TI_FEW_SUMMANDS = 7, TI_ROWS_AHEAD = 8 };
#endif

/* mr rows, nv whole vectors; the sum of each element is that of any other tile. */
TI_INLINE void FN(wide_tile)(const int mr, const int nv, const int by_row, const ti_tile *t) {
  VF c[24 + 3];
  const ptrdiff_t as = by_row ? t->as : 1, ak = by_row ? 1 : t->ak, bs = t->bs, ldc = t->ldc;
  if (t->goes_on) {
#pragma GCC unroll 9
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 6
      for (int v = 0; v < nv; v++) c[i * nv + v] = FN(load)(t->c + i * ldc + v * VL);
  } else
#pragma GCC unroll 6
  for (int v = 0; v < nv; v++) {
    const VF first = t->col_bias && !t->accumulate ? FN(load)(t->col_bias + v * VL) : FN(set)(0);
#pragma GCC unroll 9
    for (int i = 0; i < mr; i++) c[i * nv + v] = first;
  }
  const float *a = t->a, *b = t->b;
  const int ahead = t->k > TI_FEW_SUMMANDS;
  for (int64_t k = 0; k < t->k; k++, a += ak, b += bs) {
    VF row[6];
#pragma GCC unroll 6
    for (int v = 0; v < nv; v++) {
      if (ahead) _mm_prefetch((const char *)(b + TI_ROWS_AHEAD * bs + v * VL), _MM_HINT_T0);
      row[v] = FN(load)(b + v * VL);
    }
#pragma GCC unroll 9
    for (int i = 0; i < mr; i++) {
      const VF x = FN(broadcast)(a + i * as);
#pragma GCC unroll 6
      for (int v = 0; v < nv; v++) c[i * nv + v] = FN(fma)(x, row[v], c[i * nv + v]);
    }
  }
  if (t->accumulate && !t->goes_on)
#pragma GCC unroll 9
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 6
      for (int v = 0; v < nv; v++) c[i * nv + v] += FN(load)(t->c + i * ldc + v * VL);
#pragma GCC unroll 9
  for (int i = 0; i < mr; i++)
#pragma GCC unroll 6
    for (int v = 0; v < nv; v++) FN(store)(t->c + i * ldc + v * VL, c[i * nv + v]);
}

#undef TI_WIDE
#define TI_WIDE(MR_) \
  static __attribute__((noinline)) void FN(wide_k_##MR_)(const ti_tile *t) { FN(wide_tile)(MR_, TI_WIDE_VECTORS(MR_), 1, t); } \
  static __attribute__((noinline)) void FN(wide_i_##MR_)(const ti_tile *t) { FN(wide_tile)(MR_, TI_WIDE_VECTORS(MR_), 0, t); }
TI_WIDE(1) TI_WIDE(2) TI_WIDE(3) TI_WIDE(4)
#if VL == 16
TI_WIDE(5) TI_WIDE(6) TI_WIDE(7) TI_WIDE(8) TI_WIDE(9)
static void (*const FN(wide_table)[2][FN(WIDE_ROWS) + 1])(const ti_tile *) = {
  {0, FN(wide_i_1), FN(wide_i_2), FN(wide_i_3), FN(wide_i_4), FN(wide_i_5), FN(wide_i_6), FN(wide_i_7), FN(wide_i_8), FN(wide_i_9)},
  {0, FN(wide_k_1), FN(wide_k_2), FN(wide_k_3), FN(wide_k_4), FN(wide_k_5), FN(wide_k_6), FN(wide_k_7), FN(wide_k_8), FN(wide_k_9)}};
#else
static void (*const FN(wide_table)[2][FN(WIDE_ROWS) + 1])(const ti_tile *) = {
  {0, FN(wide_i_1), FN(wide_i_2), FN(wide_i_3), FN(wide_i_4)}, {0, FN(wide_k_1), FN(wide_k_2), FN(wide_k_3), FN(wide_k_4)}};
#endif

/* Computes as many of the n columns of m rows as fill whole tiles; returns how many. B lies as rows of many columns.
 * With few summands what is written takes the time: neighbours along a row come one after another. */
static int64_t FN(wide_rows)(const ti_tile *t, int64_t m, int64_t n) {
  const int64_t even = m <= FN(WIDE_ROWS) ? m : ti_even(m, FN(WIDE_FEW));
  const int64_t width = VL * TI_WIDE_VECTORS(even), done = n / width * width;
  for (int64_t i = 0; i < m; i += even) {
    ti_tile u = *t;
    u.a += i * t->as; u.c += i * t->ldc;
    for (int64_t j = 0; j < done; j += width) {
      FN(wide_table)[t->ak == 1][ti_min(even, m - i)](&u);
      u.b += width; u.c += width;
      if (u.col_bias) u.col_bias += width;
    }
  }
  return done;
}
