/* Register tiles of few rows and many columns, for products of few rows or few summands: each row of B is read, or each
 * row of C written, in runs of several cache lines, and enough sums are under way at a time. Only whole vectors. */
#undef TI_WIDE_VECTORS
#if VL == 16
enum { FN(WIDE_MOST) = 9, FN(WIDE_FEW) = 4, FN(WIDE_ROWS) = TI_WIDE_ROWS };
#define TI_WIDE_VECTORS(MR_) ((MR_) <= 4 ? 6 : 3)
#else
enum { FN(WIDE_MOST) = 4, FN(WIDE_FEW) = 4, FN(WIDE_ROWS) = 4 };  /* more would read B too often */
#define TI_WIDE_VECTORS(MR_) 3
#endif

#ifndef TORCHIPU_WIDE_TILE
#define TORCHIPU_WIDE_TILE
enum { TI_ROWS_AHEAD = 8 };
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

/* By the order of A, then by rows: of as many vectors as sums have registers for, and of one and two for columns left over. */
#undef TI_WIDE
#define TI_WIDE(MR_) \
  static __attribute__((noinline)) void FN(wide_k_##MR_)(const ti_tile *t) { FN(wide_tile)(MR_, TI_WIDE_VECTORS(MR_), 1, t); } \
  static __attribute__((noinline)) void FN(wide_i_##MR_)(const ti_tile *t) { FN(wide_tile)(MR_, TI_WIDE_VECTORS(MR_), 0, t); } \
  static __attribute__((noinline)) void FN(wide_k_2_##MR_)(const ti_tile *t) { FN(wide_tile)(MR_, 2, 1, t); } \
  static __attribute__((noinline)) void FN(wide_i_2_##MR_)(const ti_tile *t) { FN(wide_tile)(MR_, 2, 0, t); } \
  static __attribute__((noinline)) void FN(wide_k_1_##MR_)(const ti_tile *t) { FN(wide_tile)(MR_, 1, 1, t); } \
  static __attribute__((noinline)) void FN(wide_i_1_##MR_)(const ti_tile *t) { FN(wide_tile)(MR_, 1, 0, t); }
TI_WIDE(1) TI_WIDE(2) TI_WIDE(3) TI_WIDE(4)
#undef TI_WIDE_TABLE
#if VL == 16
TI_WIDE(5) TI_WIDE(6) TI_WIDE(7) TI_WIDE(8) TI_WIDE(9)
#define TI_WIDE_TABLE(N_) {0, FN(N_##1), FN(N_##2), FN(N_##3), FN(N_##4), FN(N_##5), FN(N_##6), FN(N_##7), FN(N_##8), FN(N_##9)}
#else
#define TI_WIDE_TABLE(N_) {0, FN(N_##1), FN(N_##2), FN(N_##3), FN(N_##4)}
#endif
static void (*const FN(wide_table)[3][2][FN(WIDE_MOST) + 1])(const ti_tile *) = {
  {TI_WIDE_TABLE(wide_i_), TI_WIDE_TABLE(wide_k_)}, {TI_WIDE_TABLE(wide_i_1_), TI_WIDE_TABLE(wide_k_1_)},
  {TI_WIDE_TABLE(wide_i_2_), TI_WIDE_TABLE(wide_k_2_)}};

/* Computes as many of the n columns of m rows as fill whole vectors; returns how many. B lies as rows of many columns, of which
 * those of a tile stay in a cache for the rows after its own. With few summands what is written takes the time: neighbours
 * along a row come one after another, in whole tiles. */
static int64_t FN(wide_rows)(const ti_tile *t, int64_t m, int64_t n) {
  const int few = t->k <= TI_FEW_SUMMANDS && m > FN(WIDE_MOST);
  const int64_t even = ti_even(m, few ? FN(WIDE_FEW) : FN(WIDE_MOST)), most = TI_WIDE_VECTORS(even);
  const int64_t width = few ? most * VL : VL, done = n / width * width;
  ti_tile u = *t;
  for (int64_t i0 = 0, rows; i0 < m; i0 += rows) {
    rows = few ? ti_min(even, m - i0) : m;  /* whose columns are all computed before those of the next */
    for (int64_t j = 0, vectors; j < done; j += vectors * VL) {
      const int64_t left = (done - j) / VL;
      vectors = left >= most ? most : ti_min(left, 2);
      u.b = t->b + j;
      if (t->col_bias) u.col_bias = t->col_bias + j;
      for (int64_t i = i0; i < i0 + rows; i += even) {
        u.a = t->a + i * t->as; u.c = t->c + i * t->ldc + j;
        FN(wide_table)[left >= most ? 0 : vectors][t->ak == 1][ti_min(even, m - i)](&u);
      }
    }
  }
  return done;
}
