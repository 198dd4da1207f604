/* Convolutions whose groups have a single channel, and their gradients.
 *
 * Such a convolution has little arithmetic for what it reads, and nothing to share between channels. A plane is copied
 * with zeros around it, rows of small images side by side, so that every tap reads whole vectors without a border to
 * think of; then TI_TILE_ROWS rows of two vectors are summed in registers. Taps below each other meet the same rows of
 * the plane and share their loads, which bound the speed.
 */
#include "runs_body.h"
#include "conv_ending_body.h"

/* Lays out rows of `count` images from x, `image` floats apart: scratch row i is source row top + i, in `sw` phases. Where
 * zeros lie as they shall, since the same rows of as many images were laid out there before, only pixels are copied. */
static void FN(lay_out)(const grid *g, const bands *b, const float *x, ptrdiff_t image, int64_t count, int64_t top, int64_t rows,
                        int64_t left, int has_zeros, float *d) {
  const int64_t pitch = b->pitch;
  for (int64_t i = 0; i < rows; i++, d += g->sw * pitch) {
    const int64_t row = top + i;
    if (row < 0 || row >= g->h) {
      if (!has_zeros) FN(zero_run)(d, g->sw * pitch);
      continue;
    }
    for (int64_t phase = 0; phase < g->sw; phase++) {
      const int64_t first = left + phase;  /* source column of place 0; place k is first + k * sw */
      const int64_t lo = first < 0 ? ti_min(b->span, ti_ceil(-first, g->sw)) : 0;
      const int64_t hi = first < g->w ? ti_max(lo, ti_min(b->span, ti_ceil(g->w - first, g->sw))) : lo;
      float *to = d + phase * pitch;
      if (!has_zeros) FN(zero_run)(to, pitch);
      for (int64_t n = 0; n < count; n++, to += b->span)
        FN(copy_run)(to + lo, x + n * image + row * g->w + first + lo * g->sw, hi - lo, g->sw);
    }
  }
}
/* What was laid out last. */
typedef struct { int64_t top, count; } FN(laid);
TI_INLINE int FN(lies_alike)(FN(laid) *last, int64_t top, int64_t count) {
  const int is_alike = last->top == top && last->count == count;
  *last = (FN(laid)){top, count};
  return is_alike;
}

/* Sums of TI_TILE_ROWS rows of nv vectors. Column c of `kh` taps begins at x + at[c]; from tap to tap, and from row of
 * results to row, x moves by `down`. */
