/* Reductions over any dimensions of a strided operand; table/reduce.py says what the kernels take.
 *
 * Float sums add at most 2048 values in vector lanes before they go to a double (rows), or 32 rows before they go to
 * a second accumulator (columns): errors stay near one rounding, whatever the length.
 */
#include "fold_rows_body.h"
/* Where the element of a number lies; its place in each dimension goes to `index`. */
static inline int64_t FN(offset_of)(int64_t number, const reduce_space *s, int64_t *index) {
  int64_t offset = 0;
  if (!number) {  /* most often: divisions take longer than short sums do */
    for (int64_t i = 0; i < s->dims; i++) index[i] = 0;
    return 0;
  }
  for (int64_t i = s->dims - 1; i >= 0; i--) {
    index[i] = number % s->shape[i];
    number /= s->shape[i];
    offset += index[i] * s->strides[i];
  }
  return offset;
}
/* Moves to the beginning of the next run of the last dimension; returns the new offset. */
static inline int64_t FN(next_run)(int64_t offset, const reduce_space *s, int64_t *index) {
  const int64_t last = s->dims - 1;
  offset -= index[last] * s->strides[last];
  index[last] = 0;
  for (int64_t i = last - 1; i >= 0; i--) {
    offset += s->strides[i];
    if (++index[i] < s->shape[i]) break;
    offset -= s->shape[i] * s->strides[i];
    index[i] = 0;
  }
  return offset;
}
/* Moves to the next place; after the last comes the first. */
static inline int64_t FN(next_place)(int64_t offset, const reduce_space *s, int64_t *index) {
  const int64_t last = s->dims - 1;
  if (index[last] + 1 == s->shape[last]) return FN(next_run)(offset, s, index);
  index[last]++;
  return offset + s->strides[last];
}
/* Rows of a few values each, points or boxes: a row in each lane, for a vector of its own would be all but empty. */
TI_INLINE void FN(reduce_few_as)(float *out, const float *x, const reduce_ints *p, int64_t begin, int64_t end, double scale, const int mode) {
  const int64_t n = p->total, stride = p->reduced.strides[0];
  const int root = (int)p->root, adjoin = stride == 1 && p->kept.dims == 1;
  float beside[TI_REDUCE_SHORT * VL] = {0.f};
  int64_t index[TI_REDUCE_DIMS], place = FN(offset_of)(begin, &p->kept, index);
  for (int64_t row = begin; row < end; row += VL) {
    const int64_t lanes = ti_min(VL, end - row);
    if (adjoin) FN(lay_few)(beside, x + row * p->kept.strides[0], p->kept.strides[0], lanes, n);
    else for (int64_t lane = 0; lane < lanes; lane++, place = FN(next_place)(place, &p->kept, index))
      for (int64_t i = 0; i < n; i++) beside[i * VL + lane] = x[place + i * stride];
    const VF r = FN(few_beside)(beside, n, scale, root, mode);
    FN(store_part)(out + row, r, lanes);
  }
}
static void FN(reduce_few)(float *out, const float *x, const reduce_ints *p, int64_t begin, int64_t end, double scale) {
#define TI_CASE(m) case TI_FOLDING_##m: FN(reduce_few_as)(out, x, p, begin, end, scale, TI_FOLDING_##m); break;
  switch (p->folding) {
    TI_CASE(SUM) TI_CASE(SUM_SQUARES) TI_CASE(SUM_MAGNITUDES) TI_CASE(PRODUCT) TI_CASE(LARGEST) TI_CASE(SMALLEST)
    default: FN(reduce_few_as)(out, x, p, begin, end, scale, TI_FOLDING_LARGEST_MAGNITUDE);
  }
#undef TI_CASE
}
TI_KERNEL(reduce_rows) {
  (void)scratch;
  const reduce_ints *const p = (const reduce_ints *)ints;
  const double scale = ((const reduce_scalars *)scalars)->scale;
  const int mode = (int)p->folding, stored = (int)p->stored;
  const int64_t total = p->total, chunk = p->chunk, chunks = p->chunks;
  const reduce_space *const reduced = &p->reduced;
  const float *const x = (const float *)args[1];
  const uint16_t *const halves = (const uint16_t *)args[1];
  int64_t index[TI_REDUCE_DIMS];
  /* rows of one run each: where a short one lies takes as long to say as what it holds to add up */
  if (chunks == 1 && reduced->dims == 1) {
    const int64_t stride = reduced->strides[0], apart = p->kept.strides[0];
    if (!stored && (total <= TI_REDUCE_FEW || (total <= TI_REDUCE_SHORT && stride != 1))) {
      FN(reduce_few)((float *)args[0], x, p, begin, end, scale);
      return TI_OK;
    }
    if (p->kept.dims == 1 && !stored && stride == 1 && total <= 2048) {
      FN(fold_rows)((float *)args[0] + begin, x + begin * apart, 0, apart, end - begin, total, mode, scale, (int)p->root);
      return TI_OK;
    }
    for (int64_t item = begin; item < end && p->kept.dims == 1; item++) {
      const double run = stored ? FN(reduce_stored)(halves + item * apart, total, mode, stored) : FN(reduce_run)(x + item * apart, stride, total, mode);
      const double r = FN(combine1)(FN(neutral)(mode), run, FN(joining)(mode)) * scale;
      ((float *)args[0])[item] = (float)(p->root ? sqrt(r) : r);
    }
    if (p->kept.dims == 1) return TI_OK;
  }
  int64_t at[TI_REDUCE_DIMS], place = chunks == 1 ? FN(offset_of)(begin, &p->kept, at) : 0;
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = chunks == 1 ? 0 : item % chunks * chunk;
    if (chunks > 1) place = FN(offset_of)(item / chunks, &p->kept, at);
    else if (item > begin) place = FN(next_place)(place, &p->kept, at);
    int64_t todo = total - first < chunk ? total - first : chunk, offset = FN(offset_of)(first, reduced, index);
    double r = FN(neutral)(mode);
    while (todo > 0) {
      const int64_t run = ti_min(reduced->shape[reduced->dims - 1] - index[reduced->dims - 1], todo);
      const int64_t from = place + offset;
      const double part = stored ? FN(reduce_stored)(halves + from, run, mode, stored)
                                  : FN(reduce_run)(x + from, reduced->strides[reduced->dims - 1], run, mode);
      r = FN(combine1)(r, part, FN(joining)(mode));
      todo -= run;
      if (todo > 0) offset = FN(next_run)(offset, reduced, index);
    }
    r *= scale;
    ((float *)args[0])[item] = (float)(p->root ? sqrt(r) : r);
  }
  return TI_OK;
}

