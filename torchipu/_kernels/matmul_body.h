/* Matrix products over register tiles: packing of the right operand, and C = alpha * A B + beta * S. */
#include "gemm_body.h"
#include "activation_body.h"
#include "lane_sums_body.h"
#include "wide_tile_body.h"

#ifndef TORCHIPU_MATMUL
#define TORCHIPU_MATMUL
enum { TI_SHORT_COLUMN = 256 };
enum { TI_MOST_LAID_ROWS = 224 };  /* of an item: with more tiles to share it, a panel is packed by itself in as short a time */
#endif

/* Packs rows [0, count) of n <= 32 columns of B as [count][32], zero beyond n; one of the strides is 1. */
static void FN(pack_panel)(const float *s, ptrdiff_t row, ptrdiff_t col, int64_t count, int64_t n, float *d) {
  if (col == 1) {
    for (int64_t k = 0; k < count; k++)
      for (int64_t v = 0; v < TI_PANEL; v += VL)
        FN(store)(d + k * TI_PANEL + v, FN(load_part)(s + k * row + v, (int)ti_max(0, ti_min(VL, n - v))));
    return;
  }
  FN(transpose)(s, col, d, TI_PANEL, n, count);
  if (n < TI_PANEL)
    for (int64_t k = 0; k < count; k++) memset(d + k * TI_PANEL + n, 0, sizeof(float) * (size_t)(TI_PANEL - n));
}

/* As packed_rows, against a panel whose rows lie apart: the first tile lays them one behind the other while it multiplies,
 * for the tiles after it, of which three fetch a line of each row of the panel that comes next. */
static void FN(laying_rows)(ti_tile t, int64_t m, int64_t even, int64_t k0, int64_t depth, int64_t n) {
  for (int64_t j = 0; j < n; j += TI_NR) {
    const int width = (int)ti_min(TI_NR, n - j);
    const ptrdiff_t lines[3] = {0, TI_NR - 1, TI_LINE};
    ti_tile u = t;
    u.b += j; u.c += j; u.laid += j;
    if (u.col_bias) u.col_bias += j;
    for (int64_t i = 0, tile = 0; i < m; i += even, tile++) {
      const int64_t rows = ti_min(even, m - i), after = i + rows < m ? i + rows : 0;
      u.a = t.a + i * depth + k0 * rows; u.ak = rows; u.as = 1;
      u.next_c = after ? u.c + rows * u.ldc : t.c + j + TI_NR;
      u.next_a = t.a + after * depth + k0 * ti_min(even, m - after);
      if (tile == 0) {
        FN(laying_table)[width > VL][rows](&u, width);
        u.b = u.laid; u.bs = TI_PANEL;
      } else {
        const int fetches = tile <= 3;
        u.next_b = fetches ? t.source + j + lines[tile - 1] : NULL;
        u.next_step = t.source_row;
        FN(tiles_p_table)[width > VL][rows](&u, width);
      }
      u.c += rows * u.ldc;
    }
  }
}

TI_KERNEL(matmul_pack) {
  const matmul_pack_ints *const p = (const matmul_pack_ints *)ints;
  const int64_t K = p->inner, N = p->columns, row = p->row_stride, col = p->column_stride, block = p->block;
  const int64_t panels = ti_ceil(N, TI_PANEL), blocks = ti_ceil(K, block);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t k0 = item % blocks * block, rest = item / blocks, j = rest % panels * TI_PANEL;
    const int64_t rows = ti_min(block, K - k0), n = ti_min(TI_PANEL, N - j);
    float *d = (float *)args[0] + (rest * K + k0) * TI_PANEL;
    const float *s = (const float *)args[1] + rest / panels * p->batch_stride + k0 * row + j * col;
    FN(pack_panel)(s, row, col, rows, n, d);
  }
  return TI_OK;
}