TI_INLINE void FN(depthwise_of)(const int kh, const int nv, const float *x, ptrdiff_t down, const int32_t *at, const float *w, int64_t columns,
                                float *d, ptrdiff_t pitch) {
  VF sum[TI_TILE_ROWS][2];
#pragma GCC unroll 4
  for (int r = 0; r < TI_TILE_ROWS; r++) sum[r][0] = sum[r][1] = FN(set)(0);
  for (int64_t c = 0; c < columns; c++, w += kh) {
    const float *p = x + at[c];
    VF tap[TI_MOST_SHARED];
#pragma GCC unroll 7
    for (int k = 0; k < kh; k++) tap[k] = FN(set)(w[k]);
#pragma GCC unroll 10
    for (int i = 0; i < TI_TILE_ROWS + kh - 1; i++, p += down) {
#pragma GCC unroll 2
      for (int v = 0; v < nv; v++) {
        const VF from = FN(load)(p + v * VL);
#pragma GCC unroll 4
        for (int r = 0; r < TI_TILE_ROWS; r++)
          if (i - r >= 0 && i - r < kh) sum[r][v] = FN(fma)(from, tap[i - r], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < TI_TILE_ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) FN(store)(d + r * pitch + v * VL, sum[r][v]);
}
#undef TI_DEPTHWISE
#define TI_DEPTHWISE(K_) \
  static __attribute__((noinline)) void FN(depthwise_##K_##_1)(const float *x, ptrdiff_t down, const int32_t *at, const float *w, int64_t columns, \
      float *d, ptrdiff_t pitch) { FN(depthwise_of)(K_, 1, x, down, at, w, columns, d, pitch); } \
  static __attribute__((noinline)) void FN(depthwise_##K_##_2)(const float *x, ptrdiff_t down, const int32_t *at, const float *w, int64_t columns, \
      float *d, ptrdiff_t pitch) { FN(depthwise_of)(K_, 2, x, down, at, w, columns, d, pitch); }
TI_DEPTHWISE(1) TI_DEPTHWISE(2) TI_DEPTHWISE(3) TI_DEPTHWISE(4) TI_DEPTHWISE(5) TI_DEPTHWISE(6) TI_DEPTHWISE(7)
typedef void (*FN(depthwise_tile))(const float *, ptrdiff_t, const int32_t *, const float *, int64_t, float *, ptrdiff_t);
static const FN(depthwise_tile) FN(depthwise_tiles)[TI_MOST_SHARED][2] = {
  {FN(depthwise_1_1), FN(depthwise_1_2)}, {FN(depthwise_2_1), FN(depthwise_2_2)}, {FN(depthwise_3_1), FN(depthwise_3_2)},
  {FN(depthwise_4_1), FN(depthwise_4_2)}, {FN(depthwise_5_1), FN(depthwise_5_2)}, {FN(depthwise_6_1), FN(depthwise_6_2)},
  {FN(depthwise_7_1), FN(depthwise_7_2)},
};

/* Sums of one row, as signals have it, where taps share no loads: as many vectors at a time as keep the sums apart. */
TI_INLINE void FN(depthwise_line_of)(const int nv, const float *x, const int32_t *at, const float *w, int64_t taps, float *d) {
  VF sum[4];
#pragma GCC unroll 4
  for (int v = 0; v < nv; v++) sum[v] = FN(set)(0);
  for (int64_t t = 0; t < taps; t++) {
    const VF tap = FN(set)(w[t]);
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) sum[v] = FN(fma)(FN(load)(x + at[t] + v * VL), tap, sum[v]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < nv; v++) FN(store)(d + v * VL, sum[v]);
}
static __attribute__((noinline)) void FN(depthwise_line)(const float *x, const int32_t *at, const float *w, int64_t taps,
                                                         int64_t lanes, float *d) {
  int64_t l = 0;
  for (; l + 3 * VL < lanes; l += 4 * VL) FN(depthwise_line_of)(4, x + l, at, w, taps, d + l);
  for (; l < lanes; l += VL) FN(depthwise_line_of)(1, x + l, at, w, taps, d + l);
}

/* What becomes of the sums of a result: act(scale sum + shift + added), 0 where `gate` is not above 0. */
typedef struct { float *y; const float *added, *gate; float scale, shift; int is_affine, is_relu; } FN(ending);

/* Ends n sums and stores them `step` apart from place `at` on. */
TI_INLINE void FN(end_run)(const FN(ending) *e, const float *sums, int64_t n, ptrdiff_t at, int64_t step) {
  const VF scale = FN(set)(e->scale), shift = FN(set)(e->shift);
  if (step == 1 && !e->added && !e->gate) {
    for (int64_t i = 0; i < n; i += VL) {
      VF v = FN(load)(sums + i);
      if (e->is_affine) v = v * scale + shift;
      if (e->is_relu) v = FN(relu)(v);
      FN(store_most)(e->y + at + i, v, n - i);
    }
    return;
  }
  for (int64_t i = 0; i < n; i += VL) {
    const int64_t width = ti_min(VL, n - i);
    _Alignas(64) float lanes[VL];
    VF v = FN(load)(sums + i), other;
    if (e->is_affine) v = v * scale + shift;
    for (int which = 0; which < 2; which++) {
      const float *p = which ? e->gate : e->added;
      if (!p) continue;
      if (step == 1) other = FN(load_part)(p + at + i, width);
      else {
        memset(lanes, 0, sizeof lanes);
        for (int64_t l = 0; l < width; l++) lanes[l] = p[at + (i + l) * step];
        other = FN(load)(lanes);
      }
      if (which) v = FN(gated)(v, other);
      else v += other;
    }
    if (e->is_relu) v = FN(relu)(v);
    if (step == 1) { FN(store_part)(e->y + at + i, v, width); continue; }
    FN(store)(lanes, v);
    for (int64_t l = 0; l < width; l++) e->y[at + (i + l) * step] = lanes[l];
  }
}

TI_KERNEL(depthwise) {
  const depthwise_ints *const p = (const depthwise_ints *)ints;
  const grid g = p->grid;
  const bands b = p->bands;
  const grid_target to = p->target;
  const int64_t blocks = ti_ceil(g.n, b.images), pitch = b.pitch, row = g.sw * pitch, plane = g.h * g.w;
  const int flags = (int)p->flags, after = !!(flags & TI_CONV_ENDING_HAS_BIAS) + 2 * !!(flags & TI_CONV_ENDING_HAS_NORM) +
                    !!(flags & TI_CONV_ENDING_HAS_NORM_WEIGHT) + !!(flags & TI_CONV_ENDING_HAS_NORM_BIAS);
  char *const *like = args + 3 + after;
  FN(ending) e = {.y = (float *)args[0], .is_affine = flags & (TI_CONV_ENDING_HAS_BIAS | TI_CONV_ENDING_HAS_NORM), .is_relu = flags & TI_CONV_ENDING_IS_RELU};
  if (flags & TI_CONV_ENDING_HAS_ADDEND) e.added = (const float *)*like++;
  if (flags & TI_CONV_ENDING_HAS_GATE) e.gate = (const float *)*like;
  float *const source = (float *)scratch, *const sums = source + b.source_rows * row, *const w = sums + TI_TILE_ROWS * pitch;
  int32_t *const at = (int32_t *)(w + p->num_taps);
  for (int64_t c = 0; c < p->columns; c++) {
    const grid_tap *tap = p->taps + c * p->shared;
    const int64_t column = tap->column - p->left;
    at[c] = (int32_t)((tap->row - p->top) * row + column % g.sw * pitch + column / g.sw);
  }
  FN(laid) last = {0, 0};
  for (int64_t item = begin; item < end; item++) {
    const int64_t group = item / blocks, n0 = item % blocks * b.images, images = ti_min(b.images, g.n - n0);
    const int64_t lanes = (images - 1) * b.span + g.gw;
    const float *x = (const float *)args[1] + (n0 * g.g + group) * plane;
    for (int64_t a0 = 0; a0 < g.gh; a0 += b.rows) {
      const int64_t rows = ti_min(b.rows, g.gh - a0);
      const int64_t top = a0 * g.sh + p->top;
      const int has_zeros = FN(lies_alike)(&last, top, images);
      if (p->columns) FN(lay_out)(&g, &b, x, g.g * plane, images, top, b.source_rows, p->left, has_zeros, source);
      for (int64_t m = 0; m < g.m; m++) {
        const float *weights = (const float *)args[2] + group * p->weight_group + m * p->weight_row;
        for (int64_t t = 0; t < p->num_taps; t++) w[t] = weights[p->taps[t].weight];
        FN(find_affine)(args + 3, flags, ((const conv_product_scalars *)scalars)->epsilon, group * g.m + m, 1, &e.scale, &e.shift);
        for (int64_t a = 0; a < rows; a += TI_TILE_ROWS) {
          if (rows - a == 1 && p->shared == 1) FN(depthwise_line)(source + a * g.sh * row, at, w, p->columns, lanes, sums);
          else for (int64_t l = 0; l < lanes; l += 2 * VL)
            FN(depthwise_tiles)[p->shared - 1][lanes - l > VL](source + a * g.sh * row + l, g.sh * row, at, w, p->columns, sums + l, pitch);
          for (int64_t r = 0; r < ti_min(TI_TILE_ROWS, rows - a); r++)
            for (int64_t n = 0; n < images; n++)
              FN(end_run)(&e, sums + r * pitch + n * b.span, g.gw,
                          (((n0 + n) * g.g + group) * g.m + m) * to.plane + to.first + (a0 + a + r) * to.down, to.across);
        }
      }
    }
  }
  return TI_OK;
}

enum { FN(TAPS_AT_ONCE) = 8 };
/* Adds to `totals` what `taps` taps sum over `rows` rows of `n` gradients. */
TI_INLINE void FN(depthwise_dots)(const int taps, const float *dy, int64_t rows, int64_t n, const float *x, ptrdiff_t down, const int32_t *at, double *totals) {
  VF sum[FN(TAPS_AT_ONCE)];
#pragma GCC unroll 8
  for (int t = 0; t < taps; t++) sum[t] = FN(set)(0);
  for (int64_t r = 0; r < rows; r++, dy += n, x += down) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
      const VF d = FN(load)(dy + i);
#pragma GCC unroll 8
      for (int t = 0; t < taps; t++) sum[t] = FN(fma)(d, FN(load)(x + at[t] + i), sum[t]);
    }
    if (i < n) {
      const VF d = FN(load_part)(dy + i, n - i);
#pragma GCC unroll 8
      for (int t = 0; t < taps; t++) sum[t] = FN(fma)(d, FN(load_part)(x + at[t] + i, n - i), sum[t]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < taps; t++) totals[t] += FN(sum_lanes)(sum[t]);
}
#undef TI_DOTS
#define TI_DOTS(T_) \
  static __attribute__((noinline)) void FN(depthwise_dots_##T_)(const float *dy, int64_t rows, int64_t n, const float *x, ptrdiff_t down, \
      const int32_t *at, double *totals) { FN(depthwise_dots)(T_, dy, rows, n, x, down, at, totals); }
TI_DOTS(1) TI_DOTS(2) TI_DOTS(3) TI_DOTS(4) TI_DOTS(5) TI_DOTS(6) TI_DOTS(7) TI_DOTS(8)
typedef void (*FN(dots))(const float *, int64_t, int64_t, const float *, ptrdiff_t, const int32_t *, double *);
static const FN(dots) FN(dots_table)[FN(TAPS_AT_ONCE)] = {
  FN(depthwise_dots_1), FN(depthwise_dots_2), FN(depthwise_dots_3), FN(depthwise_dots_4),
  FN(depthwise_dots_5), FN(depthwise_dots_6), FN(depthwise_dots_7), FN(depthwise_dots_8),
};

TI_KERNEL(depthwise_weight) {
  const depthwise_weight_ints *const p = (const depthwise_weight_ints *)ints;
  const grid g = p->grid;
  const bands b = p->bands;
  const int64_t row = g.sw * b.pitch, plane = g.h * g.w, pixels = g.gh * g.gw, taps = p->num_taps;
  double *const totals = (double *)scratch;
  float *const source = (float *)(totals + g.m * taps);
  int32_t *const at = (int32_t *)(source + b.source_rows * row);
  (void)scalars;
  for (int64_t t = 0; t < taps; t++) {
    const int64_t column = p->taps[t].column - p->left;
    at[t] = (int32_t)((p->taps[t].row - p->top) * row + column % g.sw * b.pitch + column / g.sw);
  }
  FN(laid) last = {0, 0};
  for (int64_t item = begin; item < end; item++) {
    const int64_t group = item % g.g, chunk = item / g.g;
    memset(totals, 0, sizeof(double) * (size_t)(g.m * taps));
    for (int64_t n = g.n * chunk / p->chunks; n < g.n * (chunk + 1) / p->chunks; n++)
      for (int64_t a = 0; a < g.gh; a += b.rows) {
        const int64_t rows = ti_min(b.rows, g.gh - a);
        const int64_t top = a * g.sh + p->top;
        const int has_zeros = FN(lies_alike)(&last, top, 1);
        FN(lay_out)(&g, &b, (const float *)args[2] + (n * g.g + group) * plane, 0, 1, top, b.source_rows, p->left, has_zeros, source);
        for (int64_t m = 0; m < g.m; m++) {
          const float *dy = (const float *)args[1] + ((n * g.g + group) * g.m + m) * pixels + a * g.gw;
          for (int64_t t = 0; t < taps; t += FN(TAPS_AT_ONCE))
            FN(dots_table)[ti_min(FN(TAPS_AT_ONCE), taps - t) - 1](dy, rows, g.gw, source, g.sh * row, at + t, totals + m * taps + t);
        }
      }
    float *const d = (float *)args[0] + (chunk * g.g + group) * g.m * taps;
    for (int64_t m = 0; m < g.m; m++)
      for (int64_t t = 0; t < taps; t++) d[m * taps + p->taps[t].weight] = (float)totals[m * taps + t];
  }
  return TI_OK;
}
