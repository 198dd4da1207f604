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
  const gather_block_ints *const p = (const gather_block_ints *)ints;
  const int64_t n = p->index_rows, inner = p->inner, extent = p->extent;
  const char *table = args[1] + begin / n * extent * inner * bytes;
  int bad = 0;
  for (int64_t row = begin, place = begin % n; row < end;) {  /* no division for each row: many tables give one element */
    const int64_t run = inner == 1 ? ti_min(n - place, end - row) : 1, count = run * inner;
    char *out = args[0] + row * inner * bytes;
    int64_t j = 0;
    if (bytes == 4 && index_bytes == 8 && count >= 8 && extent < INT32_MAX && inner < INT32_MAX) {
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

TI_INLINE int FN(scatter_sized)(
    char *const *args, const int64_t *ints, int64_t begin, int64_t end, int64_t bytes, int how, int is_long) {
  const scatter_block_ints *const p = (const scatter_block_ints *)ints;
  const int64_t index_bytes = p->index_bytes, n = p->index_rows, inner = p->inner, extent = p->extent;
  const int64_t source_rows = p->source_rows;
  const int64_t panels = (inner + TI_SCATTER_PANEL - 1) / TI_SCATTER_PANEL, constant = source_rows == 0;
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / panels, first = item % panels * TI_SCATTER_PANEL, columns = ti_min(TI_SCATTER_PANEL, inner - first);
    char *out = args[0] + (o * extent * inner + first) * bytes;
    const char *source = args[2] + (constant ? 0 : (o * source_rows * inner + first) * bytes);
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < columns; j++) {
        const int64_t k = FN(position)(args[1], index_bytes, (o * n + i) * inner + first + j);
        if (__builtin_expect((uint64_t)k >= (uint64_t)extent, 0)) return TI_TRAP_INDEX;
        char *to = out + (k * inner + j) * bytes;
        const char *from = source + (constant ? 0 : (i * inner + j) * bytes);
        if (how == TI_JOIN_PUT) memcpy(to, from, (size_t)bytes);
        else if (is_long) *(int64_t *)to = FN(join_long)(how, *(int64_t *)to, *(const int64_t *)from);
        else *(float *)to = FN(join_float)(how, *(float *)to, *(const float *)from);
      }
    }
  }
  return TI_OK;
}

TI_KERNEL(scatter_block) {
  const scatter_block_ints *const p = (const scatter_block_ints *)ints;
#define TI_JOINED(how) \
  (p->element_bytes == 8 ? FN(scatter_sized)(args, ints, begin, end, 8, how, 1) : FN(scatter_sized)(args, ints, begin, end, 4, how, 0))
  switch (p->how) {
    case TI_JOIN_ADD: return TI_JOINED(TI_JOIN_ADD);
    case TI_JOIN_MULTIPLY: return TI_JOINED(TI_JOIN_MULTIPLY);
    case TI_JOIN_MAX: return TI_JOINED(TI_JOIN_MAX);
    case TI_JOIN_MIN: return TI_JOINED(TI_JOIN_MIN);
    default: break;
  }
#undef TI_JOINED
  switch (p->element_bytes) {
    case 1: return FN(scatter_sized)(args, ints, begin, end, 1, TI_JOIN_PUT, 0);
    case 2: return FN(scatter_sized)(args, ints, begin, end, 2, TI_JOIN_PUT, 0);
    case 4: return FN(scatter_sized)(args, ints, begin, end, 4, TI_JOIN_PUT, 0);
    default: return FN(scatter_sized)(args, ints, begin, end, 8, TI_JOIN_PUT, 0);
  }
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
        case TI_JOIN_MULTIPLY: for (int64_t i = 0; i < inner; i++) out[i] = join(TI_JOIN_MULTIPLY, out[i], s[i * lane]); break; \
        case TI_JOIN_MAX: for (int64_t i = 0; i < inner; i++) out[i] = join(TI_JOIN_MAX, out[i], s[i * lane]); break; \
        case TI_JOIN_MIN: for (int64_t i = 0; i < inner; i++) out[i] = join(TI_JOIN_MIN, out[i], s[i * lane]); break; \
        default: for (int64_t i = 0; i < inner; i++) out[i] = join(TI_JOIN_ADD, out[i], s[i * lane]); break; \
      } \
    } \
    if (how == TI_JOIN_MEAN && count > 1) for (int64_t i = 0; i < inner; i++) out[i] = divide; \
  } while (0)

TI_KERNEL(reduce_indexed) {
  const int64_t *offsets = (const int64_t *)args[3], *order = (const int64_t *)args[4];
  const reduce_indexed_ints *const p = (const reduce_indexed_ints *)ints;
  const int64_t rows = p->rows, n = p->source_rows, inner = p->inner, with_base = p->with_base, step = p->source_row;
  const int64_t lane = p->source_column, how = p->how;
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / rows, k = item % rows;
    if (p->is_long) TI_REDUCE_ROWS(int64_t, FN(join_long), out[i] / count - (out[i] % count < 0));
    else TI_REDUCE_ROWS(float, FN(join_float), out[i] / (float)count);
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
