/* Rows taken from, put into and summed into tables by index; gather and scatter along a dimension. Duplicate indices
 * are served in their order: they are bucketed by table row first, so that the result is the same on any number of
 * threads and the last write wins. */
#include "rowmath_body.h"

TI_INLINE int64_t FN(index_at)(const char *p, int64_t bytes, int64_t i) {
  return bytes == 8 ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}

/* take_rows: args out [outer, n, row], table [outer, rows, row], index [n]; ints rows, n, bytes of a row, index bytes,
 * negative indices allowed. Items: (outer, index). */
static int FN(take_rows)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                         void *scratch) {
  const int64_t rows = ints[0], n = ints[1], bytes = ints[2], wrap = ints[4];
  for (int64_t i = begin; i < end; i++) {
    int64_t k = FN(index_at)(args[2], ints[3], i % n);
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
static int FN(bucket)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                      void *scratch) {
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
static int FN(sum_rows)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                        void *scratch) {
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const int64_t rows = ints[0], n = ints[1], inner = ints[2], step = ints[4], lane = ints[5];
  const float alpha = (float)scalars[0];
  const VF by = FN(set)(alpha), none = {0};
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
      for (; i + VL <= inner; i += VL) FN(st)(out + i, FN(ld)(out + i) + by * FN(ld)(src + i));
      if (i < inner) FN(stn)(out + i, FN(ldn)(out + i, inner - i, none) + by * FN(ldn)(src + i, inner - i, none), inner - i);
    }
  }
  return TI_OK;
}

/* put_rows: args out, base, source, offsets, order as in sum_rows; ints rows, n, elements in a row, element bytes,
 * source stride of n in elements, source stride of the row (0 or 1). Items: rows. The last source wins. */
static int FN(put_rows)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                        void *scratch) {
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const int64_t inner = ints[2], bytes = ints[3], step = ints[4], lane = ints[5];
  for (int64_t k = begin; k < end; k++) {
    char *out = args[0] + k * inner * bytes;
    if (offsets[k] == offsets[k + 1]) {
      memcpy(out, args[1] + k * inner * bytes, (size_t)(inner * bytes));
      continue;
    }
    const char *src = args[2] + order[offsets[k + 1] - 1] * step * bytes;
    if (lane) memcpy(out, src, (size_t)(inner * bytes));
    else for (int64_t i = 0; i < inner; i++) memcpy(out + i * bytes, src, (size_t)bytes);
  }
  return TI_OK;
}

enum { FN(MAX_DIMS) = 8, FN(MAX_INDICES) = 6 };

/* flatten_index: args out LONG[n], up to 6 index tensors; ints n, tensors, dims, sizes[8] (row-major), then for each
 * tensor: extent, bytes, strides[8] (0 where broadcast). Items: positions. Negative indices count from the end. */
static int FN(flatten_index)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                             void *scratch) {
  int64_t *out = (int64_t *)args[0];
  const int64_t tensors = ints[1], dims = ints[2], *sizes = ints + 3;
  for (int64_t i = begin; i < end; i++) {
    int64_t at[FN(MAX_INDICES)] = {0}, rest = i, flat = 0;
    for (int64_t d = dims - 1; d >= 0; d--) {
      const int64_t c = rest % sizes[d];
      rest /= sizes[d];
      for (int64_t t = 0; t < tensors; t++) at[t] += c * ints[11 + 10 * t + 2 + d];
    }
    for (int64_t t = 0; t < tensors; t++) {
      const int64_t *of = ints + 11 + 10 * t;
      int64_t k = FN(index_at)(args[1 + t], of[1], at[t]);
      if (k < 0) k += of[0];
      if (k < 0 || k >= of[0]) return TI_TRAP_INDEX;
      flat = flat * of[0] + k;
    }
    out[i] = flat;
  }
  return TI_OK;
}

enum { FN(GROUP) = 64 }; /* lines taken together, so that neighbouring ones share cache lines */

/* Offsets at the beginning of line `item` of an index tensor: a line runs along `dim`, the other coordinates are fixed.
 * strides[0..8) of the table, strides[8..16) of the index, strides[16..24) of the source. */
TI_INLINE void FN(line)(int64_t item, int64_t dims, int64_t dim, const int64_t *sizes, const int64_t *strides,
                        int64_t *at) {
  at[0] = at[1] = at[2] = 0;
  for (int64_t d = dims - 1; d >= 0; d--) {
    if (d == dim) continue;
    const int64_t c = item % sizes[d];
    item /= sizes[d];
    for (int k = 0; k < 3; k++) at[k] += c * strides[8 * k + d];
  }
}

