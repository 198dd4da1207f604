/* Layer, group and batch normalisation. Optional arguments are named by flags; an absent one points anywhere. */
#include "row_sums_body.h"

/* y = (x - mean) rstd w + b with one w and b for each element of the row. */
TI_INLINE void FN(normalise_row)(float *y, const float *x, const float *w, const float *b, int flags, float mean,
                                 float rstd, int64_t n) {
  const VF m = FN(set)(mean), r = FN(set)(rstd), one = FN(set)(1.0f), none = {0};
  int64_t i = 0;
  if (flags == 3) {
    for (; i + VL <= n; i += VL) FN(store)(y + i, (FN(load)(x + i) - m) * r * FN(load)(w + i) + FN(load)(b + i));
  } else {
    for (; i + VL <= n; i += VL) {
      VF v = (FN(load)(x + i) - m) * r;
      if (flags & 1) v = v * FN(load)(w + i);
      if (flags & 2) v = v + FN(load)(b + i);
      FN(store)(y + i, v);
    }
  }
  if (i < n) {
    const int64_t left = n - i;
    const VF scale = flags & 1 ? FN(load_filled)(w + i, left, one) : one, shift = flags & 2 ? FN(load_part)(b + i, left) : none;
    FN(store_part)(y + i, (FN(load_filled)(x + i, left, m) - m) * r * scale + shift, left);
  }
}

/* y = (x - mean) scale + shift, then what `added` holds, then a ReLU, which passes NaN on. */
TI_INLINE void FN(scale_row_of)(float *y, const float *x, const float *added, float mean, float scale, float shift,
                                int64_t n, const int adds, const int is_relu) {
  const VF m = FN(set)(mean), a = FN(set)(scale), b = FN(set)(shift);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) {
    VF v = (FN(load)(x + i) - m) * a + b;
    if (adds) v += FN(load)(added + i);
    FN(store)(y + i, is_relu ? FN(relu)(v) : v);
  }
  if (i < n) {
    VF v = (FN(load_filled)(x + i, n - i, m) - m) * a + b;
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

/* dx = g a + (x - mean) b + c */
TI_INLINE void FN(grad_row)(float *dx, const float *g, const float *x, float mean, float by_g, float by_x, float shift,
                            int64_t n) {
  const VF m = FN(set)(mean), a = FN(set)(by_g), b = FN(set)(by_x), c = FN(set)(shift);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) FN(store)(dx + i, FN(load)(g + i) * a + ((FN(load)(x + i) - m) * b + c));
  if (i < n) {
    const VF v = FN(load_filled)(g + i, n - i, m) * a + ((FN(load_filled)(x + i, n - i, m) - m) * b + c);
    FN(store_part)(dx + i, v, n - i);
  }
}

/* layer_norm: args y [M, N], mean [M], rstd [M], x [M, N], weight [N], bias [N]; ints N, flags; scalars eps.
 * Items: rows. */
TI_KERNEL(layer_norm) {
  float *y = (float *)args[0], *mean = (float *)args[1], *rstd = (float *)args[2];
  const float *x = (const float *)args[3], *w = (const float *)args[4], *b = (const float *)args[5];
  const int64_t n = ints[0];
  const int flags = (int)ints[1];
  for (int64_t i = begin; i < end; i++) {
    float squares;
    FN(moments)(x + i * n, 1, 0, n, mean + i, &squares);
    rstd[i] = (float)(1.0 / sqrt(squares / (double)n + scalars[0]));
    FN(normalise_row)(y + i * n, x + i * n, w, b, flags, mean[i], rstd[i], n);
  }
  return TI_OK;
}

/* layer_norm_grad: args dx [M, N], partials [chunks, 2, N] (weight, bias), dy [M, N], x [M, N], mean [M], rstd [M],
 * weight [N]; ints M, N, rows in a chunk, flags (1 has weight, 4 partials wanted). Items: chunks of rows. */
