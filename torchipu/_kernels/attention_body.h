/* Scaled dot-product attention in blocks of queries and keys: scores never leave the second-level cache. */
#include "gemm_body.h"

/* Packs `keys` rows of length `width` as panels [keys / 32][width][32]. */
static void FN(pack_keys)(const float *k, ptrdiff_t stride, int64_t keys, int64_t width, float *d) {
  for (int64_t j = 0; j < keys; j += TI_PANEL)
    FN(transpose)(k + j * stride, stride, d + j * width, TI_PANEL, ti_min(TI_PANEL, keys - j), width);
}

/* c[rows][cols] = a[rows][width] * packed keys */
static void FN(scores)(const float *a, ptrdiff_t as, const float *packed, int64_t rows, int64_t keys, int64_t width, float *c, ptrdiff_t ldc) {
  for (int64_t j = 0; j < keys; j += TI_PANEL) {
    ti_tile t = {.a = a, .as = as, .ak = 1, .b = packed + j * width, .bs = TI_PANEL, .c = c + j, .ldc = ldc, .k = width};
    FN(tiles_k_rows)(t, rows, ti_min(TI_PANEL, keys - j));
  }
}

/* Scales the scores of query `i` for keys [j0, j0 + n), adds the mask, hides later keys. */
static void FN(mask_row)(const attention_ints *s, float *p, int64_t n, int64_t i, int64_t j0, const float *mask, float scale) {
  if (s->has_mask) {
    const float *m = mask + i * s->mask[2] + j0 * s->mask[3];
    if (s->mask[3] == 1) for (int64_t j = 0; j < n; j++) p[j] = p[j] * scale + m[j];
    else for (int64_t j = 0; j < n; j++) p[j] = p[j] * scale + m[j * s->mask[3]];
  } else {
    for (int64_t j = 0; j < n; j++) p[j] *= scale;
  }
  if (s->is_causal) for (int64_t j = ti_max(0, i + 1 - j0); j < n; j++) p[j] = -INFINITY;
}

/* Packs columns of `keys` rows of length `width` as panels [width / 32][keys][32]; beyond `width` nothing is read. */
static void FN(pack_values)(const float *v, ptrdiff_t stride, int64_t keys, int64_t width, float *d) {
  for (int64_t c = 0; c < width; c += TI_PANEL, d += keys * TI_PANEL)
    for (int64_t j = 0; j < keys; j++)
      for (int64_t l = 0; l < ti_min(TI_PANEL, width - c); l += VL) {
        const int n = (int)ti_min(VL, width - c - l);
        FN(store_part)(d + j * TI_PANEL + l, FN(load_part)(v + j * stride + c + l, n), n);
      }
}

/* Scales the scores of query `i` for keys [j0, j0 + n), adds the mask, and returns the largest of them and of `most`. */
TI_INLINE float FN(scale_row)(const attention_ints *s, float *p, int64_t n, int64_t i, int64_t j0, const float *mask, float scale, float most) {
  VF m = FN(set)(most);
  if (s->has_mask && s->mask[3] != 1) {
    const float *const added = mask + i * s->mask[2] + j0 * s->mask[3];
    for (int64_t j = 0; j < n; j++) p[j] = p[j] * scale + added[j * s->mask[3]];
    mask = NULL, scale = 1.0f;
  } else if (s->has_mask) mask += i * s->mask[2] + j0;
  for (int64_t j = 0; j < n; j += VL) {
    const int some = (int)ti_min(VL, n - j), whole = some == VL;
    VF v = (whole ? FN(load)(p + j) : FN(load_part)(p + j, some)) * scale;
    if (mask) v += whole ? FN(load)(mask + j) : FN(load_part)(mask + j, some);
    if (whole) FN(store)(p + j, v);
    else FN(store_part)(p + j, v, some);
    m = FN(max)(whole ? v : FN(load_filled)(p + j, some, FN(set)(-INFINITY)), m);
  }
  return FN(max_lanes)(m);
}

