/* Rows taken from, put into and summed into tables by index, and bags of rows. Duplicate indices
 * are served in their order: they are bucketed by table row first, so that the result is the same on any number of
 * threads and the last write wins. */

TI_INLINE int64_t FN(index_at)(const char *p, int64_t bytes, int64_t i) {
  return bytes == 8 ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}

/* take_rows: args out [outer, n, row], table [outer, rows, row], index [n] or [outer, n]; ints rows, n, bytes of a row,
 * index bytes, negative indices allowed, length of the index. Items: (outer, index). */
TI_KERNEL(take_rows) {
  const int64_t rows = ints[0], n = ints[1], bytes = ints[2], wrap = ints[4], period = ints[5];
  for (int64_t i = begin; i < end; i++) {
    int64_t k = FN(index_at)(args[2], ints[3], i % period);
    if (wrap && k < 0) k += rows;
    if (k < 0 || k >= rows) return TI_TRAP_INDEX;
    const char *src = args[1] + (i / n * rows + k) * bytes;
    if (bytes == 4) memcpy(args[0] + i * 4, src, 4);
    else memcpy(args[0] + i * bytes, src, (size_t)bytes);
  }
  return TI_OK;
}

/* bucket: args offsets LONG[rows + 1], order LONG[n], index [n]; ints rows, n, index bytes, negative indices allowed,
 * skipped index (-1: none). One item. Positions of the index by the row they name, in their order. */
TI_KERNEL(bucket) {
  int64_t *offsets = (int64_t *)args[0], *order = (int64_t *)args[1];
  const int64_t rows = ints[0], n = ints[1], wrap = ints[3], skipped = ints[4];
  memset(offsets, 0, (size_t)(rows + 1) * sizeof(int64_t));
  for (int64_t i = 0; i < n; i++) {
    int64_t k = FN(index_at)(args[2], ints[2], i);
    if (wrap && k < 0) k += rows;
    if (k < 0 || k >= rows) return TI_TRAP_INDEX;
    if (k != skipped) offsets[k + 1]++;
  }
  for (int64_t k = 0; k < rows; k++) offsets[k + 1] += offsets[k];
  /* Filling moves each row's offset to its end; shifting by one place restores the beginnings. */
  for (int64_t i = 0; i < n; i++) {
    int64_t k = FN(index_at)(args[2], ints[2], i);
    if (wrap && k < 0) k += rows;
    if (k != skipped) order[offsets[k]++] = i;
  }
  memmove(offsets + 1, offsets, (size_t)rows * sizeof(int64_t));
  offsets[0] = 0;
  return TI_OK;
}

/* sum_rows: args out [outer, rows, inner], base (same shape), source [outer, n, inner], offsets, order; ints rows, n,
 * inner, has base, source stride of n (0: one row for all), source stride of inner (0: one number); scalars alpha.
 * Items: (outer, row). out = base + alpha * sum of the row's sources. */
TI_KERNEL(sum_rows) {
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const int64_t rows = ints[0], n = ints[1], inner = ints[2], step = ints[4], lane = ints[5];
  const float alpha = (float)scalars[0];
  const VF by = FN(set)(alpha);
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / rows, k = item % rows;
    float *out = (float *)args[0] + item * inner;
    if (ints[3]) memcpy(out, (const float *)args[1] + item * inner, (size_t)inner * sizeof(float));
    else memset(out, 0, (size_t)inner * sizeof(float));
    for (int64_t j = offsets[k]; j < offsets[k + 1]; j++) {
      const float *src = (const float *)args[2] + o * n * step + order[j] * step;
      int64_t i = 0;
      if (!lane) {
        for (; i < inner; i++) out[i] += alpha * src[0];
        continue;
      }
      for (; i + VL <= inner; i += VL) FN(store)(out + i, FN(load)(out + i) + by * FN(load)(src + i));
      if (i < inner) FN(store_part)(out + i, FN(load_part)(out + i, inner - i) + by * FN(load_part)(src + i, inner - i), inner - i);
    }
  }
  return TI_OK;
}

/* put_rows: args out, base, source, offsets, order as in sum_rows; ints rows, n, elements in a row, element bytes,
 * source stride of n in elements, source stride of the row (0 or 1). Items: (outer, row). The last source wins. */
TI_KERNEL(put_rows) {
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const int64_t rows = ints[0], n = ints[1], inner = ints[2], bytes = ints[3], step = ints[4], lane = ints[5];
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / rows, k = item % rows;
    char *out = args[0] + item * inner * bytes;
    if (offsets[k] == offsets[k + 1]) {
      memcpy(out, args[1] + item * inner * bytes, (size_t)(inner * bytes));
      continue;
    }
    const char *src = args[2] + (o * n + order[offsets[k + 1] - 1]) * step * bytes;
    if (lane) memcpy(out, src, (size_t)(inner * bytes));
    else for (int64_t i = 0; i < inner; i++) memcpy(out + i * bytes, src, (size_t)bytes);
  }
  return TI_OK;
}

