/* Convolutions of few channels that move by single pixels, over the image as it lies: rows of whole halves of a vector.
 *
 * A vector holds neighbouring results. Where two rows of results share one it is loaded in halves, so that nothing has to
 * be copied for each column of the window.
 */

#undef TI_NEAR
#if VL == 16
#define TI_NEAR 4  /* vectors of a tile */
#else
#define TI_NEAR 2
#endif

#ifndef TORCHIPU_CONV_NEAR
#define TORCHIPU_CONV_NEAR
enum { TI_NEAR_ROWS = 6, TI_HALF = 8 };
/* What the tiles of a block of results share, and where the vectors of one lie. */
typedef struct {
  const float *weight, *bias, *x;  /* of the first row of the tile; bias may be NULL */
  const int32_t *offsets;          /* of each summand from where a result begins to read */
  float *y;
  int64_t summands, channels, pixels, pitch, columns;
  int64_t plane;                   /* from the results of a channel to those of the next */
  int accumulate;
  struct { int64_t pixel, low, high; } at[4];  /* a result, where it begins to read, and where the eighth behind it does */
} ti_near;

/* Whether a convolution's windows can be read where they lie, or where a copy with its borders does. */
static inline int ti_is_near(const conv_shape *s) {
  return !s->direct && s->sh == 1 && s->sw == 1 && s->cols % TI_HALF == 0 && s->ow % s->cols == 0 && s->cols >= s->dw;
}
#endif

/* mr channels of nv vectors of results; split: each is loaded in halves. A vector by itself may be the last, of fewer
 * results. */
TI_INLINE void FN(near_tile)(const int mr, const int nv, const int split, const ti_near *t) {
  VF sum[TI_NEAR_ROWS][TI_NEAR];
  const float *low[TI_NEAR];
#if VL == 16
  const float *high[TI_NEAR];
#endif
  const int32_t *offsets = t->offsets;
  const float *a = t->weight;
  const int64_t step = t->channels, summands = t->summands, plane = t->plane;
#pragma GCC unroll 4
  for (int j = 0; j < nv; j++) {
    low[j] = t->x + t->at[j].low;
#if VL == 16
    high[j] = t->x + t->at[j].high;
#endif
  }
#pragma GCC unroll 6
  for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) sum[i][j] = t->bias && !t->accumulate ? FN(set)(t->bias[i]) : FN(set)(0);
  for (int64_t k = 0; k < summands; k++) {
    const ptrdiff_t at = offsets[k];
    VF v[TI_NEAR];
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) {
#if VL == 16
      if (split)
        v[j] = (VF)_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low[j] + at)), _mm256_loadu_ps(high[j] + at), 1);
      else
#endif
      v[j] = FN(load)(low[j] + at);
    }
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++) {
      const VF w = FN(broadcast)(a + i);
#pragma GCC unroll 4
      for (int j = 0; j < nv; j++) sum[i][j] = FN(fma)(w, v[j], sum[i][j]);
    }
    a += step;
  }
  if (t->accumulate)
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
      for (int j = 0; j < nv; j++) {
        const float *y = t->y + i * plane + t->at[j].pixel;
        sum[i][j] += nv > 1 ? FN(load)(y) : FN(load_most)(y, t->pixels - t->at[j].pixel);
      }
#pragma GCC unroll 6
  for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) {
      float *y = t->y + i * plane + t->at[j].pixel;
      if (nv > 1) FN(store)(y, sum[i][j]);
      else FN(store_most)(y, sum[i][j], t->pixels - t->at[j].pixel);
    }
}