TI_KERNEL(matmul_pack_rows) {
  const matmul_pack_rows_ints *const p = (const matmul_pack_rows_ints *)ints;
  const int64_t M = p->rows, K = p->inner, as = p->row_stride, ak = p->column_stride, MB = p->row_block, KB = p->block;
  const int64_t nrows = ti_ceil(M, MB), nk = ti_ceil(K, KB);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t k0 = item % nk * KB, i0 = item / nk % nrows * MB, batch = item / (nk * nrows);
    const int64_t m = ti_min(MB, M - i0), even = ti_even(m, TI_MR);
    const float *a = (const float *)args[1] + batch * p->batch_stride + i0 * as + k0 * ak;
    FN(pack_rows)(a, as, ak, m, even, k0, ti_min(KB, K - k0), K, (float *)args[0] + (batch * M + i0) * K);
  }
  return TI_OK;
}

/* C = alpha * C + beta * S over a block; beta = 0 ignores S, not-a-numbers included. */
static void FN(scale_add)(float *c, ptrdiff_t ldc, const float *s, ptrdiff_t srow, ptrdiff_t scol, float alpha, float beta,
                          int64_t m, int64_t n) {
  for (int64_t i = 0; i < m; i++) {
    float *p = c + i * ldc;
    const float *q = s + i * srow;
    if (!s || beta == 0.0f) for (int64_t j = 0; j < n; j++) p[j] = alpha * p[j];
    else if (scol == 1) for (int64_t j = 0; j < n; j++) p[j] = alpha * p[j] + beta * q[j];
    else for (int64_t j = 0; j < n; j++) p[j] = alpha * p[j] + beta * q[j * scol];
  }
}

TI_INLINE void FN(activate_rows)(const int activation, float *c, ptrdiff_t ldc, int64_t m, int64_t n) {
  for (int64_t i = 0; i < m; i++, c += ldc)
    for (int64_t j = 0; j < n; j += VL) {
      const int some = (int)ti_min(VL, n - j);
      if (some == VL) FN(store)(c + j, FN(activated)(activation, FN(load)(c + j)));
      else FN(store_part)(c + j, FN(activated)(activation, FN(load_part)(c + j, some)), some);
    }
}

/* Activates m rows of n results, which a cache still holds. */
static void FN(activate)(int64_t activation, float *c, ptrdiff_t ldc, int64_t m, int64_t n) {
  switch (activation) {
    case TI_ACTIVATION_NONE: break;
    case TI_ACTIVATION_RELU: FN(activate_rows)(TI_ACTIVATION_RELU, c, ldc, m, n); break;
    case TI_ACTIVATION_SILU: FN(activate_rows)(TI_ACTIVATION_SILU, c, ldc, m, n); break;
    default: FN(activate_rows)(TI_ACTIVATION_GELU, c, ldc, m, n); break;
  }
}

