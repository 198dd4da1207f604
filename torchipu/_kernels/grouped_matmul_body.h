/* Products of consecutive groups of rows with a matrix for each group, whose sizes are known when the program runs. */
#include "gemm_body.h"

/* Rows [begin, end) of group g; 0 when the ends of the groups are no rows in order. */
static inline int FN(group)(const int64_t *ends, int64_t g, int64_t rows, int64_t *begin, int64_t *end) {
  *begin = g ? ends[g - 1] : 0;
  *end = ends[g];
  return 0 <= *begin && *begin <= *end && *end <= rows;
}

TI_KERNEL(grouped_matmul) {
  (void)scalars, (void)scratch;
  const grouped_matmul_ints *const p = (const grouped_matmul_ints *)ints;
  const int64_t M = p->rows, N = p->columns, K = p->inner, as = p->left_row, ak = p->left_column, groups = p->groups;
  const int64_t across = ti_ceil(N, TI_GROUP_COLUMNS), *ends = (const int64_t *)args[3];
  for (int64_t item = begin; item < end; item++) {
    const int64_t j0 = item % across * TI_GROUP_COLUMNS, i0 = item / across * TI_GROUP_ROWS;
    const int64_t n = ti_min(TI_GROUP_COLUMNS, N - j0), i1 = ti_min(M, i0 + TI_GROUP_ROWS);
    float *c = (float *)args[0] + j0;
    for (int64_t i = i0; i < i1; i++) memset(c + i * N, 0, sizeof(float) * (size_t)n);
    for (int64_t g = 0; g < groups; g++) {
      int64_t first, last;
      if (!FN(group)(ends, g, M, &first, &last)) return TI_TRAP_INDEX;
      first = ti_max(first, i0);
      last = ti_min(last, i1);
      if (first >= last) continue;
      const float *b = (const float *)args[2] + g * p->right_group + j0 / TI_PANEL * p->right_panel;
      for (int64_t k = 0; k < K; k += TI_GROUP_SUMMANDS)
        for (int64_t j = 0; j < n; j += TI_PANEL) {
          ti_tile t = {.a = (const float *)args[1] + first * as + k * ak, .as = as, .ak = ak,
                       .b = b + j / TI_PANEL * p->right_panel + k * p->right_row, .bs = p->right_row, .c = c + first * N + j, .ldc = N,
                       .k = ti_min(TI_GROUP_SUMMANDS, K - k), .accumulate = k > 0};
          if (ak == 1) FN(tiles_k_rows)(t, last - first, ti_min(TI_PANEL, n - j));
          else FN(tiles_i_rows)(t, last - first, ti_min(TI_PANEL, n - j));
        }
    }
  }
  return TI_OK;
}

/* C[g] = A[:, r] B[r] summed over the rows r of B in group g. */
TI_KERNEL(grouped_outer) {
  (void)scalars, (void)scratch;
  const grouped_outer_ints *const p = (const grouped_outer_ints *)ints;
  const int64_t M = p->rows, N = p->columns, as = p->left_row, ak = p->left_column, bs = p->right_row, blocks = ti_ceil(M, TI_GROUP_ROWS);
  for (int64_t item = begin; item < end; item++) {
    const int64_t g = item / blocks, i0 = item % blocks * TI_GROUP_ROWS, m = ti_min(TI_GROUP_ROWS, M - i0);
    float *c = (float *)args[0] + (g * M + i0) * N;
    int64_t first, last;
    if (!FN(group)((const int64_t *)args[3], g, p->inner, &first, &last)) return TI_TRAP_INDEX;
    if (first == last) memset(c, 0, sizeof(float) * (size_t)(m * N));
    for (int64_t k = first; k < last; k += TI_GROUP_SUMMANDS)
      for (int64_t j = 0; j < N; j += TI_PANEL) {
        ti_tile t = {.a = (const float *)args[1] + i0 * as + k * ak, .as = as, .ak = ak,
                     .b = (const float *)args[2] + k * bs + j, .bs = bs, .c = c + j, .ldc = N,
                     .k = ti_min(TI_GROUP_SUMMANDS, last - k), .accumulate = k > first};
        if (ak == 1) FN(tiles_k_rows)(t, m, ti_min(TI_PANEL, N - j));
        else FN(tiles_i_rows)(t, m, ti_min(TI_PANEL, N - j));
      }
  }
  return TI_OK;
}