#undef TI_NEAR_TILE
#undef TI_NEAR_NAMES
#define TI_NEAR_TILE(MR_) \
  static __attribute__((noinline)) void FN(near_##MR_##_1)(const ti_near *t) { FN(near_tile)(MR_, 1, VL > TI_HALF, t); } \
  static __attribute__((noinline)) void FN(near_##MR_##_n)(const ti_near *t) { FN(near_tile)(MR_, TI_NEAR, 0, t); } \
  static __attribute__((noinline)) void FN(near_##MR_##_h)(const ti_near *t) { FN(near_tile)(MR_, TI_NEAR, VL > TI_HALF, t); }
TI_NEAR_TILE(1) TI_NEAR_TILE(2) TI_NEAR_TILE(3) TI_NEAR_TILE(4) TI_NEAR_TILE(5) TI_NEAR_TILE(6)
#define TI_NEAR_NAMES(KIND) \
  {FN(near_1_##KIND), FN(near_2_##KIND), FN(near_3_##KIND), FN(near_4_##KIND), FN(near_5_##KIND), FN(near_6_##KIND)}
/* One vector of either sort; several whole ones; several in halves. */
static void (*const FN(near_table)[3][TI_NEAR_ROWS])(const ti_near *) = {TI_NEAR_NAMES(1), TI_NEAR_NAMES(n), TI_NEAR_NAMES(h)};

/* All results of a block of channels: whole vectors together, and those in halves together. */
static void FN(near_rows)(const ti_near *of, int rows) {
  ti_near waiting[2] = {*of, *of};
  int count[2] = {0, 0};
  int64_t column = 0, at = 0;  /* of the next eight results, and where they begin to read */
  for (int64_t pixel = 0; pixel < of->pixels; pixel += VL) {
    int64_t begins[2] = {at, at};
    int split = 0;
    for (int half = 0; half < VL / TI_HALF && pixel + half * TI_HALF < of->pixels; half++) {
      begins[half] = at;
      split |= half && !column;
      column += TI_HALF;
      at += TI_HALF;
      if (column == of->columns) { column = 0; at += of->pitch - of->columns; }
    }
    /* Half a vector is left: the other half repeats it. */
    split |= VL > TI_HALF && pixel + TI_HALF >= of->pixels;
    ti_near *const t = &waiting[split];
    t->at[count[split]].pixel = pixel;
    t->at[count[split]].low = begins[0];
    t->at[count[split]].high = begins[VL / TI_HALF - 1];
    if (pixel + VL > of->pixels) {
      ti_near last = *t;
      last.at[0] = t->at[count[split]];
      FN(near_table)[0][rows - 1](&last);
    } else if (++count[split] == TI_NEAR) {
      FN(near_table)[1 + split][rows - 1](t);
      count[split] = 0;
    }
  }
  for (int split = 0; split < 2; split++)
    for (int i = 0; i < count[split]; i++) {
      waiting[split].at[0] = waiting[split].at[i];
      FN(near_table)[0][rows - 1](&waiting[split]);
    }
}

/* The rows and columns that a block of results reads, with zeros where they lie outside of the image:
 * e[channel][row][column]. */
static void FN(with_borders)(const conv_shape *s, const float *x, int64_t oh0, int64_t rows, int64_t ow0, int64_t pitch, float *e) {
  const int64_t span = rows + (s->kh - 1) * s->dh, left = s->pw - ow0, top = s->ph - oh0;
  const int64_t lo = ti_max(0, ti_min(pitch, left)), hi = ti_max(lo, ti_min(pitch, s->w + left));
  for (int64_t c = 0; c < s->ic; c++, x += s->h * s->w)
    for (int64_t r = 0; r < span; r++, e += pitch) {
      if (r < top || r >= s->h + top) { FN(zero_run)(e, pitch); continue; }
      FN(zero_run)(e, lo);
      FN(copy_run)(e + lo, x + (r - top) * s->w + lo - left, hi - lo, 1);
      FN(zero_run)(e + hi, pitch - hi);
    }
}

/* One block of results; `rest` holds what the step has room for behind the offsets. */
static void FN(near_block)(const conv_shape *s, const float *x, const float *weight, const float *bias, float *y, int64_t oh0,
                           int64_t rows, int64_t ow0, int32_t *offsets, int is_known, float *rest) {
  const int64_t summands = s->ic * s->kh * s->kw, columns = ti_min(s->cols, s->ow - ow0);
  const int is_copied = s->ph || s->pw;
  const int64_t pitch = is_copied ? columns + (s->kw - 1) * s->dw : s->w;
  const int64_t plane = is_copied ? (ti_min(s->rows, rows) + (s->kh - 1) * s->dh) * pitch : s->h * s->w;
  if (!is_known)
    for (int64_t c = 0, k = 0; c < s->ic; c++)
      for (int64_t kh = 0; kh < s->kh; kh++)
        for (int64_t kw = 0; kw < s->kw; kw++) offsets[k++] = (int32_t)(c * plane + kh * s->dh * pitch + kw * s->dw);
  if (is_copied) FN(with_borders)(s, x, oh0, rows, ow0, pitch, rest);
  const int64_t even = ti_even(s->oc, TI_NEAR_ROWS);
  ti_near t = {.x = is_copied ? rest : x + oh0 * s->w + ow0, .channels = s->oc, .pixels = rows * columns, .pitch = pitch,
               .columns = columns, .plane = s->oh * s->ow};
  for (int64_t k = 0; k < summands; k += TI_SUM_BLOCK)
    for (int64_t o = 0; o < s->oc; o += even) {
      t.weight = weight + k * s->oc + o;
      t.bias = bias ? bias + o : NULL;
      t.offsets = offsets + k;
      t.y = y + o * t.plane + oh0 * s->ow + ow0;
      t.summands = ti_min(TI_SUM_BLOCK, summands - k);
      t.accumulate = k > 0;
      FN(near_rows)(&t, (int)ti_min(even, s->oc - o));
    }
}
