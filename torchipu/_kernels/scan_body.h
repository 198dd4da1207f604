/* Scans along one dimension; table/scan.py says what the kernels take. */

/* log(exp(a) + exp(b)); equal infinities stay as they are, and NaN passes. */
static inline double FN(log_add)(double a, double b) {
  const double low = a != a || a < b ? a : b, high = a != a || a > b ? a : b;
  if (low == high && isinf(low)) return low;
  return high + log1p(exp(low - high));
}

TI_KERNEL(scan) {
  (void)scalars, (void)scratch;
  const scan_ints *const shape = (const scan_ints *)ints;
  const int64_t length = shape->length, inner = shape->inner, blocks = ti_ceil(inner, TI_SCAN_BLOCK);
  const int mode = (int)shape->scanning;
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % blocks * TI_SCAN_BLOCK, base = item / blocks * length * inner + first;
    const int64_t width = ti_min(inner - first, TI_SCAN_BLOCK);
    if (shape->is_long) {
      const int64_t *x = (const int64_t *)args[1] + base;
      int64_t *y = (int64_t *)args[0] + base;
      uint64_t total[TI_SCAN_BLOCK];
      for (int64_t j = 0; j < width; j++) total[j] = mode == TI_SCANNING_PRODUCT;
      for (int64_t i = 0; i < length; i++, x += inner, y += inner)
        for (int64_t j = 0; j < width; j++) {
          total[j] = mode == TI_SCANNING_PRODUCT ? total[j] * (uint64_t)x[j] : total[j] + (uint64_t)x[j];
          y[j] = (int64_t)total[j];
        }
      continue;
    }
    const float *x = (const float *)args[1] + base;
    float *y = (float *)args[0] + base;
    double total[TI_SCAN_BLOCK];
    const double start = mode == TI_SCANNING_PRODUCT ? 1.0 : mode == TI_SCANNING_SUM ? 0.0 : -INFINITY;
    for (int64_t j = 0; j < width; j++) total[j] = start;
    for (int64_t i = 0; i < length; i++, x += inner, y += inner)
      for (int64_t j = 0; j < width; j++) {
        if (mode == TI_SCANNING_SUM) total[j] += (double)x[j];
        else if (mode == TI_SCANNING_PRODUCT) total[j] *= (double)x[j];
        else total[j] = FN(log_add)(total[j], (double)x[j]);
        y[j] = (float)total[j];
      }
  }
  return TI_OK;
}

#define TI_SCAN_EXTREMES(type) do { \
    const type *x = (const type *)args[2] + base; \
    type *y = (type *)args[0] + base, best[TI_SCAN_BLOCK]; \
    for (int64_t i = 0; i < length; i++, x += inner, y += inner, k += inner) \
      for (int64_t j = 0; j < width; j++) { \
        if (i == 0 || x[j] != x[j] || (smallest ? x[j] <= best[j] : x[j] >= best[j])) best[j] = x[j], at[j] = i; \
        y[j] = best[j]; \
        k[j] = at[j]; \
      } \
  } while (0)
TI_KERNEL(scan_extremes) {
  (void)scalars, (void)scratch;
  const scan_extremes_ints *const shape = (const scan_extremes_ints *)ints;
  const int64_t length = shape->length, inner = shape->inner, blocks = ti_ceil(inner, TI_SCAN_BLOCK);
  const int smallest = (int)shape->smallest;
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % blocks * TI_SCAN_BLOCK, base = item / blocks * length * inner + first;
    const int64_t width = ti_min(inner - first, TI_SCAN_BLOCK);
    int64_t *k = (int64_t *)args[1] + base, at[TI_SCAN_BLOCK];
    if (shape->is_long) TI_SCAN_EXTREMES(int64_t);
    else TI_SCAN_EXTREMES(float);
  }
  return TI_OK;
}
#undef TI_SCAN_EXTREMES
