/* Batch normalisation; table/norm.py says what the kernels take, norm_body.h comes before it. */

#include "batch_splits_body.h"

/* Where split s of channel c begins, how many samples it has, and how many positions of each. */
TI_INLINE int64_t FN(split_of)(FN(geometry) g, int64_t c, int64_t s, int64_t *rows, int64_t *width) {
  const int64_t first = s / g.pieces * g.rows, at = s % g.pieces * g.piece;
  *rows = ti_min(g.rows, g.n - first);
  *width = ti_min(g.piece, g.l - at);
  return (first * g.c + c) * g.l + at;
}

/* A split from element `at` on as floats: where it lies, or in scratch, with its rows one behind the other. */
TI_INLINE const float *FN(split_as_floats)(const char *base, int64_t stored, int64_t at, int64_t rows, int64_t width,
                                           int64_t *stride, float *scratch) {
  if (stored == TI_STORED_FLOATS) return (const float *)base + at;
  for (int64_t r = 0; r < rows; r++) FN(widen_row)(scratch + r * width, base + 2 * (at + r * *stride), width, stored);
  *stride = width;
  return scratch;
}

/* Of rows that are halves or bfloats so many elements are floats at a time, on the stack. */
#define TI_NORM_PIECE 1024

typedef struct { double mean, squares, count; } FN(channel);

TI_INLINE void FN(merge)(FN(channel) *into, double mean, double squares, double count) {
  const double delta = mean - into->mean, total = into->count + count;
  into->squares += squares + delta * delta * into->count * count / total;
  into->mean += delta * count / total;
  into->count = total;
}

/* Writes save_mean, save_rstd and the running statistics of channel c. */
TI_INLINE void FN(keep_statistics)(char *const *args, FN(channel) all, int64_t c, int64_t has_running, const batch_scalars *by) {
  const double variance = all.squares / all.count, momentum = by->momentum;
  ((float *)args[0])[c] = (float)all.mean;
  ((float *)args[1])[c] = (float)(1.0 / sqrt(variance + by->eps));
  if (has_running) {
    const float *mean = (const float *)args[4], *var = (const float *)args[5];
    ((float *)args[2])[c] = (float)(momentum * all.mean + (1 - momentum) * mean[c]);
    ((float *)args[3])[c] = (float)(momentum * all.squares / (all.count - 1) + (1 - momentum) * var[c]);
  }
}

TI_KERNEL(batch_moments) {
  float *partials = (float *)args[0];
  const batch_ints *const p = (const batch_ints *)ints;
  const FN(geometry) g = FN(geometry_of)(p);
  for (int64_t i = begin; i < end; i++) {
    int64_t rows, width, stride = g.c * g.l;
    const int64_t at = FN(split_of)(g, i / g.splits, i % g.splits, &rows, &width);
    const float *const x = FN(split_as_floats)(args[1], p->stored, at, rows, width, &stride, (float *)scratch);
    FN(moments)(x, rows, stride, width, partials + 2 * i, partials + 2 * i + 1);
  }
  return TI_OK;
}

TI_KERNEL(batch_statistics) {
  const float *partials = (const float *)args[6];
  const FN(geometry) g = FN(geometry_of)((const batch_ints *)ints);
  for (int64_t c = begin; c < end; c++) {
    FN(channel) all = {0, 0, 0};
    for (int64_t s = 0; s < g.splits; s++) {
      int64_t rows, width;
      FN(split_of)(g, c, s, &rows, &width);
      const float *p = partials + 2 * (c * g.splits + s);
      FN(merge)(&all, p[0], p[1], (double)rows * (double)width);
    }
    FN(keep_statistics)(args, all, c, ((const batch_ints *)ints)->has_running, (const batch_scalars *)scalars);
  }
  return TI_OK;
}

/* The reciprocal of the deviation of a channel; `values` has it, or variances. */
TI_INLINE float FN(deviation)(const float *values, int64_t c, int64_t from_running, double eps) {
  return from_running ? (float)(1.0 / sqrt(values[c] + eps)) : values[c];
}

/* The same of n columns, times their weights. */
TI_INLINE void FN(column_scales)(float *scale, const float *spread, const float *w, int from_running, double eps,
                                 int64_t n) {
  for (int64_t i = 0; i < n; i++) scale[i] = FN(deviation)(spread, i, from_running, eps);
  if (w)
    for (int64_t i = 0; i < n; i++) scale[i] *= w[i];
}