TI_KERNEL(matmul) {
  const matmul_ints *const p = (const matmul_ints *)ints;
  const matmul_scalars *const factors = (const matmul_scalars *)scalars;
  const int64_t M = p->rows, N = p->columns, K = p->inner, MB = p->row_block, NB = p->column_block, KC = p->sum_block;
  const int64_t as = p->left_row, ak = p->left_column, ncols = ti_ceil(N, NB), nrows = ti_ceil(M, MB);
  const int has_s = (int)p->has_addend, packed = p->packing == TI_PACKING_AHEAD, packs_rows = p->packing == TI_PACKING_IN_ITEM;
  const int packs = p->right_column != 0;
  const int lays = p->right_column == 1 && (packed || packs_rows) && MB <= TI_MOST_LAID_ROWS;  /* a panel's first tile packs it */
  const float alpha = (float)factors->alpha, beta = (float)factors->beta;
  const ptrdiff_t srow = p->addend_row, scol = p->addend_column;
  const int turned = p->storing == TI_STORING_TRANSPOSED, goes_on = p->storing == TI_STORING_ON_FROM;
  const int adds = goes_on || p->storing == TI_STORING_ONTO;
  const int64_t run = goes_on ? K : p->run;
  const int lies = p->right_panel == TI_PANEL && !packs && !packed && !packs_rows && !turned;  /* B, as rows of columns */
  const int bias = has_s && alpha == 1.0f && beta == 1.0f && srow == 0 && scol == 1;
  for (int64_t item = begin; item < end; item++) {
    const int64_t j0 = item % ncols * NB, i0 = item / ncols % nrows * MB, batch = item / (ncols * nrows);
    const int64_t m = ti_min(MB, M - i0), n = ti_min(NB, N - j0), even = ti_even(m, TI_MR);
    float *result = (float *)args[0] + (turned ? (batch * N + j0) * M + i0 : (batch * M + i0) * N + j0);
    float *c = turned ? (float *)scratch : result;
    const ptrdiff_t ldc = turned ? NB : N;
    const float *a = (const float *)args[1] + batch * p->left_batch + i0 * as;
    const float *b = (const float *)args[2] + batch * p->right_batch + j0 / TI_PANEL * p->right_panel;
    const float *s = has_s ? (const float *)args[3] + batch * p->addend_batch + i0 * srow + j0 * scol : NULL;
    if (K == 0 && !adds) for (int64_t i = 0; i < m; i++) memset(c + i * ldc, 0, sizeof(float) * (size_t)n);
    for (int64_t k0 = 0, kc; k0 < K; k0 += kc) {
      kc = ti_min(KC, run > KC ? run - k0 % run : K - k0);
      const int first = k0 == 0;
      const int64_t part = ti_min(run, kc);  /* where several runs make a block, each begins from zero */
      float *const rows = (float *)scratch + TI_PANEL * KC;
      if (packs_rows) FN(pack_rows)(a + k0 * ak, as, ak, m, even, 0, kc, kc, rows);
      int64_t done = 0;
      if (lies && (m <= FN(WIDE_ROWS) || part <= TI_FEW_SUMMANDS)) {
        ti_tile t = {.a = a + k0 * ak, .as = as, .ak = ak, .b = b + k0 * p->right_row, .bs = p->right_row, .c = c,
                     .ldc = ldc, .k = part, .accumulate = adds || !first, .goes_on = goes_on, .col_bias = first && bias ? s : NULL};
        for (int64_t at = 0; at < kc; at += part, t.a += part * ak, t.b += part * t.bs) done = FN(wide_rows)(&t, m, n);
      }
      for (int64_t j = done; j < n; j += TI_PANEL) {
        const int64_t width = ti_min(TI_PANEL, n - j);
        const float *panel = b + j / TI_PANEL * p->right_panel + j % TI_PANEL + k0 * p->right_row;
        /* what is read after this panel: the next one, or the first of the next block of summands */
        const float *after = j + TI_PANEL < n ? panel + p->right_panel : k0 + kc < K ? b + (k0 + kc) * p->right_row : panel;
        ti_tile t = {.b = panel, .c = c + j, .bs = p->right_row, .ldc = ldc,
                     .k = part, .accumulate = adds || !first, .goes_on = goes_on,
                     .col_bias = first && bias ? s + j : NULL, .row_bias = first && turned ? s : NULL};
        if (packs) { t.source = after; t.source_row = p->right_row; t.source_col = p->right_column; }
        if (lays) {
          t.laid = (float *)scratch;
        } else if (packs) {
          FN(pack_panel)(panel, p->right_row, p->right_column, kc, width, (float *)scratch);
          t.b = (const float *)scratch; t.bs = TI_PANEL;
        }
        if (packed || packs_rows) {
          t.a = packed ? a : rows;
          t.next_b = p->right_row == TI_PANEL && !packs ? after : NULL;
        } else {
          t.a = a + k0 * ak; t.as = as; t.ak = ak;
        }
        for (int64_t at = 0; at < kc; at += part, t.b += part * t.bs) {
          if (lays) FN(laying_rows)(t, m, even, (packed ? k0 : 0) + at, packed ? K : kc, width);
          else if (packed || packs_rows) FN(packed_rows)(t, m, even, (packed ? k0 : 0) + at, packed ? K : kc, width);
          else if (ak == 1) FN(tiles_k_rows)(t, m, width);
          else FN(tiles_i_rows)(t, m, width);
          if (t.next_b) t.next_b += part * t.bs;
          if (t.source) t.source += part * t.source_row;
          if (lays) t.laid += part * TI_PANEL;
          if (!packed && !packs_rows) t.a += part * ak;
        }
        if (k0 + kc == K && !turned) FN(activate)(p->activation, c + j, ldc, m, width);
      }
      if (k0 + kc == K && done) FN(activate)(p->activation, c, ldc, m, done);
    }
    if (turned) {
      FN(transpose)(c, ldc, result, M, m, n);
      FN(activate)(p->activation, result, M, n, m);
    } else if ((has_s && !bias) || alpha != 1.0f) FN(scale_add)(c, N, s, srow, scol, alpha, beta, m, n);
  }
  return TI_OK;
}

