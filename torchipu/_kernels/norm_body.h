/* Layer, group and batch normalisation; table/norm.py says what the kernels take. */
#include "row_sums_body.h"
#include "widen_row_body.h"

/* Columns whose scales lie on the stack. */
#define TI_NORM_COLUMNS 256

/* y = (x - mean) rstd w + b with one w and b for each element of the row; either may be NULL. */
TI_INLINE void FN(normalise_row)(float *y, const float *x, const float *w, const float *b, float mean, float rstd,
                                 int64_t n) {
  const VF m = FN(set)(mean), r = FN(set)(rstd), one = FN(set)(1.0f), none = {0};
  int64_t i = 0;
  if (w && b) {
    for (; i + VL <= n; i += VL) FN(store)(y + i, (FN(load)(x + i) - m) * r * FN(load)(w + i) + FN(load)(b + i));
  } else {
    for (; i + VL <= n; i += VL) {
      VF v = (FN(load)(x + i) - m) * r;
      if (w) v = v * FN(load)(w + i);
      FN(store)(y + i, v + (b ? FN(load)(b + i) : none));  /* without a shift too there is no -0.0, as in ATen */
    }
  }
  if (i < n) {
    const int64_t left = n - i;
    const VF scale = w ? FN(load_filled)(w + i, left, one) : one, shift = b ? FN(load_part)(b + i, left) : none;
    FN(store_part)(y + i, (FN(load_filled)(x + i, left, m) - m) * r * scale + shift, left);
  }
}

/* y = (x - mean) scale + shift, then what `added` holds, then a ReLU, which passes NaN on. */
TI_INLINE void FN(scale_row_of)(float *y, const float *x, const float *added, float mean, float scale, float shift,
                                int64_t n, const int adds, const int is_relu) {
  const VF m = FN(set)(mean), a = FN(set)(scale), b = FN(set)(shift);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) {
    VF v = FN(fma)(FN(load)(x + i) - m, a, b);
    if (adds) v += FN(load)(added + i);
    FN(store)(y + i, is_relu ? FN(relu)(v) : v);
  }
  if (i < n) {
    VF v = FN(fma)(FN(load_filled)(x + i, n - i, m) - m, a, b);
    if (adds) v += FN(load_filled)(added + i, n - i, m);
    FN(store_part)(y + i, is_relu ? FN(relu)(v) : v, n - i);
  }
}
/* `added` may be NULL. */
TI_INLINE void FN(scale_row)(float *y, const float *x, const float *added, float mean, float scale, float shift,
                             int is_relu, int64_t n) {
  if (added && is_relu) FN(scale_row_of)(y, x, added, mean, scale, shift, n, 1, 1);
  else if (added) FN(scale_row_of)(y, x, added, mean, scale, shift, n, 1, 0);
  else if (is_relu) FN(scale_row_of)(y, x, NULL, mean, scale, shift, n, 0, 1);
  else FN(scale_row_of)(y, x, NULL, mean, scale, shift, n, 0, 0);
}

/* The same of halves or bfloats, with nothing added and no ReLU. */
TI_INLINE void FN(scale_narrow_row_of)(float *y, const uint16_t *x, float mean, float scale, float shift, int64_t n,
                                       const int64_t stored) {
  const VF m = FN(set)(mean), a = FN(set)(scale), b = FN(set)(shift);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) {
    const VF v = stored == TI_STORED_HALVES ? FN(from_half)(x + i) : FN(from_bfloat)(x + i);
    FN(store)(y + i, FN(fma)(v - m, a, b));
  }
  if (i < n) {
    float rest[VL];
    FN(widen_row)(rest, x + i, n - i, stored);
    FN(scale_row_of)(y + i, rest, NULL, mean, scale, shift, n - i, 0, 0);
  }
}
static void FN(scale_narrow_row)(float *y, const char *x, float mean, float scale, float shift, int64_t n, int64_t stored) {
  if (stored == TI_STORED_HALVES) FN(scale_narrow_row_of)(y, (const uint16_t *)x, mean, scale, shift, n, TI_STORED_HALVES);
  else FN(scale_narrow_row_of)(y, (const uint16_t *)x, mean, scale, shift, n, TI_STORED_BFLOATS);
}

/* dx = g a + (x - mean) b + c */
TI_INLINE void FN(grad_row)(float *dx, const float *g, const float *x, float mean, float by_g, float by_x, float shift,
                            int64_t n) {
  const VF m = FN(set)(mean), a = FN(set)(by_g), b = FN(set)(by_x), c = FN(set)(shift);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) FN(store)(dx + i, FN(fma)(FN(load)(g + i), a, FN(fma)(FN(load)(x + i) - m, b, c)));
  if (i < n) {
    const VF v = FN(fma)(FN(load_filled)(g + i, n - i, m), a, FN(fma)(FN(load_filled)(x + i, n - i, m) - m, b, c));
    FN(store_part)(dx + i, v, n - i);
  }
}

