/* Gather and scatter over blocks, rows of a strided table, reductions into rows, and what boolean masks select.
 *
 * A value is written by one item only, which takes its sources in their order: the result is the same on any number of
 * threads, the last write wins, and sums are added from the first source to the last. */

TI_INLINE int64_t FN(position)(const char *p, int64_t bytes, int64_t i) {
  return bytes == 8 ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}

/* --------------------------------------------------------------------------- gather and scatter over blocks */
/* Floats by 64-bit indices, several at a time: out[j] = table[index[j] * inner + j * pace]. Returns how many were taken,
 * or -1 where an index is out of range. Products of an index and `inner` have at most 32 bits each. */
#if VL == 16
static inline int64_t FN(gather_floats)(float *out, const float *table, const int64_t *index, int64_t count,
                                        int64_t inner, int64_t pace, int64_t extent) {
  const __m512i limit = _mm512_set1_epi64(extent), by = _mm512_set1_epi64(inner);
  __m512i place = _mm512_mullo_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), _mm512_set1_epi64(pace));
  int64_t j = 0;
  for (; j + 8 <= count; j += 8) {
    const __m512i k = _mm512_loadu_si512(index + j);
    if (_mm512_cmpge_epu64_mask(k, limit)) return -1;
    const __m512i at = _mm512_add_epi64(_mm512_mul_epu32(k, by), place);
    _mm256_storeu_ps(out + j, _mm512_i64gather_ps(at, table, 4));
    place = _mm512_add_epi64(place, _mm512_set1_epi64(8 * pace));
  }
  return j;
}
#else
static inline int64_t FN(gather_floats)(float *out, const float *table, const int64_t *index, int64_t count,
                                        int64_t inner, int64_t pace, int64_t extent) {
  const __m256i last = _mm256_set1_epi64x(extent - 1), by = _mm256_set1_epi64x(inner), zero = _mm256_setzero_si256();
  __m256i place = _mm256_setr_epi64x(0, pace, 2 * pace, 3 * pace);
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    const __m256i k = _mm256_loadu_si256((const __m256i *)(index + j));
    const __m256i wrong = _mm256_or_si256(_mm256_cmpgt_epi64(zero, k), _mm256_cmpgt_epi64(k, last));
    if (!_mm256_testz_si256(wrong, wrong)) return -1;
    const __m256i at = _mm256_add_epi64(_mm256_mul_epu32(k, by), place);
    _mm_storeu_ps(out + j, _mm256_i64gather_ps(table, at, 4));
    place = _mm256_add_epi64(place, _mm256_set1_epi64x(4 * pace));
  }
  return j;
}
#endif

TI_INLINE int FN(gather_sized)(
    char *const *args, const int64_t *ints, int64_t begin, int64_t end, int64_t bytes, int64_t index_bytes) {
  const int64_t n = ints[2], inner = ints[3], extent = ints[4];
  int bad = 0;
  for (int64_t row = begin; row < end;) {
    const int64_t run = inner == 1 ? ti_min(n - row % n, end - row) : 1, count = run * inner;
    const char *table = args[1] + row / n * extent * inner * bytes;
    char *out = args[0] + row * inner * bytes;
    int64_t j = 0;
    if (bytes == 4 && index_bytes == 8 && extent < INT32_MAX && inner < INT32_MAX) {
      j = FN(gather_floats)((float *)out, (const float *)table, (const int64_t *)args[2] + row * inner, count, inner,
                            inner != 1, extent);
      if (j < 0) return TI_TRAP_INDEX;
    }
    for (; j < count; j++) {
      const int64_t k = FN(position)(args[2], index_bytes, row * inner + j);
      const int wrong = (uint64_t)k >= (uint64_t)extent;
      bad |= wrong;
      const int64_t from = (wrong ? 0 : k) * inner + (inner == 1 ? 0 : j);
      memcpy(out + j * bytes, table + from * bytes, (size_t)bytes);
    }
    if (bad) return TI_TRAP_INDEX;
    row += run;
  }
  return TI_OK;
}

/* gather_block: args out [outer, n, inner], table [outer, extent, inner], index [outer, n, inner]; ints element bytes,
 * index bytes, n, inner, extent (at least 1). Items: (outer, n). */
TI_KERNEL(gather_block) {
#define TI_GATHER(bytes) \
  (ints[1] == 8 ? FN(gather_sized)(args, ints, begin, end, bytes, 8) : FN(gather_sized)(args, ints, begin, end, bytes, 4))
  switch (ints[0]) {
    case 1: return TI_GATHER(1);
    case 2: return TI_GATHER(2);
    case 4: return TI_GATHER(4);
    default: return TI_GATHER(8);
  }
#undef TI_GATHER
}

/* How a source meets what is there. PUT keeps the source, whatever its type. */
enum { FN(PUT), FN(ADD), FN(MULTIPLY), FN(MAX), FN(MIN), FN(MEAN) };