/* n summands of a column of B, which are halves or floats. */
TI_INLINE VF FN(summands_of)(const int halves, const int whole, const void *b, int n) {
  if (!halves) return whole ? FN(load)((const float *)b) : FN(load_part)((const float *)b, n);
  if (whole) return FN(from_half)(b);
  uint16_t lanes[VL] = {0};
  memcpy(lanes, b, (size_t)n * sizeof *lanes);
  return FN(from_half)(lanes);
}

/* Adds the products of n summands. */
TI_INLINE void FN(dots_step)(const int mr, const int nr, const int halves, const int whole, const float *a, ptrdiff_t as, const char *b,
                             ptrdiff_t bs, int n, VF *held) {
  VF x[4];
#pragma GCC unroll 4
  for (int i = 0; i < mr; i++) x[i] = whole ? FN(load)(a + i * as) : FN(load_part)(a + i * as, n);
#pragma GCC unroll 8
  for (int j = 0; j < nr; j++) {
    const VF y = FN(summands_of)(halves, whole, b + j * bs, n);
#pragma GCC unroll 4
    for (int i = 0; i < mr; i++) held[i * nr + j] = FN(fma)(x[i], y, held[i * nr + j]);
  }
}

/* sums[i * nr + j] = the dot product of row i of A and row j of B, which lie `bs` bytes apart, summed in the lanes of a vector
 * first. */
TI_INLINE void FN(dots)(const int mr, const int nr, const int halves, const float *a, ptrdiff_t as, const char *b, ptrdiff_t bs, int64_t K,
                        float *sums) {
  const int size = halves ? sizeof(uint16_t) : sizeof(float);
  VF held[16];
#pragma GCC unroll 16
  for (int i = 0; i < mr * nr; i++) held[i] = FN(set)(0);
  int64_t k = 0;
  if (mr == 1 && nr == 8 && K <= TI_SHORT_COLUMN)  /* the processor foresees long columns; the next of short ones it does not */
    for (int j = 0; j < nr; j++)
      for (int64_t at = 0; at < K * size; at += 64) __builtin_prefetch(b + (nr + j) * bs + at);
  for (; k + VL <= K; k += VL) FN(dots_step)(mr, nr, halves, 1, a + k, as, b + k * size, bs, VL, held);
  if (k < K) FN(dots_step)(mr, nr, halves, 0, a + k, as, b + k * size, bs, (int)(K - k), held);
  FN(sums_of)(mr * nr, held, sums);
}
typedef void (*FN(dots_tile))(const float *, ptrdiff_t, const char *, ptrdiff_t, int64_t, float *);
#undef TI_DOTS
#undef TI_ALL_DOTS
#define TI_DOTS(M_, N_) \
  static __attribute__((noinline)) void FN(dots_##M_##_##N_)(const float *a, ptrdiff_t as, const char *b, ptrdiff_t bs, int64_t K, float *sums) { \
    FN(dots)(M_, N_, 0, a, as, b, bs, K, sums); \
  } \
  static __attribute__((noinline)) void FN(half_dots_##M_##_##N_)(const float *a, ptrdiff_t as, const char *b, ptrdiff_t bs, int64_t K, float *sums) { \
    FN(dots)(M_, N_, 1, a, as, b, bs, K, sums); \
  }