/* Puts exp(p - base) in the place of n scores, and returns the sum. */
TI_INLINE float FN(exp_row)(float *p, int64_t n, float base) {
  VF t = FN(set)(0);
  int64_t j = 0;
  for (; j + VL <= n; j += VL) {
    const VF e = FN(exp)(FN(load)(p + j) - base);
    FN(store)(p + j, e);
    t += e;
  }
  if (j < n) {
    const VF e = FN(exp)(FN(load_filled)(p + j, n - j, FN(set)(-INFINITY)) - base);
    FN(store_part)(p + j, e, n - j);
    t += e;
  }
  return FN(sum_lanes)(t);
}

/* What the queries of an item have come to. */
typedef struct { float *o, *most, *sum; } FN(attended);

/* Lets queries [i0, i0 + rows), the first of which is `q`, attend to n keys from j0 on, whose scores fit in the first cache. */
static void FN(attend)(const attention_ints *s, const float *q, const float *keys, const float *values, int64_t packed, const float *mask, float scale,
                       int64_t i0, int64_t rows, int64_t j0, int64_t n, float *p, FN(attended) to) {
  const int64_t D = s->width;
  FN(scores)(q, s->query[2], keys, rows, n, D, p, s->columns);
  for (int64_t i = 0; i < rows; i++) {
    float *const row = p + i * s->columns;
    const int64_t seen = s->is_causal ? ti_max(0, ti_min(n, i0 + i + 1 - j0)) : n;  /* later keys are hidden */
    const float high = FN(scale_row)(s, row, seen, i0 + i, j0, mask, scale, to.most[i]), base = high == -INFINITY ? 0.0f : high;
    const float shrink = to.most[i] == -INFINITY ? 0.0f : to.most[i] == base ? 1.0f : expf(to.most[i] - base);
    to.sum[i] = to.sum[i] * shrink + FN(exp_row)(row, seen, base);
    to.most[i] = high;
    memset(row + seen, 0, sizeof(float) * (size_t)(n - seen));
    if (j0 > 0 && shrink != 1.0f) for (int64_t d = 0; d < D; d++) to.o[i * D + d] *= shrink;
  }
  for (int64_t d = 0; d < D; d += TI_PANEL) {
    ti_tile t = {.a = p, .as = s->columns, .ak = 1, .b = values + d * packed, .bs = TI_PANEL, .c = to.o + d, .ldc = D, .k = n, .accumulate = j0 > 0};
    FN(tiles_k_rows)(t, rows, ti_min(TI_PANEL, D - d));
  }
}

TI_KERNEL(attention) {
  const attention_ints s = *(const attention_ints *)ints;
  const int64_t blocks = ti_ceil(s.queries, s.rows), D = s.width;
  const int64_t tile = ti_even(ti_max(1, s.rows), TI_MR), at_once = TI_QUERIES_AT_ONCE / tile * tile;
  const float scale = (float)((const attention_scalars *)scalars)->scale;
  float *const packed = (float *)scratch, *const values = packed + s.columns * D, *const p = values + s.columns * ti_ceil(D, TI_PANEL) * TI_PANEL;
  float *const o = p + TI_QUERIES_AT_ONCE * s.columns, *const most = o + s.rows * D, *const sum = most + s.rows;
  for (int64_t item = begin; item < end; item++) {
    const int64_t i0 = item % blocks * s.rows, head = item / blocks % s.heads, batch = item / blocks / s.heads;
    const int64_t rows = ti_min(s.rows, s.queries - i0);
    const float *q = (const float *)args[2] + batch * s.query[0] + head * s.query[1] + i0 * s.query[2];
    const float *k = (const float *)args[3] + batch * s.key[0] + head * s.key[1], *v = (const float *)args[4] + batch * s.value[0] + head * s.value[1];
    const float *mask = s.has_mask ? (const float *)args[5] + batch * s.mask[0] + head * s.mask[1] : NULL;
    for (int64_t i = 0; i < rows; i++) { most[i] = -INFINITY; sum[i] = 0; }
    const int64_t last = s.is_causal ? ti_min(s.keys, i0 + rows) : s.keys;
    if (last == 0) memset(o, 0, sizeof(float) * (size_t)(rows * D));
    for (int64_t j0 = 0; j0 < last; j0 += s.columns) {
      const int64_t n = ti_min(s.columns, last - j0);
      FN(pack_keys)(k + j0 * s.key[2], s.key[2], n, D, packed);
      FN(pack_values)(v + j0 * s.value[2], s.value[2], n, D, values);
      for (int64_t i = 0; i < rows; i += at_once) {
        const int64_t some = ti_min(at_once, rows - i), seen = s.is_causal ? ti_min(n, i0 + i + some - j0) : n;
        const FN(attended) to = {o + i * D, most + i, sum + i};
        if (seen > 0) FN(attend)(&s, q + i * s.query[2], packed, values, n, mask, scale, i0 + i, some, j0, seen, p, to);
      }
    }
    const int64_t first = (batch * s.heads + head) * s.queries + i0;
    for (int64_t i = 0; i < rows; i++) {
      const float factor = sum[i] == 0.0f ? 0.0f : 1.0f / sum[i];
      float *out = (float *)args[0] + (first + i) * D;
      for (int64_t d = 0; d < D; d++) out[d] = o[i * D + d] * factor;
      ((float *)args[1])[first + i] = sum[i] == 0.0f ? 0.0f : most[i] + logf(sum[i]);
    }
  }
  return TI_OK;
}

