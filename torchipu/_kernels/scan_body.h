/* Scans along one dimension; table/scan.py says what the kernels take. */

#ifndef TORCHIPU_SCAN_ROWS
#define TORCHIPU_SCAN_ROWS
enum { TI_SCAN_ROWS = 8, TI_SCAN_STRETCH = 48 };
#endif

/* log(exp(a) + exp(b)); equal infinities stay as they are, and NaN passes. */
static inline double FN(log_add)(double a, double b) {
  const double low = a != a || a < b ? a : b, high = a != a || a > b ? a : b;
  if (low == high && isinf(low)) return low;
  return high + log1p(exp(low - high));
}

/* Sums or products along dense rows, some at a time: each has to wait for its last, but not for those of its neighbours.
 * From place to place x and y move by `step`, which is 1, or -1 from the rows' ends. Stretches of the rows are brought side by
 * side first: rows that lie a power of two apart would push one another out of the cache. */
TI_INLINE void FN(scan_rows)(const int is_product, const int rows, const float *x, float *y, int64_t length, const int step) {
  double total[TI_SCAN_ROWS];
  float some[TI_SCAN_ROWS][TI_SCAN_STRETCH];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) total[r] = is_product;
  for (int64_t done = 0; done < length; done += TI_SCAN_STRETCH) {
    const int64_t n = ti_min(length - done, TI_SCAN_STRETCH), at = step > 0 ? done : -(done + n - 1);
    for (int r = 0; r < rows; r++) memcpy(some[r], x + r * length + at, (size_t)n * sizeof *x);
    for (int64_t k = 0; k < n; k++) {
      const int64_t i = step > 0 ? k : n - 1 - k;
#pragma GCC unroll 8
      for (int r = 0; r < rows; r++) {
        const double v = (double)some[r][i];
        total[r] = is_product ? total[r] * v : total[r] + v;
        some[r][i] = (float)total[r];
      }
    }
    for (int r = 0; r < rows; r++) memcpy(y + r * length + at, some[r], (size_t)n * sizeof *y);
  }
}

TI_INLINE void FN(scan_dense)(const int is_product, const int step, const float *x, float *y, int64_t length, int64_t rows) {
  for (; rows >= TI_SCAN_ROWS; rows -= TI_SCAN_ROWS, x += TI_SCAN_ROWS * length, y += TI_SCAN_ROWS * length)
    FN(scan_rows)(is_product, TI_SCAN_ROWS, x, y, length, step);
  for (; rows > 0; rows--, x += length, y += length) FN(scan_rows)(is_product, 1, x, y, length, step);
}

TI_KERNEL(scan) {
  (void)scalars, (void)scratch;
  const scan_ints *const shape = (const scan_ints *)ints;
  const int64_t length = shape->length, inner = shape->inner, blocks = ti_ceil(inner, TI_SCAN_BLOCK);
  const int mode = (int)shape->scanning, is_backward = (int)shape->is_backward;
  const int64_t start_at = is_backward ? length - 1 : 0, step = is_backward ? -inner : inner;
  if (inner == 1 && !shape->is_long && (mode == TI_SCANNING_SUM || mode == TI_SCANNING_PRODUCT)) {
    const float *x = (const float *)args[1] + begin * length + start_at;
    float *y = (float *)args[0] + begin * length + start_at;
    if (mode == TI_SCANNING_PRODUCT) {
      if (is_backward) FN(scan_dense)(1, -1, x, y, length, end - begin);
      else FN(scan_dense)(1, 1, x, y, length, end - begin);
    } else if (is_backward) FN(scan_dense)(0, -1, x, y, length, end - begin);
    else FN(scan_dense)(0, 1, x, y, length, end - begin);
    return TI_OK;
  }
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % blocks * TI_SCAN_BLOCK, base = (item / blocks * length + start_at) * inner + first;
    const int64_t width = ti_min(inner - first, TI_SCAN_BLOCK);
    if (shape->is_long) {
      const int64_t *x = (const int64_t *)args[1] + base;
      int64_t *y = (int64_t *)args[0] + base;
      if (inner == 1) {  /* in a register: a total in memory would be waited for at each place */
        uint64_t so_far = mode == TI_SCANNING_PRODUCT;
        if (mode == TI_SCANNING_PRODUCT) for (int64_t i = 0; i < length; i++) y[i * step] = (int64_t)(so_far *= (uint64_t)x[i * step]);
        else for (int64_t i = 0; i < length; i++) y[i * step] = (int64_t)(so_far += (uint64_t)x[i * step]);
        continue;
      }
      uint64_t total[TI_SCAN_BLOCK];
      for (int64_t j = 0; j < width; j++) total[j] = mode == TI_SCANNING_PRODUCT;
      for (int64_t i = 0; i < length; i++, x += step, y += step)
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
    for (int64_t i = 0; i < length; i++, x += step, y += step)
      for (int64_t j = 0; j < width; j++) {
        if (mode == TI_SCANNING_SUM) total[j] += (double)x[j];
        else if (mode == TI_SCANNING_PRODUCT) total[j] *= (double)x[j];
        else total[j] = FN(log_add)(total[j], (double)x[j]);
        y[j] = (float)total[j];
      }
  }
  return TI_OK;
}

