/* Rows taken from, put into and summed into tables by index, and bags of rows. Duplicate indices
 * are served in their order: they are bucketed by table row first, so that the result is the same on any number of
 * threads and the last write wins. */
#include "copy_bytes_body.h"
#include "widen_row_body.h"

TI_INLINE int64_t FN(index_at)(const char *p, int64_t bytes, int64_t i) {
  return bytes == 8 ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}

/* Fetches a row that is copied a few rows later: rows lie anywhere, and one by one each would wait for its first line. */
TI_INLINE void FN(fetch_row)(const char *table, int64_t k, int64_t rows, int64_t bytes) {
  if ((uint64_t)k >= (uint64_t)rows) return;
  for (int64_t i = 0; i < ti_min(bytes, TI_FETCHED_BYTES); i += 64) __builtin_prefetch(table + k * bytes + i);
}

/* Rows of one element: as many one after another as one table and one pass over the index have. Places are looked at and
 * listed for several tables that take the same ones. */
TI_INLINE int FN(take_elements)(
  char *const *args, const take_rows_ints *p, int64_t begin, int64_t end, const int64_t bytes, const int64_t step, const int64_t index_bytes) {
  const int64_t rows = p->rows, n = p->taken, wrap = p->wraps, period = p->period;
  int32_t places[TI_LISTED];
  for (int64_t i = begin; i < end;) {
    const int64_t at = i % period, first = i % n;
    const int64_t run = ti_min(ti_min(ti_min(n - first, period - at), end - i), TI_LISTED);
    /* Whole tables that take the whole of a short index are one stretch; other stretches are of one table. */
    const int64_t tables = run == n && period == n ? (end - i) / n : 1;
    const char *const index = args[2] + at * index_bytes;
    int64_t wrong = 0;
    for (int64_t j = 0; j < run; j++) {
      int64_t k = FN(index_at)(index, index_bytes, j);
      if (wrap) k += k < 0 ? rows : 0;
      wrong |= k | (int64_t)((uint64_t)rows - 1 - (uint64_t)k);
      places[j] = (int32_t)k;
    }
    if (wrong < 0) return TI_TRAP_INDEX;
    for (int64_t t = 0; t < tables; t++) {
      const char *const table = args[1] + (i / n + t) * rows * bytes;
      char *const out = args[0] + (i + t * n) * step;
      for (int64_t j = 0; j < run; j++) memcpy(out + j * step, table + places[j] * bytes, (size_t)bytes);
    }
    i += run * tables;
  }
  return TI_OK;
}

/* Rows of whole lines, which the loop copies itself: to call what copies any takes as long as they do. */
TI_INLINE int FN(take_lines)(char *const *args, const take_rows_ints *p, int64_t begin, int64_t end, const int64_t bytes) {
  const int64_t rows = p->rows, n = p->taken, wrap = p->wraps, period = p->period, step = p->step_bytes;
  const char *table = args[1] + begin / n * rows * bytes;
  int64_t at = begin % period, left = n - begin % n;
  for (int64_t i = begin; i < end; i++) {
    const int64_t ahead = at + TI_ROWS_AHEAD;
    if (ahead < period) FN(fetch_row)(table, FN(index_at)(args[2], p->index_bytes, ahead), rows, bytes);
    int64_t k = FN(index_at)(args[2], p->index_bytes, at);
    if (wrap && k < 0) k += rows;
    if (k < 0 || k >= rows) return TI_TRAP_INDEX;
    const float *const from = (const float *)(table + k * bytes);
    float *const to = (float *)(args[0] + i * step);
#pragma GCC unroll 4
    for (int64_t j = 0; j < bytes / 4; j += VL) FN(store)(to + j, FN(load)(from + j));
    if (++at == period) at = 0;
    if (!--left) table += rows * bytes, left = n;
  }
  return TI_OK;
}

