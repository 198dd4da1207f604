/* Products of integer matrices. Sums wrap, and so have the same bits in any order. */
#define TI_INTEGER_ROWS 4
#define TI_INTEGER_VECTORS 2

typedef uint32_t FN(integers_4) __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef uint64_t FN(integers_8) __attribute__((vector_size(4 * VL), aligned(8), may_alias));

#define TI_INTEGER_PRODUCT(T, bytes) \
  /* Some rows of a product, of some vectors of columns. */ \
  TI_INLINE void FN(integer_tile_##bytes)(T *c, const T *a, const T *b, const integer_matmul_ints *p, const int rows, const int vectors) { \
    const int64_t as = p->left[1], ak = p->left[2], bk = p->right[1]; \
    FN(integers_##bytes) sum[TI_INTEGER_ROWS][TI_INTEGER_VECTORS] = {{{0}}}; \
    for (int64_t k = 0; k < p->inner; k++) { \
      const FN(integers_##bytes) *const row = (const FN(integers_##bytes) *)(b + k * bk); \
      for (int r = 0; r < rows; r++) \
        for (int v = 0; v < vectors; v++) sum[r][v] += a[r * as + k * ak] * row[v]; \
    } \
    for (int r = 0; r < rows; r++) \
      for (int v = 0; v < vectors; v++) ((FN(integers_##bytes) *)(c + r * p->columns))[v] = sum[r][v]; \
  } \
  /* Rows of a product with a matrix whose rows are dense. The last columns are made once more with some before them. */ \
  TI_INLINE void FN(integer_rows_##bytes)(T *c, const T *a, const T *b, const integer_matmul_ints *p, const int rows) { \
    const int64_t N = p->columns, one = 4 * VL / bytes, both = TI_INTEGER_VECTORS * one; \
    int64_t j = 0; \
    for (; j + both <= N; j += both) FN(integer_tile_##bytes)(c + j, a, b + j, p, rows, TI_INTEGER_VECTORS); \
    if (j == N) return; \
    if (N >= both) FN(integer_tile_##bytes)(c + N - both, a, b + N - both, p, rows, TI_INTEGER_VECTORS); \
    else if (N >= one) { \
      FN(integer_tile_##bytes)(c, a, b, p, rows, 1); \
      FN(integer_tile_##bytes)(c + N - one, a, b + N - one, p, rows, 1); \
    } else for (int r = 0; r < rows; r++) { \
      memset(c + r * N, 0, (size_t)N * sizeof(T)); \
      for (int64_t k = 0; k < p->inner; k++) \
        for (int64_t i = 0; i < N; i++) c[r * N + i] += a[r * p->left[1] + k * p->left[2]] * b[k * p->right[1] + i]; \
    } \
  } \
  TI_INLINE T FN(integer_dot_##bytes)(const T *a, const T *b, int64_t n) { \
    const int64_t one = 4 * VL / bytes; \
    FN(integers_##bytes) sums[4] = {{0}}; \
    int64_t k = 0; \
    for (; k + 4 * one <= n; k += 4 * one) \
      for (int v = 0; v < 4; v++) \
        sums[v] += *(const FN(integers_##bytes) *)(a + k + v * one) * *(const FN(integers_##bytes) *)(b + k + v * one); \
    sums[0] += sums[1] + sums[2] + sums[3]; \
    T sum = 0; \
    for (int64_t lane = 0; lane < one; lane++) sum += sums[0][lane]; \
    for (; k < n; k++) sum += a[k] * b[k]; \
    return sum; \
  } \
  static void FN(integer_matmul_##bytes)(char *const *args, const integer_matmul_ints *p, int64_t begin, int64_t end) { \
    const int64_t M = p->rows, N = p->columns; \
    const T alpha = (T)p->alpha, beta = (T)p->beta; \
    for (int64_t item = begin; item < end;) { \
      const int64_t batch = item / M, i = item % M, rows = ti_min(TI_INTEGER_ROWS, ti_min(M - i, end - item)); \
      T *const c = (T *)args[0] + item * N; \
      const T *const a = (const T *)args[1] + batch * p->left[0] + i * p->left[1], *const b = (const T *)args[2] + batch * p->right[0]; \
      if (p->of_columns) \
        for (int64_t r = 0; r < rows; r++) \
          for (int64_t j = 0; j < N; j++) c[r * N + j] = FN(integer_dot_##bytes)(a + r * p->left[1], b + j * p->right[2], p->inner); \
      else if (rows == TI_INTEGER_ROWS) FN(integer_rows_##bytes)(c, a, b, p, TI_INTEGER_ROWS); \
      else for (int64_t r = 0; r < rows; r++) FN(integer_rows_##bytes)(c + r * N, a + r * p->left[1], b, p, 1); \
      if (p->has_addend || alpha != 1) \
        for (int64_t r = 0; r < rows; r++) { \
          const T *s = p->has_addend ? (const T *)args[3] + batch * p->addend[0] + (i + r) * p->addend[1] : NULL; \
          for (int64_t j = 0; j < N; j++) c[r * N + j] = alpha * c[r * N + j] + (s ? beta * s[j * p->addend[2]] : 0); \
        } \
      item += rows; \
    } \
  }
TI_INTEGER_PRODUCT(uint32_t, 4)
TI_INTEGER_PRODUCT(uint64_t, 8)
#undef TI_INTEGER_PRODUCT
#undef TI_INTEGER_ROWS
#undef TI_INTEGER_VECTORS

TI_KERNEL(integer_matmul) {
  (void)scalars, (void)scratch;
  const integer_matmul_ints *const p = (const integer_matmul_ints *)ints;
  if (p->element_bytes == 8) FN(integer_matmul_8)(args, p, begin, end);
  else FN(integer_matmul_4)(args, p, begin, end);
  return TI_OK;
}