/* As eager mode has it: NaN wins over numbers. */
TI_INLINE float FN(join_float)(int how, float x, float y) {
  switch (how) {
    case FN(MULTIPLY): return x * y;
    case FN(MAX): return y != y ? y : x < y ? y : x;
    case FN(MIN): return y != y ? y : y < x ? y : x;
    default: return x + y;
  }
}
TI_INLINE int64_t FN(join_long)(int how, int64_t x, int64_t y) {
  switch (how) {
    case FN(MULTIPLY): return (int64_t)((uint64_t)x * (uint64_t)y);
    case FN(MAX): return x < y ? y : x;
    case FN(MIN): return y < x ? y : x;
    default: return (int64_t)((uint64_t)x + (uint64_t)y);
  }
}

enum { FN(PANEL) = 64 }; /* columns taken together, so that they share cache lines */

TI_INLINE int FN(scatter_sized)(
    char *const *args, const int64_t *ints, int64_t begin, int64_t end, int64_t bytes, int how, int is_long) {
  const int64_t index_bytes = ints[1], n = ints[2], inner = ints[3], extent = ints[4], source_rows = ints[5];
  const int64_t panels = (inner + FN(PANEL) - 1) / FN(PANEL), constant = source_rows == 0;
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / panels, first = item % panels * FN(PANEL), columns = ti_min(FN(PANEL), inner - first);
    char *out = args[0] + (o * extent * inner + first) * bytes;
    const char *source = args[2] + (constant ? 0 : (o * source_rows * inner + first) * bytes);
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < columns; j++) {
        const int64_t k = FN(position)(args[1], index_bytes, (o * n + i) * inner + first + j);
        if (__builtin_expect((uint64_t)k >= (uint64_t)extent, 0)) return TI_TRAP_INDEX;
        char *to = out + (k * inner + j) * bytes;
        const char *from = source + (constant ? 0 : (i * inner + j) * bytes);
        if (how == FN(PUT)) memcpy(to, from, (size_t)bytes);
        else if (is_long) *(int64_t *)to = FN(join_long)(how, *(int64_t *)to, *(const int64_t *)from);
        else *(float *)to = FN(join_float)(how, *(float *)to, *(const float *)from);
      }
    }
  }
  return TI_OK;
}

/* scatter_block: args out [outer, extent, inner] (written in place), index [outer, n, inner], source [outer, source
 * rows, inner]; ints element bytes, index bytes, n, inner, extent, source rows (0: one number for all), how. What is
 * joined is float where elements have 4 bytes, long where they have 8. Items: (outer, panel of 64 columns). */
TI_KERNEL(scatter_block) {
#define TI_JOINED(how) \
  (ints[0] == 8 ? FN(scatter_sized)(args, ints, begin, end, 8, how, 1) : FN(scatter_sized)(args, ints, begin, end, 4, how, 0))
  switch (ints[6]) {
    case FN(ADD): return TI_JOINED(FN(ADD));
    case FN(MULTIPLY): return TI_JOINED(FN(MULTIPLY));
    case FN(MAX): return TI_JOINED(FN(MAX));
    case FN(MIN): return TI_JOINED(FN(MIN));
    default: break;
  }
#undef TI_JOINED
  switch (ints[0]) {
    case 1: return FN(scatter_sized)(args, ints, begin, end, 1, FN(PUT), 0);
    case 2: return FN(scatter_sized)(args, ints, begin, end, 2, FN(PUT), 0);
    case 4: return FN(scatter_sized)(args, ints, begin, end, 4, FN(PUT), 0);
    default: return FN(scatter_sized)(args, ints, begin, end, 8, FN(PUT), 0);
  }
}

/* divide_counts: args out (in place), counts (same type); ints is long. Items: elements. A mean divides by how many
 * were added, at least one; whole numbers are rounded down. */
