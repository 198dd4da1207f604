/* Rows taken from, put into and summed into tables by index, and bags of rows. Duplicate indices
 * are served in their order: they are bucketed by table row first, so that the result is the same on any number of
 * threads and the last write wins. */

TI_INLINE int64_t FN(index_at)(const char *p, int64_t bytes, int64_t i) {
  return bytes == 8 ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}

TI_KERNEL(take_rows) {
  const take_rows_ints *const p = (const take_rows_ints *)ints;
  const int64_t rows = p->rows, n = p->taken, bytes = p->row_bytes, wrap = p->wraps, period = p->period;
  for (int64_t i = begin; i < end; i++) {
    int64_t k = FN(index_at)(args[2], p->index_bytes, i % period);
    if (wrap && k < 0) k += rows;
    if (k < 0 || k >= rows) return TI_TRAP_INDEX;
    const char *src = args[1] + (i / n * rows + k) * bytes;
    if (bytes == 4) memcpy(args[0] + i * 4, src, 4);
    else memcpy(args[0] + i * bytes, src, (size_t)bytes);
  }
  return TI_OK;
}

TI_KERNEL(bucket) {
  const bucket_ints *const p = (const bucket_ints *)ints;
  int64_t *offsets = (int64_t *)args[0], *order = (int64_t *)args[1];
  const int64_t rows = p->rows, n = p->length, wrap = p->wraps, skipped = p->skipped;
  memset(offsets, 0, (size_t)(rows + 1) * sizeof(int64_t));
  for (int64_t i = 0; i < n; i++) {
    int64_t k = FN(index_at)(args[2], p->index_bytes, i);
    if (wrap && k < 0) k += rows;
    if (k < 0 || k >= rows) return TI_TRAP_INDEX;
    if (k != skipped) offsets[k + 1]++;
  }
  for (int64_t k = 0; k < rows; k++) offsets[k + 1] += offsets[k];
  /* Filling moves each row's offset to its end; shifting by one place restores the beginnings. */
  for (int64_t i = 0; i < n; i++) {
    int64_t k = FN(index_at)(args[2], p->index_bytes, i);
    if (wrap && k < 0) k += rows;
    if (k != skipped) order[offsets[k]++] = i;
  }
  memmove(offsets + 1, offsets, (size_t)rows * sizeof(int64_t));
  offsets[0] = 0;
  return TI_OK;
}

