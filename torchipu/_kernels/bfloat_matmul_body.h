/* Matrix products of bfloat16: two summands a lane and instruction, VDPBF16PS, which takes subnormal operands for zero, and
 * makes zero of subnormal sums, as all kernels do. A pair of summands is a word, the first of them in its lower half. */
#include "table/gemm.h"
#include "matrix_transpose_body.h"
#include "activation_body.h"
#include "lane_sums_body.h"

#define TI_PAIR_ROWS 14  /* of a tile, for whose sums of two vectors there are registers */
enum { FN(PAIRS_OF_LINE) = 16 };
enum { FN(PACKED_PAIRS) = 128 };  /* of a column at a time: what is copied before it is transposed stays in the first cache */
typedef uint32_t FN(pair) __attribute__((aligned(2), may_alias));

TI_INLINE VF FN(add_pairs)(VF sum, __m512i x, __m512i y) { return (VF)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y); }
TI_INLINE __m512i FN(pairs_at)(const void *p) { return _mm512_loadu_si512(p); }
/* n <= 32 numbers, zero beyond them. */
TI_INLINE __m512i FN(some_bfloats)(const uint16_t *p, int64_t n) {
  return _mm512_maskz_loadu_epi16(n >= 32 ? ~(__mmask32)0 : (__mmask32)((1ull << n) - 1), p);
}

/* Pairs of the numbers of two rows: of columns 0 to 15, and of the next 16. */
TI_INLINE void FN(zip_rows)(__m512i first, __m512i second, __m512i *pairs) {
  const __m512i lo = _mm512_unpacklo_epi16(first, second), hi = _mm512_unpackhi_epi16(first, second);
  pairs[0] = _mm512_permutex2var_epi64(lo, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), hi);
  pairs[1] = _mm512_permutex2var_epi64(lo, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), hi);
}

/* Copies n numbers, and a zero behind an odd number of them. */
static void FN(copy_pairs)(const uint16_t *s, int64_t n, uint16_t *d) {
  memcpy(d, s, sizeof *s * (size_t)n);
  if (n % 2) d[n] = 0;
}

/* ------------------------------------------------------------------ the right operand */
/* `count` rows from the first of `s` on, of n <= 32 columns, which lie dense: d[pair][32]. */
static void FN(pack_dense_rows)(const uint16_t *s, ptrdiff_t row, int64_t count, int64_t n, uint32_t *d) {
  for (int64_t k = 0; k < count; k += 2, d += TI_PANEL) {
    __m512i pairs[2];
    _mm_prefetch((const char *)(s + (k + 16) * row), _MM_HINT_T0);
    _mm_prefetch((const char *)(s + (k + 17) * row), _MM_HINT_T0);
    FN(zip_rows)(FN(some_bfloats)(s + k * row, n), k + 1 < count ? FN(some_bfloats)(s + (k + 1) * row, n) : _mm512_setzero_si512(), pairs);
    _mm512_storeu_si512(d, pairs[0]);
    _mm512_storeu_si512(d + 16, pairs[1]);
  }
}

/* The same of rows that lie dense along the columns. */
static void FN(pack_dense_columns)(const uint16_t *s, ptrdiff_t col, int64_t count, int64_t n, uint32_t *d) {
  uint16_t copied[TI_PANEL][2 * FN(PACKED_PAIRS)] __attribute__((aligned(64)));
  for (int64_t k = 0; k < count; k += 2 * FN(PACKED_PAIRS), d += FN(PACKED_PAIRS) * TI_PANEL) {
    const int64_t some = ti_min(2 * FN(PACKED_PAIRS), count - k), pairs = ti_ceil(some, 2);
    if (col % 2 == 0 && some % 2 == 0) {
      FN(transpose)((const float *)(s + k), col / 2, (float *)d, TI_PANEL, n, pairs);
    } else {
      for (int64_t j = 0; j < n; j++) FN(copy_pairs)(s + k + j * col, some, copied[j]);
      FN(transpose)((const float *)copied[0], FN(PACKED_PAIRS), (float *)d, TI_PANEL, n, pairs);
    }
    if (n < TI_PANEL)
      for (int64_t i = 0; i < pairs; i++) memset(d + i * TI_PANEL + n, 0, sizeof *d * (size_t)(TI_PANEL - n));
  }
}

