/* Register tiles shared by the linear families: C[m x n] = A * B with A broadcast and B in vectors.
 *
 * Included by the family bodies, once for each instruction set. A tile has up to TI_MR rows and 2 * VL columns;
 * loads of B and stores of C are masked to the columns that exist, so no tile touches memory outside its operands.
 */
#include "table/gemm.h"
#include "registers_body.h"
#include "matrix_transpose_body.h"
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
enum { TI_ALIGN = 16, TI_LINE = 16, TI_ACROSS = 8, TI_APART_IN_ONE_SET = 1024, TI_ROWS_LAID_AHEAD = 12 };
/* A(i, k) = a[i * as + k * ak]; row k of B begins at b[k * bs], or at b[offsets[k]]. */
typedef struct {
  const float *a, *b;
  float *c;
  const int32_t *offsets;
  const float *next_a, *next_b; /* of packed rows: what to fetch meanwhile, a cache line of each for each k; or NULL for B */
  const float *next_c;         /* the tile of C that comes next, fetched meanwhile; not where B rows come from offsets */
  ptrdiff_t next_step;         /* from line to line of next_b */
  float *laid;                 /* where a tile that lays rows of B for others puts them, TI_PANEL apart */
  const float *source;         /* of packed rows: the panel that is to be packed next, fetched tile by tile; or NULL */
  ptrdiff_t source_row, source_col;
  const float *row_bias, *col_bias;
  ptrdiff_t as, ak, bs, ldc;
  int64_t k;
  int accumulate;              /* add the sum to what C holds, which then has had its bias */
  int goes_on;                 /* if so: begin the sum with what C holds instead */
} ti_tile;
/* Rows of a tile when `rows` are cut evenly into as few tiles as possible. */
static inline int64_t ti_even(int64_t rows, int64_t most) { return ti_ceil(rows, ti_ceil(rows, most)); }
#endif

/* By vectors, then by rows; gemm_tiles_body.h defines them. tiles_k: A runs along k; tiles_i: A runs along i; tiles_p: the
 * same, packed; laying: likewise, and rows of B are laid one behind the other; tiles_g: B rows come from offsets. */
#undef TI_TABLE_OF_TILES
#define TI_TABLE_OF_TILES(NAME) extern TI_SHARED void (*const FN(NAME##_table)[2][TI_MR + 1])(const ti_tile *, int);
TI_TABLE_OF_TILES(tiles_k)
TI_TABLE_OF_TILES(tiles_i)
TI_TABLE_OF_TILES(tiles_p)
TI_TABLE_OF_TILES(tiles_g)
TI_TABLE_OF_TILES(laying)

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
TI_ROWS(tiles_g)

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
      u.next_b = !t.next_b || i > even ? NULL : i == 0 ? t.next_b : t.next_b + t.k * TI_LINE;
      if (t.source) FN(fetch_panel)(t.source, t.source_row, t.source_col, t.k, TI_PANEL, i / even, ti_ceil(m, even));
      FN(tiles_p_table)[width > VL][rows](&u, width);
      u.c += rows * u.ldc;
    }
  }
}