/* What a walk along the lines does at each position. */
enum { FN(GATHER), FN(PUT), FN(ADD) };

/* One position: table[k], with k = index[i], against other[o]. */
TI_INLINE int FN(visit)(int what, int64_t bytes, int64_t index_bytes, char *table, const char *index, char *other,
                        int64_t i, int64_t o, int64_t stride, int64_t extent) {
  const int64_t k = FN(index_at)(index, index_bytes, i);
  if ((uint64_t)k >= (uint64_t)extent) return TI_TRAP_INDEX;
  if (what == FN(GATHER)) memcpy(other + o * bytes, table + k * stride * bytes, (size_t)bytes);
  else if (what == FN(PUT)) memcpy(table + k * stride * bytes, other + o * bytes, (size_t)bytes);
  else *(float *)(table + k * stride * 4) += *(const float *)(other + o * 4);
  return TI_OK;
}

TI_INLINE int FN(walk)(int what, int64_t bytes, int64_t index_bytes, char *table, const char *index, char *other,
                       const int64_t *ints, int64_t begin, int64_t end) {
  const int64_t extent = ints[2], dims = ints[3], dim = ints[4], *sizes = ints + 5, *strides = ints + 13;
  const int64_t n = sizes[dim], by = strides[dim], step = strides[8 + dim];
  const int64_t *other_strides = strides + (what == FN(GATHER) ? 8 : 16);
  const int64_t pace = other_strides[dim];
  int64_t at[FN(GROUP)][3];
  for (int64_t first = begin; first < end; first += FN(GROUP)) {
    const int64_t lines = TI_MIN(FN(GROUP), end - first);
    for (int64_t j = 0; j < lines; j++) {
      FN(line)(first + j, dims, dim, sizes, strides, at[j]);
      if (what == FN(GATHER)) at[j][2] = at[j][1];
    }
    if (step == 1) {
      for (int64_t j = 0; j < lines; j++)
        for (int64_t i = 0; i < n; i++)
          if (FN(visit)(what, bytes, index_bytes, table + at[j][0] * bytes, index, other, at[j][1] + i,
                        at[j][2] + i * pace, by, extent))
            return TI_TRAP_INDEX;
      continue;
    }
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < lines; j++)
        if (FN(visit)(what, bytes, index_bytes, table + at[j][0] * bytes, index, other, at[j][1] + i * step,
                      at[j][2] + i * pace, by, extent))
          return TI_TRAP_INDEX;
  }
  return TI_OK;
}

/* Gives the compiler each element size as a constant. */
TI_INLINE int FN(walk_sized)(int what, char *table, const char *index, char *other, const int64_t *ints, int64_t begin,
                             int64_t end) {
  if (ints[0] == 4 && ints[1] == 8) return FN(walk)(what, 4, 8, table, index, other, ints, begin, end);
  if (ints[0] == 4) return FN(walk)(what, 4, 4, table, index, other, ints, begin, end);
  if (ints[0] == 2) return FN(walk)(what, 2, ints[1], table, index, other, ints, begin, end);
  if (ints[0] == 8) return FN(walk)(what, 8, ints[1], table, index, other, ints, begin, end);
  return FN(walk)(what, 1, ints[1], table, index, other, ints, begin, end);
}

/* gather_lines: args out (shape of index), table, index; ints element bytes, index bytes, extent of the table along
 * dim, dims, dim, sizes[8] of the index, strides[24] (table, index, unused). Items: lines along dim. */
static int FN(gather_lines)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                            void *scratch) {
  return FN(walk_sized)(FN(GATHER), args[1], args[2], args[0], ints, begin, end);
}

/* scatter_lines: args out (written in place), index, source; ints as gather_lines with strides of out, index, source
 * (0: one element), then mode (0 put, 1 add floats). Items: lines along dim; lines never meet. */
static int FN(scatter_lines)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                             void *scratch) {
  if (ints[37] == 0) return FN(walk_sized)(FN(PUT), args[0], args[1], args[2], ints, begin, end);
  if (ints[1] == 8) return FN(walk)(FN(ADD), 4, 8, args[0], args[1], args[2], ints, begin, end);
  return FN(walk)(FN(ADD), 4, 4, args[0], args[1], args[2], ints, begin, end);
}

/* copy_bytes: args out, in; ints bytes in all. Items: blocks of 65536 bytes. */
static int FN(copy_bytes)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                          void *scratch) {
  const int64_t first = begin * 65536, last = TI_MIN(ints[0], end * 65536);
  memcpy(args[0] + first, args[1] + first, (size_t)(last - first));
  return TI_OK;
}
