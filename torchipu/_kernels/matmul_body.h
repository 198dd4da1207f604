/* Matrix products over register tiles: packing of the right operand, and C = alpha * A B + beta * S. */
#include "gemm_body.h"

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

/* matmul_pack: panels of 32 columns, each [K][32] and zero beyond N.
 *   args    packed [batch][ceil(N / 32)][K][32], B
 *   ints    K, N, batch stride of B, row stride of B, column stride of B (one of the last two is 1), rows in a block
 *   items   batch * panels * blocks of rows */
int FN(matmul_pack)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  const int64_t K = ints[0], N = ints[1], batch = ints[2], row = ints[3], col = ints[4], block = ints[5];
  const int64_t panels = ti_ceil(N, TI_PANEL), blocks = ti_ceil(K, block);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t k0 = item % blocks * block, rest = item / blocks, j = rest % panels * TI_PANEL;
    const int64_t rows = ti_min(block, K - k0), n = ti_min(TI_PANEL, N - j);
    float *d = (float *)args[0] + (rest * K + k0) * TI_PANEL;
    const float *s = (const float *)args[1] + rest / panels * batch + k0 * row + j * col;
    FN(pack_panel)(s, row, col, rows, n, d);
  }
  return TI_OK;
}

/* matmul_pack_rows: the left operand as the tiles of matmul read it, [block of rows][tile][K][rows of the tile].
 *   args    packed, A
 *   ints    M, K, strides of A (batch, row, column; one of the last two is 1), rows in a block, columns of A in an item
 *   items   batch * blocks of rows * blocks of columns */
int FN(matmul_pack_rows)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  const int64_t M = ints[0], K = ints[1], as = ints[3], ak = ints[4], MB = ints[5], KB = ints[6];
  const int64_t nrows = ti_ceil(M, MB), nk = ti_ceil(K, KB);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t k0 = item % nk * KB, i0 = item / nk % nrows * MB, batch = item / (nk * nrows);
    const int64_t m = ti_min(MB, M - i0), even = ti_even(m, TI_MR);
    const float *a = (const float *)args[1] + batch * ints[2] + i0 * as + k0 * ak;
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

enum { FN(M_) = 0, FN(N_), FN(K_), FN(A_BATCH), FN(A_ROW), FN(A_COL), FN(B_BATCH), FN(B_PANEL), FN(B_ROW), FN(MB_), FN(NB_),
       FN(KC_), FN(PACK_A), FN(HAS_S), FN(S_BATCH), FN(S_ROW), FN(S_COL), FN(TURNED_), FN(B_COL) };

/* matmul: C[b] = alpha * A[b] B[b] + beta * S[b]
 *   args     C [batch][M][N], A, B (row-major or packed by matmul_pack), S when ints[13]
 *   ints     M, N, K, strides of A (batch, row, column; one of the last two is 1), stride of B from one matrix to the
 *            next, from 32 columns to the next 32, from row to row; rows and columns (a multiple of 32) of an item,
 *            summands in a block, 1 where A is packed by matmul_pack_rows (then its strides are M * K, K and 1), 2 where each
 *            item is to pack the rows that it reads, whether S is given, its strides (batch, row, column), and 1 to store
 *            C transposed, [N][M] (then alpha = beta = 1, S has one value for each row, and A is not packed), 2 to add
 *            onto what C holds (then alpha = 1, without S), else 0; stride of B from column to column where each item is
 *            to pack the panels that it reads, else 0
 *   scalars  alpha, beta
 *   items    batch * blocks of rows * blocks of columns
 *   scratch  rows * columns of an item floats when C is stored transposed; when items pack, 32 * summands in a block floats,
 *            and behind them rows of an item * summands in a block */