#define TI_VECTORS (TI_REDUCE_PANEL / VL)
/* Columns from element `at` on, `n` of a vector's: of halves and bfloats what they stand for. */
TI_INLINE VF FN(columns_at)(const void *x, int64_t at, long n, const int stored) {
  if (stored == TI_STORED_FLOATS) return n < VL ? FN(load_part)((const float *)x + at, n) : FN(load)((const float *)x + at);
  const uint16_t *const halves = (const uint16_t *)x + at;
  if (n >= VL) return FN(from_stored)(halves, stored);
  uint16_t lanes[VL] = {0};
#if VL == 16
  _mm256_storeu_si256((__m256i *)lanes, _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), halves));
#else
  memcpy(lanes, halves, (size_t)n * sizeof(uint16_t));
#endif
  return FN(from_stored)(lanes, stored);
}
TI_INLINE void FN(columns_block)(
    float *out, const void *x, int64_t at, int64_t first, int64_t todo, const reduce_space *reduced, long width, const int mode,
    double scale, int root, const int stored) {
  const int join = FN(joining)(mode);
  const VF start = FN(set)((float)FN(neutral)(mode));
  VF sums[TI_VECTORS], a[TI_VECTORS];
  for (int j = 0; j < TI_VECTORS; j++) sums[j] = start;
  int64_t index[TI_REDUCE_DIMS], offset = FN(offset_of)(first, reduced, index);
  const long vectors = width / VL, rest = width % VL;
  while (todo > 0) {
    const int64_t run = ti_min(reduced->shape[reduced->dims - 1] - index[reduced->dims - 1], todo);
    const int64_t stride = reduced->strides[reduced->dims - 1];
    int64_t row = at + offset;
    for (int64_t r0 = 0; r0 < run; r0 += 32) {
      const int64_t r1 = run - r0 < 32 ? run - r0 : 32;
      for (int j = 0; j < TI_VECTORS; j++) a[j] = start;
      if (width == TI_REDUCE_PANEL)
        for (int64_t r = 0; r < r1; r++, row += stride)
          for (int j = 0; j < TI_VECTORS; j++) a[j] = FN(combine)(a[j], FN(columns_at)(x, row + j * VL, VL, stored), mode);
      else
        for (int64_t r = 0; r < r1; r++, row += stride) {
          for (long j = 0; j < vectors; j++) a[j] = FN(combine)(a[j], FN(columns_at)(x, row + j * VL, VL, stored), mode);
          if (rest) a[vectors] = FN(combine)(a[vectors], FN(columns_at)(x, row + vectors * VL, rest, stored), mode);
        }
      for (int j = 0; j < TI_VECTORS; j++) sums[j] = FN(combine)(sums[j], a[j], join);
    }
    todo -= run;
    offset = FN(next_run)(offset, reduced, index);
  }
  for (long j = 0; j * VL < width; j++) {
    VF r = sums[j] * (float)scale;
    if (root) r = FN(sqrt)(r);
    if ((j + 1) * VL <= width) FN(store)(out + j * VL, r);
    else FN(store_part)(out + j * VL, r, width - j * VL);
  }
}
/* Columns of a few rows each: to begin and end a panel would take longer than what it holds. In the order of columns_block. */
TI_INLINE void FN(few_of_column)(
    float *out, const float *x, int64_t stride, int64_t rows, const int vectors, int64_t lanes, const int mode, double scale, int root) {
  const VF start = FN(set)((float)FN(neutral)(mode));
  VF a[4];
#pragma GCC unroll 4
  for (int j = 0; j < vectors; j++) a[j] = start;
  for (int64_t r = 0; r < rows; r++, x += stride)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++)
      a[j] = FN(combine)(a[j], vectors == 1 && lanes < VL ? FN(load_part)(x, lanes) : FN(load)(x + j * VL), mode);
