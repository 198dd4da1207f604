/* Scans along one dimension of row-major [outer, length, inner]: an item takes up to 16 neighbouring positions of inner.
 *
 * Float sums, products and exponentials accumulate in double; integers wrap.
 */
enum { FN(SCAN_SUM), FN(SCAN_PRODUCT), FN(SCAN_LOG_ADD) };
enum { FN(SCAN_BLOCK) = 16 };

/* log(exp(a) + exp(b)); equal infinities stay as they are, and NaN passes. */
static inline double FN(log_add)(double a, double b) {
  const double low = a != a || a < b ? a : b, high = a != a || a > b ? a : b;
  if (low == high && isinf(low)) return low;
  return high + log1p(exp(low - high));
}

/* scan: args [out, in], float, or long.
 *
 *   ints   [length, inner, mode: 0 sum, 1 product, 2 log-add (float only), is long]
 *   items  outer x blocks of 16 positions of inner
 */
TI_KERNEL(scan) {
  (void)scalars, (void)scratch;
  const int64_t length = ints[0], inner = ints[1], blocks = (inner + FN(SCAN_BLOCK) - 1) / FN(SCAN_BLOCK);
  const int mode = (int)ints[2];
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % blocks * FN(SCAN_BLOCK), base = item / blocks * length * inner + first;
    const int64_t width = inner - first < FN(SCAN_BLOCK) ? inner - first : FN(SCAN_BLOCK);
    if (ints[3]) {
      const int64_t *x = (const int64_t *)args[1] + base;
      int64_t *y = (int64_t *)args[0] + base;
      uint64_t total[FN(SCAN_BLOCK)];
      for (int64_t j = 0; j < width; j++) total[j] = mode == FN(SCAN_PRODUCT);
      for (int64_t i = 0; i < length; i++, x += inner, y += inner)
        for (int64_t j = 0; j < width; j++) {
          total[j] = mode == FN(SCAN_PRODUCT) ? total[j] * (uint64_t)x[j] : total[j] + (uint64_t)x[j];
          y[j] = (int64_t)total[j];
        }
      continue;
    }
    const float *x = (const float *)args[1] + base;
    float *y = (float *)args[0] + base;
    double total[FN(SCAN_BLOCK)];
    const double start = mode == FN(SCAN_PRODUCT) ? 1.0 : mode == FN(SCAN_SUM) ? 0.0 : -INFINITY;
    for (int64_t j = 0; j < width; j++) total[j] = start;
    for (int64_t i = 0; i < length; i++, x += inner, y += inner)
      for (int64_t j = 0; j < width; j++) {
        if (mode == FN(SCAN_SUM)) total[j] += (double)x[j];
        else if (mode == FN(SCAN_PRODUCT)) total[j] *= (double)x[j];
        else total[j] = FN(log_add)(total[j], (double)x[j]);
        y[j] = (float)total[j];
      }
  }
  return TI_OK;
}

/* scan_extremes: args [values, indices long, in]; values and in are float, or long.
 *
 *   ints   [length, inner, smallest, is long]
 *   items  outer x blocks of 16 positions of inner
 * The last of equals is named, and NaN stays from where it first stands (a later NaN is named in its place).
 */
#define TI_SCAN_EXTREMES(type) do { \
    const type *x = (const type *)args[2] + base; \
    type *y = (type *)args[0] + base, best[FN(SCAN_BLOCK)]; \
    for (int64_t i = 0; i < length; i++, x += inner, y += inner, k += inner) \
      for (int64_t j = 0; j < width; j++) { \
        if (i == 0 || x[j] != x[j] || (smallest ? x[j] <= best[j] : x[j] >= best[j])) best[j] = x[j], at[j] = i; \
        y[j] = best[j]; \
        k[j] = at[j]; \
      } \
  } while (0)
TI_KERNEL(scan_extremes) {
  (void)scalars, (void)scratch;
  const int64_t length = ints[0], inner = ints[1], blocks = (inner + FN(SCAN_BLOCK) - 1) / FN(SCAN_BLOCK);
  const int smallest = (int)ints[2];
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % blocks * FN(SCAN_BLOCK), base = item / blocks * length * inner + first;
    const int64_t width = inner - first < FN(SCAN_BLOCK) ? inner - first : FN(SCAN_BLOCK);
    int64_t *k = (int64_t *)args[1] + base, at[FN(SCAN_BLOCK)];
    if (ints[3]) TI_SCAN_EXTREMES(int64_t);
    else TI_SCAN_EXTREMES(float);
  }
  return TI_OK;
}
#undef TI_SCAN_EXTREMES