int FN(matmul)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  const int64_t M = ints[FN(M_)], N = ints[FN(N_)], K = ints[FN(K_)], MB = ints[FN(MB_)], NB = ints[FN(NB_)];
  const int64_t KC = ints[FN(KC_)], as = ints[FN(A_ROW)], ak = ints[FN(A_COL)], ncols = ti_ceil(N, NB), nrows = ti_ceil(M, MB);
  const int has_s = (int)ints[FN(HAS_S)], packed = ints[FN(PACK_A)] == 1, packs_rows = ints[FN(PACK_A)] == 2, packs = ints[FN(B_COL)] != 0;
  const float alpha = (float)scalars[0], beta = (float)scalars[1];
  const ptrdiff_t srow = ints[FN(S_ROW)], scol = ints[FN(S_COL)];
  const int turned = ints[FN(TURNED_)] == 1, adds = ints[FN(TURNED_)] == 2;
  const int bias = has_s && alpha == 1.0f && beta == 1.0f && srow == 0 && scol == 1;
  for (int64_t item = begin; item < end; item++) {
    const int64_t j0 = item % ncols * NB, i0 = item / ncols % nrows * MB, batch = item / (ncols * nrows);
    const int64_t m = ti_min(MB, M - i0), n = ti_min(NB, N - j0), even = ti_even(m, TI_MR);
    float *result = (float *)args[0] + (turned ? (batch * N + j0) * M + i0 : (batch * M + i0) * N + j0);
    float *c = turned ? (float *)scratch : result;
    const ptrdiff_t ldc = turned ? NB : N;
    const float *a = (const float *)args[1] + batch * ints[FN(A_BATCH)] + i0 * as;
    const float *b = (const float *)args[2] + batch * ints[FN(B_BATCH)] + j0 / TI_PANEL * ints[FN(B_PANEL)];
    const float *s = has_s ? (const float *)args[3] + batch * ints[FN(S_BATCH)] + i0 * srow + j0 * scol : NULL;
    if (K == 0 && !adds) for (int64_t i = 0; i < m; i++) memset(c + i * ldc, 0, sizeof(float) * (size_t)n);
    for (int64_t k0 = 0; k0 < K; k0 += KC) {
      const int64_t kc = ti_min(KC, K - k0);
      const int first = k0 == 0;
      float *const rows = (float *)scratch + TI_PANEL * KC;
      if (packs_rows) FN(pack_rows)(a + k0 * ak, as, ak, m, even, 0, kc, kc, rows);
      for (int64_t j = 0; j < n; j += TI_PANEL) {
        const int64_t width = ti_min(TI_PANEL, n - j);
        const float *panel = b + j / TI_PANEL * ints[FN(B_PANEL)] + k0 * ints[FN(B_ROW)];
        /* what is read after this panel: the next one, or the first of the next block of summands */
        const float *after = j + TI_PANEL < n ? panel + ints[FN(B_PANEL)] : k0 + kc < K ? b + (k0 + kc) * ints[FN(B_ROW)] : panel;
        ti_tile t = {.b = panel, .c = c + j, .bs = ints[FN(B_ROW)], .ldc = ldc,
                     .k = kc, .n1 = 1, .n2 = 1, .accumulate = adds || !first, .col_bias = first && bias ? s + j : NULL,
                     .row_bias = first && turned ? s : NULL};
        if (packs) {
          FN(pack_panel)(panel, ints[FN(B_ROW)], ints[FN(B_COL)], kc, width, (float *)scratch);
          t.b = (const float *)scratch; t.bs = TI_PANEL;
          t.source = after; t.source_row = ints[FN(B_ROW)]; t.source_col = ints[FN(B_COL)];
        }
        if (packed || packs_rows) {
          t.a = packed ? a : rows;
          t.next_b = ints[FN(B_ROW)] == TI_PANEL && !packs ? after : t.b;
          FN(packed_rows)(t, m, even, packed ? k0 : 0, packed ? K : kc, width);
        } else {
          t.a = a + k0 * ak; t.as = as; t.ak = ak;
          if (ak == 1) FN(tiles_k_rows)(t, m, width); else FN(tiles_i_rows)(t, m, width);
        }
      }
    }
    if (turned) FN(transpose)(c, ldc, result, M, m, n);
    else if ((has_s && !bias) || alpha != 1.0f) FN(scale_add)(c, N, s, srow, scol, alpha, beta, m, n);
  }
  return TI_OK;
}

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

/* Adds the products of n summands. */
TI_INLINE void FN(dots_step)(const int mr, const int nr, const int whole, const float *a, ptrdiff_t as, const float *b, ptrdiff_t bs,
                             int n, VF *held) {
  VF x[4];
#pragma GCC unroll 4
  for (int i = 0; i < mr; i++) x[i] = whole ? FN(load)(a + i * as) : FN(load_part)(a + i * as, n);
#pragma GCC unroll 8
  for (int j = 0; j < nr; j++) {
    const VF y = whole ? FN(load)(b + j * bs) : FN(load_part)(b + j * bs, n);
#pragma GCC unroll 4
    for (int i = 0; i < mr; i++) held[i * nr + j] = FN(fma)(x[i], y, held[i * nr + j]);
  }
}