/* Where a position lies is counted on from row to row: a division takes as long as a short row. */
TI_KERNEL(take_rows) {
  const take_rows_ints *const p = (const take_rows_ints *)ints;
  const int64_t rows = p->rows, n = p->taken, bytes = p->row_bytes, step = p->step_bytes, wrap = p->wraps, period = p->period;
  if (begin >= end) return TI_OK;
#define TI_TAKE(size) \
  (p->index_bytes != 8 ? FN(take_elements)(args, p, begin, end, size, step, 4) \
   : step == size ? FN(take_elements)(args, p, begin, end, size, size, 8) : FN(take_elements)(args, p, begin, end, size, step, 8))
  if (p->parts == 1 && rows > 0 && rows <= INT32_MAX && ti_min(n, period) >= TI_ELEMENTS_TOGETHER) switch (bytes) {
    case 1: return TI_TAKE(1);
    case 2: return TI_TAKE(2);
    case 4: return TI_TAKE(4);
    case 8: return TI_TAKE(8);
    case 12: return TI_TAKE(12);
    case 16: return TI_TAKE(16);
    case 24: return TI_TAKE(24);
    case 32: return TI_TAKE(32);
    case 48: return TI_TAKE(48);
    default: break;
  }
#undef TI_TAKE
  if (p->parts == 1) switch (bytes) {
    case 64: return FN(take_lines)(args, p, begin, end, 64);
    case 128: return FN(take_lines)(args, p, begin, end, 128);
    case 256: return FN(take_lines)(args, p, begin, end, 256);
    default:
      if (bytes % 64 == 0 && bytes <= TI_FETCHED_BYTES) return FN(take_lines)(args, p, begin, end, bytes);
  }
  const int64_t part_bytes = bytes / p->parts;
  const char *table = args[1] + begin / n * rows * bytes;
  int64_t at = begin % period, left = n - begin % n;
  for (int64_t i = begin; i < end; i++) {
    const int64_t ahead = at + TI_ROWS_AHEAD;
    if (ahead < period) FN(fetch_row)(table, FN(index_at)(args[2], p->index_bytes, ahead), rows, bytes);
    int64_t k = FN(index_at)(args[2], p->index_bytes, at);
    if (wrap && k < 0) k += rows;
    if (k < 0 || k >= rows) return TI_TRAP_INDEX;
    if (bytes == 4) memcpy(args[0] + i * step, table + k * 4, 4);
    else
      for (int64_t part = 0; part < p->parts; part++)
        FN(copy_bytes)(args[0] + i * step + part * p->part_step_bytes, table + k * bytes + part * part_bytes, part_bytes);
    if (++at == period) at = 0;
    if (!--left) table += rows * bytes, left = n;
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
    if (k != skipped && k + 2 <= rows) offsets[k + 2]++;
  }
  /* What begins a row is kept one place on, and filling moves it to the row's end: where the next one begins. */
  for (int64_t k = 2; k <= rows; k++) offsets[k] += offsets[k - 1];
  for (int64_t i = 0; i < n; i++) {
    int64_t k = FN(index_at)(args[2], p->index_bytes, i);
    if (wrap && k < 0) k += rows;
    if (k != skipped) order[offsets[k + 1]++] = i;
  }
  return TI_OK;
}

/* How many rows from the k-th on no position names, at most so many. */
TI_INLINE int64_t FN(unnamed_rows)(const int64_t *offsets, int64_t k, int64_t most) {
  int64_t run = 0;
  while (run < most && offsets[k + run] == offsets[k + run + 1]) run++;
  return run;
}
/* out = base + by * source, of a base of zeros where there is none; a source of one number for all where lane is 0. */
TI_INLINE void FN(sum_row)(float *out, const float *base, const float *source, int64_t lane, int64_t inner, float by) {
  const VF factor = FN(set)(by), zero = FN(set)(0.f), all = FN(set)(lane ? 0.f : source[0]);
  int64_t i = 0;
  for (; i + VL <= inner; i += VL)
    FN(store)(out + i, (base ? FN(load)(base + i) : zero) + factor * (lane ? FN(load)(source + i) : all));
  if (i < inner) {
    const int64_t rest = inner - i;
    const VF from = base ? FN(load_part)(base + i, rest) : zero;
    FN(store_part)(out + i, from + factor * (lane ? FN(load_part)(source + i, rest) : all), rest);
  }
}

/* The same of four sources one after another: what there is is read and written once. */
TI_INLINE void FN(sum_four)(float *out, const float *base, const float *a, const float *b, const float *c, const float *d,
                            int64_t inner, float by) {
  const VF factor = FN(set)(by), zero = FN(set)(0.f);
  int64_t i = 0;
  for (; i + VL <= inner; i += VL) {
    VF sum = (base ? FN(load)(base + i) : zero) + factor * FN(load)(a + i);
    sum = sum + factor * FN(load)(b + i);
    sum = sum + factor * FN(load)(c + i);
    FN(store)(out + i, sum + factor * FN(load)(d + i));
  }
  if (i < inner) {
    const int64_t rest = inner - i;
    VF sum = (base ? FN(load_part)(base + i, rest) : zero) + factor * FN(load_part)(a + i, rest);
    sum = sum + factor * FN(load_part)(b + i, rest);
    sum = sum + factor * FN(load_part)(c + i, rest);
    FN(store_part)(out + i, sum + factor * FN(load_part)(d + i, rest), rest);
  }
}

