/* Weighted sums along a dimension, for interpolation, and sums of windows that overlap. */

/* Taps of which every output of a piece has as many; those of all outputs for one tap lie together. */
TI_INLINE void FN(weigh_piece)(float *restrict out, const float *in, const int32_t *from, const float *by, int64_t count, int taps) {
  for (int64_t i = 0; i < count; i++) {
    float sum = by[i] * in[from[i]];
    for (int t = 1; t < taps; t++) sum += by[t * count + i] * in[from[t * count + i]];
    out[i] = sum;
  }
}
TI_KERNEL(weighted_columns) {
  const weighted_columns_ints *const p = (const weighted_columns_ints *)ints;
  const int64_t pieces = p->pieces, *places = (const int64_t *)args[2];
  for (int64_t item = begin; item < end; item++) {
    const int64_t row = item / pieces, *piece = places + item % pieces * 4, count = piece[1];
    float *out = (float *)args[0] + row * p->outputs + piece[0];
    const float *in = (const float *)args[1] + row * p->inputs, *by = (const float *)args[4] + piece[3];
    const int32_t *from = (const int32_t *)args[3] + piece[3];
    switch (piece[2]) {
      case 0: memset(out, 0, (size_t)count * sizeof(float)); break;
      case 1: FN(weigh_piece)(out, in, from, by, count, 1); break;
      case 2: FN(weigh_piece)(out, in, from, by, count, 2); break;
      case 4: FN(weigh_piece)(out, in, from, by, count, 4); break;
      default: FN(weigh_piece)(out, in, from, by, count, (int)piece[2]);
    }
  }
  return TI_OK;
}

/* Adds up to two weighted rows, the first of all to nothing. */
TI_INLINE void FN(add_rows)(float *restrict out, const float *row, float by, const float *behind, float next, int64_t n, int is_first) {
  if (behind && is_first) for (int64_t i = 0; i < n; i++) out[i] = by * row[i] + next * behind[i];
  else if (behind) for (int64_t i = 0; i < n; i++) out[i] = out[i] + by * row[i] + next * behind[i];
  else if (is_first && by == 1.f) memcpy(out, row, (size_t)n * sizeof(float));
  else if (is_first) for (int64_t i = 0; i < n; i++) out[i] = by * row[i];
  else for (int64_t i = 0; i < n; i++) out[i] += by * row[i];
}
TI_KERNEL(weighted_taps) {
  const weighted_taps_ints *const shape = (const weighted_taps_ints *)ints;
  const int64_t m = shape->outputs, n = shape->inputs, inner = shape->inner;
  const int64_t *starts = (const int64_t *)args[2], *sources = (const int64_t *)args[3];
  const float *weights = (const float *)args[4];
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / m, j = item % m, first = starts[j], last = starts[j + 1];
    const float *in = (const float *)args[1] + o * n * inner;
    float *out = (float *)args[0] + item * inner;
    if (inner == 1) {
      float sum = first < last ? weights[first] * in[sources[first]] : 0.f;
      for (int64_t t = first + 1; t < last; t++) sum += weights[t] * in[sources[t]];
      *out = sum;
      continue;
    }
    if (first == last) memset(out, 0, (size_t)inner * sizeof(float));
    for (int64_t t = first; t < last; t += 2) {  /* two taps at a time: the output is passed over half as often */
      const int is_pair = t + 1 < last;
      FN(add_rows)(out, in + sources[t] * inner, weights[t], is_pair ? in + sources[t + 1] * inner : NULL,
                   is_pair ? weights[t + 1] : 0.f, inner, t == first);
    }
  }
  return TI_OK;
}

/* Adds the runs of a row to the columns from which padding took them; the first row that is folded sets the columns. */
static void FN(fold_row)(float *out, const float *in, const int64_t *run, int64_t runs, int64_t columns, int is_first) {
  for (const int64_t *last = run + 4 * runs; run < last; run += 4) {
    const float *from = in + run[0];
    float *to = out + run[2];
    const int64_t length = run[1];
    if (is_first && run[3] == 1 && length == columns) memcpy(out, from, (size_t)columns * sizeof(float));
    else {
      if (is_first) memset(out, 0, (size_t)columns * sizeof(float));
      if (run[3] == 1) for (int64_t i = 0; i < length; i++) to[i] += from[i];
      else for (int64_t i = 0; i < length; i++) to[i * run[3]] += from[i];
    }
    is_first = 0;
  }
}
TI_KERNEL(fold_rows) {
  const fold_rows_ints *const p = (const fold_rows_ints *)ints;
  const int64_t *planes = (const int64_t *)args[2], *sources = planes + p->depth + 1;
  const int64_t *lines = sources + planes[p->depth], *line_sources = lines + p->height + 1;
  const int64_t *runs = line_sources + lines[p->height];
  for (int64_t item = begin; item < end; item++) {
    const int64_t y = item % p->height, z = item / p->height % p->depth, o = item / p->height / p->depth;
    const float *in = (const float *)args[1] + o * p->padded_rows * p->padded_columns;
    float *out = (float *)args[0] + item * p->columns;
    int is_first = 1;
    for (int64_t i = planes[z]; i < planes[z + 1]; i++)
      for (int64_t j = lines[y]; j < lines[y + 1]; j++, is_first = 0)
        FN(fold_row)(out, in + (sources[i] + line_sources[j]) * p->padded_columns, runs, p->runs, p->columns, is_first);
    if (is_first) memset(out, 0, (size_t)p->columns * sizeof(float));
  }
  return TI_OK;
}

TI_KERNEL(add_strided) {
  const add_strided_ints *const shape = (const add_strided_ints *)ints;
  const int64_t dims = shape->dims, *sizes = shape->layout, *to = sizes + dims, *from = to + dims;
  const int64_t run = sizes[dims - 1], out_step = to[dims - 1], in_step = from[dims - 1];
  for (int64_t item = begin; item < end; item++) {
    int64_t rest = item, write = 0, read = 0;
    for (int64_t d = dims - 2; d >= 0; d--) {
      write += rest % sizes[d] * to[d];
      read += rest % sizes[d] * from[d];
      rest /= sizes[d];
    }
    float *out = (float *)args[0] + write;
    const float *in = (const float *)args[1] + read;
    if (out_step == 1 && in_step == 1) for (int64_t i = 0; i < run; i++) out[i] += in[i];
    else for (int64_t i = 0; i < run; i++) out[i * out_step] += in[i * in_step];
  }
  return TI_OK;
}
