/* Softmax and log-softmax; table/softmax.py says what the kernels take. */
#include "row_sums_body.h"
#include "widen_row_body.h"

TI_INLINE float FN(row_max)(const float *x, int64_t n) {
  const VF least = FN(set)(-INFINITY);
  VF a = least, b = least, c = least, d = least;
  int64_t i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL) {
    a = FN(max)(a, FN(load)(x + i));
    b = FN(max)(b, FN(load)(x + i + VL));
    c = FN(max)(c, FN(load)(x + i + 2 * VL));
    d = FN(max)(d, FN(load)(x + i + 3 * VL));
  }
  for (; i + VL <= n; i += VL) a = FN(max)(a, FN(load)(x + i));
  if (i < n) b = FN(max)(b, FN(load_filled)(x + i, n - i, least));
  return FN(max_lanes)(FN(max)(FN(max)(a, b), FN(max)(c, d)));
}

TI_KERNEL(softmax_rows) {
  const softmax_rows_ints *const shape = (const softmax_rows_ints *)ints;
  const int64_t n = shape->extent, mode = shape->mode;
  for (int64_t row = begin; row < end; row++) {
    float *y = (float *)args[0] + row * n;
    const float *const x = FN(row_of)(args[1], row, n, shape->stored, scratch);
    const float top = FN(row_max)(x, n);
    const VF m = FN(set)(top), low = FN(set)(-INFINITY);
    VF s = {0}, t = {0};
    int64_t i = 0;
    if (mode == TI_SOFTMAX_MODE_LOG) {
      for (; i + 2 * VL <= n; i += 2 * VL) {
        s += FN(exp)(FN(load)(x + i) - m);
        t += FN(exp)(FN(load)(x + i + VL) - m);
      }
      for (; i + VL <= n; i += VL) s += FN(exp)(FN(load)(x + i) - m);
      if (i < n) t += FN(exp)(FN(load_filled)(x + i, n - i, low) - m);
      const VF shift = FN(set)(logf(FN(sum_lanes)(s + t)));
      for (i = 0; i + VL <= n; i += VL) FN(store)(y + i, FN(load)(x + i) - m - shift);
      if (i < n) FN(store_part)(y + i, FN(load_filled)(x + i, n - i, m) - m - shift, n - i);
      continue;
    }
    for (; i + 2 * VL <= n; i += 2 * VL) {
      const VF p = FN(exp)(FN(load)(x + i) - m), q = FN(exp)(FN(load)(x + i + VL) - m);
      FN(store)(y + i, p);
      FN(store)(y + i + VL, q);
      s += p, t += q;
    }
    for (; i + VL <= n; i += VL) {
      const VF p = FN(exp)(FN(load)(x + i) - m);
      FN(store)(y + i, p);
      s += p;
    }
    if (i < n) {
      const VF p = FN(exp)(FN(load_filled)(x + i, n - i, low) - m);
      FN(store_part)(y + i, p, n - i);
      t += p;
    }
    if (mode == TI_SOFTMAX_MODE_SAFE && top == -INFINITY) {
      /* NaN is not above -inf either: such a row stays NaN. */
      int any = 0;
      for (i = 0; i < n; i++) any |= x[i] != x[i];
      if (!any) {
        memset(y, 0, (size_t)n * sizeof(float));
        continue;
      }
    }
    const VF scale = FN(set)(1.0f / FN(sum_lanes)(s + t));
    for (i = 0; i + VL <= n; i += VL) FN(store)(y + i, FN(load)(y + i) * scale);
    if (i < n) FN(store_part)(y + i, FN(load_part)(y + i, n - i) * scale, n - i);
  }
  return TI_OK;
}

TI_KERNEL(softmax_rows_grad) {
  const softmax_rows_ints *const shape = (const softmax_rows_ints *)ints;
  const int64_t n = shape->extent, mode = shape->mode;
  for (int64_t row = begin; row < end; row++) {
    float *dx = (float *)args[0] + row * n;
    const float *const dy = FN(row_of)(args[1], row, n, shape->stored, scratch);
    const float *const y = FN(row_of)(args[2], row, n, shape->stored, (float *)scratch + n);
    VF s = {0}, t = {0};
    int64_t i = 0;
    if (mode == TI_SOFTMAX_MODE_LOG) {
      VF sums[4] = {{0}, {0}, {0}, {0}};
      FN(add_sum)(dy, n, sums);
      const VF sum = FN(set)(FN(sum_lanes)((sums[0] + sums[1]) + (sums[2] + sums[3])));
      for (; i + VL <= n; i += VL) FN(store)(dx + i, FN(load)(dy + i) - FN(exp)(FN(load)(y + i)) * sum);
      if (i < n) FN(store_part)(dx + i, FN(load_part)(dy + i, n - i) - FN(exp)(FN(load_part)(y + i, n - i)) * sum, n - i);
      continue;
    }
    VF u = {0}, v = {0};
    for (; i + 4 * VL <= n; i += 4 * VL) {
      s += FN(load)(dy + i) * FN(load)(y + i);
      t += FN(load)(dy + i + VL) * FN(load)(y + i + VL);
      u += FN(load)(dy + i + 2 * VL) * FN(load)(y + i + 2 * VL);
      v += FN(load)(dy + i + 3 * VL) * FN(load)(y + i + 3 * VL);
    }
    s += u, t += v;
    for (; i + VL <= n; i += VL) s += FN(load)(dy + i) * FN(load)(y + i);
    if (i < n) t += FN(load_part)(dy + i, n - i) * FN(load_part)(y + i, n - i);
    const VF sum = FN(set)(FN(sum_lanes)(s + t));
    for (i = 0; i + VL <= n; i += VL) FN(store)(dx + i, FN(load)(y + i) * (FN(load)(dy + i) - sum));
    if (i < n) FN(store_part)(dx + i, FN(load_part)(y + i, n - i) * (FN(load_part)(dy + i, n - i) - sum), n - i);
  }
  return TI_OK;
}