/* The same of a source whose rows are in several parts. */
TI_INLINE void FN(sum_parts)(float *out, const float *base, const float *source, const sum_rows_ints *p, float by) {
  const int64_t part = p->inner / p->parts;
  for (int64_t i = 0; i < p->parts; i++)
    FN(sum_row)(out + i * part, base ? base + i * part : NULL, source + i * p->source_part, p->source_column, part, by);
}

/* Rows of one element of several whole tables, which add up the same ones: they are listed once for all of them. */
TI_INLINE void FN(sum_elements)(float *out, const float *source, const int64_t *offsets, const int64_t *order, int64_t tables,
                                const sum_rows_ints *p, float alpha) {
  const int64_t rows = p->rows, n = p->source_rows, step = p->source_row;
  int32_t to[TI_LISTED];
  for (int64_t k = 0, first = 0; first < offsets[rows];) {
    const int64_t count = ti_min(TI_LISTED, offsets[rows] - first), *const from = order + first;
    for (int64_t j = 0; j < count; j++) {
      while (offsets[k + 1] <= first + j) k++;
      to[j] = (int32_t)k;
    }
    int64_t t = 0;
    /* What follows often goes to the same row, and waits for it: others of other tables do not. */
    for (; t + 4 <= tables; t += 4) {
      float *const sums = out + t * rows;
      const float *const values = source + t * n * step;
      for (int64_t j = 0; j < count; j++) {
        const int64_t row = to[j], value = from[j] * step;
        const float a = values[value], b = values[value + n * step], c = values[value + 2 * n * step], d = values[value + 3 * n * step];
        sums[row] += alpha * a;
        sums[row + rows] += alpha * b;
        sums[row + 2 * rows] += alpha * c;
        sums[row + 3 * rows] += alpha * d;
      }
    }
    for (; t < tables; t++) {
      float *const sums = out + t * rows;
      const float *const values = source + t * n * step;
      for (int64_t j = 0; j < count; j++) sums[to[j]] += alpha * values[from[j] * step];
    }
    first += count;
  }
}

TI_KERNEL(sum_rows) {
  const sum_rows_ints *const p = (const sum_rows_ints *)ints;
  const sum_rows_scalars *const q = (const sum_rows_scalars *)scalars;
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const int64_t rows = p->rows, n = p->source_rows, inner = p->inner, step = p->source_row;
  const float alpha = (float)q->alpha;
  for (int64_t item = begin; item < end;) {
    const int64_t o = item / rows, last = ti_min(end, (o + 1) * rows) - o * rows;
    const float *source = (const float *)args[2] + o * n * step;
    float *out = (float *)args[0] + o * rows * inner;
    const float *base = p->has_base ? (const float *)args[1] + o * rows * inner : NULL;
    const int64_t tables = item % rows ? 0 : (end - item) / rows;
    if (inner == 1 && tables && rows <= INT32_MAX) {
      const size_t num_bytes = (size_t)(tables * rows) * sizeof(float);
      if (base) FN(copy_bytes)((char *)out, (const char *)base, (int64_t)num_bytes);
      else memset(out, 0, num_bytes);
      FN(sum_elements)(out, source, offsets, order, tables, p, alpha);
      item += tables * rows;
      continue;
    }
    for (int64_t k = item - o * rows; k < last; k++) {
      const int64_t run = FN(unnamed_rows)(offsets, k, last - k);
      const size_t num_bytes = (size_t)(run * inner) * sizeof(float);
      if (run && base) FN(copy_bytes)((char *)(out + k * inner), (const char *)(base + k * inner), (int64_t)num_bytes);
      else if (run) memset(out + k * inner, 0, num_bytes);
      k += run;
      if (k == last) break;
      int64_t j = offsets[k];
      if (inner == 1) {
        float sum = base ? base[k] : 0.f;
        for (; j < offsets[k + 1]; j++) sum += alpha * source[order[j] * step];
        out[k] = sum;
        continue;
      }
      float *const row = out + k * inner;
      const float *from = base ? base + k * inner : NULL;
      const int is_plain = p->parts == 1 && p->source_column;
      for (; is_plain && j + 4 <= offsets[k + 1]; j += 4, from = row) {
        for (int64_t ahead = j + 4; ahead < ti_min(j + 8, offsets[rows]); ahead++)
          FN(fetch_row)((const char *)source, order[ahead], n, step * (int64_t)sizeof(float));
        FN(sum_four)(row, from, source + order[j] * step, source + order[j + 1] * step, source + order[j + 2] * step,
                     source + order[j + 3] * step, inner, alpha);
      }
      for (; j < offsets[k + 1]; j++, from = row) FN(sum_parts)(row, from, source + order[j] * step, p, alpha);
    }
    item = o * rows + last;
  }
  return TI_OK;
}