/* How many rows are taken as one: where they have few columns, most of a vector or of a loop would go unused. */
TI_INLINE int64_t FN(rows_together)(int64_t channels, int64_t rows) {
  return ti_max(1, ti_min(rows, TI_NORM_COLUMNS / channels));
}
/* Says `width` values again, so that they are there `times` times. */
TI_INLINE void FN(repeat)(float *values, int64_t width, int64_t times) {
  for (int64_t i = width; i < width * times; i++) values[i] = values[i - width];
}

TI_KERNEL(batch_apply) {
  float *y = (float *)args[0], piece[TI_NORM_PIECE];
  const float *mean = (const float *)args[2], *spread = (const float *)args[3];
  const batch_ints *const p = (const batch_ints *)ints;
  const float *w = p->has_weight ? (const float *)args[4] : NULL, *b = p->has_bias ? (const float *)args[5] : NULL;
  const float *const added = p->has_addend ? (const float *)args[6] : NULL;
  const int64_t channels = p->channels, l = p->positions;
  const int from_running = (int)p->from_running, has_relu = (int)p->has_relu;
  const double around = ((const norm_scalars *)scalars)->eps;
  if (l == 1) {
    float scale[TI_NORM_COLUMNS], shift[TI_NORM_COLUMNS], centre[TI_NORM_COLUMNS];
    for (int64_t c = 0; c < channels; c += TI_NORM_COLUMNS) {
      const int64_t width = ti_min(TI_NORM_COLUMNS, channels - c);
      const int64_t together = FN(rows_together)(channels, end - begin);
      FN(column_scales)(scale, spread + c, w ? w + c : NULL, from_running, around, width);
      for (int64_t k = 0; k < width; k++) shift[k] = b ? b[c + k] : 0.0f, centre[k] = mean[c + k];
      FN(repeat)(scale, width, together), FN(repeat)(shift, width, together);
      FN(repeat)(centre, width, together);
      for (int64_t r = begin; r < end; r += together) {
        const int64_t i = r * channels + c, n = width * ti_min(together, end - r);
        const float *const x = FN(elements_at)(args[1], i, n, p->stored, piece);
        FN(scale_columns)(y + i, x, added ? added + i : NULL, centre, scale, shift, has_relu, n);
      }
    }
    return TI_OK;
  }
  for (int64_t i = begin; i < end; i++) {
    const int64_t c = i % channels;
    const float r = FN(deviation)(spread, c, from_running, around);
    if (p->stored && !added && !has_relu) {
      FN(scale_narrow_row)(y + i * l, args[1] + 2 * i * l, mean[c], w ? r * w[c] : r, b ? b[c] : 0.0f, l, p->stored);
      continue;
    }
    const int64_t each = p->stored == TI_STORED_FLOATS ? l : TI_NORM_PIECE;
    for (int64_t at = i * l; at < (i + 1) * l; at += each) {
      const int64_t n = ti_min(each, (i + 1) * l - at);
      const float *const x = FN(elements_at)(args[1], at, n, p->stored, piece);
      FN(scale_row)(y + at, x, added ? added + at : NULL, mean[c], w ? r * w[c] : r, b ? b[c] : 0.0f, has_relu, n);
    }
  }
  return TI_OK;
}

TI_KERNEL(batch_norm) {
  float *y = (float *)args[0];
  const float *rstd = (const float *)args[2], *x = (const float *)args[7];
  const batch_ints *const p = (const batch_ints *)ints;
  const float *w = p->has_weight ? (const float *)args[8] : NULL, *b = p->has_bias ? (const float *)args[9] : NULL;
  const float *const added = p->has_addend ? (const float *)args[10] : NULL;
  const FN(geometry) g = FN(geometry_of)(p);
  for (int64_t c = begin; c < end; c++) {
    FN(channel) all = {0, 0, 0};
    for (int64_t s = 0; s < g.splits; s++) {
      int64_t rows, width;
      float mean, squares;
      const int64_t at = FN(split_of)(g, c, s, &rows, &width);
      FN(moments)(x + at, rows, g.c * g.l, width, &mean, &squares);
      FN(merge)(&all, mean, squares, (double)rows * (double)width);
    }
    FN(keep_statistics)(args + 1, all, c, p->has_running, (const batch_scalars *)scalars);
    const float scale = w ? rstd[c] * w[c] : rstd[c], shift = b ? b[c] : 0.0f;
    for (int64_t n = 0; n < g.n; n++) {
      const int64_t at = (n * g.c + c) * g.l;
      FN(scale_row)(y + at, x + at, added ? added + at : NULL, (float)all.mean, scale, shift, (int)p->has_relu, g.l);
    }
  }
  return TI_OK;
}