/* Columns of a block are taken together, row by row: a row of a large tensor is far from the next, often in the same sets of a
 * cache. What belongs to a column lies in vectors beside each other. */
#define TI_SOFTMAX_VECTORS (TI_SOFTMAX_BLOCK / VL)
#define TI_EACH_VECTOR(v, width) \
  for (int64_t v = 0, left = width; left > 0; v++, left -= VL)

/* Zeros for columns of -inf alone: NaN is not above -inf either, and such a column stays NaN. */
static void FN(clear_masked)(float *y, const float *x, const VF *top, int64_t n, int64_t inner, int64_t width) {
  for (int64_t k = 0; k < width; k++) {
    if (top[k / VL][k % VL] != -INFINITY) continue;
    int masked = 1;
    for (int64_t i = 0; i < n; i++) masked &= x[i * inner + k] == -INFINITY;
    for (int64_t i = 0; masked && i < n; i++) y[i * inner + k] = 0.0f;
  }
}
TI_KERNEL(softmax_columns) {
  const softmax_columns_ints *const shape = (const softmax_columns_ints *)ints;
  const int64_t n = shape->extent, inner = shape->inner, mode = shape->mode, blocks = ti_ceil(inner, TI_SOFTMAX_BLOCK);
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % blocks * TI_SOFTMAX_BLOCK, base = item / blocks * n * inner + first;
    const int64_t width = ti_min(TI_SOFTMAX_BLOCK, inner - first);
    float *const y = (float *)args[0] + base;
    const float *const x = (const float *)args[1] + base;
    VF top[TI_SOFTMAX_VECTORS], sum[TI_SOFTMAX_VECTORS];
    for (int v = 0; v < TI_SOFTMAX_VECTORS; v++) top[v] = FN(set)(-INFINITY), sum[v] = FN(set)(0.0f);
    for (int64_t i = 0; i < n; i++)
      TI_EACH_VECTOR(v, width) top[v] = FN(max)(FN(load_most)(x + i * inner + v * VL, left), top[v]);
    if (mode == TI_SOFTMAX_MODE_LOG) {
      for (int64_t i = 0; i < n; i++)
        TI_EACH_VECTOR(v, width) sum[v] += FN(exp)(FN(load_most)(x + i * inner + v * VL, left) - top[v]);
      for (int v = 0; v < TI_SOFTMAX_VECTORS; v++) sum[v] = FN(log)(sum[v]);
      for (int64_t i = 0; i < n; i++)
        TI_EACH_VECTOR(v, width)
          FN(store_most)(y + i * inner + v * VL, FN(load_most)(x + i * inner + v * VL, left) - top[v] - sum[v], left);
      continue;
    }
    for (int64_t i = 0; i < n; i++)
      TI_EACH_VECTOR(v, width) {
        const VF p = FN(exp)(FN(load_most)(x + i * inner + v * VL, left) - top[v]);
        FN(store_most)(y + i * inner + v * VL, p, left);
        sum[v] += p;
      }
    for (int v = 0; v < TI_SOFTMAX_VECTORS; v++) sum[v] = 1.0f / sum[v];
    for (int64_t i = 0; i < n; i++)
      TI_EACH_VECTOR(v, width)
        FN(store_most)(y + i * inner + v * VL, FN(load_most)(y + i * inner + v * VL, left) * sum[v], left);
    if (mode == TI_SOFTMAX_MODE_SAFE) FN(clear_masked)(y, x, top, n, inner, width);
  }
  return TI_OK;
}

TI_KERNEL(softmax_columns_grad) {
  const softmax_columns_ints *const shape = (const softmax_columns_ints *)ints;
  const int64_t n = shape->extent, inner = shape->inner, mode = shape->mode, blocks = ti_ceil(inner, TI_SOFTMAX_BLOCK);
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % blocks * TI_SOFTMAX_BLOCK, base = item / blocks * n * inner + first;
    const int64_t width = ti_min(TI_SOFTMAX_BLOCK, inner - first);
    float *const dx = (float *)args[0] + base;
    const float *const dy = (const float *)args[1] + base, *const y = (const float *)args[2] + base;
    VF sum[TI_SOFTMAX_VECTORS];
    for (int v = 0; v < TI_SOFTMAX_VECTORS; v++) sum[v] = FN(set)(0.0f);
    for (int64_t i = 0; i < n; i++)
      TI_EACH_VECTOR(v, width) {
        const VF g = FN(load_most)(dy + i * inner + v * VL, left);
        if (mode == TI_SOFTMAX_MODE_LOG) sum[v] += g;
        else sum[v] += g * FN(load_most)(y + i * inner + v * VL, left);
      }
    for (int64_t i = 0; i < n; i++)
      TI_EACH_VECTOR(v, width) {
        const int64_t at = i * inner + v * VL;
        const VF g = FN(load_most)(dy + at, left), made = FN(load_most)(y + at, left);
        FN(store_most)(dx + at, mode == TI_SOFTMAX_MODE_LOG ? g - FN(exp)(made) * sum[v] : made * (g - sum[v]), left);
      }
  }
  return TI_OK;
}
#undef TI_SOFTMAX_VECTORS
#undef TI_EACH_VECTOR