/* What the factors of some rows side by side, `apart` from one another, get of gradients of their products: the product of
 * those before, times what all products from there on hand back, which takes each factor behind once. No factor is
 * divided by, so that zeros are like others. Rows get the same bits however many go side by side. */
typedef struct {
  float *gradient;
  const float *given, *factors;
  int64_t length, step, apart, given_step, given_apart;
  int running;
} FN(gradient_rows);

/* The gradient of running products of row j where not all is finite: ATen has it by division, and lets nothing that
 * lies behind a zero reach what lies before. `so_far` has the products before blocks, `rows` apart. */
static void FN(gradient_among_infinities)(const FN(gradient_rows) *p, int64_t j, int64_t rows, const double *so_far) {
  const float *x = p->factors + j * p->apart, *given = p->given + j * p->given_apart;
  float *gradient = p->gradient + j * p->apart;
  const int64_t step = p->step, given_step = p->given_step, length = p->length;
  int64_t zero = 0, next;
  while (zero < length && x[zero * step] != 0) zero++;
  double before[TI_GRADIENT_BLOCK], total = 0, product = 1, behind = 0;
  for (next = zero; next < length && (next == zero || x[next * step] != 0); next++) {
    if (next > zero) product *= (double)x[next * step];
    behind += product * (double)given[next * given_step];
  }
  if (next < length) behind += product * 0;
  for (int64_t first = (length - 1) / TI_GRADIENT_BLOCK * TI_GRADIENT_BLOCK; first >= 0; first -= TI_GRADIENT_BLOCK) {
    const int64_t last = ti_min(first + TI_GRADIENT_BLOCK, length) - 1;
    before[0] = so_far[first / TI_GRADIENT_BLOCK * rows + j];
    for (int64_t i = first; i < last; i++) before[i + 1 - first] = before[i - first] * (double)x[i * step];
    for (int64_t i = last; i >= first; i--) {
      const double factor = (double)x[i * step], so_far_here = before[i - first];
      if (i < zero) total += so_far_here * factor * (double)given[i * given_step];
      gradient[i * step] = i > zero ? 0.f : (float)(i == zero ? behind * so_far_here : total / factor);
    }
  }
}
TI_INLINE void FN(product_gradient_of)(const FN(gradient_rows) *p, const int64_t rows, double *so_far) {
  double product[TI_SCAN_BLOCK], behind[TI_SCAN_BLOCK], next[TI_SCAN_BLOCK], before[TI_GRADIENT_BLOCK][TI_SCAN_BLOCK];
  for (int64_t j = 0; j < rows; j++) product[j] = 1, behind[j] = next[j] = 0;
  for (int64_t i = 0; i < p->length; i++) {
    if (i % TI_GRADIENT_BLOCK == 0) for (int64_t j = 0; j < rows; j++) so_far[i / TI_GRADIENT_BLOCK * rows + j] = product[j];
    for (int64_t j = 0; j < rows; j++) product[j] *= (double)p->factors[i * p->step + j * p->apart];
  }
  for (int64_t first = (p->length - 1) / TI_GRADIENT_BLOCK * TI_GRADIENT_BLOCK; first >= 0; first -= TI_GRADIENT_BLOCK) {
    const int64_t last = ti_min(first + TI_GRADIENT_BLOCK, p->length) - 1;
    for (int64_t j = 0; j < rows; j++) before[0][j] = so_far[first / TI_GRADIENT_BLOCK * rows + j];
    for (int64_t i = first; i < last; i++)
      for (int64_t j = 0; j < rows; j++) before[i + 1 - first][j] = before[i - first][j] * (double)p->factors[i * p->step + j * p->apart];
    for (int64_t i = last; i >= first; i--) {
      const int has_given = p->running || i == p->length - 1;
      for (int64_t j = 0; j < rows; j++) {
        const double given = has_given ? (double)p->given[(p->running ? i : 0) * p->given_step + j * p->given_apart] : 0;
        behind[j] = __builtin_fma(next[j], behind[j], given);
        next[j] = (double)p->factors[i * p->step + j * p->apart];
        p->gradient[i * p->step + j * p->apart] = (float)(before[i - first][j] * behind[j]);
      }
    }
  }
  if (p->running && p->length > 1)
    for (int64_t j = 0; j < rows; j++)
      if (!isfinite(product[j]) || !isfinite(behind[j])) FN(gradient_among_infinities)(p, j, rows, so_far);
}
TI_KERNEL(product_gradient) {
  (void)scalars;
  const product_gradient_ints *const shape = (const product_gradient_ints *)ints;
  const int64_t length = shape->length, inner = shape->inner, blocks = ti_ceil(inner, TI_SCAN_BLOCK), given = shape->running ? length : 1;
  for (int64_t item = begin; item < end;) {
    const int64_t outer = item / blocks, first = item % blocks * TI_SCAN_BLOCK, at = outer * length * inner + first;
    const FN(gradient_rows) rows = {
      .gradient = (float *)args[0] + at, .given = (const float *)args[1] + outer * given * inner + first,
      .factors = (const float *)args[2] + at, .length = length, .step = inner, .apart = inner == 1 ? length : 1, .given_step = inner,
      .given_apart = inner == 1 ? given : 1, .running = (int)shape->running,
    };
    if (inner == 1 && end - item >= TI_GRADIENT_ROWS) {
      FN(product_gradient_of)(&rows, TI_GRADIENT_ROWS, (double *)scratch);
      item += TI_GRADIENT_ROWS;
      continue;
    }
    if (inner == 1) FN(product_gradient_of)(&rows, 1, (double *)scratch);
    else FN(product_gradient_of)(&rows, ti_min(inner - first, TI_SCAN_BLOCK), (double *)scratch);
    item++;
  }
  return TI_OK;
}

/* Along a dense row, in registers: seldom is an element beyond all before it. */
#define TI_EXTREMES_OF_ROW(type, beats) do { \
    type most = x[0]; \
    int64_t place = 0; \
    for (int64_t i = 0; i < length; i++) { \
      if (x[i] beats most || x[i] != x[i]) most = x[i], place = i; \
      y[i] = most; \
      k[i] = place; \
    } \
  } while (0)
#define TI_SCAN_EXTREMES(type) do { \
    const type *x = (const type *)args[2] + base; \
    type *y = (type *)args[0] + base, best[TI_SCAN_BLOCK]; \
    if (inner == 1 && smallest) TI_EXTREMES_OF_ROW(type, <=); \
    else if (inner == 1) TI_EXTREMES_OF_ROW(type, >=); \
    else for (int64_t i = 0; i < length; i++, x += inner, y += inner, k += inner) \
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
#undef TI_EXTREMES_OF_ROW