enum { FN(MAX_DIMS) = 8, FN(MAX_INDICES) = 8 };

/* flatten_index: args out LONG[n], up to 8 index tensors; ints n, tensors, dims, sizes[8] (row-major), then for each
 * tensor: extent, factor, bytes, strides[8] (0 where broadcast). Items: positions. Each gives the sum of the indices
 * times their factors; negative ones count from the end. */
TI_KERNEL(flatten_index) {
  int64_t *out = (int64_t *)args[0];
  const int64_t tensors = ints[1], dims = ints[2], *sizes = ints + 3;
  for (int64_t i = begin; i < end; i++) {
    int64_t at[FN(MAX_INDICES)] = {0}, rest = i, flat = 0;
    for (int64_t d = dims - 1; d >= 0; d--) {
      const int64_t c = rest % sizes[d];
      rest /= sizes[d];
      for (int64_t t = 0; t < tensors; t++) at[t] += c * ints[11 + 11 * t + 3 + d];
    }
    for (int64_t t = 0; t < tensors; t++) {
      const int64_t *of = ints + 11 + 11 * t;
      int64_t k = FN(index_at)(args[1 + t], of[2], at[t]);
      if (k < 0) k += of[0];
      if (k < 0 || k >= of[0]) return TI_TRAP_INDEX;
      flat += k * of[1];
    }
    out[i] = flat;
  }
  return TI_OK;
}

/* copy_bytes: args out, in; ints bytes in all. Items: blocks of 65536 bytes. */
TI_KERNEL(copy_bytes) {
  const int64_t first = begin * 65536, last = ti_min(ints[0], end * 65536);
  memcpy(args[0] + first, args[1] + first, (size_t)(last - first));
  return TI_OK;
}

enum { FN(SUM), FN(MEAN), FN(MAXIMUM) };

/* bag_rows: args out [bags, width], sizes LONG[bags], winners LONG[bags, width] (MAXIMUM only), table [rows, width],
 * index [n], offsets [bags], weights [n]; ints rows, width, n, bags, mode, index bytes, padding index (-1: none), has
 * weights. Items: bags. Empty bags are zero; their winners are 0, as eager's are. */
TI_KERNEL(bag_rows) {
  const int64_t rows = ints[0], width = ints[1], n = ints[2], bags = ints[3], mode = ints[4], bytes = ints[5];
  for (int64_t bag = begin; bag < end; bag++) {
    float *out = (float *)args[0] + bag * width;
    int64_t *winner = (int64_t *)args[2] + bag * width, size = 0;
    const int64_t first = FN(index_at)(args[5], bytes, bag);
    const int64_t last = bag + 1 < bags ? FN(index_at)(args[5], bytes, bag + 1) : n;
    if (first < 0 || last < first || last > n) return TI_TRAP_INDEX;
    memset(out, 0, (size_t)width * sizeof(float));
    if (mode == FN(MAXIMUM)) for (int64_t i = 0; i < width; i++) winner[i] = 0;
    for (int64_t j = first; j < last; j++) {
      const int64_t k = FN(index_at)(args[4], bytes, j);
      if ((uint64_t)k >= (uint64_t)rows) return TI_TRAP_INDEX;
      if (k == ints[6]) continue;
      const float *row = (const float *)args[3] + k * width;
      const float by = ints[7] ? ((const float *)args[6])[j] : 1.f;
      if (mode != FN(MAXIMUM)) for (int64_t i = 0; i < width; i++) out[i] += by * row[i];
      else for (int64_t i = 0; i < width; i++)
        if (!size || row[i] > out[i]) out[i] = row[i], winner[i] = k;
      size++;
    }
    ((int64_t *)args[1])[bag] = size;
    if (mode == FN(MEAN) && size > 1) for (int64_t i = 0; i < width; i++) out[i] /= (float)size;
  }
  return TI_OK;
}

/* bag_of: args out LONG[n], offsets [bags]; ints n, bags, index bytes. One item. The bag of each position. */
TI_KERNEL(bag_of) {
  int64_t *out = (int64_t *)args[0], bag = -1;
  for (int64_t i = 0; i < ints[0]; i++) {
    while (bag + 1 < ints[1] && FN(index_at)(args[1], ints[2], bag + 1) <= i) bag++;
    out[i] = bag;
  }
  return TI_OK;
}

