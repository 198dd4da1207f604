/* Gather and scatter over blocks, rows of a strided table, reductions into rows, and what boolean masks select.
 *
 * A value is written by one item only, which takes its sources in their order: the result is the same on any number of
 * threads, the last write wins, and sums are added from the first source to the last. */
#include "copy_bytes_body.h"

TI_INLINE int64_t FN(position)(const char *p, int64_t bytes, int64_t i) {
  return bytes == 8 ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}

/* --------------------------------------------------------------------------- gather and scatter over blocks */
/* Whether all of n indices name a row: looked at before any is read by, in a loop of its own, which takes several at a time. */
TI_INLINE int FN(are_rows)(const char *index, const int64_t index_bytes, int64_t n, int64_t rows) {
  int64_t wrong = 0;
  if (index_bytes == 8) {
    for (int64_t j = 0; j < n; j++) {
      const int64_t k = ((const int64_t *)index)[j];
      wrong |= k | (int64_t)((uint64_t)rows - 1 - (uint64_t)k);
    }
  } else {
    for (int64_t j = 0; j < n; j++) {
      const int64_t k = ((const int32_t *)index)[j];
      wrong |= k | (int64_t)((uint64_t)rows - 1 - (uint64_t)k);
    }
  }
  return wrong >= 0;
}

/* Lists the rows that n indices name, negative ones from the end where they wrap; whether all of them are rows. */
TI_INLINE int FN(list_rows)(int64_t *to, const char *index, const int64_t index_bytes, int64_t n, int64_t rows, int64_t wraps) {
  const int64_t behind = wraps ? rows : 0;
  int64_t wrong = 0;
  for (int64_t j = 0; j < n; j++) {
    int64_t k = FN(position)(index, index_bytes, j);
    k += k < 0 ? behind : 0;
    wrong |= k | (int64_t)((uint64_t)rows - 1 - (uint64_t)k);
    to[j] = k;
  }
  return wrong >= 0;
}

TI_INLINE int FN(gather_sized)(
    char *const *args, const int64_t *ints, int64_t begin, int64_t end, const int64_t bytes, const int64_t index_bytes) {
  const gather_block_ints *const p = (const gather_block_ints *)ints;
  const int64_t n = p->index_rows, inner = p->inner, extent = p->extent;
  const char *table = args[1] + begin / n * extent * inner * bytes;
  for (int64_t row = begin, place = begin % n; row < end;) {  /* no division for each row: many tables give one element */
    const int64_t run = inner == 1 ? ti_min(n - place, end - row) : 1, count = run * inner;
    char *const out = args[0] + row * inner * bytes;
    const char *const index = args[2] + row * inner * index_bytes;
    for (int64_t first = 0; first < count; first += TI_CHECKED_INDICES) {
      const int64_t last = ti_min(count, first + TI_CHECKED_INDICES);
      if (!FN(are_rows)(index + first * index_bytes, index_bytes, last - first, extent)) return TI_TRAP_INDEX;
      if (inner == 1)
        for (int64_t j = first; j < last; j++)
          memcpy(out + j * bytes, table + FN(position)(index, index_bytes, j) * bytes, (size_t)bytes);
      else
        for (int64_t j = first; j < last; j++)
          memcpy(out + j * bytes, table + (FN(position)(index, index_bytes, j) * inner + j) * bytes, (size_t)bytes);
    }
    row += run, place += run;
    if (place == n) place = 0, table += extent * inner * bytes;
  }
  return TI_OK;
}

TI_KERNEL(gather_block) {
  const gather_block_ints *const p = (const gather_block_ints *)ints;
#define TI_GATHER(bytes) \
  (p->index_bytes == 8 ? FN(gather_sized)(args, ints, begin, end, bytes, 8) : FN(gather_sized)(args, ints, begin, end, bytes, 4))
  switch (p->element_bytes) {
    case 1: return TI_GATHER(1);
    case 2: return TI_GATHER(2);
    case 4: return TI_GATHER(4);
    default: return TI_GATHER(8);
  }
#undef TI_GATHER
}

