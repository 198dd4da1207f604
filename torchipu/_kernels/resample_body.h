/* Weighted sums along a dimension, for interpolation, and sums of windows that overlap. */

/* weighted_taps: args out [outer, m, inner], in [outer, n, inner], starts LONG[m + 1], sources LONG[taps], weights
 * FLOAT[taps]; ints m, n, inner. Items: (outer, m). out[j] is the sum of in[sources[t]] weights[t] for t from starts[j]
 * to starts[j + 1], added in this order; zero without taps. */
TI_KERNEL(weighted_taps) {
  const int64_t m = ints[0], n = ints[1], inner = ints[2];
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
    for (int64_t t = first; t < last; t++) {
      const float by = weights[t], *row = in + sources[t] * inner;
      if (t == first && by == 1.f) memcpy(out, row, (size_t)inner * sizeof(float));
      else if (t == first) for (int64_t i = 0; i < inner; i++) out[i] = by * row[i];
      else for (int64_t i = 0; i < inner; i++) out[i] += by * row[i];
    }
  }
  return TI_OK;
}

/* add_strided: args out (read and written), in, float both; ints dims (at most 12), then sizes, strides of out and
 * strides of in. Items: rows of the last dimension; elements of out do not overlap. */
TI_KERNEL(add_strided) {
  const int64_t dims = ints[0], *sizes = ints + 1, *to = sizes + dims, *from = to + dims;
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