/* Which row of a table a source takes; -1 for one that the table has not. */
TI_INLINE int64_t FN(taken_row)(const char *index, const sum_taken_rows_ints *p, int64_t source) {
  int64_t row = p->index_bytes ? FN(index_at)(index, p->index_bytes, source) : source;
  if (p->wraps && row < 0) row += p->table_rows;
  return (uint64_t)row < (uint64_t)p->table_rows ? row : -1;
}
/* Sums of rows that are taken from a table and multiplied, each as it is read: they need not lie anywhere by themselves. */
TI_KERNEL(sum_taken_rows) {
  const sum_taken_rows_ints *const p = (const sum_taken_rows_ints *)ints;
  const float alpha = (float)((const sum_rows_scalars *)scalars)->alpha, *const table = (const float *)args[2], *const factor = (const float *)args[6];
  const int64_t *const offsets = (const int64_t *)args[3], *const order = (const int64_t *)args[4];
  const int64_t inner = p->inner, part = inner / p->parts, sources = offsets[p->rows];
  for (int64_t k = begin; k < end; k++) {
    float *const out = (float *)args[0] + k * inner;
    const float *from = p->has_base ? (const float *)args[1] + k * inner : NULL;
    if (offsets[k] == offsets[k + 1]) {
      if (from) FN(copy_bytes)((char *)out, (const char *)from, inner * (int64_t)sizeof(float));
      else memset(out, 0, (size_t)inner * sizeof(float));
      continue;
    }
    for (int64_t j = offsets[k]; j < offsets[k + 1]; j++, from = out) {
      if (j + TI_ROWS_AHEAD < sources)
        FN(fetch_row)((const char *)table, FN(taken_row)(args[5], p, order[j + TI_ROWS_AHEAD]), p->table_rows, inner * (int64_t)sizeof(float));
      const int64_t row = FN(taken_row)(args[5], p, order[j]);
      if (row < 0) return TI_TRAP_INDEX;
      for (int64_t i = 0; i < p->parts; i++) {
        const float by = p->has_factor ? factor[order[j] * p->factor_row + i * p->factor_part] : 1.f;
        FN(sum_row)(out + i * part, from ? from + i * part : NULL, table + row * inner + i * part, 1, part, alpha * by);
      }
    }
  }
  return TI_OK;
}

/* Repeats an element. */
#define TI_FILL_ROW(T) { const T one = *(const T *)src; for (int64_t i = 0; i < n; i++) ((T *)out)[i] = one; break; }
static void FN(fill_row)(char *out, const char *src, int64_t n, int64_t bytes) {
  switch (bytes) {
    case 1: memset(out, *src, (size_t)n); break;
    case 2: TI_FILL_ROW(uint16_t)
    case 4: TI_FILL_ROW(uint32_t)
    default: TI_FILL_ROW(uint64_t)
  }
}
#undef TI_FILL_ROW
TI_KERNEL(put_rows) {
  const put_rows_ints *const p = (const put_rows_ints *)ints;
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const int64_t rows = p->rows, n = p->source_rows, inner = p->inner, bytes = p->element_bytes, step = p->source_row, lane = p->source_column;
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / rows, k = item % rows;
    char *out = args[0] + item * inner * bytes;
    if (offsets[k] == offsets[k + 1]) {
      FN(copy_bytes)(out, args[1] + item * inner * bytes, inner * bytes);
      continue;
    }
    const char *src = args[2] + (o * n + order[offsets[k + 1] - 1]) * step * bytes;
    if (lane) FN(copy_bytes)(out, src, inner * bytes);
    else FN(fill_row)(out, src, inner, bytes);
  }
  return TI_OK;
}