/* Sums down `rows` rows of `width` <= 4 VL columns: of what of them lies above `centre`, and of its squares; or of `g`, if
 * there is one, and of its products with what lies above. */
TI_INLINE void FN(add_columns_of)(const int nv, const float *x, const float *g, int64_t rows, int64_t stride,
                                  int64_t width, const float *centre, float *sums, float *products) {
  VF s[4], t[4], m[4];
  const int64_t last = width - (nv - 1) * VL;
#pragma GCC unroll 4
  for (int v = 0; v < nv; v++) s[v] = t[v] = FN(set)(0), m[v] = FN(load)(centre + v * VL);
  for (int64_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
      const int64_t at = r * stride + v * VL, n = v + 1 < nv ? VL : last;
      const VF d = FN(load_most_filled)(x + at, n, m[v]) - m[v], f = g ? FN(load_most)(g + at, n) : d;
      s[v] += f, t[v] += f * d;
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < nv; v++) FN(store)(sums + v * VL, s[v]), FN(store)(products + v * VL, t[v]);
}
static __attribute__((noinline)) void FN(add_columns)(const float *x, const float *g, int64_t rows, int64_t stride,
                                                      int64_t width, const float *centre, float *sums, float *products) {
  switch ((int)ti_ceil(width, VL)) {
    case 1: FN(add_columns_of)(1, x, g, rows, stride, width, centre, sums, products); break;
    case 2: FN(add_columns_of)(2, x, g, rows, stride, width, centre, sums, products); break;
    case 3: FN(add_columns_of)(3, x, g, rows, stride, width, centre, sums, products); break;
    default: FN(add_columns_of)(4, x, g, rows, stride, width, centre, sums, products);
  }
}
/* The same of `count` rows that lie one behind the other, as many at a time as fill the vectors; what these columns come
 * to is added up. `centre` has room for 4 VL values, and says them again. */
TI_INLINE void FN(add_block)(const float *x, const float *g, int64_t count, int64_t channels, int64_t width, float *centre,
                             float *sums, float *products) {
  const int64_t together = width < channels ? 1 : ti_max(1, ti_min(count, 4 * VL / width)), whole = count / together;
  float s[4 * VL], t[4 * VL];
  FN(repeat)(centre, width, together);
  FN(add_columns)(x, g, whole, channels * together, width * together, centre, sums, products);
  for (int64_t i = width; i < width * together; i++) sums[i % width] += sums[i], products[i % width] += products[i];
  if (whole * together == count) return;
  const int64_t done = whole * together * channels;
  FN(add_columns)(x + done, g ? g + done : NULL, count - whole * together, channels, width, centre, s, t);
  for (int64_t i = 0; i < width; i++) sums[i] += s[i], products[i] += t[i];
}

/* Mean, and squares around it, of each column of rows that stay in the cache: two passes, as `moments` makes them. */
TI_INLINE void FN(column_moments)(const float *all, int64_t count, int64_t channels, float *mean, float *squares) {
  for (int64_t c = 0; c < channels; c += 4 * VL) {
    const int64_t width = ti_min(4 * VL, channels - c);
    const float *const x = all + c;
    float centre[4 * VL] = {0}, s[4 * VL], t[4 * VL];
    FN(add_block)(x, NULL, count, channels, width, centre, s, t);
    for (int64_t i = 0; i < width; i++) centre[i] = s[i] / (float)count;
    FN(add_block)(x, NULL, count, channels, width, centre, s, t);
    for (int64_t i = 0; i < width; i++) {
      mean[c + i] = centre[i] + s[i] / (float)count;
      const float around = t[i] - s[i] * s[i] / (float)count;
      squares[c + i] = around < 0 ? 0.0f : around;
    }
  }
}
TI_KERNEL(batch_row_moments) {
  const batch_ints *const p = (const batch_ints *)ints;
  for (int64_t chunk = begin; chunk < end; chunk++) {
    const int64_t count = ti_min(p->rows, p->samples - chunk * p->rows);
    float *const mean = (float *)args[0] + chunk * 2 * p->channels;
    const int64_t at = chunk * p->rows * p->channels;
    const float *const x = FN(elements_at)(args[1], at, count * p->channels, p->stored, (float *)scratch);
    FN(column_moments)(x, count, p->channels, mean, mean + p->channels);
  }
  return TI_OK;
}

