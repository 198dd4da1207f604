/* The functions of register tiles that all linear families call, compiled once: one for each number of rows and vectors. */
#include "gemm_body.h"

/* Fetches a row of a tile of C. */
TI_INLINE void FN(fetch_row)(const float *row, const int nv) {
#pragma GCC unroll 2
  for (int v = 0; v < nv; v++) _mm_prefetch((const char *)(row + v * VL), _MM_HINT_T0);
}

#ifndef TORCHIPU_GEMM_WALK
#define TORCHIPU_GEMM_WALK
enum {
  TI_SUMMANDS_OF_TURN = 4,
  TI_ROWS_OF_POINTER = 3,  /* whose distances are those that an address can scale */
  TI_POINTERS = 5,
  TI_READ_ONCE = 2,        /* of so many rows one, whose numbers are read once for both of its sums */
};
/* Where the next summand is: in A for every third row, or for all of them where they lie side by side. */
typedef struct { const float *a[TI_POINTERS], *b, *next_a, *next_b; float *laid; } ti_walk;
#endif

/* c0 += *from * b0 and c1 += *from * b1; by_sum: with one instruction each, which reads *from for itself. Instructions count
 * where another thread runs on the same core; were all rows read so, it would be the reads. */
TI_INLINE void FN(add_products)(const int nv, const int by_sum, const float *from, VF b0, VF b1, VF *c0, VF *c1) {
  if (by_sum || nv == 1) {
    FN(add_product_of)(c0, from, b0);
    if (nv > 1) FN(add_product_of)(c1, from, b1);
    return;
  }
  const VF x = FN(broadcast)(from);
  FN(add_product)(c0, x, b0);
  FN(add_product)(c1, x, b1);
}

/* Adds summand k to all sums of a tile. */
TI_INLINE void FN(add_summand)(const int mr, const int nv, const int by_row, const int gathered, const int ahead, const int lays,
                               const int full, const ti_tile *t, const int n0, const int n1, int64_t k, ti_walk *at, VF *c0, VF *c1) {
  const float *row = gathered ? at->b + t->offsets[k] : at->b;
  if (ahead) {
    _mm_prefetch((const char *)at->next_a, _MM_HINT_T1);
    at->next_a += TI_LINE;
  }
  const VF b0 = full ? FN(load)(row) : FN(load_part)(row, n0);
  VF b1 = b0;
  if (nv > 1) b1 = full ? FN(load)(row + VL) : FN(load_part)(row + VL, n1);
  if (lays) {  /* rows that begin within a line end in one more */
    FN(fetch_row)(row + TI_ROWS_LAID_AHEAD * t->bs, nv);
    _mm_prefetch((const char *)(row + TI_ROWS_LAID_AHEAD * t->bs + nv * VL - 1), _MM_HINT_T0);
    FN(store)(at->laid, b0);
    if (nv > 1) FN(store)(at->laid + VL, b1);
    at->laid += TI_PANEL;
  }
#pragma GCC unroll 16
  for (int i = 0; i < mr; i++) {
    const float *const from = by_row ? at->a[i / TI_ROWS_OF_POINTER] + i % TI_ROWS_OF_POINTER * t->as : at->a[0] + i;
    FN(add_products)(nv, !by_row && nv > 1 && i % TI_READ_ONCE, from, b0, b1, c0 + i, c1 + i);
  }
  at->a[0] += by_row ? 1 : t->ak;
  if (by_row)
#pragma GCC unroll 4
    for (int i = 1; i < TI_POINTERS; i++) at->a[i]++;
  if (!gathered) at->b += t->bs;
}

/* Where the sums of a tile begin: what row i adds to is at from[i * row], its second vector VL floats on. One way for all, so
 * that the compiler reads it once. */
typedef struct { const float *from; ptrdiff_t row; } FN(beginning);

static const float FN(nothing)[2 * VL] __attribute__((aligned(64))) = {0};

/* `rows` has room for a tile of biases. */
TI_INLINE FN(beginning) FN(begin_tile)(const int mr, const ti_tile *t, float (*rows)[2 * VL]) {
  if (t->goes_on) return (FN(beginning)){t->c, t->ldc};
  if (t->accumulate) return (FN(beginning)){FN(nothing), 0};
  if (t->row_bias) {
#pragma GCC unroll 1
    for (int i = 0; i < mr; i++) {
      const VF bias = FN(broadcast)(t->row_bias + i);
      FN(store)(rows[i], bias);
      FN(store)(rows[i] + VL, bias);
    }
    return (FN(beginning)){rows[0], 2 * VL};
  }
  return (FN(beginning)){t->col_bias ? t->col_bias : FN(nothing), 0};
}

/* A pointer that moves, behind what was done for its row: the compiler would find the places of all rows first, or load all of
 * them, and keep them in memory. */