/* Adds to n places in a row what an index tensor says of them, and returns whether all of it is within its extent. */
TI_INLINE int FN(add_index)(int64_t *out, const char *from, const index_layout *of, int64_t step, int64_t n, const int64_t bytes) {
  const int64_t extent = of->extent, factor = of->factor;
  int64_t wrong = 0;
  for (int64_t j = 0; j < n; j++) {
    int64_t k = FN(index_at)(from, bytes, j * step);
    k += k < 0 ? extent : 0;
    wrong |= k | (int64_t)((uint64_t)extent - 1 - (uint64_t)k);
    out[j] = (int64_t)((uint64_t)out[j] + (uint64_t)k * (uint64_t)factor);  /* one that is wrong may be of any size */
  }
  return wrong >= 0;
}
/* Runs along the last dimension: where others are is found once for each. */
TI_KERNEL(flatten_index) {
  const flatten_index_ints *const p = (const flatten_index_ints *)ints;
  const int64_t tensors = p->tensors, last = p->dims - 1, *sizes = p->sizes;
  for (int64_t i = begin; i < end;) {
    const int64_t along = p->dims ? i % sizes[last] : 0, run = p->dims ? ti_min(sizes[last] - along, end - i) : 1;
    int64_t *const out = (int64_t *)args[0] + i;
    memset(out, 0, (size_t)run * sizeof *out);
    for (int64_t t = 0; t < tensors; t++) {
      const index_layout *const of = p->layouts + t;
      const int64_t step = p->dims ? of->strides[last] : 0;
      int64_t at = along * step, rest = p->dims ? i / sizes[last] : 0;
      for (int64_t d = last - 1; d >= 0; d--) {
        at += rest % sizes[d] * of->strides[d];
        rest /= sizes[d];
      }
      const char *const from = args[1 + t] + at * of->index_bytes;
      if (!(of->index_bytes == 8 ? FN(add_index)(out, from, of, step, run, 8) : FN(add_index)(out, from, of, step, run, 4)))
        return TI_TRAP_INDEX;
    }
    i += run;
  }
  return TI_OK;
}

/* Some vectors of the sums of a bag, the last of `lanes` lanes; in the order of sum_row, but in registers. */
/* is_plain: indices of 64 bits, no weights and no row that counts for nothing; the last vector is whole where all lanes
 * count. Returns less than 0 where an index is not there; nothing is read for it but the first row. */
TI_INLINE int64_t FN(sum_of_bag)(float *out, const bag_rows_ints *p, const char *table, const char *index, const float *weights,
                              int64_t first, int64_t last, const int vectors, const int64_t lanes, float by_size, const int is_plain) {
  VF sum[8];
#pragma GCC unroll 8
  for (int v = 0; v < vectors; v++) sum[v] = FN(set)(0.f);
  int64_t wrong = 0;
  for (int64_t j = first; j < last; j++) {
    int64_t k = FN(index_at)(index, is_plain ? 8 : p->index_bytes, j);
    const int64_t is_wrong = k | (int64_t)((uint64_t)p->rows - 1 - (uint64_t)k);
    wrong |= is_wrong;
    if (!is_plain && k == p->padding) continue;
    k = is_wrong < 0 ? 0 : k;
    const float *const row = (const float *)table + k * p->width;
    const VF by = FN(set)(!is_plain && weights ? weights[j] : 1.f);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      const VF x = FN(load_most)(row + v * VL, v + 1 < vectors ? VL : lanes);
      if (is_plain) sum[v] += x;
      else sum[v] = FN(fma)(by, x, sum[v]);
    }
  }
  const VF divisor = FN(set)(by_size);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; v++) {
    if (by_size > 1.f) sum[v] /= divisor;
    FN(store_most)(out + v * VL, sum[v], v + 1 < vectors ? VL : lanes);
  }
  return wrong;
}
/* A bag of floats whose indices are there: returns how many rows it has, padding apart; -1 where one is not there. */
static int64_t FN(sum_bag)(float *out, const bag_rows_ints *p, char *const *args, int64_t first, int64_t last) {
  const int64_t rows = p->rows, width = p->width, bytes = p->index_bytes;
  const char *const table = args[3], *const index = args[4];
  const float *const weights = p->has_weights ? (const float *)args[6] : NULL;
  if (first == last) { memset(out, 0, (size_t)width * sizeof(float)); return 0; }
  if (!rows) return -1;
  const int is_plain = bytes == 8 && !weights && p->padding < 0;
  int64_t wrong = 0, size = last - first;
  if (p->padding >= 0) for (int64_t j = first; j < last; j++) size -= FN(index_at)(index, bytes, j) == p->padding;
  /* rows of a table that no cache holds are all fetched before the first is waited for */
  if (rows * width * (int64_t)sizeof(float) > TI_CACHED_TABLE)
    for (int64_t j = first; j < last; j++) FN(fetch_row)(table, FN(index_at)(index, bytes, j), rows, width * (int64_t)sizeof(float));
  const float by_size = p->mode == TI_BAG_MODE_MEAN ? (float)size : 1.f;
#define TI_SUM_OF_BAG(vectors, lanes) do { \
    const char *const part = table + i * sizeof(float); \
    if (is_plain) wrong |= FN(sum_of_bag)(out + i, p, part, index, weights, first, last, vectors, lanes, by_size, 1); \
    else wrong |= FN(sum_of_bag)(out + i, p, part, index, weights, first, last, vectors, lanes, by_size, 0); \
  } while (0)
  int64_t i = 0;
  for (; i + 8 * VL <= width; i += 8 * VL) TI_SUM_OF_BAG(8, VL);
  for (; i + 4 * VL <= width; i += 4 * VL) TI_SUM_OF_BAG(4, VL);
  for (; i + VL <= width; i += VL) TI_SUM_OF_BAG(1, VL);
  if (i < width) TI_SUM_OF_BAG(1, width - i);