TI_KERNEL(sum_rows) {
  const sum_rows_ints *const p = (const sum_rows_ints *)ints;
  const sum_rows_scalars *const q = (const sum_rows_scalars *)scalars;
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const int64_t rows = p->rows, n = p->source_rows, inner = p->inner, step = p->source_row, lane = p->source_column;
  const float alpha = (float)q->alpha;
  const VF by = FN(set)(alpha);
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / rows, k = item % rows;
    float *out = (float *)args[0] + item * inner;
    if (p->has_base) memcpy(out, (const float *)args[1] + item * inner, (size_t)inner * sizeof(float));
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

TI_KERNEL(put_rows) {
  const put_rows_ints *const p = (const put_rows_ints *)ints;
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const int64_t rows = p->rows, n = p->source_rows, inner = p->inner, bytes = p->element_bytes, step = p->source_row, lane = p->source_column;
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

TI_KERNEL(flatten_index) {
  const flatten_index_ints *const p = (const flatten_index_ints *)ints;
  int64_t *out = (int64_t *)args[0];
  const int64_t tensors = p->tensors, dims = p->dims, *sizes = p->sizes;
  for (int64_t i = begin; i < end; i++) {
    int64_t at[TI_MAX_INDICES] = {0}, rest = i, flat = 0;
    for (int64_t d = dims - 1; d >= 0; d--) {
      const int64_t c = rest % sizes[d];
      rest /= sizes[d];
      for (int64_t t = 0; t < tensors; t++) at[t] += c * p->layouts[t].strides[d];
    }
    for (int64_t t = 0; t < tensors; t++) {
      const index_layout *const of = p->layouts + t;
      int64_t k = FN(index_at)(args[1 + t], of->index_bytes, at[t]);
      if (k < 0) k += of->extent;
      if (k < 0 || k >= of->extent) return TI_TRAP_INDEX;
      flat += k * of->factor;
    }
    out[i] = flat;
  }
  return TI_OK;
}

TI_KERNEL(bag_rows) {
  const bag_rows_ints *const p = (const bag_rows_ints *)ints;
  const int64_t rows = p->rows, width = p->width, n = p->length, bags = p->bags, mode = p->mode, bytes = p->index_bytes;
  for (int64_t bag = begin; bag < end; bag++) {
    float *out = (float *)args[0] + bag * width;
    int64_t *winner = (int64_t *)args[2] + bag * width, size = 0;
    const int64_t first = FN(index_at)(args[5], bytes, bag);
    const int64_t last = bag + 1 < bags ? FN(index_at)(args[5], bytes, bag + 1) : n;
    if (first < 0 || last < first || last > n) return TI_TRAP_INDEX;
    memset(out, 0, (size_t)width * sizeof(float));
    if (mode == TI_BAG_MODE_MAXIMUM) for (int64_t i = 0; i < width; i++) winner[i] = 0;
    for (int64_t j = first; j < last; j++) {
      const int64_t k = FN(index_at)(args[4], bytes, j);
      if ((uint64_t)k >= (uint64_t)rows) return TI_TRAP_INDEX;
      if (k == p->padding) continue;
      const float *row = (const float *)args[3] + k * width;
      const float by = p->has_weights ? ((const float *)args[6])[j] : 1.f;
      if (mode != TI_BAG_MODE_MAXIMUM) for (int64_t i = 0; i < width; i++) out[i] += by * row[i];
      else for (int64_t i = 0; i < width; i++)
        if (!size || row[i] > out[i]) out[i] = row[i], winner[i] = k;
      size++;
    }
    ((int64_t *)args[1])[bag] = size;
    if (mode == TI_BAG_MODE_MEAN && size > 1) for (int64_t i = 0; i < width; i++) out[i] /= (float)size;
  }
  return TI_OK;
}

TI_KERNEL(bag_of) {
  const bag_of_ints *const p = (const bag_of_ints *)ints;
  int64_t *out = (int64_t *)args[0], bag = -1;
  for (int64_t i = 0; i < p->length; i++) {
    while (bag + 1 < p->bags && FN(index_at)(args[1], p->index_bytes, bag + 1) <= i) bag++;
    out[i] = bag;
  }
  return TI_OK;
}

TI_KERNEL(bag_rows_grad) {
  const bag_rows_grad_ints *const p = (const bag_rows_grad_ints *)ints;
  const int64_t *offsets = (const int64_t *)args[2], *order = (const int64_t *)args[3], width = p->width;
  for (int64_t row = begin; row < end; row++) {
    float *out = (float *)args[0] + row * width;
    const int64_t named = offsets[row + 1] - offsets[row];
    memset(out, 0, (size_t)width * sizeof(float));
    for (int64_t j = offsets[row]; j < offsets[row + 1]; j++) {
      const int64_t bag = ((const int64_t *)args[4])[order[j]];
      float by = p->has_weights ? ((const float *)args[6])[order[j]] : 1.f;
      if (p->is_mean) by /= (float)((const int64_t *)args[5])[bag];
      if (p->scales_by_count) by /= (float)named;
      const float *dy = (const float *)args[1] + bag * width;
      for (int64_t i = 0; i < width; i++) out[i] += by * dy[i];
    }
  }
  return TI_OK;
}

TI_KERNEL(bag_max_grad) {
  const bag_max_grad_ints *const p = (const bag_max_grad_ints *)ints;
  const int64_t width = p->width, last = ti_min(width, end * TI_BAG_COLUMNS);
  for (int64_t bag = 0; bag < p->bags; bag++) {
    if (!((const int64_t *)args[3])[bag]) continue;
    for (int64_t i = begin * TI_BAG_COLUMNS; i < last; i++) {
      const int64_t k = ((const int64_t *)args[2])[bag * width + i];
      if ((uint64_t)k >= (uint64_t)p->rows) return TI_TRAP_INDEX;
      ((float *)args[0])[k * width + i] += ((const float *)args[1])[bag * width + i];
    }
  }
  return TI_OK;
}

TI_KERNEL(bag_weights_grad) {
  const bag_weights_grad_ints *const p = (const bag_weights_grad_ints *)ints;
  const int64_t width = p->width;
  for (int64_t j = begin; j < end; j++) {
    const int64_t k = FN(index_at)(args[3], p->index_bytes, j);
    if ((uint64_t)k >= (uint64_t)p->rows) return TI_TRAP_INDEX;
    const float *dy = (const float *)args[1] + ((const int64_t *)args[4])[j] * width;
    const float *row = (const float *)args[2] + k * width;
    float sum = 0;
    if (k != p->padding) for (int64_t i = 0; i < width; i++) sum += dy[i] * row[i];
    ((float *)args[0])[j] = sum;
  }
  return TI_OK;
}

TI_KERNEL(scale_by_count) {
  const named_rows_ints *const p = (const named_rows_ints *)ints;
  const int64_t *offsets = (const int64_t *)args[1];
  for (int64_t row = begin; row < end; row++) {
    const int64_t count = offsets[row + 1] - offsets[row];
    float *out = (float *)args[0] + row * p->width;
    if (count > 1) for (int64_t i = 0; i < p->width; i++) out[i] /= (float)count;
  }
  return TI_OK;
}

TI_KERNEL(renorm_rows) {
  const named_rows_ints *const sizes = (const named_rows_ints *)ints;
  const renorm_rows_scalars *const q = (const renorm_rows_scalars *)scalars;
  const int64_t *offsets = (const int64_t *)args[2], width = sizes->width;
  const double most = q->largest, p = q->exponent;
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
