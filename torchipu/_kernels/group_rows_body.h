/* Group normalisation of values whose channels lie last: a row for each position, and a few columns for each group. */

/* Where chunk i of the positions of all samples begins, in rows, and how many rows it has. */
TI_INLINE int64_t FN(chunk_of)(const group_rows_ints *p, int64_t i, int64_t *count) {
  const int64_t chunks = ti_ceil(p->positions, p->rows), first = i % chunks * p->rows;
  *count = ti_min(p->rows, p->positions - first);
  return i / chunks * p->positions + first;
}
/* The mean of its group for each of n columns from c on. */
TI_INLINE void FN(spread_groups)(float *columns, const float *of_group, int64_t depth, int64_t c, int64_t n) {
  for (int64_t i = 0; i < n; i++) columns[i] = of_group[(c + i) / depth];
}

TI_KERNEL(group_row_moments) {
  const group_rows_ints *const p = (const group_rows_ints *)ints;
  const int64_t channels = p->depth * p->groups;
  for (int64_t i = begin; i < end; i++) {
    int64_t count;
    const int64_t row = FN(chunk_of)(p, i, &count);
    float *const mean = (float *)args[0] + i * 2 * channels;
    FN(column_moments)((const float *)args[1] + row * channels, count, channels, mean, mean + channels);
  }
  return TI_OK;
}

TI_KERNEL(group_row_statistics) {
  const group_rows_ints *const p = (const group_rows_ints *)ints;
  const int64_t chunks = ti_ceil(p->positions, p->rows), channels = p->depth * p->groups;
  const double eps = ((const norm_scalars *)scalars)->eps;
  for (int64_t i = begin; i < end; i++) {
    const float *of = (const float *)args[2] + i / p->groups * chunks * 2 * channels + i % p->groups * p->depth;
    FN(channel) all = {0, 0, 0};
    for (int64_t k = 0; k < chunks; k++, of += 2 * channels) {
      const double count = (double)ti_min(p->rows, p->positions - k * p->rows);
      for (int64_t c = 0; c < p->depth; c++) FN(merge)(&all, of[c], of[channels + c], count);
    }
    ((float *)args[0])[i] = (float)all.mean;
    ((float *)args[1])[i] = (float)(1.0 / sqrt(all.squares / all.count + eps));
  }
  return TI_OK;
}

TI_KERNEL(group_row_apply) {
  const group_rows_ints *const p = (const group_rows_ints *)ints;
  const int64_t channels = p->depth * p->groups, chunks = ti_ceil(p->positions, p->rows);
  const float *const w = p->has_weight ? (const float *)args[4] : NULL, *const b = p->has_bias ? (const float *)args[5] : NULL;
  float scale[TI_NORM_COLUMNS], shift[TI_NORM_COLUMNS], centre[TI_NORM_COLUMNS];
  for (int64_t i = begin; i < end; i++) {
    int64_t count;
    const int64_t row = FN(chunk_of)(p, i, &count), groups = i / chunks * p->groups;
    for (int64_t c = 0; c < channels; c += TI_NORM_COLUMNS) {
      const int64_t width = ti_min(TI_NORM_COLUMNS, channels - c), together = FN(rows_together)(channels, count);
      FN(spread_groups)(centre, (const float *)args[2] + groups, p->depth, c, width);
      FN(spread_groups)(scale, (const float *)args[3] + groups, p->depth, c, width);
      if (w)
        for (int64_t k = 0; k < width; k++) scale[k] *= w[c + k];
      for (int64_t k = 0; k < width; k++) shift[k] = b ? b[c + k] : 0.0f;
      FN(repeat)(scale, width, together), FN(repeat)(shift, width, together), FN(repeat)(centre, width, together);
      for (int64_t r = 0; r < count; r += together) {
        const int64_t at = (row + r) * channels + c;
        FN(scale_columns)((float *)args[0] + at, (const float *)args[1] + at, NULL, centre, scale, shift, 0,
                          width * ti_min(together, count - r));
      }
    }
  }
  return TI_OK;
}