/* Channels side by side, which have as many samples in each chunk: the same quotients serve all of them. */
TI_KERNEL(batch_row_statistics) {
  const batch_ints *const p = (const batch_ints *)ints;
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t width = ti_min(32, end - first);
    const float *of = (const float *)args[6] + first;
    double mean[32] = {0}, squares[32] = {0};
    for (int64_t done = 0; done < p->samples; done += p->rows, of += 2 * p->channels) {
      const double count = (double)ti_min(p->rows, p->samples - done), share = count / ((double)done + count);
      for (int64_t i = 0; i < width; i++) {
        const double delta = of[i] - mean[i];
        squares[i] += of[p->channels + i] + delta * delta * (double)done * share;
        mean[i] += delta * share;
      }
    }
    for (int64_t i = 0; i < width; i++) {
      const FN(channel) all = {mean[i], squares[i], (double)p->samples};
      FN(keep_statistics)(args, all, first + i, p->has_running, (const batch_scalars *)scalars);
    }
  }
  return TI_OK;
}

TI_KERNEL(batch_grad_sums) {
  float *partials = (float *)args[0];
  const float *mean = (const float *)args[3];
  const batch_ints *const p = (const batch_ints *)ints;
  const FN(geometry) g = FN(geometry_of)(p);
  for (int64_t i = begin; i < end; i++) {
    int64_t rows, width;
    const int64_t c = i / g.splits, at = FN(split_of)(g, c, i % g.splits, &rows, &width);
    VF s[4] = {{0}, {0}, {0}, {0}};
    for (int64_t r = 0; r < rows; r++) {
      const int64_t first = at + r * g.c * g.l;
      const float *const dy = FN(elements_at)(args[1], first, width, p->stored, (float *)scratch);
      const float *const x = FN(elements_at)(args[2], first, width, p->stored, (float *)scratch + width);
      FN(add_products)(dy, x, width, FN(set)(mean[c]), s);
    }
    partials[2 * i] = FN(sum_lanes)(s[2] + s[3]), partials[2 * i + 1] = FN(sum_lanes)(s[0] + s[1]);
  }
  return TI_OK;
}

TI_KERNEL(batch_grad_statistics) {
  float *dw = (float *)args[0], *db = (float *)args[1];
  const float *spread = (const float *)args[2], *partials = (const float *)args[3];
  const batch_ints *const p = (const batch_ints *)ints;
  const double eps = ((const norm_scalars *)scalars)->eps;
  const FN(geometry) g = FN(geometry_of)(p);
  for (int64_t c = begin; c < end; c++) {
    double product = 0, sum = 0;
    for (int64_t s = 0; s < g.splits; s++) {
      product += partials[2 * (c * g.splits + s)];
      sum += partials[2 * (c * g.splits + s) + 1];
    }
    dw[c] = (float)(product * FN(deviation)(spread, c, p->from_running, eps)), db[c] = (float)sum;
  }
  return TI_OK;
}

TI_KERNEL(batch_row_grad_sums) {
  const batch_ints *const p = (const batch_ints *)ints;
  const float *const mean = (const float *)args[3];
  for (int64_t chunk = begin; chunk < end; chunk++) {
    const int64_t count = ti_min(p->rows, p->samples - chunk * p->rows), all = count * p->channels;
    const int64_t at = chunk * p->rows * p->channels;
    float *const products = (float *)args[0] + chunk * 2 * p->channels, *const sums = products + p->channels;
    const float *const dy = FN(elements_at)(args[1], at, all, p->stored, (float *)scratch);
    const float *const x = FN(elements_at)(args[2], at, all, p->stored, (float *)scratch + all);
    for (int64_t c = 0; c < p->channels; c += 4 * VL) {
      const int64_t width = ti_min(4 * VL, p->channels - c);
      float centre[4 * VL] = {0}, s[4 * VL], t[4 * VL];
      memcpy(centre, mean + c, sizeof(float) * (size_t)width);
      FN(add_block)(x + c, dy + c, count, p->channels, width, centre, s, t);
      memcpy(sums + c, s, sizeof(float) * (size_t)width), memcpy(products + c, t, sizeof(float) * (size_t)width);
    }
  }
  return TI_OK;
}