TI_KERNEL(bfloat_pack) {
  const bfloat_pack_ints *const p = (const bfloat_pack_ints *)ints;
  const int64_t K = p->inner, N = p->columns, row = p->row_stride, col = p->column_stride, block = p->block;
  const int64_t pairs = ti_ceil(K, 2), panels = ti_ceil(N, TI_PANEL), blocks = ti_ceil(pairs, block);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % blocks * block, rest = item / blocks, j = rest % panels * TI_PANEL, k0 = 2 * first;
    const int64_t count = ti_min(2 * block, K - k0), n = ti_min(TI_PANEL, N - j);
    uint32_t *const d = (uint32_t *)args[0] + (rest * pairs + first) * TI_PANEL;
    const uint16_t *const s = (const uint16_t *)args[1] + rest / panels * p->batch_stride + k0 * row + j * col;
    if (col == 1) FN(pack_dense_rows)(s, row, count, n, d);
    else FN(pack_dense_columns)(s, col, count, n, d);
  }
  return TI_OK;
}

/* ------------------------------------------------------------------ the left operand */
/* Lays m rows of K numbers as pairs, `apart` of them from row to row. */
static void FN(lay_pairs)(const uint16_t *a, ptrdiff_t as, ptrdiff_t ak, int64_t m, int64_t K, uint32_t *d, ptrdiff_t apart) {
  if (ak == 1) {
    for (int64_t i = 0; i < m; i++) FN(copy_pairs)(a + i * as, K, (uint16_t *)(d + i * apart));
    return;
  }
  uint32_t zipped[16][32] __attribute__((aligned(64)));  /* by pairs, then by rows */
  for (int64_t i = 0; i < m; i += 32) {
    const int64_t rows = ti_min(32, m - i);
    for (int64_t k = 0; k < K; k += 32) {
      const int64_t count = ti_min(32, K - k);
      FN(pack_dense_rows)(a + i + k * ak, ak, count, rows, zipped[0]);
      FN(transpose)((const float *)zipped[0], 32, (float *)(d + i * apart + k / 2), apart, ti_ceil(count, 2), rows);
    }
  }
}

/* ------------------------------------------------------------------ the product */
typedef struct {
  const FN(pair) *a, *next_a;  /* the rows that come next, fetched meanwhile */
  const uint32_t *b;
  float *c;  /* [mr][32] */
  ptrdiff_t as;
  int64_t pairs;
  int adds;
} FN(pair_tile);

TI_INLINE void FN(tile_of_pairs)(const int mr, const int nv, const FN(pair_tile) *t) {
  VF c0[TI_PAIR_ROWS], c1[TI_PAIR_ROWS];
  const FN(pair) *a[5];
  const uint32_t *b = t->b;
  const ptrdiff_t as = t->as;
#pragma GCC unroll 5
  for (int i = 0; i < 5; i++) a[i] = t->a + 3 * i * as;
#pragma GCC unroll 16
  for (int i = 0; i < mr; i++) c0[i] = c1[i] = FN(set)(0);
  const FN(pair) *next = t->next_a, *line = next;
  int row = 0;
  for (int64_t k = 0; k < t->pairs; k++, b += TI_PANEL) {
    _mm_prefetch((const char *)line, _MM_HINT_T0);
    line += as;
    if (++row == mr) { row = 0; line = next += FN(PAIRS_OF_LINE); }
    const __m512i b0 = FN(pairs_at)(b), b1 = nv > 1 ? FN(pairs_at)(b + VL) : b0;
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
      const __m512i x = _mm512_set1_epi32((int)a[i / 3][i % 3 * as]);
      c0[i] = FN(add_pairs)(c0[i], x, b0);
      if (nv > 1) c1[i] = FN(add_pairs)(c1[i], x, b1);
    }
#pragma GCC unroll 5
    for (int i = 0; i < 5; i++) a[i]++;
  }