#pragma GCC unroll 4
  for (int j = 0; j < vectors; j++) {
    VF made = FN(combine)(start, a[j], FN(joining)(mode)) * (float)scale;
    if (root) made = FN(sqrt)(made);
    FN(store_most)(out + j * VL, made, vectors == 1 ? lanes : VL);
  }
}
TI_INLINE void FN(few_columns_as)(
    float *out, const float *x, int64_t stride, int64_t rows, int64_t width, const int mode, double scale, int root) {
  int64_t j = 0;
  for (; j + 4 * VL <= width; j += 4 * VL) FN(few_of_column)(out + j, x + j, stride, rows, 4, VL, mode, scale, root);
  for (; j < width; j += VL) FN(few_of_column)(out + j, x + j, stride, rows, 1, ti_min(VL, width - j), mode, scale, root);
}
/* All items that lie beside each other together. */
static void FN(few_columns)(float *out, const float *x, const reduce_ints *p, int64_t begin, int64_t end, double scale) {
  const int64_t columns = p->columns, panels = ti_ceil(columns, TI_REDUCE_PANEL), stride = p->reduced.strides[0];
  int64_t index[TI_REDUCE_DIMS];
  for (int64_t item = begin, some; item < end; item += some) {
    const int64_t k = item / panels, first = item % panels * TI_REDUCE_PANEL;
    some = ti_min(panels - item % panels, end - item);
    const int64_t width = ti_min(some * TI_REDUCE_PANEL, columns - first);
    float *const to = out + k * columns + first;
    const float *const from = x + FN(offset_of)(k, &p->kept, index) + first;
#define TI_CASE(m) case TI_FOLDING_##m: FN(few_columns_as)(to, from, stride, p->total, width, TI_FOLDING_##m, scale, (int)p->root); break;
    switch (p->folding) {
      TI_CASE(SUM) TI_CASE(SUM_SQUARES) TI_CASE(SUM_MAGNITUDES) TI_CASE(PRODUCT) TI_CASE(LARGEST) TI_CASE(SMALLEST)
      default: FN(few_columns_as)(to, from, stride, p->total, width, TI_FOLDING_LARGEST_MAGNITUDE, scale, (int)p->root);
    }
#undef TI_CASE
  }
}
TI_KERNEL(reduce_columns) {
  (void)scratch;
  const reduce_ints *const p = (const reduce_ints *)ints;
  const double scale = ((const reduce_scalars *)scalars)->scale;
  const int mode = (int)p->folding, root = (int)p->root;
  const int64_t total = p->total, chunk = p->chunk, chunks = p->chunks, columns = p->columns;
  const int64_t panels = ti_ceil(columns, TI_REDUCE_PANEL);
  int64_t index[TI_REDUCE_DIMS], rows = 1;
  for (int64_t i = 0; i < p->kept.dims; i++) rows *= p->kept.shape[i];
  const int is_whole = chunks * panels == 1;
  if (!is_whole && chunks == 1 && p->reduced.dims == 1 && total <= 32 && !p->stored) {
    FN(few_columns)((float *)args[0], (const float *)args[1], p, begin, end, scale);
    return TI_OK;
  }
  int64_t place = is_whole ? FN(offset_of)(begin, &p->kept, index) : 0;
  for (int64_t item = begin; item < end; item++) {
    int64_t c = 0, panel = 0, k = item;
    if (!is_whole) {
      c = item % chunks, panel = item / chunks % panels, k = item / chunks / panels;
      place = FN(offset_of)(k, &p->kept, index);
    } else if (item > begin) place = FN(next_place)(place, &p->kept, index);
    const int64_t column = panel * TI_REDUCE_PANEL;
    float *out = (float *)args[0] + (c * rows + k) * columns + column;
    const int64_t first = c * chunk, todo = total - first < chunk ? total - first : chunk;
    const long width = (long)ti_min(columns - column, TI_REDUCE_PANEL);
#define TI_COLUMNS(m, stored) \
  FN(columns_block)(out, args[1], place + column, first, todo, &p->reduced, width, m, scale, root, stored)
#define TI_CASE(m) case TI_FOLDING_##m: TI_COLUMNS(TI_FOLDING_##m, TI_STORED_FLOATS); break;
    if (p->stored) {
      if (mode != TI_FOLDING_SUM) return TI_TRAP_INTERNAL;
      if (p->stored == TI_STORED_BFLOATS) TI_COLUMNS(TI_FOLDING_SUM, TI_STORED_BFLOATS);
      else TI_COLUMNS(TI_FOLDING_SUM, TI_STORED_HALVES);
    } else switch (mode) {
      TI_CASE(SUM) TI_CASE(SUM_SQUARES) TI_CASE(SUM_MAGNITUDES) TI_CASE(PRODUCT) TI_CASE(LARGEST) TI_CASE(SMALLEST)
      TI_CASE(LARGEST_MAGNITUDE)
      default: return TI_TRAP_INTERNAL;
    }
  }
  return TI_OK;
}