/* From the scores of a query for some keys to their weights, and from the gradients of these to those of the scores;
 * `delta` is the sum of all weights times their gradients. */
static void FN(part_of_row)(float *p, float *dp, int64_t n, float lse, float delta, float scale) {
  for (int64_t j = 0; j < n; j += VL) {
    const int some = (int)ti_min(VL, n - j);
    const VF weight = FN(exp)(FN(load_part)(p + j, some) - lse);
    FN(store_part)(p + j, weight, some);
    FN(store_part)(dp + j, weight * (FN(load_part)(dp + j, some) - delta) * scale, some);
  }
}

/* The same where all keys are at hand. The weights are formed anew, and `delta` of the very products that it is taken from:
 * where one key has all the weight the difference is exactly zero, while that of two large numbers formed apart would be
 * their rounding. What is infinite or NaN spreads as it does above. */
static void FN(whole_row)(float *p, float *dp, int64_t n, float lse, float delta, float scale) {
  VF m = FN(set)(-INFINITY), t = FN(set)(0), both = FN(set)(0);
  for (int64_t j = 0; j < n; j += VL) m = FN(max)(FN(load_filled)(p + j, (int)ti_min(VL, n - j), FN(set)(-INFINITY)), m);
  const float high = FN(max_lanes)(m);
  if (!isfinite(high) || !isfinite(lse) || !isfinite(delta)) { FN(part_of_row)(p, dp, n, lse, delta, scale); return; }
  for (int64_t j = 0; j < n; j += VL) {
    const int some = (int)ti_min(VL, n - j);
    const VF e = FN(exp)(FN(load_filled)(p + j, some, FN(set)(-INFINITY)) - high);
    FN(store_part)(p + j, e, some);
    t += e;
  }
  const float factor = 1.0f / FN(sum_lanes)(t);
  for (int64_t j = 0; j < n; j += VL) {
    const int some = (int)ti_min(VL, n - j);
    const VF weight = FN(load_part)(p + j, some) * factor;
    FN(store_part)(p + j, weight, some);
    both += weight * FN(load_part)(dp + j, some);
  }
  const float sum = FN(sum_lanes)(both), taken = isfinite(sum) ? sum : delta;
  for (int64_t j = 0; j < n; j += VL) {
    const int some = (int)ti_min(VL, n - j);
    FN(store_part)(dp + j, FN(load_part)(p + j, some) * (FN(load_part)(dp + j, some) - taken) * scale, some);
  }
}