#pragma GCC unroll 16
  for (int i = 0; i < mr; i++) {
    float *const c = t->c + i * TI_PANEL;
    if (t->adds) {
      c0[i] += FN(load)(c);
      if (nv > 1) c1[i] += FN(load)(c + VL);
    }
    FN(store)(c, c0[i]);
    if (nv > 1) FN(store)(c + VL, c1[i]);
  }
}

#define TI_PAIRS(MR_) \
  static __attribute__((noinline)) void FN(pairs_##MR_##_1)(const FN(pair_tile) *t) { FN(tile_of_pairs)(MR_, 1, t); } \
  static __attribute__((noinline)) void FN(pairs_##MR_##_2)(const FN(pair_tile) *t) { FN(tile_of_pairs)(MR_, 2, t); }
TI_PAIRS(1) TI_PAIRS(2) TI_PAIRS(3) TI_PAIRS(4) TI_PAIRS(5) TI_PAIRS(6) TI_PAIRS(7)
TI_PAIRS(8) TI_PAIRS(9) TI_PAIRS(10) TI_PAIRS(11) TI_PAIRS(12) TI_PAIRS(13) TI_PAIRS(14)
#define TI_PAIRS_OF(NV_) \
  {0, FN(pairs_1_##NV_), FN(pairs_2_##NV_), FN(pairs_3_##NV_), FN(pairs_4_##NV_), FN(pairs_5_##NV_), FN(pairs_6_##NV_), FN(pairs_7_##NV_), \
   FN(pairs_8_##NV_), FN(pairs_9_##NV_), FN(pairs_10_##NV_), FN(pairs_11_##NV_), FN(pairs_12_##NV_), FN(pairs_13_##NV_), FN(pairs_14_##NV_)}
static void (*const FN(pairs_table)[2][TI_PAIR_ROWS + 1])(const FN(pair_tile) *) = {TI_PAIRS_OF(1), TI_PAIRS_OF(2)};

/* What becomes of sums: a block of the product, m x n of them at the same place of `addend`. */
typedef struct {
  char *c;
  const float *addend;
  ptrdiff_t ldc, srow, scol;
  float alpha, beta;
  int adds, stores_bfloats;
} FN(finish);

/* A masked store of 16 bits may take as long as twenty whole ones. */
TI_INLINE void FN(store_bfloats)(uint16_t *to, __m256i rounded, int64_t n) {
  uint16_t held[VL];
  if (n == VL) {
    _mm256_storeu_si256((__m256i *)to, rounded);
    return;
  }
  _mm256_storeu_si256((__m256i *)held, rounded);
  memcpy(to, held, sizeof *to * (size_t)n);
}

TI_INLINE void FN(finish_as)(const int activation, const int stores_bfloats, const FN(finish) *f, const float *sums, int64_t apart, int64_t m, int64_t n) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j += VL) {
      const int64_t some = ti_min(VL, n - j);
      VF x = FN(load_most)(sums + i * apart + j, some) * f->alpha;
      if (f->addend) {
        const float *const s = f->addend + i * f->srow + j * f->scol;
        if (f->scol == 1) {
          x = FN(fma)(FN(load_most)(s, some), FN(set)(f->beta), x);
        } else if (f->scol == 0) {
          x = FN(fma)(FN(set)(*s), FN(set)(f->beta), x);
        } else {
          float held[VL] = {0};
          for (int64_t v = 0; v < some; v++) held[v] = s[v * f->scol];
          x = FN(fma)(FN(load)(held), FN(set)(f->beta), x);
        }
      }
      if (stores_bfloats) {
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh((__m512)FN(activated)(activation, x));
        FN(store_bfloats)((uint16_t *)f->c + i * f->ldc + j, rounded, some);
      } else {
        float *const c = (float *)f->c + i * f->ldc + j;
        if (f->adds) x += FN(load_most)(c, some);
        FN(store_rows)(c, FN(activated)(activation, x), (int)some);
      }
    }
}

static void FN(finish_rows)(int64_t activation, const FN(finish) *f, const float *sums, int64_t apart, int64_t m, int64_t n) {
#define TI_FINISH(A_) \
  case A_: \
    if (f->stores_bfloats) FN(finish_as)(A_, 1, f, sums, apart, m, n); \
    else FN(finish_as)(A_, 0, f, sums, apart, m, n); \
    break;
  switch (activation) {
    TI_FINISH(TI_ACTIVATION_RELU)
    TI_FINISH(TI_ACTIVATION_SILU)
    TI_FINISH(TI_ACTIVATION_GELU)
    default:
    TI_FINISH(TI_ACTIVATION_NONE)
  }
}

TI_KERNEL(bfloat_matmul) {
  const bfloat_matmul_ints *const p = (const bfloat_matmul_ints *)ints;
  const matmul_scalars *const factors = (const matmul_scalars *)scalars;
  const int64_t M = p->rows, N = p->columns, K = p->inner, MB = p->row_block, NB = p->column_block;
  const int64_t pairs = ti_ceil(K, 2), ncols = ti_ceil(N, NB), nrows = ti_ceil(M, MB);
  const int64_t size = p->stores_bfloats ? sizeof(uint16_t) : sizeof(float);
  float sums[TI_PAIR_ROWS * TI_PANEL] __attribute__((aligned(64)));
  FN(finish) f = {.ldc = N, .srow = p->addend_row, .scol = p->addend_column, .alpha = (float)factors->alpha,
                  .beta = (float)factors->beta, .adds = (int)p->adds, .stores_bfloats = (int)p->stores_bfloats};
  for (int64_t item = begin; item < end; item++) {
    const int64_t j0 = item % ncols * NB, i0 = item / ncols % nrows * MB, batch = item / (ncols * nrows);
    const int64_t m = ti_min(MB, M - i0), n = ti_min(NB, N - j0), even = ti_ceil(m, ti_ceil(m, TI_PAIR_ROWS));
    const uint16_t *const a = (const uint16_t *)args[1] + batch * p->left_batch + i0 * p->left_row;
    const FN(pair) *rows = (const FN(pair) *)a;
    ptrdiff_t apart = p->left_row / 2;
    if (!p->lies) {
      apart = pairs + TI_LAID_PAD;
      FN(lay_pairs)(a, p->left_row, p->left_column, m, K, (uint32_t *)scratch, apart);
      rows = (const FN(pair) *)scratch;
    }
    for (int64_t j = j0; j < j0 + n; j += TI_PANEL) {
      const int64_t width = ti_min(TI_PANEL, N - j);
      const uint32_t *const panel = (const uint32_t *)args[2] + batch * p->right_batch + j * pairs;
      for (int64_t i = 0; i < m; i += even) {
        const int64_t some = ti_min(even, m - i);
        for (int64_t k = 0; k < pairs; k += TI_PAIR_BLOCK) {
          const FN(pair_tile) t = {.a = rows + i * apart + k,
                                   .next_a = rows + (i + some < m ? i + some : 0) * apart + k, .b = panel + k * TI_PANEL, .c = sums, .as = apart,
                                   .pairs = ti_min(TI_PAIR_BLOCK, pairs - k), .adds = k > 0};
          FN(pairs_table)[width > VL][some](&t);
        }
        f.c = args[0] + ((batch * M + i0 + i) * N + j) * size;
        if (p->has_addend) f.addend = (const float *)args[3] + batch * p->addend_batch + (i0 + i) * f.srow + j * f.scol;
        FN(finish_rows)(p->activation, &f, sums, TI_PANEL, some, width);
      }
    }
  }
  return TI_OK;
}

/* ------------------------------------------------------------------ few rows */
/* sums[i * nr + j] = the dot product of row i of A and column j of B. */
TI_INLINE void FN(dots_of_pairs)(const int mr, const int nr, const uint16_t *a, ptrdiff_t as, const uint16_t *b, ptrdiff_t bs, int64_t K, float *sums) {
  VF held[16];
#pragma GCC unroll 16
  for (int i = 0; i < mr * nr; i++) held[i] = FN(set)(0);
  for (int64_t k = 0; k < K; k += 2 * VL) {
    const int64_t some = ti_min(2 * VL, K - k);
    __m512i x[4];
#pragma GCC unroll 4
    for (int i = 0; i < mr; i++) x[i] = some == 2 * VL ? FN(pairs_at)(a + i * as + k) : FN(some_bfloats)(a + i * as + k, some);
#pragma GCC unroll 8
    for (int j = 0; j < nr; j++) {
      const __m512i y = some == 2 * VL ? FN(pairs_at)(b + j * bs + k) : FN(some_bfloats)(b + j * bs + k, some);
#pragma GCC unroll 4
      for (int i = 0; i < mr; i++) held[i * nr + j] = FN(add_pairs)(held[i * nr + j], x[i], y);
    }
  }
  FN(sums_of)(mr * nr, held, sums);
}
typedef void (*FN(tile_of_dots))(const uint16_t *, ptrdiff_t, const uint16_t *, ptrdiff_t, int64_t, float *);
#define TI_PAIR_DOTS(M_, N_) \
  static __attribute__((noinline)) void FN(pair_dots_##M_##_##N_)(const uint16_t *a, ptrdiff_t as, const uint16_t *b, ptrdiff_t bs, int64_t K, float *sums) { \
    FN(dots_of_pairs)(M_, N_, a, as, b, bs, K, sums); \
  }
TI_PAIR_DOTS(1, 1) TI_PAIR_DOTS(2, 1) TI_PAIR_DOTS(3, 1) TI_PAIR_DOTS(4, 1)
TI_PAIR_DOTS(1, 8) TI_PAIR_DOTS(2, 4) TI_PAIR_DOTS(3, 4) TI_PAIR_DOTS(4, 4)
/* By rows; of one column, and of as many as there are registers for. */
enum { FN(PAIR_DOTS_OF_ROW) = 8, FN(PAIR_DOTS) = 4 };
static const FN(tile_of_dots) FN(pair_dots)[2][4] = {
  {FN(pair_dots_1_1), FN(pair_dots_2_1), FN(pair_dots_3_1), FN(pair_dots_4_1)},
  {FN(pair_dots_1_8), FN(pair_dots_2_4), FN(pair_dots_3_4), FN(pair_dots_4_4)}};

TI_KERNEL(bfloat_dots) {
  const bfloat_dots_ints *const p = (const bfloat_dots_ints *)ints;
  const matmul_scalars *const factors = (const matmul_scalars *)scalars;
  const int64_t M = p->rows, N = p->columns, K = p->inner, width = p->column_block, blocks = ti_ceil(N, width);
  const int64_t size = p->stores_bfloats ? sizeof(uint16_t) : sizeof(float), as = p->left_row, bs = p->right_column;
  FN(finish) f = {.ldc = N, .srow = p->addend_row, .scol = p->addend_column, .alpha = (float)factors->alpha,
                  .beta = (float)factors->beta, .adds = (int)p->adds, .stores_bfloats = (int)p->stores_bfloats};
  (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t batch = item / blocks, first = item % blocks * width, last = ti_min(N, first + width);
    const uint16_t *const a = (const uint16_t *)args[1] + batch * p->left_batch, *const b = (const uint16_t *)args[2] + batch * p->right_batch;
    /* Rows after rows against as many columns as stay in the first cache beside them. */
    for (int64_t j0 = first; j0 < last; j0 += FN(PAIR_DOTS_OF_ROW))
      for (int64_t i = 0; i < M; i += 4) {
        const int64_t rows = ti_min(4, M - i), most = rows == 1 ? FN(PAIR_DOTS_OF_ROW) : FN(PAIR_DOTS);
        const int64_t until = ti_min(last, j0 + FN(PAIR_DOTS_OF_ROW));
        for (int64_t j = j0, columns; j < until; j += columns) {
          float sums[16];
          const int many = until - j >= most;
          columns = many ? most : 1;
          FN(pair_dots)[many][rows - 1](a + i * as, as, b + j * bs, bs, K, sums);
          f.c = args[0] + ((batch * M + i) * N + j) * size;
          if (p->has_addend) f.addend = (const float *)args[3] + batch * p->addend_batch + i * f.srow + j * f.scol;
          FN(finish_rows)(p->activation, &f, sums, columns, rows, columns);
        }
      }
  }
  return TI_OK;
}
