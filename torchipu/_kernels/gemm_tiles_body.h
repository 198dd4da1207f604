/* The functions of register tiles that all linear families call, compiled once: one for each number of rows and vectors. */
#include "gemm_body.h"

/* Fetches a row of a tile of C. */
TI_INLINE void FN(fetch_row)(const float *row, const int nv) {
#pragma GCC unroll 2
  for (int v = 0; v < nv; v++) _mm_prefetch((const char *)(row + v * VL), _MM_HINT_T0);
}

/* mr rows, nv vectors; by_row: neighbours of A lie along k (ak = 1), otherwise along i (as = 1). A sum begins at zero, or at
 * its bias, and is added to what C holds at its end: long sums are sums of short ones, and round as these do. */
TI_INLINE void FN(tile_of)(const int mr, const int nv, const int by_row, const int gathered, const int ahead, const int lays,
                           const int full, const ti_tile *t, int n) {
  VF c0[TI_MR], c1[TI_MR];
  const int n0 = full || n > VL ? VL : n, n1 = full ? VL : n - n0;
  const ptrdiff_t as = by_row ? t->as : 1, ak = by_row ? 1 : t->ak, bs = t->bs, ldc = t->ldc;
  /* Rows so far apart that they fall into one set of a cache would drive out those of this tile. */
  const ptrdiff_t fetched = as % TI_APART_IN_ONE_SET ? as : 0;
  if (t->goes_on) {
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
      c0[i] = FN(load_part)(t->c + i * ldc, n0);
      if (nv > 1) c1[i] = FN(load_part)(t->c + i * ldc + VL, n1);
    }
  } else if (t->row_bias && !t->accumulate) {
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) c0[i] = c1[i] = FN(broadcast)(t->row_bias + i);
  } else {
    const int has_bias = t->col_bias && !t->accumulate;
    const VF first = has_bias ? FN(load_part)(t->col_bias, n0) : FN(set)(0);
    const VF second = nv > 1 && has_bias ? FN(load_part)(t->col_bias + VL, n1) : FN(set)(0);
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) { c0[i] = first; c1[i] = second; }
  }
  const float *a = t->a, *b = t->b;
  const float *next_b = t->next_b;
  const ptrdiff_t next_step = t->next_step;
  const int32_t *offsets = t->offsets;
  const int parts = gathered ? 1 : mr;  /* with each part of the summands, a row of the next tile is fetched */
  int64_t k = 0;
  for (int part = 0; part < parts; part++) {
    const int64_t last = t->k * (part + 1) / parts;
    if (!gathered) FN(fetch_row)(t->next_c + part * ldc, nv);
    for (; k < last; k++) {
      const float *row = gathered ? b + offsets[k] : b;
      if (ahead) _mm_prefetch((const char *)(t->next_a + k * TI_LINE), _MM_HINT_T1);
      if (ahead && !lays) {
        _mm_prefetch((const char *)next_b, _MM_HINT_T1);
        next_b += next_step;
      }
      /* a line of the rows of the next tile, all of which have been fetched by the time it begins */
      if (by_row) _mm_prefetch((const char *)(a + (mr + k % TI_LINE) * fetched - k % TI_LINE), _MM_HINT_T1);
      const VF b0 = full ? FN(load)(row) : FN(load_part)(row, n0);
      VF b1;
      if (nv > 1) b1 = full ? FN(load)(row + VL) : FN(load_part)(row + VL, n1);
      if (lays) {  /* rows that begin within a line end in one more */
        FN(fetch_row)(row + TI_ROWS_LAID_AHEAD * bs, nv);
        _mm_prefetch((const char *)(row + TI_ROWS_LAID_AHEAD * bs + nv * VL - 1), _MM_HINT_T0);
        FN(store)(t->laid + k * TI_PANEL, b0);
        if (nv > 1) FN(store)(t->laid + k * TI_PANEL + VL, b1);
      }
#pragma GCC unroll 16
      for (int i = 0; i < mr; i++) {
        const VF x = FN(broadcast)(a + i * as);
        c0[i] = FN(fma)(x, b0, c0[i]);
        if (nv > 1) c1[i] = FN(fma)(x, b1, c1[i]);
      }
      a += ak;
      if (!gathered) b += bs;
    }
  }
  if (t->accumulate && !t->goes_on) {
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
      c0[i] += FN(load_part)(t->c + i * ldc, n0);
      if (nv > 1) c1[i] += FN(load_part)(t->c + i * ldc + VL, n1);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < mr; i++) {
    FN(store_part)(t->c + i * ldc, c0[i], n0);
    if (nv > 1) FN(store_part)(t->c + i * ldc + VL, c1[i], n1);
  }
}