TI_INLINE float *FN(next_row)(const int nv, const float *row, ptrdiff_t by, VF *c0, VF *c1) {
  row += by;
#ifdef TI_PORTABLE
  (void)nv; (void)c0; (void)c1;
#else
  __asm__("" : "+r"(row), "+" TI_REG(*c0));
  if (nv > 1) __asm__("" : "+r"(row), "+" TI_REG(*c1));
#endif
  return (float *)row;
}

/* What a tile fetches for those after it, with summands k to k + turn. */
TI_INLINE void FN(fetch_ahead)(const int mr, const int nv, const int by_row, const int gathered, const int ahead, const int lays,
                               const int turn, ptrdiff_t fetched, const ti_tile *t, int64_t k, ti_walk *at) {
  const int64_t within = k & (TI_LINE - 1);
  /* a line of the rows of the next tile, as they lie; with the first summands, what its sums are stored over */
  const float *const line = by_row ? at->a[0] + (mr + within) * fetched - within : NULL;
  if (!gathered && k < mr)
#pragma GCC unroll 4
    for (int i = 0; i < turn; i++) FN(fetch_row)(t->next_c + (k + i) * t->ldc, nv);
  if (by_row)
#pragma GCC unroll 4
    for (int i = 0; i < turn; i++) _mm_prefetch((const char *)(line + i * fetched), _MM_HINT_T1);
  if (ahead && !lays && at->next_b) {
#pragma GCC unroll 4
    for (int i = 0; i < turn; i++) _mm_prefetch((const char *)(at->next_b + i * t->next_step), _MM_HINT_T1);
    at->next_b += turn * t->next_step;
  }
}

/* mr rows, nv vectors, of which n columns count; by_row: neighbours of A lie along k (ak = 1), otherwise along i (as = 1). A sum
 * begins at zero, or at its bias, and is added to what C holds at its end: long sums are sums of short ones, and round as
 * these do. A masked load takes a slot of the arithmetic pipes beside the load itself: whole tiles of two vectors do without
 * for all summands but the last few. */
TI_INLINE void FN(tile)(const int mr, const int nv, const int by_row, const int gathered, const int ahead, const int lays,
                        const ti_tile *t, int n) {
  VF c0[TI_MR], c1[TI_MR];
  float biases[TI_MR][2 * VL];
  const int is_whole = n == nv * VL, n0 = n > VL ? VL : n, n1 = n - n0;
  const ptrdiff_t ldc = t->ldc;
  /* Rows so far apart that they fall into one set of a cache would drive out those of this tile. */
  const ptrdiff_t fetched = t->as % TI_APART_IN_ONE_SET ? t->as : 0;
  const FN(beginning) first = FN(begin_tile)(mr, t, biases);
  const float *from = first.from;
#pragma GCC unroll 16
  for (int i = 0; i < mr; i++) {
    c0[i] = FN(load_part)(from, n0);
    if (nv > 1) c1[i] = FN(load_part)(from + VL, n1);
    from = FN(next_row)(nv, from, first.row, c0 + i, c1 + i);
  }
  ti_walk at = {{t->a}, t->b, t->next_a, t->next_b, t->laid};
  if (by_row)
#pragma GCC unroll 4
    for (int i = 1; i < TI_POINTERS; i++) at.a[i] = t->a + i * TI_ROWS_OF_POINTER * t->as;
  int64_t k = 0;
  if (nv > 1 && is_whole)
    for (; k + TI_SUMMANDS_OF_TURN <= t->k; k += TI_SUMMANDS_OF_TURN) {
      FN(fetch_ahead)(mr, nv, by_row, gathered, ahead, lays, TI_SUMMANDS_OF_TURN, fetched, t, k, &at);
#pragma GCC unroll 4
      for (int i = 0; i < TI_SUMMANDS_OF_TURN; i++) FN(add_summand)(mr, nv, by_row, gathered, ahead, lays, 1, t, n0, n1, k + i, &at, c0, c1);
    }
  for (; k < t->k; k++) {
    FN(fetch_ahead)(mr, nv, by_row, gathered, ahead, lays, 1, fetched, t, k, &at);
    FN(add_summand)(mr, nv, by_row, gathered, ahead, lays, 0, t, n0, n1, k, &at, c0, c1);
  }
  float *c = t->c;
  if (t->accumulate && !t->goes_on) {
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
      c0[i] += FN(load_part)(c, n0);
      if (nv > 1) c1[i] += FN(load_part)(c + VL, n1);
      c = FN(next_row)(nv, c, ldc, c0 + i, c1 + i);
    }
    c = t->c;
  }
  if (is_whole) {
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
      FN(store)(c, c0[i]);
      if (nv > 1) FN(store)(c + VL, c1[i]);
      c = FN(next_row)(nv, c, ldc, c0 + i, c1 + i);
    }
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < mr; i++) {
    FN(store_part)(c, c0[i], n0);
    if (nv > 1) FN(store_part)(c + VL, c1[i], n1);
    c = FN(next_row)(nv, c, ldc, c0 + i, c1 + i);
  }
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