TI_KERNEL(attention_backward) {
  const attention_ints s = *(const attention_ints *)ints;
  const int64_t D = s.width;
  const int is_whole = s.keys <= s.columns;
  const float scale = (float)((const attention_scalars *)scalars)->scale;
  float *kt = (float *)scratch, *vt = kt + s.columns * D, *p = vt + s.columns * D, *dp = p + s.rows * s.columns, *delta = dp + s.rows * s.columns;
  for (int64_t item = begin; item < end; item++) {
    const int64_t head = item % s.heads, batch = item / s.heads;
    float *dq = (float *)args[0] + item * s.queries * D, *dk = (float *)args[1] + item * s.keys * D, *dv = (float *)args[2] + item * s.keys * D;
    const float *dout = (const float *)args[3] + item * s.queries * D, *out = (const float *)args[4] + item * s.queries * D;
    const float *lse = (const float *)args[5] + item * s.queries;
    const float *q = (const float *)args[6] + batch * s.query[0] + head * s.query[1], *k = (const float *)args[7] + batch * s.key[0] + head * s.key[1];
    const float *v = (const float *)args[8] + batch * s.value[0] + head * s.value[1];
    const float *mask = s.has_mask ? (const float *)args[9] + batch * s.mask[0] + head * s.mask[1] : NULL;
    memset(dq, 0, sizeof(float) * (size_t)(s.queries * D));
    memset(dk, 0, sizeof(float) * (size_t)(s.keys * D));
    memset(dv, 0, sizeof(float) * (size_t)(s.keys * D));
    for (int64_t i = 0; i < s.queries; i++) {
      VF t = FN(set)(0);
      for (int64_t d = 0; d < D; d += VL) {
        const int64_t n = ti_min(VL, D - d);
        t += FN(load_part)(dout + i * D + d, (int)n) * FN(load_part)(out + i * D + d, (int)n);
      }
      delta[i] = FN(sum_lanes)(t);
    }
    for (int64_t j0 = 0; j0 < s.keys; j0 += s.columns) {
      const int64_t packed = ti_min(s.columns, s.keys - j0);
      FN(pack_keys)(k + j0 * s.key[2], s.key[2], packed, D, kt);
      FN(pack_keys)(v + j0 * s.value[2], s.value[2], packed, D, vt);
      for (int64_t i0 = 0; i0 < s.queries; i0 += s.rows) {
        const int64_t rows = ti_min(s.rows, s.queries - i0);
        const int64_t n = s.is_causal ? ti_min(packed, i0 + rows - j0) : packed;  /* later keys have no weight */
        if (n <= 0) continue;
        FN(scores)(q + i0 * s.query[2], s.query[2], kt, rows, n, D, p, s.columns);
        FN(scores)(dout + i0 * D, D, vt, rows, n, D, dp, s.columns);
        for (int64_t i = 0; i < rows; i++) {
          float *row = p + i * s.columns, *drow = dp + i * s.columns;
          FN(mask_row)(&s, row, n, i0 + i, j0, mask, scale);
          if (is_whole) FN(whole_row)(row, drow, n, lse[i0 + i], delta[i0 + i], scale);
          else FN(part_of_row)(row, drow, n, lse[i0 + i], delta[i0 + i], scale);
        }
        for (int64_t d = 0; d < D; d += TI_PANEL) {
          const int64_t width = ti_min(TI_PANEL, D - d);
          ti_tile t = {.a = p, .ak = s.columns, .as = 1, .b = dout + i0 * D + d, .bs = D, .c = dv + j0 * D + d, .ldc = D, .k = rows, .accumulate = 1};
          FN(tiles_i_rows)(t, n, width);
          t.a = dp; t.b = q + i0 * s.query[2] + d; t.bs = s.query[2]; t.c = dk + j0 * D + d;
          FN(tiles_i_rows)(t, n, width);
          t.a = dp; t.as = s.columns; t.ak = 1; t.b = k + j0 * s.key[2] + d; t.bs = s.key[2]; t.c = dq + i0 * D + d; t.k = n;
          FN(tiles_k_rows)(t, rows, width);
        }
      }
    }
  }
  return TI_OK;
}