/* A masked load takes a slot of the arithmetic pipes beside the load itself: full tiles do without. */
TI_INLINE void FN(tile)(const int mr, const int nv, const int by_row, const int gathered, const int ahead, const int lays,
                        const ti_tile *t, int n) {
  if (n == nv * VL) FN(tile_of)(mr, nv, by_row, gathered, ahead, lays, 1, t, n);
  else FN(tile_of)(mr, nv, by_row, gathered, ahead, lays, 0, t, n);
}

#undef TI_TILE
#undef TI_TILES
#define TI_TILE(NAME, MR_, BY_ROW, GATHERED, AHEAD, LAYS) \
  static __attribute__((noinline)) void FN(NAME##_##MR_##_1)(const ti_tile *t, int n) { FN(tile)(MR_, 1, BY_ROW, GATHERED, AHEAD, LAYS, t, n); } \
  static __attribute__((noinline)) void FN(NAME##_##MR_##_2)(const ti_tile *t, int n) { FN(tile)(MR_, 2, BY_ROW, GATHERED, AHEAD, LAYS, t, n); }
#if VL == 16
#define TI_TILES(NAME, R, G, P, L) \
  TI_TILE(NAME, 1, R, G, P, L) TI_TILE(NAME, 2, R, G, P, L) TI_TILE(NAME, 3, R, G, P, L) TI_TILE(NAME, 4, R, G, P, L) TI_TILE(NAME, 5, R, G, P, L) \
  TI_TILE(NAME, 6, R, G, P, L) TI_TILE(NAME, 7, R, G, P, L) TI_TILE(NAME, 8, R, G, P, L) TI_TILE(NAME, 9, R, G, P, L) TI_TILE(NAME, 10, R, G, P, L) \
  TI_TILE(NAME, 11, R, G, P, L) TI_TILE(NAME, 12, R, G, P, L) TI_TILE(NAME, 13, R, G, P, L) TI_TILE(NAME, 14, R, G, P, L) \
  void (*const FN(NAME##_table)[2][TI_MR + 1])(const ti_tile *, int) = { \
    {0, FN(NAME##_1_1), FN(NAME##_2_1), FN(NAME##_3_1), FN(NAME##_4_1), FN(NAME##_5_1), FN(NAME##_6_1), FN(NAME##_7_1), \
     FN(NAME##_8_1), FN(NAME##_9_1), FN(NAME##_10_1), FN(NAME##_11_1), FN(NAME##_12_1), FN(NAME##_13_1), FN(NAME##_14_1)}, \
    {0, FN(NAME##_1_2), FN(NAME##_2_2), FN(NAME##_3_2), FN(NAME##_4_2), FN(NAME##_5_2), FN(NAME##_6_2), FN(NAME##_7_2), \
     FN(NAME##_8_2), FN(NAME##_9_2), FN(NAME##_10_2), FN(NAME##_11_2), FN(NAME##_12_2), FN(NAME##_13_2), FN(NAME##_14_2)}};
#else
#define TI_TILES(NAME, R, G, P, L) \
  TI_TILE(NAME, 1, R, G, P, L) TI_TILE(NAME, 2, R, G, P, L) TI_TILE(NAME, 3, R, G, P, L) TI_TILE(NAME, 4, R, G, P, L) TI_TILE(NAME, 5, R, G, P, L) \
  TI_TILE(NAME, 6, R, G, P, L) \
  void (*const FN(NAME##_table)[2][TI_MR + 1])(const ti_tile *, int) = { \
    {0, FN(NAME##_1_1), FN(NAME##_2_1), FN(NAME##_3_1), FN(NAME##_4_1), FN(NAME##_5_1), FN(NAME##_6_1)}, \
    {0, FN(NAME##_1_2), FN(NAME##_2_2), FN(NAME##_3_2), FN(NAME##_4_2), FN(NAME##_5_2), FN(NAME##_6_2)}};
#endif
TI_TILES(tiles_k, 1, 0, 0, 0)
TI_TILES(tiles_i, 0, 0, 0, 0)
TI_TILES(tiles_p, 0, 0, 1, 0)
TI_TILES(tiles_g, 0, 1, 0, 0)
TI_TILES(laying, 0, 0, 1, 1)