/* By the type of B, then by rows. */
#define TI_ALL_DOTS(table, N_) \
  TI_DOTS(1, N_) TI_DOTS(2, N_) TI_DOTS(3, N_) TI_DOTS(4, N_) \
  static const FN(dots_tile) table[2][4] = {{FN(dots_1_##N_), FN(dots_2_##N_), FN(dots_3_##N_), FN(dots_4_##N_)}, \
                                            {FN(half_dots_1_##N_), FN(half_dots_2_##N_), FN(half_dots_3_##N_), FN(half_dots_4_##N_)}};
#if VL == 16
enum { FN(DOT_COLUMNS) = 4 };
TI_ALL_DOTS(FN(dots_table), 4)
#else  /* half as many registers */
enum { FN(DOT_COLUMNS) = 2 };
TI_ALL_DOTS(FN(dots_table), 2)
#endif
TI_ALL_DOTS(FN(dots_of_column), 1)
/* One row leaves registers for sums of more columns, which then need not wait for each other. */
enum { FN(ROW_DOTS) = 8 };
TI_DOTS(1, 8)
static const FN(dots_tile) FN(dots_of_row)[2] = {FN(dots_1_8), FN(half_dots_1_8)};

/* For few rows, where the columns of B lie dense, as the weights of a layer do: each is read once, as it lies. */
TI_KERNEL(matmul_dots) {
  const matmul_dots_ints *const p = (const matmul_dots_ints *)ints;
  const matmul_scalars *const factors = (const matmul_scalars *)scalars;
  const int64_t M = p->rows, N = p->columns, K = p->inner, width = p->column_block, blocks = ti_ceil(N, width);
  const float alpha = (float)factors->alpha, beta = (float)factors->beta;
  const int halves = p->has_halves ? 1 : 0;
  const int64_t size = halves ? sizeof(uint16_t) : sizeof(float), apart = p->right_column * size;
  (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t batch = item / blocks, first = item % blocks * width, last = ti_min(N, first + width);
    const float *a = (const float *)args[1] + batch * p->left_batch, *const s = p->has_addend ? (const float *)args[3] + batch * p->addend_batch : NULL;
    const char *const b = args[2] + batch * p->right_batch * size;
    float *c = (float *)args[0] + batch * M * N;
    /* Rows after rows against as many columns as stay in the first cache beside them. */
    for (int64_t j0 = first; j0 < last; j0 += FN(ROW_DOTS))
      for (int64_t i = 0; i < M; i += 4) {
        const int64_t rows = ti_min(4, M - i), end = ti_min(last, j0 + FN(ROW_DOTS));
        for (int64_t j = j0, columns; j < end; j += columns) {
          float sums[16];
          const int all = rows == 1 && end - j == FN(ROW_DOTS);
          columns = all ? FN(ROW_DOTS) : end - j >= FN(DOT_COLUMNS) ? FN(DOT_COLUMNS) : 1;
          const FN(dots_tile) tile = all ? FN(dots_of_row)[halves] : (columns > 1 ? FN(dots_table) : FN(dots_of_column))[halves][rows - 1];
          tile(a + i * p->left_row, p->left_row, b + j * apart, apart, K, sums);
          /* the addend of a row with one column has one number for all */
          const int plain = columns % 4 == 0 && alpha == 1.0f && (s ? beta == 1.0f && p->addend_column <= 1 : !p->adds);
          for (int64_t r = 0; r < rows && plain; r++) {
            const float *const more = s ? s + (i + r) * p->addend_row + j * p->addend_column : NULL;
            const float one = more ? *more : 0.0f, same[4] = {one, one, one, one};
            for (int64_t q = 0; q < columns; q += 4) {
              const __m128 some = more ? _mm_loadu_ps(p->addend_column ? more + q : same) : _mm_setzero_ps();
              _mm_storeu_ps(c + (i + r) * N + j + q, _mm_add_ps(_mm_loadu_ps(sums + r * columns + q), some));
            }
          }
          for (int64_t r = 0; r < rows && !plain; r++)
            for (int64_t q = 0; q < columns; q++) {
              float *const to = c + (i + r) * N + j + q;
              const float more = s ? beta * s[(i + r) * p->addend_row + (j + q) * p->addend_column] : p->adds ? *to : 0.0f;
              *to = alpha * sums[r * columns + q] + more;
            }
        }
      }
    FN(activate)(p->activation, c + first, N, M, last - first);
  }
  return TI_OK;
}

/* Elements of a matrix, number by number, of many matrices beside each other; or back. */
enum { FN(SMALL_LANES) = 4 * VL };  /* more than a vector's: what is written an element at a time has left for the cache by then */
typedef float FN(small_lanes)[TI_SMALL_ELEMENTS][FN(SMALL_LANES)];
static int FN(small_places)(int64_t rows, int64_t columns, int64_t row, int64_t column, int64_t *places) {
  int n = 0;
  for (int64_t i = 0; i < rows; i++) for (int64_t j = 0; j < columns; j++) places[n++] = i * row + j * column;
  return n;
}
TI_INLINE void FN(spread_small)(FN(small_lanes) to, const float *s, int64_t apart, const int64_t *places, int elements, int64_t lanes) {
  for (int64_t lane = 0; lane < lanes; lane++, s += apart)
    for (int e = 0; e < elements; e++) to[e][lane] = s[places[e]];
}
/* Small matrices of a batch, one in each lane: of a register tile they would fill a corner. Summands in their order. */
TI_KERNEL(matmul_small) {
  const matmul_small_ints *const p = (const matmul_small_ints *)ints;
  const int M = (int)p->rows, N = (int)p->columns, K = (int)p->inner;
  int64_t of_left[TI_SMALL_ELEMENTS], of_right[TI_SMALL_ELEMENTS];
  const int lefts = FN(small_places)(M, K, p->left_row, p->left_column, of_left);
  const int rights = FN(small_places)(K, N, p->right_row, p->right_column, of_right), results = M * N;
  FN(small_lanes) a = {{0}}, b = {{0}}, c;
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item += FN(SMALL_LANES)) {
    const int64_t lanes = ti_min(FN(SMALL_LANES), end - item);
    FN(spread_small)(a, (const float *)args[1] + item * p->left_batch, p->left_batch, of_left, lefts, lanes);
    FN(spread_small)(b, (const float *)args[2] + item * p->right_batch, p->right_batch, of_right, rights, lanes);
    for (int i = 0; i < M; i++)
      for (int j = 0; j < N; j++)
        for (int64_t lane = 0; lane < lanes; lane += VL) {
          VF sum = FN(set)(0);
          for (int k = 0; k < K; k++) sum = FN(fma)(FN(load)(a[i * K + k] + lane), FN(load)(b[k * N + j] + lane), sum);
          FN(store)(c[i * N + j] + lane, sum);
        }
    float *out = (float *)args[0] + item * results;
    for (int64_t lane = 0; lane < lanes; lane++)
      for (int e = 0; e < results; e++) *out++ = c[e][lane];
  }
  return TI_OK;
}