#include "reduce_integers_body.h"

/* The first place of a number that is there, or of any NaN where it is one. */
TI_INLINE int64_t FN(place_of)(const float *x, int64_t n, float number) {
  const VF all = FN(set)(number);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) {
    const VF v = FN(load)(x + i);
    const uint32_t found = FN(bits)(number == number ? FN(eq)(v, all) : FN(isnan)(v));
    if (found) return i + __builtin_ctz(found);
  }
  while (i < n - 1 && (number == number ? x[i] != number : x[i] == x[i])) i++;
  return i;
}
TI_KERNEL(arg_rows) {
  (void)scalars, (void)scratch;
  const arg_rows_ints *const p = (const arg_rows_ints *)ints;
  const int64_t n = p->extent;
  const int smallest = (int)p->smallest;
  int64_t *indices = (int64_t *)args[1];
  for (int64_t item = begin; item < end; item++) {
    int64_t best = 0;
    if (p->is_long) {
      const int64_t *x = (const int64_t *)args[2] + item * n;
      for (int64_t i = 1; i < n; i++) if (smallest ? x[i] < x[best] : x[i] > x[best]) best = i;
      ((int64_t *)args[0])[item] = x[best];
    } else {
      const float *x = (const float *)args[2] + item * n;
      float r = (float)FN(reduce_run)(x, 1, n, smallest ? TI_FOLDING_SMALLEST : TI_FOLDING_LARGEST);
      best = FN(place_of)(x, n, r);
      ((float *)args[0])[item] = x[best];
    }
    indices[item] = best;
  }
  return TI_OK;
}