TI_KERNEL(layer_norm_grad) {
  float *dx = (float *)args[0], *partials = (float *)args[1];
  const float *dy = (const float *)args[2], *x = (const float *)args[3], *mean = (const float *)args[4];
  const float *rstd = (const float *)args[5], *w = (const float *)args[6];
  const int64_t m = ints[0], n = ints[1], rows = ints[2], weighted = ints[3] & 1, wanted = ints[3] & 4;
  for (int64_t chunk = begin; chunk < end; chunk++) {
    float *dw = partials + chunk * 2 * n, *db = dw + n;
    if (wanted) memset(dw, 0, 2 * (size_t)n * sizeof(float));
    for (int64_t row = chunk * rows; row < ti_min(m, (chunk + 1) * rows); row++) {
      const float *g = dy + row * n, *v = x + row * n;
      float *out = dx + row * n;
      const VF centre = FN(set)(mean[row]), r = FN(set)(rstd[row]);
      VF sum = {0}, product = {0};
      int64_t i = 0;
      for (; i + VL <= n; i += VL) {
        const VF gi = FN(load)(g + i), xi = (FN(load)(v + i) - centre) * r;
        VF gw = gi;
        if (weighted) gw = gi * FN(load)(w + i);
        if (wanted) {
          FN(store)(dw + i, FN(load)(dw + i) + gi * xi);
          FN(store)(db + i, FN(load)(db + i) + gi);
        }
        sum += gw, product += gw * xi;
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
        sum += gw, product += gw * xi;
      }
      const VF level = FN(set)(FN(sum_lanes)(sum) / (float)n), slope = FN(set)(FN(sum_lanes)(product) / (float)n);
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

/* sum_partials: args a [N], b [N], partials [chunks, 2, N]; ints chunks, N. Items: columns. Adds in order of chunks,
 * in double. */
TI_KERNEL(sum_partials) {
  float *a = (float *)args[0], *b = (float *)args[1];
  const float *partials = (const float *)args[2];
  const int64_t chunks = ints[0], n = ints[1];
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
  for (int64_t i = 0; i < n; i += 16384) {
    const int64_t width = ti_min(16384, n - i);
    float piece, around;
    FN(moments)(x + i, 1, 0, width, &piece, &around);
    const double delta = piece - m, total = count + (double)width;
    q += around + delta * delta * count * (double)width / total;
    m += delta * (double)width / total;
    count = total;
  }
  *mean = m, *squares = q;
}

/* group_norm: args y, mean [N, G], rstd [N, G], x, weight [C], bias [C]; ints channels in a group D, positions L,
 * groups G, flags; scalars eps. Items: (sample, group). */
TI_KERNEL(group_norm) {
  float *y = (float *)args[0], *mean = (float *)args[1], *rstd = (float *)args[2];
  const float *x = (const float *)args[3], *w = (const float *)args[4], *b = (const float *)args[5];
  const int64_t d = ints[0], l = ints[1], groups = ints[2], flags = ints[3], n = d * l;
  for (int64_t i = begin; i < end; i++) {
    const int64_t c = (i % groups) * d;
    double centre, squares;
    FN(region_moments)(x + i * n, n, &centre, &squares);
    const double r = 1.0 / sqrt(squares / (double)n + scalars[0]);
    mean[i] = (float)centre, rstd[i] = (float)r;
    if (l == 1) {
      FN(normalise_row)(y + i * n, x + i * n, w + c, b + c, (int)flags, mean[i], rstd[i], n);
      continue;
    }
    for (int64_t k = 0; k < d; k++) {
      const float scale = flags & 1 ? (float)r * w[c + k] : (float)r, shift = flags & 2 ? b[c + k] : 0.0f;
      FN(scale_row)(y + i * n + k * l, x + i * n + k * l, NULL, (float)centre, scale, shift, 0, l);
    }
  }
  return TI_OK;
}

/* group_norm_grad: args dx, partials [N, 2, C] (weight, bias), dy, x, mean [N, G], rstd [N, G], weight [C]; ints D, L,
 * G, flags (1 has weight). Items: (sample, group). */
TI_KERNEL(group_norm_grad) {
  float *dx = (float *)args[0], *partials = (float *)args[1];
  const float *dy = (const float *)args[2], *x = (const float *)args[3], *mean = (const float *)args[4];
  const float *rstd = (const float *)args[5], *w = (const float *)args[6];
  const int64_t d = ints[0], l = ints[1], groups = ints[2], flags = ints[3], n = d * l, channels = d * groups;
  for (int64_t i = begin; i < end; i++) {
    const int64_t c = (i % groups) * d;
    float *dw = partials + (i / groups) * 2 * channels + c, *db = dw + channels;
    const double r = rstd[i];
    double level = 0, slope = 0;
    for (int64_t k = 0; k < d; k++) {
      VF s[4] = {{0}, {0}, {0}, {0}};
      FN(add_products)(dy + i * n + k * l, x + i * n + k * l, l, FN(set)(mean[i]), s);
      const double sum = FN(sum_lanes)(s[0] + s[1]), product = FN(sum_lanes)(s[2] + s[3]) * r, scale = flags & 1 ? w[c + k] : 1.0;
      dw[k] = (float)product, db[k] = (float)sum;
      level += sum * scale, slope += product * scale;
    }
    level /= (double)n, slope /= (double)n;
    for (int64_t k = 0; k < d; k++) {
      const double scale = flags & 1 ? w[c + k] : 1.0;
      FN(grad_row)(dx + i * n + k * l, dy + i * n + k * l, x + i * n + k * l, mean[i], (float)(scale * r),
                   (float)(-slope * r * r), (float)(-level * r), l);
    }
  }
  return TI_OK;
}

/* ---------------------------------------------------------------------------------------------- batch normalisation
 * x is [N, C, L]. A channel is cut into splits of at most 16384 elements: R samples of L positions, or P positions of
 * one sample. ints of all kernels: N, C, L, R, P, flags (1 weight, 2 bias, 4 running statistics, 8 the statistics are
 * the running ones: a variance stands where the reciprocal deviation would, 16 something of the same shape is added to
 * the result, 32 a ReLU follows). scalars: eps, momentum. */
typedef struct { int64_t n, c, l, rows, piece, pieces, splits; } FN(geometry);

TI_INLINE FN(geometry) FN(geometry_of)(const int64_t *ints) {
  FN(geometry) g = {ints[0], ints[1], ints[2], ints[3], ints[4], 0, 0};
  g.pieces = (g.l + g.piece - 1) / g.piece;
  g.splits = (g.n + g.rows - 1) / g.rows * g.pieces;
  return g;
}

/* Where split s of channel c begins, how many samples it has, and how many positions of each. */
TI_INLINE int64_t FN(split_of)(FN(geometry) g, int64_t c, int64_t s, int64_t *rows, int64_t *width) {
  const int64_t first = s / g.pieces * g.rows, at = s % g.pieces * g.piece;
  *rows = ti_min(g.rows, g.n - first);
  *width = ti_min(g.piece, g.l - at);
  return (first * g.c + c) * g.l + at;
}

typedef struct { double mean, squares, count; } FN(channel);

TI_INLINE void FN(merge)(FN(channel) *into, double mean, double squares, double count) {
  const double delta = mean - into->mean, total = into->count + count;
  into->squares += squares + delta * delta * into->count * count / total;
  into->mean += delta * count / total;
  into->count = total;
}

/* Writes save_mean, save_rstd and the running statistics of channel c. */
TI_INLINE void FN(keep_statistics)(char *const *args, FN(channel) all, int64_t c, int64_t flags, const double *scalars) {
  const double variance = all.squares / all.count, momentum = scalars[1];
  ((float *)args[0])[c] = (float)all.mean;
  ((float *)args[1])[c] = (float)(1.0 / sqrt(variance + scalars[0]));
  if (flags & 4) {
    const float *mean = (const float *)args[4], *var = (const float *)args[5];
    ((float *)args[2])[c] = (float)(momentum * all.mean + (1 - momentum) * mean[c]);
    ((float *)args[3])[c] = (float)(momentum * all.squares / (all.count - 1) + (1 - momentum) * var[c]);
  }
}

/* batch_moments: args partials [C, splits, 2] (mean, squares), x. Items: (channel, split). */
TI_KERNEL(batch_moments) {
  float *partials = (float *)args[0];
  const float *x = (const float *)args[1];
  const FN(geometry) g = FN(geometry_of)(ints);
  for (int64_t i = begin; i < end; i++) {
    int64_t rows, width;
    const int64_t at = FN(split_of)(g, i / g.splits, i % g.splits, &rows, &width);
    FN(moments)(x + at, rows, g.c * g.l, width, partials + 2 * i, partials + 2 * i + 1);
  }
  return TI_OK;
}

/* batch_statistics: args save_mean, save_rstd, new running mean, new running variance, running mean, running variance
 * (all [C]), partials [C, splits, 2]. Items: channels. */
TI_KERNEL(batch_statistics) {
  const float *partials = (const float *)args[6];
  const FN(geometry) g = FN(geometry_of)(ints);
  for (int64_t c = begin; c < end; c++) {
    FN(channel) all = {0, 0, 0};
    for (int64_t s = 0; s < g.splits; s++) {
      int64_t rows, width;
      FN(split_of)(g, c, s, &rows, &width);
      const float *p = partials + 2 * (c * g.splits + s);
      FN(merge)(&all, p[0], p[1], (double)rows * (double)width);
    }
    FN(keep_statistics)(args, all, c, ints[5], scalars);
  }
  return TI_OK;
}

TI_INLINE float FN(deviation)(const float *values, int64_t c, int64_t flags, double eps) {
  return flags & 8 ? (float)(1.0 / sqrt(values[c] + eps)) : values[c];
}

/* batch_apply: args y, x, mean [C], rstd or variance [C], weight [C], bias [C], what is added. Items: (sample, channel), or samples
 * when L is 1. */
TI_KERNEL(batch_apply) {
  float *y = (float *)args[0];
  const float *x = (const float *)args[1], *mean = (const float *)args[2], *spread = (const float *)args[3];
  const float *w = (const float *)args[4], *b = (const float *)args[5];
  const int64_t channels = ints[1], l = ints[2], flags = ints[5];
  const float *const added = flags & 16 ? (const float *)args[6] : NULL;
  if (l == 1) {
    const float eps = (float)scalars[0];
    for (int64_t i = begin * channels; i < end * channels; i += channels)
      for (int64_t c = 0; c < channels; c++) {
        const float r = flags & 8 ? 1.0f / sqrtf(spread[c] + eps) : spread[c];
        const float v = (x[i + c] - mean[c]) * (flags & 1 ? r * w[c] : r) + (flags & 2 ? b[c] : 0.0f) + (added ? added[i + c] : 0.0f);
        y[i + c] = flags & 32 && v < 0 ? 0.0f : v;
      }
    return TI_OK;
  }
  for (int64_t i = begin; i < end; i++) {
    const int64_t c = i % channels;
    const float r = FN(deviation)(spread, c, flags, scalars[0]);
    FN(scale_row)(y + i * l, x + i * l, added ? added + i * l : NULL, mean[c], flags & 1 ? r * w[c] : r,
                  flags & 2 ? b[c] : 0.0f, flags & 32, l);
  }
  return TI_OK;
}

/* batch_norm: all of the above, a channel at a time while it lies in the cache. args y, save_mean, save_rstd, new
 * running mean, new running variance, running mean, running variance, x, weight, bias, what is added. Items:
 * channels. */
TI_KERNEL(batch_norm) {
  float *y = (float *)args[0];
  const float *rstd = (const float *)args[2], *x = (const float *)args[7], *w = (const float *)args[8];
  const float *b = (const float *)args[9], *const added = ints[5] & 16 ? (const float *)args[10] : NULL;
  const FN(geometry) g = FN(geometry_of)(ints);
  for (int64_t c = begin; c < end; c++) {
    FN(channel) all = {0, 0, 0};
    for (int64_t s = 0; s < g.splits; s++) {
      int64_t rows, width;
      float mean, squares;
      const int64_t at = FN(split_of)(g, c, s, &rows, &width);
      FN(moments)(x + at, rows, g.c * g.l, width, &mean, &squares);
      FN(merge)(&all, mean, squares, (double)rows * (double)width);
    }
    FN(keep_statistics)(args + 1, all, c, ints[5], scalars);
    const float scale = ints[5] & 1 ? rstd[c] * w[c] : rstd[c], shift = ints[5] & 2 ? b[c] : 0.0f;
    for (int64_t n = 0; n < g.n; n++) {
      const int64_t at = (n * g.c + c) * g.l;
      FN(scale_row)(y + at, x + at, added ? added + at : NULL, (float)all.mean, scale, shift, ints[5] & 32, g.l);
    }
  }
  return TI_OK;
}

/* Means of VL columns of [N, C] from column c, `left` of them real, and sums of squares around them. Sums of 256 rows
 * at a time keep the error of long columns small. */
TI_INLINE void FN(column_moments)(const float *x, int64_t n, int64_t stride, int64_t left, VF *mean, VF *squares) {
  VF sum = {0};
  for (int64_t first = 0; first < n; first += 256) {
    VF s = {0};
    for (int64_t i = first; i < ti_min(n, first + 256); i++)
      s += FN(load_most)(x + i * stride, left);
    sum += s;
  }
  const VF centre = sum / (float)n;
  VF rest = {0}, around = {0};
  for (int64_t first = 0; first < n; first += 256) {
    VF s = {0}, t = {0};
    for (int64_t i = first; i < ti_min(n, first + 256); i++) {
      const VF d = FN(load_most_filled)(x + i * stride, left, centre) - centre;
      s += d, t += d * d;
    }
    rest += s, around += t;
  }
  *mean = centre + rest / (float)n;
  *squares = around - rest * rest / (float)n;
}

/* batch_columns: statistics when L is 1. args as batch_statistics with x [N, C] last. Items: channels. */
TI_KERNEL(batch_columns) {
  const float *x = (const float *)args[6];
  for (int64_t c = begin; c < end; c += VL) {
    VF mean, squares;
    const int64_t left = ti_min(VL, end - c);
    FN(column_moments)(x + c, ints[0], ints[1], left, &mean, &squares);
    for (int64_t i = 0; i < left; i++) {
      const FN(channel) all = {mean[i], squares[i] < 0 ? 0.0 : squares[i], (double)ints[0]};
      FN(keep_statistics)(args, all, c + i, ints[5], scalars);
    }
  }
  return TI_OK;
}

/* batch_grad_sums: args partials [C, splits, 2] (dy (x - mean), dy), dy, x, mean [C]. Items: (channel, split). */
TI_KERNEL(batch_grad_sums) {
  float *partials = (float *)args[0];
  const float *dy = (const float *)args[1], *x = (const float *)args[2], *mean = (const float *)args[3];
  const FN(geometry) g = FN(geometry_of)(ints);
  for (int64_t i = begin; i < end; i++) {
    int64_t rows, width;
    const int64_t c = i / g.splits, at = FN(split_of)(g, c, i % g.splits, &rows, &width);
    VF s[4] = {{0}, {0}, {0}, {0}};
    for (int64_t r = 0; r < rows; r++)
      FN(add_products)(dy + at + r * g.c * g.l, x + at + r * g.c * g.l, width, FN(set)(mean[c]), s);
    partials[2 * i] = FN(sum_lanes)(s[2] + s[3]), partials[2 * i + 1] = FN(sum_lanes)(s[0] + s[1]);
  }
  return TI_OK;
}

/* batch_grad_statistics: args dweight [C], dbias [C], rstd or variance [C], partials [C, splits, 2]. Items: channels. */
TI_KERNEL(batch_grad_statistics) {
  float *dw = (float *)args[0], *db = (float *)args[1];
  const float *spread = (const float *)args[2], *partials = (const float *)args[3];
  const FN(geometry) g = FN(geometry_of)(ints);
  for (int64_t c = begin; c < end; c++) {
    double product = 0, sum = 0;
    for (int64_t s = 0; s < g.splits; s++) {
      product += partials[2 * (c * g.splits + s)];
      sum += partials[2 * (c * g.splits + s) + 1];
    }
    dw[c] = (float)(product * FN(deviation)(spread, c, ints[5], scalars[0])), db[c] = (float)sum;
  }
  return TI_OK;
}

/* batch_grad_columns: the same two when L is 1. args dweight, dbias, rstd or variance, dy [N, C], x [N, C], mean [C].
 * Items: channels. */
TI_KERNEL(batch_grad_columns) {
  float *dw = (float *)args[0], *db = (float *)args[1];
  const float *spread = (const float *)args[2], *dy = (const float *)args[3], *x = (const float *)args[4];
  const float *mean = (const float *)args[5];
  const int64_t n = ints[0], stride = ints[1];
  for (int64_t c = begin; c < end; c += VL) {
    const int64_t left = ti_min(VL, end - c);
    const VF centre = FN(load_most)(mean + c, left);
    VF product = {0}, sum = {0};
    for (int64_t first = 0; first < n; first += 256) {
      VF s = {0}, t = {0};
      for (int64_t i = first; i < ti_min(n, first + 256); i++) {
        const int64_t at = i * stride + c;
        const VF g = FN(load_most)(dy + at, left);
        s += g, t += g * (FN(load_most_filled)(x + at, left, centre) - centre);
      }
      sum += s, product += t;
    }
    for (int64_t i = 0; i < left; i++) {
      dw[c + i] = product[i] * FN(deviation)(spread, c + i, ints[5], scalars[0]);
      db[c + i] = sum[i];
    }
  }
  return TI_OK;
}

/* batch_grad_apply: args dx, dy, x, mean, rstd or variance, weight, dweight, dbias. Items: (sample, channel), or
 * samples when L is 1. With running statistics they are constants: dx = dy weight rstd. */
TI_KERNEL(batch_grad_apply) {
  float *dx = (float *)args[0];
  const float *dy = (const float *)args[1], *x = (const float *)args[2], *mean = (const float *)args[3];
  const float *spread = (const float *)args[4], *w = (const float *)args[5], *dw = (const float *)args[6];
  const float *db = (const float *)args[7];
  const int64_t channels = ints[1], l = ints[2], flags = ints[5];
  const float count = (float)(ints[0] * l), live = flags & 8 ? 0.0f : 1.0f, eps = (float)scalars[0];
  if (l == 1) {
    for (int64_t i = begin * channels; i < end * channels; i += channels)
      for (int64_t c = 0; c < channels; c++) {
        const float r = flags & 8 ? 1.0f / sqrtf(spread[c] + eps) : spread[c], scale = flags & 1 ? r * w[c] : r;
        const float pull = live * (db[c] + (x[i + c] - mean[c]) * r * dw[c]) / count;
        dx[i + c] = scale * (flags & 8 ? dy[i + c] : dy[i + c] - pull);
      }
    return TI_OK;
  }
  for (int64_t i = begin; i < end; i++) {
    const int64_t c = i % channels;
    const float r = FN(deviation)(spread, c, flags, scalars[0]), scale = flags & 1 ? r * w[c] : r;
    if (flags & 8) FN(scale_row)(dx + i * l, dy + i * l, NULL, 0.0f, scale, 0.0f, 0, l);
    else FN(grad_row)(dx + i * l, dy + i * l, x + i * l, mean[c], scale, -scale * r * dw[c] / count,
                      -scale * db[c] / count, l);
  }
  return TI_OK;
}

/* batch_norm_grad: all three, a channel at a time. args dx, dweight, dbias, dy, x, mean, rstd or variance, weight.
 * Items: channels. */
TI_KERNEL(batch_norm_grad) {
  float *dw = (float *)args[1], *db = (float *)args[2];
  const float *dy = (const float *)args[3], *x = (const float *)args[4], *mean = (const float *)args[5];
  const float *spread = (const float *)args[6];
  const FN(geometry) g = FN(geometry_of)(ints);
  char *const apply[] = {args[0], args[3], args[4], args[5], args[6], args[7], args[1], args[2]};
  for (int64_t c = begin; c < end; c++) {
    double product = 0, sum = 0;
    for (int64_t k = 0; k < g.splits; k++) {
      int64_t rows, width;
      const int64_t at = FN(split_of)(g, c, k, &rows, &width);
      VF s[4] = {{0}, {0}, {0}, {0}};
      for (int64_t r = 0; r < rows; r++)
        FN(add_products)(dy + at + r * g.c * g.l, x + at + r * g.c * g.l, width, FN(set)(mean[c]), s);
      product += FN(sum_lanes)(s[2] + s[3]), sum += FN(sum_lanes)(s[0] + s[1]);
    }
    dw[c] = (float)(product * FN(deviation)(spread, c, ints[5], scalars[0])), db[c] = (float)sum;
    for (int64_t n = 0; n < g.n; n++) FN(batch_grad_apply)(apply, ints, scalars, n * g.c + c, n * g.c + c + 1, scratch);
  }
  return TI_OK;
}
