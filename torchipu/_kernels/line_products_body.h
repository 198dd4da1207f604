/* Products of the matrices of a batch with a single row, column or summand: of a register tile they would fill an edge. */
#include "lane_sums_body.h"

/* A line of n elements, side by side: where it lies, or copied. */
static const float *FN(dense_line)(const float *line, ptrdiff_t step, int64_t n, float *to) {
  if (step == 1) return line;
  for (int64_t i = 0; i < n; i++) to[i] = line[i * step];
  return to;
}

/* out[n] = the sum of v[k] * B[k][n] over some vectors of columns, the last of which has `last`. Few vectors have several sums
 * each, that do not wait for one another. */
TI_INLINE void FN(sum_rows_of)(const int vectors, const int whole, const float *v, const float *b, ptrdiff_t apart, int64_t K, int last,
                               float *out) {
  enum { MOST = 4 };
  const int sums = MOST / vectors;
  VF held[MOST];
#pragma GCC unroll 4
  for (int i = 0; i < MOST; i++) held[i] = FN(set)(0);
  int64_t k = 0;
  for (; k + sums <= K; k += sums) {
#pragma GCC unroll 4
    for (int u = 0; u < sums; u++) {
      const VF x = FN(set)(v[k + u]);
      const float *row = b + (k + u) * apart;
#pragma GCC unroll 4
      for (int j = 0; j < vectors; j++) {
        const VF y = whole || j + 1 < vectors ? FN(load)(row + j * VL) : FN(load_part)(row + j * VL, last);
        held[u * vectors + j] = FN(fma)(x, y, held[u * vectors + j]);
      }
    }
  }
  for (; k < K; k++)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) {
      const VF y = whole || j + 1 < vectors ? FN(load)(b + k * apart + j * VL) : FN(load_part)(b + k * apart + j * VL, last);
      held[j] = FN(fma)(FN(set)(v[k]), y, held[j]);
    }
#pragma GCC unroll 4
  for (int j = 0; j < vectors; j++) {
    VF sum = held[j];
#pragma GCC unroll 4
    for (int u = 1; u < sums; u++) sum = sum + held[u * vectors + j];
    if (whole || j + 1 < vectors) FN(store)(out + j * VL, sum);
    else FN(store_part)(out + j * VL, sum, last);
  }
}
typedef void (*FN(sum_rows))(const float *, const float *, ptrdiff_t, int64_t, int, float *);
#undef TI_SUM_ROWS
#define TI_SUM_ROWS(V_, W_) \
  static __attribute__((noinline)) void FN(sum_rows_##V_##_##W_)(const float *v, const float *b, ptrdiff_t apart, int64_t K, int last, float *out) { \
    FN(sum_rows_of)(V_, W_, v, b, apart, K, last, out); \
  }
TI_SUM_ROWS(1, 0) TI_SUM_ROWS(2, 0) TI_SUM_ROWS(3, 0) TI_SUM_ROWS(4, 0)
TI_SUM_ROWS(1, 1) TI_SUM_ROWS(2, 1) TI_SUM_ROWS(3, 1) TI_SUM_ROWS(4, 1)
/* By whether all vectors are whole, then by vectors. */
static const FN(sum_rows) FN(sum_rows_table)[2][4] = {
  {FN(sum_rows_1_0), FN(sum_rows_2_0), FN(sum_rows_3_0), FN(sum_rows_4_0)},
  {FN(sum_rows_1_1), FN(sum_rows_2_1), FN(sum_rows_3_1), FN(sum_rows_4_1)},
};

static void FN(line_by_rows)(const float *v, const float *b, ptrdiff_t apart, int64_t K, int64_t N, float *out) {
  for (int64_t j = 0, n; j < N; j += n) {
    n = ti_min(4 * VL, N - j);
    const int vectors = (int)ti_ceil(n, VL), last = (int)(n - (vectors - 1) * VL);
    FN(sum_rows_table)[last == VL][vectors - 1](v, b + j, apart, K, last, out + j);
  }
}

/* out[n] = the sum of v[k] * B[k][n] over some columns, of which each lies dense. */
TI_INLINE void FN(dot_columns)(const int count, const float *v, const float *b, ptrdiff_t apart, int64_t K, float *out) {
  VF held[8];
#pragma GCC unroll 8
  for (int j = 0; j < count; j++) held[j] = FN(set)(0);
  int64_t k = 0;
  for (; k + VL <= K; k += VL) {
    const VF x = FN(load)(v + k);
#pragma GCC unroll 8
    for (int j = 0; j < count; j++) held[j] = FN(fma)(x, FN(load)(b + j * apart + k), held[j]);
  }
  if (k < K) {
    const int rest = (int)(K - k);
    const VF x = FN(load_part)(v + k, rest);
#pragma GCC unroll 8
    for (int j = 0; j < count; j++) held[j] = FN(fma)(x, FN(load_part)(b + j * apart + k, rest), held[j]);
  }
  FN(sums_of)(count, held, out);
}

static void FN(line_by_columns)(const float *v, const float *b, ptrdiff_t apart, int64_t K, int64_t N, float *out) {
  int64_t j = 0;
  for (; j + 8 <= N; j += 8) FN(dot_columns)(8, v, b + j * apart, apart, K, out + j);
  if (j + 4 <= N) { FN(dot_columns)(4, v, b + j * apart, apart, K, out + j); j += 4; }
  for (; j < N; j++) FN(dot_columns)(1, v, b + j * apart, apart, K, out + j);
}

static void FN(outer_lines)(const float *a, ptrdiff_t step, const float *b, int64_t M, int64_t N, float *out) {
  for (int64_t i = 0; i < M; i++, out += N) {
    const VF x = FN(set)(a[i * step]);
    int64_t j = 0;
    for (; j + VL <= N; j += VL) FN(store)(out + j, x * FN(load)(b + j));
    if (j < N) FN(store_part)(out + j, x * FN(load_part)(b + j, (int)(N - j)), (int)(N - j));
  }
}

TI_KERNEL(line_products) {
  const line_products_ints *const p = (const line_products_ints *)ints;
  const int64_t M = p->rows, N = p->columns, K = p->inner, *const of_line = p->line, *const of_matrix = p->matrix;
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t last = item % p->sizes[1], rest = item / p->sizes[1], middle = rest % p->sizes[0], first = rest / p->sizes[0];
    const float *line = (const float *)args[1] + first * of_line[0] + middle * of_line[1] + last * of_line[2];
    const float *matrix = (const float *)args[2] + first * of_matrix[0] + middle * of_matrix[1] + last * of_matrix[2];
    float *out = (float *)args[0] + item * M * N, *const laid = (float *)scratch;
    if (K == 1) FN(outer_lines)(line, of_line[3], FN(dense_line)(matrix, of_matrix[4], N, laid), M, N, out);
    else if (of_matrix[4] == 1) FN(line_by_rows)(FN(dense_line)(line, of_line[3], K, laid), matrix, of_matrix[3], K, N, out);
    else FN(line_by_columns)(FN(dense_line)(line, of_line[3], K, laid), matrix, of_matrix[4], K, N, out);
  }
  return TI_OK;
}