TI_KERNEL(divide_counts) {
  for (int64_t i = begin; i < end; i++) {
    if (ints[0]) {
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
/* take_strided: args out [outer, n, inner], table, offsets LONG[n] in elements; ints element bytes, n, dims outside,
 * dims inside, inner elements, then sizes and strides outside, sizes and strides inside (at most 8 each).
 * Items: (outer, n). */
TI_KERNEL(take_strided) {
  const int64_t bytes = ints[0], n = ints[1], outside = ints[2], inside = ints[3], count = ints[4];
  const int64_t *outer = ints + 5, *inner = outer + 2 * outside;
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
      if (step == 1) memcpy(out + i * bytes, source + at * bytes, (size_t)(run * bytes));
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
    if (with_base || j == last) memcpy(out, base, (size_t)inner * sizeof(T)); \
    else { \
      const T *s = sources + order[j++] * step; \
      for (int64_t i = 0; i < inner; i++) out[i] = s[i * lane]; \
    } \
    for (; j < last; j++) { \
      const T *s = sources + order[j] * step; \
      switch (how) { \
        case FN(MULTIPLY): for (int64_t i = 0; i < inner; i++) out[i] = join(FN(MULTIPLY), out[i], s[i * lane]); break; \
        case FN(MAX): for (int64_t i = 0; i < inner; i++) out[i] = join(FN(MAX), out[i], s[i * lane]); break; \
        case FN(MIN): for (int64_t i = 0; i < inner; i++) out[i] = join(FN(MIN), out[i], s[i * lane]); break; \
        default: for (int64_t i = 0; i < inner; i++) out[i] = join(FN(ADD), out[i], s[i * lane]); break; \
      } \
    } \
    if (how == FN(MEAN) && count > 1) for (int64_t i = 0; i < inner; i++) out[i] = divide; \
  } while (0)

/* reduce_indexed: args out [outer, rows, inner], base (same shape), source [outer, n, inner], offsets and order of a
 * bucketed index; ints rows, n, inner, whether the base takes part, source stride of n (0: one row for all), source
 * stride of inner (0: one number), how, is long. Rows that no index names keep the base. Items: (outer, row). */
TI_KERNEL(reduce_indexed) {
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const int64_t rows = ints[0], n = ints[1], inner = ints[2], with_base = ints[3], step = ints[4], lane = ints[5];
  const int64_t how = ints[6];
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / rows, k = item % rows;
    if (ints[7]) TI_REDUCE_ROWS(int64_t, FN(join_long), out[i] / count - (out[i] % count < 0));
    else TI_REDUCE_ROWS(float, FN(join_float), out[i] / (float)count);
  }
  return TI_OK;
}
#undef TI_REDUCE_ROWS

/* --------------------------------------------------------------------------- masks */
enum { FN(BLOCK) = 4096 }; /* elements of an item of the mask kernels */

static inline int64_t FN(set_before)(const int64_t *counts, int64_t block) {
  int64_t sum = 0;
  for (int64_t b = 0; b < block; b++) sum += counts[b];
  return sum;
}

/* mask_count: args counts LONG[blocks], mask bool; ints elements. Items: blocks of 4096 elements. */
TI_KERNEL(mask_count) {
  for (int64_t block = begin; block < end; block++) {
    const int64_t last = ti_min(ints[0], (block + 1) * FN(BLOCK));
    int64_t count = 0;
    for (int64_t i = block * FN(BLOCK); i < last; i++) count += args[1][i] != 0;
    ((int64_t *)args[0])[block] = count;
  }
  return TI_OK;
}

/* mask_scatter: args out, base, source, mask, counts; ints elements, element bytes, elements of the source. Items as
 * mask_count. The n-th element where the mask is set takes the n-th element of the source, the others the base. */
TI_KERNEL(mask_scatter) {
  const int64_t bytes = ints[1];
  int64_t taken = FN(set_before)((const int64_t *)args[4], begin);
  for (int64_t i = begin * FN(BLOCK), last = ti_min(ints[0], end * FN(BLOCK)); i < last; i++) {
    const char *from = args[1] + i * bytes;
    if (args[3][i]) {
      if (taken >= ints[2]) return TI_TRAP_RANGE;
      from = args[2] + taken++ * bytes;
    }
    memcpy(args[0] + i * bytes, from, (size_t)bytes);
  }
  return TI_OK;
}

/* mask_compact: args out (zeroed), source, mask, counts; ints elements, element bytes, elements of out. Items as
 * mask_count. The n-th element of out is the source where the mask is set for the n-th time. */
TI_KERNEL(mask_compact) {
  const int64_t bytes = ints[1];
  int64_t put = FN(set_before)((const int64_t *)args[3], begin);
  for (int64_t i = begin * FN(BLOCK), last = ti_min(ints[0], end * FN(BLOCK)); i < last; i++)
    if (args[2][i] && put < ints[2]) memcpy(args[0] + put++ * bytes, args[1] + i * bytes, (size_t)bytes);
  return TI_OK;
}

/* nonzero: args out LONG[size, dims] (filled before), mask, counts; ints elements, size, dims, sizes[dims]. Items as
 * mask_count. Coordinates of the elements where the mask is set, in order. */
TI_KERNEL(nonzero) {
  const int64_t dims = ints[2];
  int64_t put = FN(set_before)((const int64_t *)args[2], begin);
  for (int64_t i = begin * FN(BLOCK), last = ti_min(ints[0], end * FN(BLOCK)); i < last && put < ints[1]; i++) {
    if (!args[1][i]) continue;
    int64_t *out = (int64_t *)args[0] + put++ * dims, rest = i;
    for (int64_t d = dims - 1; d >= 0; d--) {
      out[d] = rest % ints[3 + d];
      rest /= ints[3 + d];
    }
  }
  return TI_OK;
}