/* As eager mode has it: NaN wins over numbers. */
TI_INLINE float FN(join_float)(int how, float x, float y) {
  switch (how) {
    case TI_JOIN_MULTIPLY: return x * y;
    case TI_JOIN_MAX: return y != y ? y : x < y ? y : x;
    case TI_JOIN_MIN: return y != y ? y : y < x ? y : x;
    default: return x + y;
  }
}
TI_INLINE int64_t FN(join_long)(int how, int64_t x, int64_t y) {
  switch (how) {
    case TI_JOIN_MULTIPLY: return (int64_t)((uint64_t)x * (uint64_t)y);
    case TI_JOIN_MAX: return x < y ? y : x;
    case TI_JOIN_MIN: return y < x ? y : x;
    default: return (int64_t)((uint64_t)x + (uint64_t)y);
  }
}

TI_INLINE void FN(join_at)(char *to, const char *from, const int64_t bytes, const int how, const int is_float) {
  if (how == TI_JOIN_PUT) memcpy(to, from, (size_t)bytes);
  else if (is_float) *(float *)to = FN(join_float)(how, *(float *)to, *(const float *)from);
  else if (bytes == 8) *(int64_t *)to = FN(join_long)(how, *(int64_t *)to, *(const int64_t *)from);
  else if (bytes == 4) *(int32_t *)to = (int32_t)FN(join_long)(how, *(int32_t *)to, *(const int32_t *)from);
  else *(uint8_t *)to = (uint8_t)FN(join_long)(how, *(uint8_t *)to, *(const uint8_t *)from);
}

TI_INLINE int FN(scatter_indexed)(char *const *args, const scatter_block_ints *p, int64_t begin, int64_t end, const int64_t bytes,
                                  const int how, const int is_float, const int64_t index_bytes) {
  const int64_t n = p->index_rows, inner = p->inner, extent = p->extent, source_rows = p->source_rows;
  const int64_t panels = (inner + TI_SCATTER_PANEL - 1) / TI_SCATTER_PANEL, constant = source_rows == 0, wraps = p->wraps;
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / panels, first = item % panels * TI_SCATTER_PANEL, columns = ti_min(TI_SCATTER_PANEL, inner - first);
    char *out = args[0] + (o * extent * inner + first) * bytes;
    const char *source = args[2] + (constant ? 0 : (o * source_rows * inner + first) * bytes);
    const char *index = args[1] + ((p->shares_index ? 0 : o * n * inner) + first) * index_bytes;
    if (inner == 1) {
      int64_t places[TI_CHECKED_INDICES];
      for (int64_t i = 0; i < n; i += TI_CHECKED_INDICES) {
        const int64_t last = ti_min(n, i + TI_CHECKED_INDICES);
        if (!FN(list_rows)(places, index + i * index_bytes, index_bytes, last - i, extent, wraps)) return TI_TRAP_INDEX;
        if (constant) for (int64_t j = i; j < last; j++) FN(join_at)(out + places[j - i] * bytes, source, bytes, how, is_float);
        else for (int64_t j = i; j < last; j++)
          FN(join_at)(out + places[j - i] * bytes, source + j * bytes, bytes, how, is_float);
      }
      continue;
    }
    for (int64_t i = 0; i < n; i++, index += inner * index_bytes) {
      if (!FN(are_rows)(index, index_bytes, columns, extent)) return TI_TRAP_INDEX;
      for (int64_t j = 0; j < columns; j++)
        FN(join_at)(out + (FN(position)(index, index_bytes, j) * inner + j) * bytes,
                    source + (constant ? 0 : (i * inner + j) * bytes), bytes, how, is_float);
    }
  }
  return TI_OK;
}

