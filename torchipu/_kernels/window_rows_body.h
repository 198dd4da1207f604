/* Pooling of values that have their channels last; table/window_rows.py says what the kernels take. */

/* A row of windows, which an item is: its volume, and its windows along depth and height. */
typedef struct { int64_t volume; const int64_t *d, *h; } FN(row_of_windows);
TI_INLINE FN(row_of_windows) FN(row_of)(const window_rows_ints *s, int64_t item, const int64_t *td, const int64_t *th) {
  const int64_t oh = item % s->out[1], od = item / s->out[1] % s->out[0];
  return (FN(row_of_windows)){item / s->out[1] / s->out[0], td + 3 * od, th + 3 * oh};
}

/* Writes `n` <= VL positions, which memory holds as int64. */
TI_INLINE void FN(store_places)(int64_t *index, VI at, int64_t n) {
#if VL == 16
  const __mmask16 there = FN(first)(n);
  _mm512_mask_storeu_epi64(index, (__mmask8)there, _mm512_cvtepi32_epi64(_mm512_castsi512_si256((__m512i)at)));
  if (n > 8)
    _mm512_mask_storeu_epi64(index + 8, (__mmask8)(there >> 8), _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64((__m512i)at, 1)));
#else
  for (int64_t i = 0; i < n; i++) index[i] = at[i];
#endif
}

TI_INLINE void FN(largest_of)(const window_rows_ints *s, const float *x, FN(row_of_windows) row, const int64_t *w, int64_t c,
                              const int has_indices, float *y, int64_t *index) {
  const int64_t n = ti_min(VL, s->channels - c);
  VF most = FN(set)(-INFINITY);
  VI at = FN(iset)((int32_t)((row.d[0] * s->size[1] + row.h[0]) * s->size[2] + w[0]));
  for (int64_t i = row.d[0]; i < row.d[1]; i += s->step[0])
    for (int64_t j = row.h[0]; j < row.h[1]; j += s->step[1])
      for (int64_t k = w[0]; k < w[1]; k += s->step[2]) {
        const int64_t here = (i * s->size[1] + j) * s->size[2] + k;
        const VF v = FN(load_most)(x + here * s->channels + c, n);
        const VM takes = FN(mor)(FN(lt)(most, v), FN(isnan)(v));
        most = FN(sel)(takes, v, most);
        if (has_indices) at = FN(isel)(takes, FN(iset)((int32_t)here), at);
      }
  FN(store_most)(y + c, most, n);
  if (has_indices) FN(store_places)(index + c, at, n);
}

TI_KERNEL(window_rows_max) {
  const window_rows_ints *const s = (const window_rows_ints *)ints;
  const int64_t inputs = s->size[0] * s->size[1] * s->size[2], row_size = s->out[2] * s->channels;
  const int64_t *const tw = (const int64_t *)args[5];
  for (int64_t item = begin; item < end; item++) {
    const FN(row_of_windows) row = FN(row_of)(s, item, (const int64_t *)args[3], (const int64_t *)args[4]);
    const float *const x = (const float *)args[2] + row.volume * inputs * s->channels;
    for (int64_t ow = 0; ow < s->out[2]; ow++) {
      float *const y = (float *)args[0] + item * row_size + ow * s->channels;
      int64_t *const index = (int64_t *)args[1] + item * row_size + ow * s->channels;
      for (int64_t c = 0; c < s->channels; c += VL)
        if (s->has_indices) FN(largest_of)(s, x, row, tw + 3 * ow, c, 1, y, index);
        else FN(largest_of)(s, x, row, tw + 3 * ow, c, 0, y, NULL);
    }
  }
  return TI_OK;
}

/* The mean of a window in VL channels: sums in float or in double, in the order of the positions. */
TI_INLINE void FN(mean_of)(const window_rows_ints *s, const float *x, FN(row_of_windows) row, const int64_t *w, int64_t c, float *y) {
  const int64_t n = ti_min(VL, s->channels - c), count = row.d[2] * row.h[2] * w[2];
  double sums[VL] = {0};
  VF sum = {0};
  for (int64_t i = row.d[0]; i < row.d[1]; i++)
    for (int64_t j = row.h[0]; j < row.h[1]; j++)
      for (int64_t k = w[0]; k < w[1]; k++) {
        const VF v = FN(load_most)(x + ((i * s->size[1] + j) * s->size[2] + k) * s->channels + c, n);
        if (s->in_floats) sum += v;
        else for (int l = 0; l < VL; l++) sums[l] += (double)v[l];
      }
  if (s->in_floats) sum /= FN(set)((float)count);
  else for (int l = 0; l < VL; l++) sum[l] = (float)(sums[l] / (double)count);
  FN(store_most)(y + c, sum, n);
}