TI_KERNEL(batch_row_grad_statistics) {
  const batch_ints *const p = (const batch_ints *)ints;
  const float *const partials = (const float *)args[3];
  const double eps = ((const norm_scalars *)scalars)->eps;
  for (int64_t c = begin; c < end; c++) {
    double product = 0, sum = 0;
    for (int64_t chunk = 0; chunk * p->rows < p->samples; chunk++) {
      const float *const of = partials + chunk * 2 * p->channels + c;
      product += of[0], sum += of[p->channels];
    }
    ((float *)args[0])[c] = (float)(product * FN(deviation)((const float *)args[2], c, p->from_running, eps));
    ((float *)args[1])[c] = (float)sum;
  }
  return TI_OK;
}

TI_KERNEL(batch_grad_apply) {
  float *dx = (float *)args[0], piece[2 * TI_NORM_PIECE];
  const float *mean = (const float *)args[3];
  const batch_ints *const p = (const batch_ints *)ints;
  const float *spread = (const float *)args[4], *w = p->has_weight ? (const float *)args[5] : NULL;
  const float *dw = (const float *)args[6], *db = (const float *)args[7];
  const int64_t channels = p->channels, l = p->positions;
  const int from_running = (int)p->from_running;
  const float count = (float)(p->samples * l), live = from_running ? 0.0f : 1.0f;
  const double around = ((const norm_scalars *)scalars)->eps;
  if (l == 1) {
    float scale[TI_NORM_COLUMNS], slope[TI_NORM_COLUMNS], shift[TI_NORM_COLUMNS], centre[TI_NORM_COLUMNS];
    for (int64_t c = 0; c < channels; c += TI_NORM_COLUMNS) {
      const int64_t width = ti_min(TI_NORM_COLUMNS, channels - c);
      const int64_t together = FN(rows_together)(channels, end - begin);
      FN(column_scales)(slope, spread + c, NULL, from_running, around, width);
      for (int64_t k = 0; k < width; k++) {
        const float r = slope[k];
        scale[k] = w ? r * w[c + k] : r, centre[k] = mean[c + k];
        slope[k] = -live * scale[k] * r * dw[c + k] / count, shift[k] = -live * scale[k] * db[c + k] / count;
      }
      FN(repeat)(scale, width, together), FN(repeat)(slope, width, together);
      FN(repeat)(shift, width, together), FN(repeat)(centre, width, together);
      for (int64_t r = begin; r < end; r += together) {
        const int64_t i = r * channels + c, n = width * ti_min(together, end - r);
        const float *const dy = FN(elements_at)(args[1], i, n, p->stored, piece);
        const float *const x = FN(elements_at)(args[2], i, n, p->stored, piece + TI_NORM_PIECE);
        FN(grad_columns)(dx + i, dy, x, centre, scale, slope, shift, n);
      }
    }
    return TI_OK;
  }
  for (int64_t i = begin; i < end; i++) {
    const int64_t c = i % channels;
    const float r = FN(deviation)(spread, c, from_running, around), scale = w ? r * w[c] : r;
    if (p->stored && from_running) {
      FN(scale_narrow_row)(dx + i * l, args[1] + 2 * i * l, 0.0f, scale, 0.0f, l, p->stored);
      continue;
    }
    const int64_t each = p->stored == TI_STORED_FLOATS ? l : TI_NORM_PIECE;
    for (int64_t at = i * l; at < (i + 1) * l; at += each) {
      const int64_t n = ti_min(each, (i + 1) * l - at);
      const float *const dy = FN(elements_at)(args[1], at, n, p->stored, piece);
      if (from_running) {
        FN(scale_row)(dx + at, dy, NULL, 0.0f, scale, 0.0f, 0, n);
        continue;
      }
      const float *const x = FN(elements_at)(args[2], at, n, p->stored, piece + TI_NORM_PIECE);
      FN(grad_row)(dx + at, dy, x, mean[c], scale, -scale * r * dw[c] / count, -scale * db[c] / count, n);
    }
  }
  return TI_OK;
}

TI_KERNEL(batch_norm_grad) {
  float *dw = (float *)args[1], *db = (float *)args[2];
  const float *dy = (const float *)args[3], *x = (const float *)args[4], *mean = (const float *)args[5];
  const float *spread = (const float *)args[6];
  const batch_ints *const p = (const batch_ints *)ints;
  const double eps = ((const norm_scalars *)scalars)->eps;
  const FN(geometry) g = FN(geometry_of)(p);
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
    dw[c] = (float)(product * FN(deviation)(spread, c, p->from_running, eps)), db[c] = (float)sum;
    for (int64_t n = 0; n < g.n; n++) FN(batch_grad_apply)(apply, ints, scalars, n * g.c + c, n * g.c + c + 1, scratch);
  }
  return TI_OK;
}
