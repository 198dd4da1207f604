/* Register tiles shared by the linear families: C[m x n] = A * B with A broadcast and B in vectors.
 *
 * Included by the family bodies, once for each instruction set. A tile has up to TI_MR rows and 2 * VL columns;
 * loads of B and stores of C are masked to the columns that exist, so no tile touches memory outside its operands.
 */
#include "table/gemm.h"
#include "registers_body.h"
#undef TI_MR
#undef TI_NR
#define TI_NR (2 * VL)
#if VL == 16
#define TI_MR 14
#else
#define TI_MR 6
#endif

#ifndef TORCHIPU_GEMM_TILE
#define TORCHIPU_GEMM_TILE
enum { TI_ALIGN = 16, TI_LINE = 16, TI_FETCH = 128, TI_ACROSS = 8, TI_APART_IN_ONE_SET = 1024, TI_ROWS_LAID_AHEAD = 12 };
/* The sum runs over a nest of three loops, so that windows of an image need no copy:
 * A(i, o2, o1, k) = a[i * as + k * ak + o1 * a1 + o2 * a2], B likewise with bs, b1, b2 (or offsets[k]). */
typedef struct {
  const float *a, *b;
  float *c;
  const int32_t *offsets;      /* B row k starts at b[offsets[k]]; NULL for b[k * bs] */
  const float *next_a, *next_b; /* of packed rows: what to fetch meanwhile, a cache line of each for each k */
  const float *next_c;         /* the tile of C that comes next, fetched meanwhile; not where B rows come from offsets */
  ptrdiff_t next_step;         /* from line to line of next_b */
  float *laid;                 /* where a tile that lays rows of B for others puts them, TI_PANEL apart */
  const float *source;         /* of packed rows: the panel that is to be packed next, fetched tile by tile; or NULL */
  ptrdiff_t source_row, source_col;
  const float *row_bias, *col_bias;
  ptrdiff_t as, ak, a1, a2, bs, b1, b2, ldc;
  int64_t k, n1, n2;
  int accumulate;              /* add the sum to what C holds, which then has had its bias */
  int goes_on;                 /* if so: begin the sum with what C holds instead */
} ti_tile;
/* Rows of a tile when `rows` are cut evenly into as few tiles as possible. */
static inline int64_t ti_even(int64_t rows, int64_t most) { return ti_ceil(rows, ti_ceil(rows, most)); }
#endif

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
  for (int64_t o2 = 0; o2 < t->n2; o2++)
    for (int64_t o1 = 0; o1 < t->n1; o1++) {
      const float *a = t->a + o1 * t->a1 + o2 * t->a2, *b = t->b + o1 * t->b1 + o2 * t->b2;
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
  static void (*const FN(NAME##_table)[2][TI_MR + 1])(const ti_tile *, int) = { \
    {0, FN(NAME##_1_1), FN(NAME##_2_1), FN(NAME##_3_1), FN(NAME##_4_1), FN(NAME##_5_1), FN(NAME##_6_1), FN(NAME##_7_1), \
     FN(NAME##_8_1), FN(NAME##_9_1), FN(NAME##_10_1), FN(NAME##_11_1), FN(NAME##_12_1), FN(NAME##_13_1), FN(NAME##_14_1)}, \
    {0, FN(NAME##_1_2), FN(NAME##_2_2), FN(NAME##_3_2), FN(NAME##_4_2), FN(NAME##_5_2), FN(NAME##_6_2), FN(NAME##_7_2), \
     FN(NAME##_8_2), FN(NAME##_9_2), FN(NAME##_10_2), FN(NAME##_11_2), FN(NAME##_12_2), FN(NAME##_13_2), FN(NAME##_14_2)}};
#else
#define TI_TILES(NAME, R, G, P, L) \
  TI_TILE(NAME, 1, R, G, P, L) TI_TILE(NAME, 2, R, G, P, L) TI_TILE(NAME, 3, R, G, P, L) TI_TILE(NAME, 4, R, G, P, L) TI_TILE(NAME, 5, R, G, P, L) \
  TI_TILE(NAME, 6, R, G, P, L) \
  static void (*const FN(NAME##_table)[2][TI_MR + 1])(const ti_tile *, int) = { \
    {0, FN(NAME##_1_1), FN(NAME##_2_1), FN(NAME##_3_1), FN(NAME##_4_1), FN(NAME##_5_1), FN(NAME##_6_1)}, \
    {0, FN(NAME##_1_2), FN(NAME##_2_2), FN(NAME##_3_2), FN(NAME##_4_2), FN(NAME##_5_2), FN(NAME##_6_2)}};
#endif
/* tiles_k: A runs along k; tiles_i: A runs along i; tiles_p: the same, packed; tiles_g: B rows come from offsets. */
TI_TILES(tiles_k, 1, 0, 0, 0)
TI_TILES(tiles_i, 0, 0, 0, 0)
TI_TILES(tiles_p, 0, 0, 1, 0)
#ifdef TI_GATHERED
TI_TILES(tiles_g, 0, 1, 0, 0)
#endif

/* Rows [0, m) and columns [0, n) of one panel; n may exceed the width of a tile. Bias pointers follow. */
#undef TI_ROWS
#define TI_ROWS(NAME) \
  static inline void FN(NAME##_rows)(ti_tile t, int64_t m, int64_t n) { \
    const int64_t even = ti_even(m, TI_MR); \
    for (int64_t j = 0; j < n; j += TI_NR) { \
      const int width = (int)ti_min(n - j, TI_NR); \
      ti_tile u = t; \
      u.b += j; u.c += j; \
      if (u.col_bias) u.col_bias += j; \
      for (int64_t i = 0; i < m; i += even) { \
        const int64_t rows = ti_min(even, m - i); \
        u.next_c = i + rows < m ? u.c + rows * u.ldc : t.c + j + TI_NR; \
        FN(NAME##_table)[width > VL][rows](&u, width); \
        u.a += rows * u.as; u.c += rows * u.ldc; \
        if (u.row_bias) u.row_bias += rows; \
      } \
    } \
  }
TI_ROWS(tiles_k)
TI_ROWS(tiles_i)
#ifdef TI_GATHERED
TI_ROWS(tiles_g)
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

/* Packs columns [0, kc) of the rows of one tile as [kc][rows]; neighbours lie along k. */
static void FN(pack_tile)(const float *a, ptrdiff_t as, int rows, int64_t kc, float *d) {
  if (kc < VL) {
    for (int64_t k = 0; k < kc; k++)
      for (int i = 0; i < rows; i++) d[k * rows + i] = a[i * as + k];
    return;
  }
  for (int64_t j = 0; j < kc; j += VL) {  /* the last block overlaps the one before it */
    const int64_t k = ti_min(j, kc - VL);
    FN(transpose_block)(a + k, as, d + k * rows, rows, rows, 1);
  }
}

/* The same for all rows of A, whose neighbours lie along i. A few columns at a time, for which each tile writes whole cache
 * lines: tiles often lie a multiple of a page apart, where lines that are begun drive one another out. What is stored beyond
 * the rows of a tile is stored again with its next column. */
static void FN(pack_across)(const float *a, ptrdiff_t ak, int64_t m, int64_t even, int64_t k0, int64_t kc, int64_t depth, float *d) {
  for (int64_t first = 0; first < kc; first += TI_ACROSS)
    for (int64_t i = 0; i < m; i += even) {
      const int64_t rows = ti_min(even, m - i), last = ti_min(first + TI_ACROSS, kc);
      const float *s = a + i;
      float *to = d + i * depth + k0 * rows;
      for (int64_t k = first; k < last; k++) {
        if (i + VL <= m && (kc - k) * rows >= VL) FN(store)(to + k * rows, FN(load)(s + k * ak));
        else FN(store_part)(to + k * rows, FN(load_part)(s + k * ak, (int)rows), (int)rows);
      }
    }
}

/* Packs kc columns of A, the first of which is column k0 of `depth`, as [tile][depth][rows of the tile]: a tile then reads
 * a single stream. */
static void FN(pack_rows)(const float *a, ptrdiff_t as, ptrdiff_t ak, int64_t m, int64_t even, int64_t k0, int64_t kc,
                          int64_t depth, float *d) {
  for (int64_t i = 0; ak == 1 && i < m; i += even) {
    const int64_t rows = ti_min(even, m - i);
    FN(pack_tile)(a + i * as, as, (int)rows, kc, d + i * depth + k0 * rows);
  }
  if (ak != 1) FN(pack_across)(a, ak, m, even, k0, kc, depth, d);
}

/* Fetches part `index` of `parts` of what pack_panel will read. */
static void FN(fetch_panel)(const float *s, ptrdiff_t row, ptrdiff_t col, int64_t count, int64_t n, int64_t index, int64_t parts) {
  const int64_t lines = col == 1 ? count : n, length = col == 1 ? n : count, step = ti_ceil(lines, parts);
  for (int64_t i = index * step; i < ti_min(lines, (index + 1) * step); i++)
    for (int64_t l = 0; l < length; l += TI_LINE) _mm_prefetch((const char *)(s + i * (col == 1 ? row : col) + l), _MM_HINT_T1);
}

/* Columns [0, n) of one panel against rows that pack_rows has packed, from column k0 of `depth`. */
static void FN(packed_rows)(ti_tile t, int64_t m, int64_t even, int64_t k0, int64_t depth, int64_t n) {
  t.next_step = TI_LINE;
  for (int64_t j = 0; j < n; j += TI_NR) {
    const int width = (int)ti_min(TI_NR, n - j);
    ti_tile u = t;
    u.b += j; u.c += j;
    if (u.col_bias) u.col_bias += j;
    for (int64_t i = 0; i < m; i += even) {
      const int64_t rows = ti_min(even, m - i), after = i + rows < m ? i + rows : 0;
      u.a = t.a + i * depth + k0 * rows; u.ak = rows; u.as = 1;
      u.next_c = i + rows < m ? u.c + rows * u.ldc : t.c + j + TI_NR;
      u.next_a = t.a + after * depth + k0 * ti_min(even, m - after);
      /* The first two tiles fetch the panel that comes next, a half each; later ones find it there. */
      u.next_b = i == 0 ? t.next_b : i == even ? t.next_b + t.k * TI_LINE : u.b;
      if (t.source) FN(fetch_panel)(t.source, t.source_row, t.source_col, t.k, TI_PANEL, i / even, ti_ceil(m, even));
      FN(tiles_p_table)[width > VL][rows](&u, width);
      u.c += rows * u.ldc;
    }
  }
}