#undef TI_SUM_OF_BAG
  return wrong < 0 ? -1 : size;
}
TI_KERNEL(bag_rows) {
  const bag_rows_ints *const p = (const bag_rows_ints *)ints;
  const int64_t rows = p->rows, width = p->width, n = p->length, bags = p->bags, mode = p->mode, bytes = p->index_bytes;
  const int64_t row_bytes = width * FN(stored_bytes)(p->stored);
  for (int64_t bag = begin; bag < end; bag++) {
    float *out = (float *)args[0] + bag * width;
    int64_t *winner = (int64_t *)args[2] + bag * width, size = 0;
    const int64_t first = FN(index_at)(args[5], bytes, bag);
    const int64_t last = bag + 1 < bags ? FN(index_at)(args[5], bytes, bag + 1) : n;
    if (first < 0 || last < first || last > n) return TI_TRAP_INDEX;
    if (mode != TI_BAG_MODE_MAXIMUM && !p->stored) {
      size = FN(sum_bag)(out, p, args, first, last);
      if (size < 0) return TI_TRAP_INDEX;
      ((int64_t *)args[1])[bag] = size;
      continue;
    }
    memset(out, 0, (size_t)width * sizeof(float));
    if (mode == TI_BAG_MODE_MAXIMUM) for (int64_t i = 0; i < width; i++) winner[i] = 0;
    for (int64_t j = first; j < last; j++) {
      const int64_t k = FN(index_at)(args[4], bytes, j);
      if ((uint64_t)k >= (uint64_t)rows) return TI_TRAP_INDEX;
      if (k == p->padding) continue;
      if (j + TI_ROWS_AHEAD < n)
        FN(fetch_row)(args[3], FN(index_at)(args[4], bytes, j + TI_ROWS_AHEAD), rows, row_bytes);
      const float *row = (const float *)(args[3] + k * row_bytes);
      if (p->stored) FN(widen_row)((float *)scratch, row, width, p->stored), row = (float *)scratch;
      const float by = p->has_weights ? ((const float *)args[6])[j] : 1.f;
      if (mode != TI_BAG_MODE_MAXIMUM) FN(sum_row)(out, size ? out : NULL, row, 1, width, by);
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
    const int64_t run = FN(unnamed_rows)(offsets, row, end - row);
    memset((float *)args[0] + row * width, 0, (size_t)(run * width) * sizeof(float));
    row += run;
    if (row == end) break;
    float *out = (float *)args[0] + row * width;
    const int64_t named = offsets[row + 1] - offsets[row];
    for (int64_t j = offsets[row]; j < offsets[row + 1]; j++) {
      const int64_t bag = ((const int64_t *)args[4])[order[j]];
      float by = p->has_weights ? ((const float *)args[6])[order[j]] : 1.f;
      if (p->is_mean) by /= (float)((const int64_t *)args[5])[bag];
      if (p->scales_by_count) by /= (float)named;
      FN(sum_row)(out, j > offsets[row] ? out : NULL, (const float *)args[1] + bag * width, 1, width, by);
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