#include "arg_columns_body.h"

TI_KERNEL(moment_rows) {
  (void)scratch;
  const moment_rows_ints *const p = (const moment_rows_ints *)ints;
  const double divisor = ((const moment_rows_scalars *)scalars)->divisor;
  const int64_t n = p->extent;
  for (int64_t item = begin; item < end; item++) {
    const float *x = (const float *)args[2] + item * n;
    int64_t equal = 1;
    while (equal < n && x[equal] == *x) equal++;
    /* A sum of equal elements may be rounded, and what is left of the spread would have a gradient where zero has none. */
    const double mean = n && equal >= n ? *x : FN(reduce_run)(x, 1, n, TI_FOLDING_SUM) / (double)n;
    const VF centre = FN(set)((float)mean);
    double squares = 0;
    for (int64_t i0 = 0; i0 < n; i0 += 2048) {
      const int64_t i1 = n - i0 < 2048 ? n : i0 + 2048;
      VF a = FN(set)(0.f), b = a;
      int64_t i = i0;
      for (; i + 2 * VL <= i1; i += 2 * VL) {
        VF u = FN(load)(x + i) - centre, v = FN(load)(x + i + VL) - centre;
        a = FN(fma)(u, u, a);
        b = FN(fma)(v, v, b);
      }
      squares += FN(sum_lanes)(a + b);
      for (; i < i1; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    }
    const double variance = squares / (divisor > 0 ? divisor : 0.);
    ((float *)args[0])[item] = (float)(p->root ? sqrt(variance) : variance);
    ((float *)args[1])[item] = (float)mean;
  }
  return TI_OK;
}

TI_KERNEL(logsumexp_rows) {
  (void)scalars, (void)scratch;
  const int64_t n = ((const logsumexp_rows_ints *)ints)->extent;
  for (int64_t item = begin; item < end; item++) {
    const float *x = (const float *)args[1] + item * n;
    float top = (float)FN(reduce_run)(x, 1, n, TI_FOLDING_LARGEST);
    if (isinf(top)) top = 0.f; /* as eager: infinities come out of exp and log by themselves */
    double sum = 0;
    for (int64_t i0 = 0; i0 < n; i0 += 2048) {
      const int64_t i1 = n - i0 < 2048 ? n : i0 + 2048;
      VF a = FN(set)(0.f);
      int64_t i = i0;
      for (; i + VL <= i1; i += VL) a += FN(exp)(FN(load)(x + i) - top);
      if (i < i1) a += FN(exp)(FN(load_filled)(x + i, i1 - i, FN(set)(-INFINITY)) - top);
      sum += FN(sum_lanes)(a);
    }
    ((float *)args[0])[item] = (float)(log(sum) + top);
  }
  return TI_OK;
}

enum { FN(ROWS_AT_ONCE) = 8 };  /* as many lines as a set of the first cache holds: rows may lie powers of two apart */
/* What is subtracted from values before their exponentials: as in logsumexp_rows, nothing that is infinite. */
TI_INLINE VF FN(finite_or_zero)(VF top) { return FN(sel)(FN(eq)(FN(abs)(top), FN(set)(INFINITY)), FN(set)(0.f), top); }
/* Adds `rows` rows of up to VL columns to the sums of others, which are of exponents less *top; each value is read once. */
TI_INLINE void FN(add_exponents)(const float *x, int64_t stride, const int rows, int64_t lanes, VF *top, VF *sum) {
  VF v[FN(ROWS_AT_ONCE)], most = *top;
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    v[r] = lanes < VL ? FN(load_part)(x + r * stride, lanes) : FN(load)(x + r * stride);
    most = FN(maximum)(most, v[r]);
  }
  const VF less = FN(finite_or_zero)(most), before = FN(finite_or_zero)(*top);
  /* Nothing has been added while the largest is -inf, and nothing but zeros. */
  VF a = FN(sel)(FN(eq)(*sum, FN(set)(0.f)), *sum, *sum * FN(exp)(before - less)), b = FN(set)(0.f);
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    const VF each = FN(exp)(v[r] - less);
    if (r & 1) b += each;
    else a += each;
  }
  *sum = a + b, *top = most;
}
/* Columns that lie beside each other, a panel of which is taken down some rows before the next rows. */
TI_INLINE void FN(logsumexp_panel)(float *out, const float *x, int64_t stride, int64_t n, int64_t width) {
  VF top[TI_REDUCE_PANEL / VL], sum[TI_REDUCE_PANEL / VL];
  const int64_t vectors = ti_ceil(width, VL);
  for (int64_t j = 0; j < vectors; j++) top[j] = FN(set)(-INFINITY), sum[j] = FN(set)(0.f);
  int64_t i = 0;
  for (; i + FN(ROWS_AT_ONCE) <= n; i += FN(ROWS_AT_ONCE))
    for (int64_t j = 0; j < vectors; j++) FN(add_exponents)(x + i * stride + j * VL, stride, FN(ROWS_AT_ONCE), width - j * VL, top + j, sum + j);
  for (; i < n; i++)
    for (int64_t j = 0; j < vectors; j++) FN(add_exponents)(x + i * stride + j * VL, stride, 1, width - j * VL, top + j, sum + j);
  for (int64_t j = 0; j < vectors; j++) FN(store_most)(out + j * VL, FN(log)(sum[j]) + FN(finite_or_zero)(top[j]), width - j * VL);
}