/* As scale_row_of, with a mean, a scale and a shift for each column. */
TI_INLINE void FN(scale_columns)(float *y, const float *x, const float *added, const float *mean, const float *scale,
                                 const float *shift, int is_relu, int64_t n) {
  for (int64_t i = 0; i < n; i += VL) {
    const int64_t left = ti_min(VL, n - i);
    VF v = (FN(load_most)(x + i, left) - FN(load_most)(mean + i, left)) * FN(load_most)(scale + i, left)
           + FN(load_most)(shift + i, left);
    if (added) v += FN(load_most)(added + i, left);
    FN(store_most)(y + i, is_relu ? FN(relu)(v) : v, left);
  }
}

/* As grad_row, with factors and a shift for each column. */
TI_INLINE void FN(grad_columns)(float *dx, const float *g, const float *x, const float *mean, const float *by_g,
                                const float *by_x, const float *shift, int64_t n) {
  for (int64_t i = 0; i < n; i += VL) {
    const int64_t left = ti_min(VL, n - i);
    const VF around = FN(load_most)(x + i, left) - FN(load_most)(mean + i, left);
    const VF v = FN(load_most)(g + i, left) * FN(load_most)(by_g + i, left)
                 + (around * FN(load_most)(by_x + i, left) + FN(load_most)(shift + i, left));
    FN(store_most)(dx + i, v, left);
  }
}

TI_KERNEL(layer_norm) {
  float *y = (float *)args[0], *mean = (float *)args[1], *rstd = (float *)args[2];
  const layer_norm_ints *const p = (const layer_norm_ints *)ints;
  const float *w = p->has_weight ? (const float *)args[4] : NULL;
  const float *b = p->has_bias ? (const float *)args[5] : NULL;
  const double eps = ((const norm_scalars *)scalars)->eps;
  const int64_t n = p->width;
  for (int64_t i = begin; i < end; i++) {
    float squares;
    const float *const x = FN(row_of)(args[3], i, n, p->stored, (float *)scratch);
    FN(moments)(x, 1, 0, n, mean + i, &squares);
    rstd[i] = (float)(1.0 / sqrt(squares / (double)n + eps));
    FN(normalise_row)(y + i * n, x, w, b, mean[i], rstd[i], n);
  }
  return TI_OK;
}

TI_KERNEL(layer_norm_grad) {
  float *dx = (float *)args[0], *partials = (float *)args[1];
  const float *mean = (const float *)args[4];
  const float *rstd = (const float *)args[5], *w = (const float *)args[6];
  const layer_norm_grad_ints *const p = (const layer_norm_grad_ints *)ints;
  const int64_t m = p->rows, n = p->width, rows = p->chunk, weighted = p->has_weight, wanted = p->wants_partials;
  for (int64_t chunk = begin; chunk < end; chunk++) {
    float *dw = partials + chunk * 2 * n, *db = dw + n;
    if (wanted) memset(dw, 0, 2 * (size_t)n * sizeof(float));
    for (int64_t row = chunk * rows; row < ti_min(m, (chunk + 1) * rows); row++) {
      const float *g = FN(row_of)(args[2], row, n, p->stored, (float *)scratch);
      const float *v = FN(row_of)(args[3], row, n, p->stored, (float *)scratch + n);
      float *out = dx + row * n;
      const VF centre = FN(set)(mean[row]), r = FN(set)(rstd[row]);
      VF sum = {0}, product = {0}, around = {0};
      int64_t i = 0;
      for (; i + VL <= n; i += VL) {
        const VF gi = FN(load)(g + i), xi = (FN(load)(v + i) - centre) * r;
        VF gw = gi;
        if (weighted) gw = gi * FN(load)(w + i);
        if (wanted) {
          FN(store)(dw + i, FN(load)(dw + i) + gi * xi);
          FN(store)(db + i, FN(load)(db + i) + gi);
        }
        sum += gw, product += gw * xi, around += xi;
      }
      if (i < n) {
        const int64_t left = n - i;
        const VF gi = FN(load_part)(g + i, left), xi = (FN(load_filled)(v + i, left, centre) - centre) * r;
        VF gw = gi;
        if (weighted) gw = gi * FN(load_part)(w + i, left);
        if (wanted) {
          FN(store_part)(dw + i, FN(load_part)(dw + i, left) + gi * xi, left);
          FN(store_part)(db + i, FN(load_part)(db + i, left) + gi, left);
        }
        sum += gw, product += gw * xi, around += xi;
      }
      /* The mean is rounded: of what all elements of the gradient have in common none may go with x. */
      const float common = FN(sum_lanes)(sum) / (float)n;
      const float along = (FN(sum_lanes)(product) - common * FN(sum_lanes)(around)) / (float)n;
      const VF level = FN(set)(common), slope = FN(set)(along);
      for (i = 0; i + VL <= n; i += VL) {
        const VF gi = FN(load)(g + i), xi = (FN(load)(v + i) - centre) * r;
        VF gw = gi;
        if (weighted) gw = gi * FN(load)(w + i);
        FN(store)(out + i, (gw - level - xi * slope) * r);
      }
      if (i < n) {
        const int64_t left = n - i;
        const VF gi = FN(load_part)(g + i, left), xi = (FN(load_filled)(v + i, left, centre) - centre) * r;
        VF gw = gi;
        if (weighted) gw = gi * FN(load_part)(w + i, left);
        FN(store_part)(out + i, (gw - level - xi * slope) * r, left);
      }
    }
  }
  return TI_OK;
}

