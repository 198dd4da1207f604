/* Products of consecutive groups of rows with a matrix for each group, whose sizes are known when the program runs;
 * and products of integers. */
#include "gemm_body.h"

enum { FN(GROUP_ROWS) = 56, FN(GROUP_COLUMNS) = 128, FN(GROUP_SUMMANDS) = 384 }; /* of one item; as in grouped_matmul.py */

/* Rows [begin, end) of group g; 0 when the ends of the groups are no rows in order. */
static inline int FN(group)(const int64_t *ends, int64_t g, int64_t rows, int64_t *begin, int64_t *end) {
  *begin = g ? ends[g - 1] : 0;
  *end = ends[g];
  return 0 <= *begin && *begin <= *end && *end <= rows;
}

/* grouped_matmul: C[r] = A[r] B[g] for the rows r of group g; rows beyond the last group are 0.
 *   args     C [M][N], A (row-major or column-major), B (row-major or packed by matmul_pack), ends long [groups]
 *   ints     M, N, K, strides of A (row, column), of B (group, panel of 32 columns, row), groups
 *   items    blocks of 56 rows * blocks of 128 columns */
TI_KERNEL(grouped_matmul) {
  (void)scalars, (void)scratch;
  const int64_t M = ints[0], N = ints[1], K = ints[2], as = ints[3], ak = ints[4], groups = ints[8];
  const int64_t across = ti_ceil(N, FN(GROUP_COLUMNS)), *ends = (const int64_t *)args[3];
  for (int64_t item = begin; item < end; item++) {
    const int64_t j0 = item % across * FN(GROUP_COLUMNS), i0 = item / across * FN(GROUP_ROWS);
    const int64_t n = ti_min(FN(GROUP_COLUMNS), N - j0), i1 = ti_min(M, i0 + FN(GROUP_ROWS));
    float *c = (float *)args[0] + j0;
    for (int64_t i = i0; i < i1; i++) memset(c + i * N, 0, sizeof(float) * (size_t)n);
    for (int64_t g = 0; g < groups; g++) {
      int64_t first, last;
      if (!FN(group)(ends, g, M, &first, &last)) return TI_TRAP_INDEX;
      first = ti_max(first, i0);
      last = ti_min(last, i1);
      if (first >= last) continue;
      const float *b = (const float *)args[2] + g * ints[5] + j0 / TI_PANEL * ints[6];
      for (int64_t k = 0; k < K; k += FN(GROUP_SUMMANDS))
        for (int64_t j = 0; j < n; j += TI_PANEL) {
          ti_tile t = {.a = (const float *)args[1] + first * as + k * ak, .as = as, .ak = ak,
                       .b = b + j / TI_PANEL * ints[6] + k * ints[7], .bs = ints[7], .c = c + first * N + j, .ldc = N,
                       .k = ti_min(FN(GROUP_SUMMANDS), K - k), .n1 = 1, .n2 = 1, .accumulate = k > 0};
          if (ak == 1) FN(tiles_k_rows)(t, last - first, ti_min(TI_PANEL, n - j));
          else FN(tiles_i_rows)(t, last - first, ti_min(TI_PANEL, n - j));
        }
    }
  }
  return TI_OK;
}

/* grouped_outer: C[g] = A[:, r] B[r] summed over the rows r of B in group g.
 *   args     C [groups][M][N], A (row-major or column-major), B (row-major), ends long [groups]
 *   ints     M, N, K, strides of A (row, column), row stride of B, groups
 *   items    groups * blocks of 56 rows */
TI_KERNEL(grouped_outer) {
  (void)scalars, (void)scratch;
  const int64_t M = ints[0], N = ints[1], as = ints[3], ak = ints[4], bs = ints[5], blocks = ti_ceil(M, FN(GROUP_ROWS));
  for (int64_t item = begin; item < end; item++) {
    const int64_t g = item / blocks, i0 = item % blocks * FN(GROUP_ROWS), m = ti_min(FN(GROUP_ROWS), M - i0);
    float *c = (float *)args[0] + (g * M + i0) * N;
    int64_t first, last;
    if (!FN(group)((const int64_t *)args[3], g, ints[2], &first, &last)) return TI_TRAP_INDEX;
    if (first == last) memset(c, 0, sizeof(float) * (size_t)(m * N));
    for (int64_t k = first; k < last; k += FN(GROUP_SUMMANDS))
      for (int64_t j = 0; j < N; j += TI_PANEL) {
        ti_tile t = {.a = (const float *)args[1] + i0 * as + k * ak, .as = as, .ak = ak,
                     .b = (const float *)args[2] + k * bs + j, .bs = bs, .c = c + j, .ldc = N,
                     .k = ti_min(FN(GROUP_SUMMANDS), last - k), .n1 = 1, .n2 = 1, .accumulate = k > first};
        if (ak == 1) FN(tiles_k_rows)(t, m, ti_min(TI_PANEL, N - j));
        else FN(tiles_i_rows)(t, m, ti_min(TI_PANEL, N - j));
      }
  }
  return TI_OK;
}

/* integer_matmul: C[b] = alpha A[b] B[b] + beta S[b] in int64, which wraps.
 *   args     C [batch][M][N], A, B, S when ints[9]
 *   ints     M, N, K, strides of A (batch, row, column), of B (batch, row, column), whether S is given, its strides
 *            (batch, row, column), alpha, beta
 *   items    batch * M */
TI_KERNEL(integer_matmul) {
  (void)scalars, (void)scratch;
  const int64_t M = ints[0], N = ints[1], K = ints[2], bk = ints[7], bj = ints[8];
  const uint64_t alpha = (uint64_t)ints[13], beta = (uint64_t)ints[14];
  for (int64_t item = begin; item < end; item++) {
    const int64_t batch = item / M, i = item % M;
    uint64_t *c = (uint64_t *)args[0] + item * N;
    const uint64_t *a = (const uint64_t *)args[1] + batch * ints[3] + i * ints[4];
    const uint64_t *b = (const uint64_t *)args[2] + batch * ints[6];
    memset(c, 0, sizeof *c * (size_t)N);
    for (int64_t k = 0; k < K; k++) {
      const uint64_t x = a[k * ints[5]];
      if (bj == 1) for (int64_t j = 0; j < N; j++) c[j] += x * b[k * bk + j];
      else for (int64_t j = 0; j < N; j++) c[j] += x * b[k * bk + j * bj];
    }
    const uint64_t *s = ints[9] ? (const uint64_t *)args[3] + batch * ints[10] + i * ints[11] : NULL;
    for (int64_t j = 0; j < N; j++) c[j] = alpha * c[j] + (s ? beta * s[j * ints[12]] : 0);
  }
  return TI_OK;
}