TI_KERNEL(group_row_grad_sums) {
  const group_rows_ints *const p = (const group_rows_ints *)ints;
  const int64_t channels = p->depth * p->groups, chunks = ti_ceil(p->positions, p->rows);
  for (int64_t i = begin; i < end; i++) {
    int64_t count;
    const int64_t row = FN(chunk_of)(p, i, &count);
    const float *const mean = (const float *)args[3] + i / chunks * p->groups;
    float *const products = (float *)args[0] + i * 2 * channels, *const sums = products + channels;
    for (int64_t c = 0; c < channels; c += 4 * VL) {
      const int64_t width = ti_min(4 * VL, channels - c), at = row * channels + c;
      float centre[4 * VL] = {0}, s[4 * VL], t[4 * VL];
      FN(spread_groups)(centre, mean, p->depth, c, width);
      FN(add_block)((const float *)args[2] + at, (const float *)args[1] + at, count, channels, width, centre, s, t);
      memcpy(sums + c, s, sizeof(float) * (size_t)width), memcpy(products + c, t, sizeof(float) * (size_t)width);
    }
  }
  return TI_OK;
}

TI_KERNEL(group_row_grad_statistics) {
  const group_rows_ints *const p = (const group_rows_ints *)ints;
  const int64_t chunks = ti_ceil(p->positions, p->rows), channels = p->depth * p->groups;
  const double elements = (double)p->depth * (double)p->positions;
  const float *const w = p->has_weight ? (const float *)args[4] : NULL;
  for (int64_t i = begin; i < end; i++) {
    const int64_t sample = i / p->groups, first = i % p->groups * p->depth;
    const double r = ((const float *)args[2])[i];
    float *const dw = (float *)args[1] + sample * 2 * channels + first, *const db = dw + channels;
    double level = 0, slope = 0;
    for (int64_t c = 0; c < p->depth; c++) {
      const float *of = (const float *)args[3] + sample * chunks * 2 * channels + first + c;
      double product = 0, sum = 0;
      for (int64_t k = 0; k < chunks; k++, of += 2 * channels) product += of[0], sum += of[channels];
      product *= r;
      dw[c] = (float)product, db[c] = (float)sum;
      const double scale = w ? w[first + c] : 1.0;
      level += sum * scale, slope += product * scale;
    }
    ((float *)args[0])[2 * i] = (float)(-slope / elements * r * r);
    ((float *)args[0])[2 * i + 1] = (float)(-level / elements * r);
  }
  return TI_OK;
}

TI_KERNEL(group_row_grad_apply) {
  const group_rows_ints *const p = (const group_rows_ints *)ints;
  const int64_t channels = p->depth * p->groups, chunks = ti_ceil(p->positions, p->rows);
  const float *const w = p->has_weight ? (const float *)args[6] : NULL;
  float scale[TI_NORM_COLUMNS], slope[TI_NORM_COLUMNS], shift[TI_NORM_COLUMNS], centre[TI_NORM_COLUMNS];
  for (int64_t i = begin; i < end; i++) {
    int64_t count;
    const int64_t row = FN(chunk_of)(p, i, &count), groups = i / chunks * p->groups;
    for (int64_t c = 0; c < channels; c += TI_NORM_COLUMNS) {
      const int64_t width = ti_min(TI_NORM_COLUMNS, channels - c), together = FN(rows_together)(channels, count);
      for (int64_t k = 0; k < width; k++) {
        const int64_t group = groups + (c + k) / p->depth;
        const float *const by = (const float *)args[5] + 2 * group, r = ((const float *)args[4])[group];
        scale[k] = w ? r * w[c + k] : r, slope[k] = by[0], shift[k] = by[1], centre[k] = ((const float *)args[3])[group];
      }
      FN(repeat)(scale, width, together), FN(repeat)(slope, width, together);
      FN(repeat)(shift, width, together), FN(repeat)(centre, width, together);
      for (int64_t k = 0; k < count; k += together) {
        const int64_t at = (row + k) * channels + c;
        FN(grad_columns)((float *)args[0] + at, (const float *)args[1] + at, (const float *)args[2] + at, centre, scale, slope,
                         shift, width * ti_min(together, count - k));
      }
    }
  }
  return TI_OK;
}