/* bag_rows_grad: args out [rows, width], dy [bags, width], offsets and order of the bucketed index, bag of each
 * position LONG[n], sizes LONG[bags], weights [n]; ints width, divide by the size of the bag, has weights, divide by
 * how often the row is named. Items: rows. */
TI_KERNEL(bag_rows_grad) {
  const int64_t *offsets = (const int64_t *)args[2], *order = (const int64_t *)args[3], width = ints[0];
  for (int64_t row = begin; row < end; row++) {
    float *out = (float *)args[0] + row * width;
    const int64_t named = offsets[row + 1] - offsets[row];
    memset(out, 0, (size_t)width * sizeof(float));
    for (int64_t j = offsets[row]; j < offsets[row + 1]; j++) {
      const int64_t bag = ((const int64_t *)args[4])[order[j]];
      float by = ints[2] ? ((const float *)args[6])[order[j]] : 1.f;
      if (ints[1]) by /= (float)((const int64_t *)args[5])[bag];
      if (ints[3]) by /= (float)named;
      const float *dy = (const float *)args[1] + bag * width;
      for (int64_t i = 0; i < width; i++) out[i] += by * dy[i];
    }
  }
  return TI_OK;
}

/* bag_max_grad: args out [rows, width] (zeroed), dy [bags, width], winners LONG[bags, width], sizes LONG[bags]; ints
 * width, bags, rows. Of an empty bag the winners say nothing. Items: panels of 16 columns. */
TI_KERNEL(bag_max_grad) {
  const int64_t width = ints[0], last = ti_min(width, end * 16);
  for (int64_t bag = 0; bag < ints[1]; bag++) {
    if (!((const int64_t *)args[3])[bag]) continue;
    for (int64_t i = begin * 16; i < last; i++) {
      const int64_t k = ((const int64_t *)args[2])[bag * width + i];
      if ((uint64_t)k >= (uint64_t)ints[2]) return TI_TRAP_INDEX;
      ((float *)args[0])[k * width + i] += ((const float *)args[1])[bag * width + i];
    }
  }
  return TI_OK;
}

/* bag_weights_grad: args out [n], dy [bags, width], table [rows, width], index [n], bag of each position LONG[n]; ints
 * width, rows, index bytes, padding index (-1: none). Items: positions. */
TI_KERNEL(bag_weights_grad) {
  const int64_t width = ints[0];
  for (int64_t j = begin; j < end; j++) {
    const int64_t k = FN(index_at)(args[3], ints[2], j);
    if ((uint64_t)k >= (uint64_t)ints[1]) return TI_TRAP_INDEX;
    const float *dy = (const float *)args[1] + ((const int64_t *)args[4])[j] * width;
    const float *row = (const float *)args[2] + k * width;
    float sum = 0;
    if (k != ints[3]) for (int64_t i = 0; i < width; i++) sum += dy[i] * row[i];
    ((float *)args[0])[j] = sum;
  }
  return TI_OK;
}

/* scale_by_count: args out [rows, width] (in place), offsets LONG[rows + 1]; ints width. Items: rows. Divides each row
 * by how often an index names it. */
TI_KERNEL(scale_by_count) {
  const int64_t *offsets = (const int64_t *)args[1];
  for (int64_t row = begin; row < end; row++) {
    const int64_t count = offsets[row + 1] - offsets[row];
    float *out = (float *)args[0] + row * ints[0];
    if (count > 1) for (int64_t i = 0; i < ints[0]; i++) out[i] /= (float)count;
  }
  return TI_OK;
}

/* renorm_rows: args out [rows, width], table, offsets LONG[rows + 1]; ints width; scalars largest norm, exponent of
 * the norm. Items: rows. Rows that an index names are scaled down to the largest norm, the others are copied. */
TI_KERNEL(renorm_rows) {
  const int64_t *offsets = (const int64_t *)args[2], width = ints[0];
  const double most = scalars[0], p = scalars[1];
  for (int64_t row = begin; row < end; row++) {
    const float *in = (const float *)args[1] + row * width;
    float *out = (float *)args[0] + row * width;
    double norm = 0;
    float scale = 1.f;
    if (offsets[row] < offsets[row + 1]) {
      for (int64_t i = 0; i < width; i++) {
        const double x = fabs((double)in[i]);
        if (isinf(p)) norm = x > norm ? x : norm;
        else norm += p == 2 ? x * x : p == 1 ? x : p == 0 ? x != 0 : pow(x, p);
      }
      if (!isinf(p) && p != 0) norm = p == 2 ? sqrt(norm) : pow(norm, 1 / p);
      if (norm > most) scale = (float)(most / (norm + 1e-7));
    }
    for (int64_t i = 0; i < width; i++) out[i] = scale == 1.f ? in[i] : in[i] * scale;
  }
  return TI_OK;
}