TI_KERNEL(sum_partials) {
  float *a = (float *)args[0], *b = (float *)args[1];
  const float *partials = (const float *)args[2];
  const int64_t chunks = ((const sum_partials_ints *)ints)->chunks, n = ((const sum_partials_ints *)ints)->width;
  /* In the order of the chunks, in double. */
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t width = ti_min(32, end - first);
    double s[32] = {0}, t[32] = {0};
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      const float *p = partials + chunk * 2 * n + first, *q = p + n;
      for (int64_t i = 0; i < width; i++) s[i] += p[i], t[i] += q[i];
    }
    for (int64_t i = 0; i < width; i++) a[first + i] = (float)s[i], b[first + i] = (float)t[i];
  }
  return TI_OK;
}

/* Moments of a long contiguous region, in pieces that stay in the cache, merged in double. */
TI_INLINE void FN(region_moments)(const float *x, int64_t n, double *mean, double *squares) {
  double m = 0, q = 0, count = 0;
  for (int64_t i = 0; i < n; i += TI_NORM_SPLIT) {
    const int64_t width = ti_min(TI_NORM_SPLIT, n - i);
    float piece, around;
    FN(moments)(x + i, 1, 0, width, &piece, &around);
    const double delta = piece - m, total = count + (double)width;
    q += around + delta * delta * count * (double)width / total;
    m += delta * (double)width / total;
    count = total;
  }
  *mean = m, *squares = q;
}

TI_KERNEL(group_norm) {
  float *y = (float *)args[0], *mean = (float *)args[1], *rstd = (float *)args[2];
  const group_norm_ints *const p = (const group_norm_ints *)ints;
  const float *x = (const float *)args[3], *w = p->has_weight ? (const float *)args[4] : NULL;
  const float *b = p->has_bias ? (const float *)args[5] : NULL;
  const double eps = ((const norm_scalars *)scalars)->eps;
  const int64_t d = p->depth, l = p->positions, groups = p->groups, n = d * l;
  for (int64_t i = begin; i < end; i++) {
    const int64_t c = (i % groups) * d;
    double centre, squares;
    FN(region_moments)(x + i * n, n, &centre, &squares);
    const double r = 1.0 / sqrt(squares / (double)n + eps);
    mean[i] = (float)centre, rstd[i] = (float)r;
    if (l == 1) {
      FN(normalise_row)(y + i * n, x + i * n, w ? w + c : NULL, b ? b + c : NULL, mean[i], rstd[i], n);
      continue;
    }
    for (int64_t k = 0; k < d; k++) {
      const float scale = w ? (float)r * w[c + k] : (float)r, shift = b ? b[c + k] : 0.0f;
      FN(scale_row)(y + i * n + k * l, x + i * n + k * l, NULL, (float)centre, scale, shift, 0, l);
    }
  }
  return TI_OK;
}

TI_KERNEL(group_norm_grad) {
  float *dx = (float *)args[0], *partials = (float *)args[1];
  const float *dy = (const float *)args[2], *x = (const float *)args[3], *mean = (const float *)args[4];
  const group_norm_ints *const p = (const group_norm_ints *)ints;
  const float *rstd = (const float *)args[5], *w = p->has_weight ? (const float *)args[6] : NULL;
  const int64_t d = p->depth, l = p->positions, groups = p->groups, n = d * l, channels = d * groups;
  for (int64_t i = begin; i < end; i++) {
    const int64_t c = (i % groups) * d;
    float *dw = partials + (i / groups) * 2 * channels + c, *db = dw + channels;
    const double r = rstd[i];
    double level = 0, slope = 0;
    for (int64_t k = 0; k < d; k++) {
      VF s[4] = {{0}, {0}, {0}, {0}};
      FN(add_products)(dy + i * n + k * l, x + i * n + k * l, l, FN(set)(mean[i]), s);
      const double sum = FN(sum_lanes)(s[0] + s[1]), product = FN(sum_lanes)(s[2] + s[3]) * r, scale = w ? w[c + k] : 1.0;
      dw[k] = (float)product, db[k] = (float)sum;
      level += sum * scale, slope += product * scale;
    }
    level /= (double)n, slope /= (double)n;
    for (int64_t k = 0; k < d; k++) {
      const double scale = w ? w[c + k] : 1.0;
      FN(grad_row)(dx + i * n + k * l, dy + i * n + k * l, x + i * n + k * l, mean[i], (float)(scale * r),
                   (float)(-slope * r * r), (float)(-level * r), l);
    }
  }
  return TI_OK;
}

#include "batch_norm_body.h"
#include "group_rows_body.h"
