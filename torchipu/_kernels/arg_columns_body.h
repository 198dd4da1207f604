/* Extremes down columns and where they are, a column in each lane; included by reduce_body.h. */
/* So many vectors of columns at once. NaN is what is wanted most: nothing comes after the first. */
TI_INLINE void FN(arg_vectors)(float *values, int64_t *indices, const float *x, int64_t n, int64_t apart, long lanes, const int vectors, const int smallest) {
  VF best[TI_REDUCE_PANEL / VL];
  VI at[TI_REDUCE_PANEL / VL];
  for (int i = 0; i < vectors; i++) best[i] = FN(load_most)(x + i * VL, lanes), at[i] = FN(iset)(0);
  for (int64_t k = 1; k < n; k++) {
    const VI here = FN(iset)((int32_t)k);
    for (int i = 0; i < vectors; i++) {
      const VF v = FN(load_most)(x + k * apart + i * VL, lanes);
      const VM is_beyond = smallest ? FN(lt)(v, best[i]) : FN(lt)(best[i], v);
      const VM takes = FN(mor)(is_beyond, FN(mand)(FN(isnan)(v), FN(eq)(best[i], best[i])));
      best[i] = FN(sel)(takes, v, best[i]), at[i] = FN(isel)(takes, here, at[i]);
    }
  }
  for (int i = 0; i < vectors; i++) {
    int32_t places[VL];
    memcpy(places, at + i, sizeof places);
    FN(store_most)(values + i * VL, best[i], lanes);
    for (long lane = 0; lane < ti_min(lanes, VL); lane++) indices[i * VL + lane] = places[lane];
  }
}
TI_INLINE void FN(arg_floats)(float *values, int64_t *indices, const float *x, int64_t n, int64_t apart, long width, const int smallest) {
  if (width == TI_REDUCE_PANEL) {
    FN(arg_vectors)(values, indices, x, n, apart, VL, TI_REDUCE_PANEL / VL, smallest);
    return;
  }
  for (long j = 0; j < width; j += VL) FN(arg_vectors)(values + j, indices + j, x + j, n, apart, width - j, 1, smallest);
}
TI_INLINE void FN(arg_longs)(int64_t *values, int64_t *indices, const int64_t *x, int64_t n, int64_t apart, long width, const int smallest) {
  int64_t best[TI_REDUCE_PANEL], at[TI_REDUCE_PANEL] = {0};
  memcpy(best, x, (size_t)width * 8);
  for (int64_t k = 1; k < n; k++)
    for (long j = 0; j < width; j++) {
      const int64_t v = x[k * apart + j], takes = -(int64_t)(smallest ? v < best[j] : v > best[j]);
      best[j] = (takes & v) | (~takes & best[j]), at[j] = (takes & k) | (~takes & at[j]);
    }
  memcpy(values, best, (size_t)width * 8), memcpy(indices, at, (size_t)width * 8);
}
TI_KERNEL(arg_columns) {
  (void)scalars, (void)scratch;
  const arg_columns_ints *const p = (const arg_columns_ints *)ints;
  const int64_t n = p->extent, columns = p->columns, panels = ti_ceil(columns, TI_REDUCE_PANEL);
  for (int64_t item = begin; item < end; item++) {
    const int64_t matrix = item / panels, column = item % panels * TI_REDUCE_PANEL;
    const int64_t from = matrix * n * columns + column, to = matrix * columns + column;
    const long width = (long)ti_min(columns - column, TI_REDUCE_PANEL);
    int64_t *const indices = (int64_t *)args[1] + to;
    if (p->is_long) {
      int64_t *const values = (int64_t *)args[0] + to;
      const int64_t *const x = (const int64_t *)args[2] + from;
      if (p->smallest) FN(arg_longs)(values, indices, x, n, columns, width, 1);
      else FN(arg_longs)(values, indices, x, n, columns, width, 0);
    } else {
      float *const values = (float *)args[0] + to;
      const float *const x = (const float *)args[2] + from;
      if (p->smallest) FN(arg_floats)(values, indices, x, n, columns, width, 1);
      else FN(arg_floats)(values, indices, x, n, columns, width, 0);
    }
  }
  return TI_OK;
}