/* One result in each lane: short rows would leave a vector all but empty, and columns lie beside each other. */
TI_KERNEL(logsumexp_lanes) {
  (void)scalars, (void)scratch;
  const logsumexp_lanes_ints *const p = (const logsumexp_lanes_ints *)ints;
  const int64_t n = p->extent, last = p->kept.dims - 1;
  float beside[TI_REDUCE_SHORT * VL] = {0.f}, *const out = (float *)args[0];
  int64_t index[TI_REDUCE_DIMS];
  for (int64_t item = begin, lanes; item < end; item += lanes) {
    const int64_t stride = p->stride;
    int64_t place = FN(offset_of)(item, &p->kept, index);
    if (p->are_beside) {
      lanes = ti_min(ti_min(TI_REDUCE_PANEL, end - item), p->kept.shape[last] - index[last]);
      FN(logsumexp_panel)(out + item, (const float *)args[1] + place, stride, n, lanes);
      continue;
    }
    lanes = ti_min(VL, end - item);
    for (int64_t lane = 0; lane < lanes; lane++, place = FN(next_place)(place, &p->kept, index))
      for (int64_t i = 0; i < n; i++) beside[i * VL + lane] = ((const float *)args[1])[place + i * stride];
    VF top = FN(set)(-INFINITY), sums[2] = {FN(set)(0.f), FN(set)(0.f)};
    for (int64_t i = 0; i < n; i++) top = FN(combine)(top, FN(load_part)(beside + i * VL, lanes), TI_FOLDING_LARGEST);
    top = FN(finite_or_zero)(top);
    for (int64_t i = 0; i < n; i++) sums[i & 1] += FN(exp)(FN(load_part)(beside + i * VL, lanes) - top);
    FN(store_part)(out + item, FN(log)(sums[0] + sums[1]) + top, lanes);
  }
  return TI_OK;
}

#undef TI_VECTORS
#undef TI_COLUMNS
#undef TI_CASE