TI_KERNEL(window_rows_mean) {
  const window_rows_ints *const s = (const window_rows_ints *)ints;
  const int64_t inputs = s->size[0] * s->size[1] * s->size[2];
  for (int64_t item = begin; item < end; item++) {
    const FN(row_of_windows) row = FN(row_of)(s, item, (const int64_t *)args[2], (const int64_t *)args[3]);
    const float *const x = (const float *)args[1] + row.volume * inputs * s->channels;
    for (int64_t ow = 0; ow < s->out[2]; ow++)
      for (int64_t c = 0; c < s->channels; c += VL)
        FN(mean_of)(s, x, row, (const int64_t *)args[4] + 3 * ow, c, (float *)args[0] + (item * s->out[2] + ow) * s->channels);
  }
  return TI_OK;
}

/* The windows that a position is in, of `count` whose beginnings and ends both go up: from *first to before *last. */
TI_INLINE void FN(windows_around)(const int64_t *table, int64_t count, int64_t position, int64_t *first, int64_t *last) {
  while (*first < count && table[3 * *first + 1] <= position) ++*first;
  *last = ti_max(*first, *last);
  while (*last < count && table[3 * *last] <= position) ++*last;
}

TI_KERNEL(window_rows_mean_backward) {
  const window_rows_ints *const s = (const window_rows_ints *)ints;
  const int64_t outputs = s->out[0] * s->out[1] * s->out[2];
  const int64_t *const td = (const int64_t *)args[2], *const th = (const int64_t *)args[3], *const tw = (const int64_t *)args[4];
  for (int64_t item = begin; item < end; item++) {
    const int64_t h = item % s->size[1], d = item / s->size[1] % s->size[0], volume = item / s->size[1] / s->size[0];
    const float *const dy = (const float *)args[1] + volume * outputs * s->channels;
    int64_t d0 = 0, d1 = 0, h0 = 0, h1 = 0, w0 = 0, w1 = 0;
    FN(windows_around)(td, s->out[0], d, &d0, &d1);
    FN(windows_around)(th, s->out[1], h, &h0, &h1);
    for (int64_t w = 0; w < s->size[2]; w++) {
      float *const dx = (float *)args[0] + (item * s->size[2] + w) * s->channels;
      FN(windows_around)(tw, s->out[2], w, &w0, &w1);
      for (int64_t c = 0; c < s->channels; c += VL) {
        const int64_t n = ti_min(VL, s->channels - c);
        VF sum = {0};
        for (int64_t i = d0; i < d1; i++)
          for (int64_t j = h0; j < h1; j++)
            for (int64_t k = w0; k < w1; k++)
              sum += FN(load_most)(dy + ((i * s->out[1] + j) * s->out[2] + k) * s->channels + c, n) /
                     FN(set)((float)(td[3 * i + 2] * th[3 * j + 2] * tw[3 * k + 2]));
        FN(store_most)(dx + c, sum, n);
      }
    }
  }
  return TI_OK;
}

TI_KERNEL(window_rows_add) {
  const placing_rows_ints *const p = (const placing_rows_ints *)ints;
  const int64_t blocks = ti_ceil(p->channels, p->block);
  for (int64_t item = begin; item < end; item++) {
    const int64_t volume = item / blocks, c = item % blocks * p->block, width = ti_min(p->block, p->channels - c);
    float *const y = (float *)args[0] + volume * p->outputs * p->channels + c;
    const float *x = (const float *)args[1] + volume * p->inputs * p->channels + c;
    const int64_t *index = (const int64_t *)args[2] + volume * p->inputs * p->channels + c;
    for (int64_t i = 0; i < p->outputs; i++) memset(y + i * p->channels, 0, sizeof(float) * (size_t)width);
    for (int64_t i = 0; i < p->inputs; i++, x += p->channels, index += p->channels)
      for (int64_t l = 0; l < width; l++) {
        if ((uint64_t)index[l] >= (uint64_t)p->outputs) return TI_TRAP_INDEX;
        y[index[l] * p->channels + l] += x[l];
      }
  }
  return TI_OK;
}