TI_KERNEL(scatter_block) {
  const scatter_block_ints *const p = (const scatter_block_ints *)ints;
#define TI_INDEXED(bytes, how, is_float) \
  (p->index_bytes == 8 ? FN(scatter_indexed)(args, p, begin, end, bytes, how, is_float, 8) \
                       : FN(scatter_indexed)(args, p, begin, end, bytes, how, is_float, 4))
#define TI_JOINED(how) \
  (p->is_float ? TI_INDEXED(4, how, 1) \
   : p->element_bytes == 8 ? TI_INDEXED(8, how, 0) : p->element_bytes == 4 ? TI_INDEXED(4, how, 0) : TI_INDEXED(1, how, 0))
  switch (p->how) {
    case TI_JOIN_ADD: return TI_JOINED(TI_JOIN_ADD);
    case TI_JOIN_MULTIPLY: return TI_JOINED(TI_JOIN_MULTIPLY);
    case TI_JOIN_MAX: return TI_JOINED(TI_JOIN_MAX);
    case TI_JOIN_MIN: return TI_JOINED(TI_JOIN_MIN);
    default: break;
  }
#undef TI_JOINED
  switch (p->element_bytes) {
    case 1: return TI_INDEXED(1, TI_JOIN_PUT, 0);
    case 2: return TI_INDEXED(2, TI_JOIN_PUT, 0);
    case 4: return TI_INDEXED(4, TI_JOIN_PUT, 0);
    default: return TI_INDEXED(8, TI_JOIN_PUT, 0);
  }
#undef TI_INDEXED
}

/* A mean divides by how many were added, at least one. */
TI_KERNEL(divide_counts) {
  for (int64_t i = begin; i < end; i++) {
    if (((const divide_counts_ints *)ints)->is_long) {
      int64_t *x = (int64_t *)args[0] + i, count = ((const int64_t *)args[1])[i];
      if (count > 1) *x = *x / count - (*x % count < 0);
    } else {
      const float count = ((const float *)args[1])[i];
      if (count > 1) ((float *)args[0])[i] /= count;
    }
  }
  return TI_OK;
}

/* --------------------------------------------------------------------------- rows */
TI_KERNEL(take_strided) {
  const take_strided_ints *const p = (const take_strided_ints *)ints;
  const int64_t bytes = p->element_bytes, n = p->taken, outside = p->outside, inside = p->inside, count = p->inner;
  const int64_t *outer = p->layout, *inner = outer + 2 * outside;
  for (int64_t item = begin; item < end; item++) {
    int64_t from = ((const int64_t *)args[2])[item % n], rest = item / n;
    for (int64_t d = outside - 1; d >= 0; d--) {
      from += rest % outer[d] * outer[outside + d];
      rest /= outer[d];
    }
    const char *source = args[1] + from * bytes;
    char *out = args[0] + item * count * bytes;
    const int64_t run = inside ? inner[inside - 1] : 1, step = inside ? inner[2 * inside - 1] : 1;
    for (int64_t i = 0; i < count; i += run) {
      int64_t at = 0, left = i / run;
      for (int64_t d = inside - 2; d >= 0; d--) {
        at += left % inner[d] * inner[inside + d];
        left /= inner[d];
      }
      if (step == 1) FN(copy_bytes)(out + i * bytes, source + at * bytes, run * bytes);
      else for (int64_t j = 0; j < run; j++)
        memcpy(out + (i + j) * bytes, source + (at + j * step) * bytes, (size_t)bytes);
    }
  }
  return TI_OK;
}

#define TI_REDUCE_ROWS(T, join, divide) do { \
    T *out = (T *)args[0] + item * inner; \
    const T *base = (const T *)args[1] + item * inner, *sources = (const T *)args[2] + o * n * step; \
    int64_t j = offsets[k]; \
    const int64_t last = offsets[k + 1], count = last - j + with_base; \
    if (with_base || j == last) FN(copy_bytes)((char *)out, (const char *)base, inner * (int64_t)sizeof(T)); \
    else { \
      const T *s = sources + order[j++] * step; \
      for (int64_t i = 0; i < inner; i++) out[i] = s[i * lane]; \
    } \
    for (; j < last; j++) { \
      const T *s = sources + order[j] * step; \
      switch (how) { \
        case TI_JOIN_MULTIPLY: for (int64_t i = 0; i < inner; i++) out[i] = join(TI_JOIN_MULTIPLY, out[i], s[i * lane]); break; \
        case TI_JOIN_MAX: for (int64_t i = 0; i < inner; i++) out[i] = join(TI_JOIN_MAX, out[i], s[i * lane]); break; \
        case TI_JOIN_MIN: for (int64_t i = 0; i < inner; i++) out[i] = join(TI_JOIN_MIN, out[i], s[i * lane]); break; \
        default: for (int64_t i = 0; i < inner; i++) out[i] = join(TI_JOIN_ADD, out[i], s[i * lane]); break; \
      } \
    } \
    if (how == TI_JOIN_MEAN && count > 1) for (int64_t i = 0; i < inner; i++) out[i] = divide; /* of float and int64 alone */ \
  } while (0)