/* sums[i * nr + j] = the dot product of row i of A and row j of B, summed in the lanes of a vector first. */
TI_INLINE void FN(dots)(const int mr, const int nr, const float *a, ptrdiff_t as, const float *b, ptrdiff_t bs, int64_t K, float *sums) {
  VF held[16];
#pragma GCC unroll 16
  for (int i = 0; i < mr * nr; i++) held[i] = FN(set)(0);
  int64_t k = 0;
  for (; k + VL <= K; k += VL) FN(dots_step)(mr, nr, 1, a + k, as, b + k, bs, VL, held);
  if (k < K) FN(dots_step)(mr, nr, 0, a + k, as, b + k, bs, (int)(K - k), held);
  FN(sums_of)(mr * nr, held, sums);
}
#undef TI_DOTS
#define TI_DOTS(M_, N_) \
  static __attribute__((noinline)) void FN(dots_##M_##_##N_)(const float *a, ptrdiff_t as, const float *b, ptrdiff_t bs, int64_t K, float *sums) { \
    FN(dots)(M_, N_, a, as, b, bs, K, sums); \
  }
#if VL == 16
enum { FN(DOT_COLUMNS) = 4 };
TI_DOTS(1, 4) TI_DOTS(2, 4) TI_DOTS(3, 4) TI_DOTS(4, 4)
static void (*const FN(dots_table)[4])(const float *, ptrdiff_t, const float *, ptrdiff_t, int64_t, float *) =
  {FN(dots_1_4), FN(dots_2_4), FN(dots_3_4), FN(dots_4_4)};
#else  /* half as many registers */
enum { FN(DOT_COLUMNS) = 2 };
TI_DOTS(1, 2) TI_DOTS(2, 2) TI_DOTS(3, 2) TI_DOTS(4, 2)
static void (*const FN(dots_table)[4])(const float *, ptrdiff_t, const float *, ptrdiff_t, int64_t, float *) =
  {FN(dots_1_2), FN(dots_2_2), FN(dots_3_2), FN(dots_4_2)};
#endif
TI_DOTS(1, 1) TI_DOTS(2, 1) TI_DOTS(3, 1) TI_DOTS(4, 1)
static void (*const FN(dots_of_column)[4])(const float *, ptrdiff_t, const float *, ptrdiff_t, int64_t, float *) =
  {FN(dots_1_1), FN(dots_2_1), FN(dots_3_1), FN(dots_4_1)};

/* matmul_dots: C = alpha * A B + beta * S for few rows, where the columns of B lie dense, as the weights of a layer do:
 * each is read once, as it lies.
 *   args     C [batch][M][N], A, B, S when ints[8]
 *   ints     M, N, K, strides of A (batch, row), of B (batch, column), columns of an item, whether S is given, its strides
 *            (batch, row, column), whether to add onto what C holds
 *   scalars  alpha, beta
 *   items    batch * blocks of columns */
int FN(matmul_dots)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  const int64_t M = ints[0], N = ints[1], K = ints[2], width = ints[7], blocks = ti_ceil(N, width);
  const float alpha = (float)scalars[0], beta = (float)scalars[1];
  (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t batch = item / blocks, first = item % blocks * width, last = ti_min(N, first + width);
    const float *a = (const float *)args[1] + batch * ints[3], *b = (const float *)args[2] + batch * ints[5];
    const float *s = ints[8] ? (const float *)args[3] + batch * ints[9] : NULL;
    float *c = (float *)args[0] + batch * M * N;
    /* Rows after rows against as many columns as stay in the first cache beside them. */
    for (int64_t j0 = first; j0 < last; j0 += 8)
      for (int64_t i = 0; i < M; i += 4) {
        const int64_t rows = ti_min(4, M - i), end = ti_min(last, j0 + 8);
        for (int64_t j = j0, columns; j < end; j += columns) {
          float sums[16];
          columns = end - j >= FN(DOT_COLUMNS) ? FN(DOT_COLUMNS) : 1;
          (columns > 1 ? FN(dots_table) : FN(dots_of_column))[rows - 1](a + i * ints[4], ints[4], b + j * ints[6], ints[6], K, sums);
          const int plain = columns == 4 && alpha == 1.0f && (s ? beta == 1.0f && ints[11] == 1 : !ints[12]);
          for (int64_t r = 0; r < rows && plain; r++) {
            const __m128 more = s ? _mm_loadu_ps(s + (i + r) * ints[10] + j) : _mm_setzero_ps();
            _mm_storeu_ps(c + (i + r) * N + j, _mm_add_ps(_mm_loadu_ps(sums + r * 4), more));
          }
          for (int64_t r = 0; r < rows && !plain; r++)
            for (int64_t q = 0; q < columns; q++) {
              float *const to = c + (i + r) * N + j + q;
              const float more = s ? beta * s[(i + r) * ints[10] + (j + q) * ints[11]] : ints[12] ? *to : 0.0f;
              *to = alpha * sums[r * columns + q] + more;
            }
        }
      }
  }
  return TI_OK;
}
