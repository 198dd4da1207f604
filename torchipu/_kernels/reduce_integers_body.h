/* Reductions of integers of any size, and of bools, which are bytes; included by reduce_body.h. Their order does not matter.
 *
 * Extremes are found in the type of the elements, so that many fit a vector; sums and products wrap at 64 bits.
 */
/* r, and what a run of elements holds. */
#define TI_RUN(T, name) \
  static int64_t FN(integer_run_##name)(const T *x, int64_t stride, int64_t n, int mode, int64_t r) { \
    if (mode == TI_FOLDING_PRODUCT) { \
      for (int64_t i = 0; i < n; i++) r = (int64_t)((uint64_t)r * (uint64_t)x[i * stride]); \
      return r; \
    } \
    if (mode == TI_FOLDING_SUM) { \
      uint64_t sum = 0; \
      if (stride == 1) for (int64_t i = 0; i < n; i++) sum += (uint64_t)(int64_t)x[i]; \
      else for (int64_t i = 0; i < n; i++) sum += (uint64_t)(int64_t)x[i * stride]; \
      return (int64_t)((uint64_t)r + sum); \
    } \
    T most = x[0]; \
    if (mode == TI_FOLDING_LARGEST && stride == 1) for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most; \
    else if (mode == TI_FOLDING_LARGEST) for (int64_t i = 0; i < n; i++) most = x[i * stride] > most ? x[i * stride] : most; \
    else if (stride == 1) for (int64_t i = 0; i < n; i++) most = x[i] < most ? x[i] : most; \
    else for (int64_t i = 0; i < n; i++) most = x[i * stride] < most ? x[i * stride] : most; \
    return mode == TI_FOLDING_LARGEST ? ti_max(r, most) : ti_min(r, most); \
  }
/* As many columns as a panel has, down `n` rows; `first` says whether nothing has been found yet. */
#define TI_DOWN(T, name) \
  static void FN(integer_columns_##name)(const T *x, int64_t stride, int64_t n, int64_t width, int mode, int first, int64_t *r) { \
    if (mode == TI_FOLDING_SUM) { \
      for (; n > 0; n--, x += stride) for (int64_t j = 0; j < width; j++) r[j] = (int64_t)((uint64_t)r[j] + (uint64_t)(int64_t)x[j]); \
      return; \
    } \
    if (mode == TI_FOLDING_PRODUCT) { \
      for (; n > 0; n--, x += stride) for (int64_t j = 0; j < width; j++) r[j] = (int64_t)((uint64_t)r[j] * (uint64_t)(int64_t)x[j]); \
      return; \
    } \
    T most[TI_INTEGER_PANEL]; \
    if (first) memcpy(most, x, (size_t)width * sizeof(T)); \
    else for (int64_t j = 0; j < width; j++) most[j] = (T)r[j]; \
    if (mode == TI_FOLDING_LARGEST) \
      for (; n > 0; n--, x += stride) for (int64_t j = 0; j < width; j++) most[j] = x[j] > most[j] ? x[j] : most[j]; \
    else \
      for (; n > 0; n--, x += stride) for (int64_t j = 0; j < width; j++) most[j] = x[j] < most[j] ? x[j] : most[j]; \
    for (int64_t j = 0; j < width; j++) r[j] = most[j]; \
  }
#define TI_INTEGERS(X) X(int64_t, long) X(int32_t, int) X(int16_t, short) X(int8_t, char) X(uint8_t, uchar)
TI_INTEGERS(TI_RUN)
TI_INTEGERS(TI_DOWN)
static int64_t FN(integer_run)(const char *x, int64_t at, int64_t stride, int64_t n, int mode, int type, int64_t r) {
  switch (type) {
    case TI_INTEGER_INT: return FN(integer_run_int)((const int32_t *)x + at, stride, n, mode, r);
    case TI_INTEGER_SHORT: return FN(integer_run_short)((const int16_t *)x + at, stride, n, mode, r);
    case TI_INTEGER_CHAR: return FN(integer_run_char)((const int8_t *)x + at, stride, n, mode, r);
    case TI_INTEGER_UNSIGNED_CHAR: return FN(integer_run_uchar)((const uint8_t *)x + at, stride, n, mode, r);
    default: return FN(integer_run_long)((const int64_t *)x + at, stride, n, mode, r);
  }
}
static void FN(integer_columns)(
  const char *x, int64_t at, int64_t stride, int64_t n, int64_t width, int mode, int type, int first, int64_t *r) {
  switch (type) {
    case TI_INTEGER_INT: FN(integer_columns_int)((const int32_t *)x + at, stride, n, width, mode, first, r); break;
    case TI_INTEGER_SHORT: FN(integer_columns_short)((const int16_t *)x + at, stride, n, width, mode, first, r); break;
    case TI_INTEGER_CHAR: FN(integer_columns_char)((const int8_t *)x + at, stride, n, width, mode, first, r); break;
    case TI_INTEGER_UNSIGNED_CHAR: FN(integer_columns_uchar)((const uint8_t *)x + at, stride, n, width, mode, first, r); break;
    default: FN(integer_columns_long)((const int64_t *)x + at, stride, n, width, mode, first, r);
  }
}
/* One result for each item, or where `columns` are given a panel of them. */
TI_INLINE void FN(reduce_integers_to)(char *const *args, const reduce_ints *p, int64_t begin, int64_t end, int has_bools) {
  const int mode = (int)p->folding, type = (int)p->integer;
  const reduce_space *const reduced = &p->reduced;
  const int64_t last = reduced->dims - 1, stride = reduced->strides[last], columns = p->columns ? p->columns : 1;
  const int64_t panels = ti_ceil(columns, TI_INTEGER_PANEL);
  const int64_t start = mode == TI_FOLDING_PRODUCT ? 1 : mode == TI_FOLDING_LARGEST ? INT64_MIN : mode == TI_FOLDING_SMALLEST ? INT64_MAX : 0;
  int64_t index[TI_REDUCE_DIMS], results[TI_INTEGER_PANEL];
  for (int64_t item = begin; item < end; item++) {
    const int64_t kept = item / panels, column = item % panels * TI_INTEGER_PANEL, width = ti_min(columns - column, TI_INTEGER_PANEL);
    const int64_t place = FN(offset_of)(kept, &p->kept, index) + column;
    for (int64_t j = 0; j < width; j++) results[j] = start;
    for (int64_t todo = p->total, offset = FN(offset_of)(0, reduced, index), run; todo > 0; todo -= run) {
      run = ti_min(reduced->shape[last], todo);
      if (p->columns) FN(integer_columns)(args[1], place + offset, stride, run, width, mode, type, todo == p->total, results);
      else results[0] = FN(integer_run)(args[1], place + offset, stride, run, mode, type, results[0]);
      offset = FN(next_run)(offset, reduced, index);
    }
    for (int64_t j = 0; j < width; j++) {
      if (!has_bools) ((int64_t *)args[0])[kept * columns + column + j] = results[j];
      else ((uint8_t *)args[0])[kept * columns + column + j] = p->total ? (uint8_t)results[j] : mode == TI_FOLDING_SMALLEST;
    }
  }
}
TI_KERNEL(reduce_integers) {
  (void)scalars, (void)scratch;
  FN(reduce_integers_to)(args, (const reduce_ints *)ints, begin, end, 0);
  return TI_OK;
}
TI_KERNEL(reduce_bools) {
  (void)scalars, (void)scratch;
  FN(reduce_integers_to)(args, (const reduce_ints *)ints, begin, end, 1);
  return TI_OK;
}
#undef TI_RUN
#undef TI_DOWN
#undef TI_INTEGERS
