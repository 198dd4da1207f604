/* Norms and weighted sums of the differences of all pairs of rows; table/distances.py says what the kernels take. */
#define TI_PAIR_ROWS 4
#define TI_PAIR_VECTORS (TI_PAIR_PANEL / VL)

TI_INLINE VF FN(pair_joined)(VF sum, VF x, const int norm) {
  switch (norm) {
    case TI_PAIR_NORM_SUM: return sum + FN(abs)(x);
    case TI_PAIR_NORM_EUCLIDEAN: return FN(fma)(x, x, sum);
    default: return FN(maximum)(sum, FN(abs)(x));
  }
}
/* The norms of a few rows with a panel of others, [length, TI_PAIR_PANEL], of which the first ones count. */
TI_INLINE void FN(pair_tile)(float *out, const float *a, const float *panel, const pair_norms_ints *p, long rows, long columns,
                             const int norm) {
  VF total[TI_PAIR_ROWS][TI_PAIR_VECTORS] = {{{0}}};
  for (int64_t first = 0; first < p->length; first += TI_PAIR_BLOCK) {
    const int64_t last = ti_min(p->length, first + TI_PAIR_BLOCK);
    VF part[TI_PAIR_ROWS][TI_PAIR_VECTORS] = {{{0}}};
    for (int64_t k = first; k < last; k++)
      for (int r = 0; r < TI_PAIR_ROWS; r++) {
        const VF x = FN(set)(a[ti_min(r, rows - 1) * p->length + k]);
        for (int v = 0; v < TI_PAIR_VECTORS; v++)
          part[r][v] = FN(pair_joined)(part[r][v], x - FN(load)(panel + k * TI_PAIR_PANEL + v * VL), norm);
      }
    for (int r = 0; r < TI_PAIR_ROWS; r++)
      for (int v = 0; v < TI_PAIR_VECTORS; v++)
        if (norm == TI_PAIR_NORM_LARGEST) total[r][v] = FN(maximum)(total[r][v], part[r][v]);
        else total[r][v] += part[r][v];
  }
  for (int r = 0; r < TI_PAIR_ROWS && r < rows; r++)
    for (int v = 0; v < TI_PAIR_VECTORS && v * VL < columns; v++) {
      const VF made = norm == TI_PAIR_NORM_EUCLIDEAN ? FN(sqrt)(total[r][v]) : total[r][v];
      FN(store_most)(out + r * p->others + v * VL, made, columns - v * VL);
    }
}
#define TI_PAIR_WAY(name, norm) \
  static void FN(pair_##name)(float *out, const float *a, const float *panel, const pair_norms_ints *p, long columns) { \
    for (int64_t i = 0; i < p->rows; i += TI_PAIR_ROWS) \
      FN(pair_tile)(out + i * p->others, a + i * p->length, panel, p, (long)ti_min(TI_PAIR_ROWS, p->rows - i), columns, norm); \
  }
TI_PAIR_WAY(sum, TI_PAIR_NORM_SUM)
TI_PAIR_WAY(euclidean, TI_PAIR_NORM_EUCLIDEAN)
TI_PAIR_WAY(largest, TI_PAIR_NORM_LARGEST)
#undef TI_PAIR_WAY

TI_KERNEL(pair_norms) {
  const pair_norms_ints *const p = (const pair_norms_ints *)ints;
  const int64_t panels = (p->others + TI_PAIR_PANEL - 1) / TI_PAIR_PANEL;
  float *const panel = (float *)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t batch = item / panels, first = item % panels * TI_PAIR_PANEL;
    const long columns = (long)ti_min(TI_PAIR_PANEL, p->others - first);
    const float *a = (const float *)args[1] + batch * p->rows * p->length;
    const float *b = (const float *)args[2] + (batch * p->others + first) * p->length;
    float *out = (float *)args[0] + batch * p->rows * p->others + first;
    for (int j = 0; j < TI_PAIR_PANEL; j++)
      for (int64_t k = 0; k < p->length; k++) panel[k * TI_PAIR_PANEL + j] = j < columns ? b[j * p->length + k] : 0.f;
    if (p->norm == TI_PAIR_NORM_SUM) FN(pair_sum)(out, a, panel, p, columns);
    else if (p->norm == TI_PAIR_NORM_EUCLIDEAN) FN(pair_euclidean)(out, a, panel, p, columns);
    else FN(pair_largest)(out, a, panel, p, columns);
  }
  return TI_OK;
}

/* Of a row and all others, weighted: of some vectors of the length at a time. */
TI_INLINE void FN(pair_sum_of)(float *out, const float *a, const float *b, const float *weights, const pair_sums_ints *p, long columns,
                               const int vectors, const int of_signs) {
  VF x[4], total[4] = {{0}};
  for (int v = 0; v < vectors; v++) x[v] = FN(load_most)(a + v * VL, columns - v * VL);
  for (int64_t first = 0; first < p->others; first += TI_PAIR_BLOCK) {
    const int64_t last = ti_min(p->others, first + TI_PAIR_BLOCK);
    VF part[4] = {{0}};
    for (int64_t j = first; j < last; j++) {
      const VF weight = FN(set)(weights[j]);
      for (int v = 0; v < vectors; v++) {
        const VF y = vectors == 1 ? FN(load_most)(b + j * p->length, columns) : FN(load)(b + j * p->length + v * VL), apart = x[v] - y;
        if (of_signs) {
          const VF above = FN(sel)(FN(lt)(FN(set)(0.f), apart), FN(set)(1.f), FN(set)(0.f));
          part[v] = FN(fma)(weight, FN(sel)(FN(lt)(apart, FN(set)(0.f)), FN(set)(-1.f), above), part[v]);
        } else part[v] = FN(fma)(weight, apart, part[v]);
      }
    }
    for (int v = 0; v < vectors; v++) total[v] += part[v];
  }
  for (int v = 0; v < vectors; v++) FN(store_most)(out + v * VL, total[v], columns - v * VL);
}
TI_KERNEL(pair_sums) {
  const pair_sums_ints *const p = (const pair_sums_ints *)ints;
  for (int64_t item = begin; item < end; item++) {
    const float *a = (const float *)args[1] + item * p->length, *weights = (const float *)args[3] + item * p->others;
    const float *b = (const float *)args[2] + item / p->rows * p->others * p->length;
    float *out = (float *)args[0] + item * p->length;
    for (int64_t k = 0; k < p->length;) {
      const int vectors = p->length - k >= 4 * VL ? 4 : 1;
      const long columns = (long)ti_min(vectors * VL, p->length - k);
#define TI_PAIR_SUM(vectors, of_signs) FN(pair_sum_of)(out + k, a + k, b + k, weights, p, columns, vectors, of_signs)
      if (p->of_signs) { if (vectors == 4) TI_PAIR_SUM(4, 1); else TI_PAIR_SUM(1, 1); }
      else if (vectors == 4) TI_PAIR_SUM(4, 0);
      else TI_PAIR_SUM(1, 0);
#undef TI_PAIR_SUM
      k += columns;
    }
  }
  return TI_OK;
}
#undef TI_PAIR_ROWS
#undef TI_PAIR_VECTORS