TI_KERNEL(reduce_indexed) {
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const reduce_indexed_ints *const p = (const reduce_indexed_ints *)ints;
  const int64_t rows = p->rows, n = p->source_rows, inner = p->inner, with_base = p->with_base, step = p->source_row;
  const int64_t lane = p->source_column, how = p->how;
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / rows, k = item % rows;
    if (p->is_float) TI_REDUCE_ROWS(float, FN(join_float), out[i] / (float)count);
    else if (p->element_bytes == 8) TI_REDUCE_ROWS(int64_t, FN(join_long), out[i] / count - (out[i] % count < 0));
    else if (p->element_bytes == 4) TI_REDUCE_ROWS(int32_t, (int32_t)FN(join_long), out[i]);
    else TI_REDUCE_ROWS(uint8_t, (uint8_t)FN(join_long), out[i]);
  }
  return TI_OK;
}
#undef TI_REDUCE_ROWS

/* --------------------------------------------------------------------------- masks */
static inline int64_t FN(set_before)(const int64_t *counts, int64_t block) {
  int64_t sum = 0;
  for (int64_t b = 0; b < block; b++) sum += counts[b];
  return sum;
}

TI_KERNEL(mask_count) {
  const mask_count_ints *const p = (const mask_count_ints *)ints;
  for (int64_t block = begin; block < end; block++) {
    const int64_t last = ti_min(p->elements, (block + 1) * TI_MASK_BLOCK);
    int64_t count = 0;
    for (int64_t i = block * TI_MASK_BLOCK; i < last; i++) count += args[1][i] != 0;
    ((int64_t *)args[0])[block] = count;
  }
  return TI_OK;
}

TI_KERNEL(mask_scatter) {
  const masked_ints *const p = (const masked_ints *)ints;
  const int64_t bytes = p->element_bytes;
  int64_t taken = FN(set_before)((const int64_t *)args[4], begin);
  for (int64_t i = begin * TI_MASK_BLOCK, last = ti_min(p->elements, end * TI_MASK_BLOCK); i < last; i++) {
    const char *from = args[1] + i * bytes;
    if (args[3][i]) {
      if (taken >= p->selected) return TI_TRAP_RANGE;
      from = args[2] + taken++ * bytes;
    }
    memcpy(args[0] + i * bytes, from, (size_t)bytes);
  }
  return TI_OK;
}

TI_KERNEL(mask_compact) {
  const masked_ints *const p = (const masked_ints *)ints;
  const int64_t bytes = p->element_bytes;
  int64_t put = FN(set_before)((const int64_t *)args[3], begin);
  for (int64_t i = begin * TI_MASK_BLOCK, last = ti_min(p->elements, end * TI_MASK_BLOCK); i < last; i++)
    if (args[2][i] && put < p->selected) memcpy(args[0] + put++ * bytes, args[1] + i * bytes, (size_t)bytes);
  return TI_OK;
}

TI_KERNEL(nonzero) {
  const nonzero_ints *const p = (const nonzero_ints *)ints;
  const int64_t dims = p->dims;
  int64_t put = FN(set_before)((const int64_t *)args[2], begin);
  for (int64_t i = begin * TI_MASK_BLOCK, last = ti_min(p->elements, end * TI_MASK_BLOCK); i < last && put < p->size; i++) {
    if (!args[1][i]) continue;
    int64_t *out = (int64_t *)args[0] + put++ * dims, rest = i;
    for (int64_t d = dims - 1; d >= 0; d--) {
      out[d] = rest % p->sizes[d];
      rest /= p->sizes[d];
    }
  }
  return TI_OK;
}
