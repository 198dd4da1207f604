/* Reductions over any dimensions of a strided operand; table/reduce.py says what the kernels take.
 *
 * Float sums add at most 2048 values in vector lanes before they go to a double (rows), or 32 rows before they go to
 * a second accumulator (columns): errors stay near one rounding, whatever the length.
 */
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
static inline VF FN(combine)(VF a, VF x, int mode) {
  switch (mode) {
    case TI_FOLDING_SUM: return a + x;
    case TI_FOLDING_SUM_SQUARES: return FN(fma)(x, x, a);
    case TI_FOLDING_SUM_MAGNITUDES: return a + FN(abs)(x);
    case TI_FOLDING_PRODUCT: return a * x;
    case TI_FOLDING_LARGEST: return FN(maximum)(a, x);
    case TI_FOLDING_SMALLEST: return FN(minimum)(a, x);
    default: return FN(maximum)(a, FN(abs)(x));
  }
}
static inline double FN(combine1)(double a, double x, int mode) {
  switch (mode) {
    case TI_FOLDING_SUM: return a + x;
    case TI_FOLDING_SUM_SQUARES: return a + x * x;
    case TI_FOLDING_SUM_MAGNITUDES: return a + fabs(x);
    case TI_FOLDING_PRODUCT: return a * x;
    case TI_FOLDING_LARGEST: return x > a || x != x ? x : a;
    case TI_FOLDING_SMALLEST: return x < a || x != x ? x : a;
    default: return fabs(x) > a || x != x ? fabs(x) : a;
  }
}
/* How results of parts are joined: squares and magnitudes have been taken by then. */
static inline int FN(joining)(int mode) {
  return mode == TI_FOLDING_SUM_SQUARES || mode == TI_FOLDING_SUM_MAGNITUDES ? TI_FOLDING_SUM : mode == TI_FOLDING_LARGEST_MAGNITUDE ? TI_FOLDING_LARGEST : mode;
}
static inline double FN(neutral)(int mode) {
  return mode == TI_FOLDING_PRODUCT ? 1. : mode == TI_FOLDING_LARGEST ? -INFINITY : mode == TI_FOLDING_SMALLEST ? INFINITY : 0.;
}
/* What the lanes of a vector make together: products in doubles, as those of parts. */
TI_INLINE double FN(join_lanes)(VF all, const int mode) {
  if (mode == TI_FOLDING_SUM) return FN(sum_lanes)(all);
  if (mode == TI_FOLDING_PRODUCT) {
    double each[VL];
    for (int j = 0; j < VL; j++) each[j] = all[j];
#pragma GCC unroll 4
    for (int half = VL / 2; half > 0; half /= 2)
      for (int j = 0; j < half; j++) each[j] *= each[j + half];
    return each[0];
  }
  VI lanes;
  for (int j = 0; j < VL; j++) lanes[j] = j;
#pragma GCC unroll 4
  for (int half = VL / 2; half > 0; half /= 2) all = FN(combine)(all, __builtin_shuffle(all, lanes ^ half), mode);
  return all[0];
}
/* Reduces up to 2048 neighbours, halves or floats. */
TI_INLINE double FN(reduce_block)(const void *from, long n, const int mode, const int is_half) {
  const float *const x = (const float *)from;
  const uint16_t *const h = (const uint16_t *)from;
  const VF start = FN(set)((float)FN(neutral)(mode));
  VF a[4] = {start, start, start, start};
  long i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL)
    for (int j = 0; j < 4; j++)
      a[j] = FN(combine)(a[j], is_half ? FN(from_half)(h + i + j * VL) : FN(load)(x + i + j * VL), mode);
  for (; i + VL <= n; i += VL) a[0] = FN(combine)(a[0], is_half ? FN(from_half)(h + i) : FN(load)(x + i), mode);
  if (i < n) {
    /* lanes past the end keep their accumulator */
    uint16_t lanes[VL] = {0};
    if (is_half) memcpy(lanes, h + i, (size_t)(n - i) * sizeof *h);
    const VF rest = is_half ? FN(from_half)(lanes) : FN(load_part)(x + i, n - i);
    a[1] = FN(sel)(FN(first)(n - i), FN(combine)(a[1], rest, mode), a[1]);
  }
  const int join = FN(joining)(mode);
  return FN(join_lanes)(FN(combine)(FN(combine)(a[0], a[1], join), FN(combine)(a[2], a[3], join), join), join);
}
TI_INLINE double FN(reduce_run_as)(const float *x, int64_t stride, int64_t n, const int mode) {
  double r = FN(neutral)(mode);
  if (stride == 1) {
    for (int64_t i = 0; i < n; i += 2048)
      r = FN(combine1)(r, FN(reduce_block)(x + i, (long)(n - i < 2048 ? n - i : 2048), mode, 0), FN(joining)(mode));
    return r;
  }
  for (int64_t i = 0; i < n; i++) r = FN(combine1)(r, x[i * stride], mode);
  return r;
}
static double FN(reduce_run)(const float *x, int64_t stride, int64_t n, int mode) {
  switch (mode) {
    case TI_FOLDING_SUM: return FN(reduce_run_as)(x, stride, n, TI_FOLDING_SUM);
    case TI_FOLDING_SUM_SQUARES: return FN(reduce_run_as)(x, stride, n, TI_FOLDING_SUM_SQUARES);
    case TI_FOLDING_SUM_MAGNITUDES: return FN(reduce_run_as)(x, stride, n, TI_FOLDING_SUM_MAGNITUDES);
    case TI_FOLDING_PRODUCT: return FN(reduce_run_as)(x, stride, n, TI_FOLDING_PRODUCT);
    case TI_FOLDING_LARGEST: return FN(reduce_run_as)(x, stride, n, TI_FOLDING_LARGEST);
    case TI_FOLDING_SMALLEST: return FN(reduce_run_as)(x, stride, n, TI_FOLDING_SMALLEST);
    default: return FN(reduce_run_as)(x, stride, n, TI_FOLDING_LARGEST_MAGNITUDE);
  }
}
static double FN(reduce_halves)(const uint16_t *x, int64_t n) {
  double r = 0;
  for (int64_t i = 0; i < n; i += 2048) r += FN(reduce_block)(x + i, (long)(n - i < 2048 ? n - i : 2048), TI_FOLDING_SUM, 1);
  return r;
}
/* Lays rows of n neighbours, `apart` from each other, beside each other: a row in each lane. */
TI_INLINE void FN(lay_few_as)(float *beside, const float *x, int64_t apart, int64_t lanes, const int64_t n) {
  for (int64_t lane = 0; lane < lanes; lane++)
#pragma GCC unroll 8
    for (int64_t i = 0; i < n; i++) beside[i * VL + lane] = x[lane * apart + i];
}
#if VL == 16
/* The same of sixteen rows that adjoin: each lane comes from one of n vectors, two of which a permutation takes. */
TI_INLINE void FN(turn_few_as)(float *beside, const float *x, const int n) {
  __m512 source[8];
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#pragma GCC unroll 8
  for (int k = 0; k < n; k++) source[k] = _mm512_loadu_ps(x + k * VL);
#pragma GCC unroll 8
  for (int i = 0; i < n; i++) {
    const __m512i place = _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(n)), _mm512_set1_epi32(i));
    __m512 column = _mm512_permutex2var_ps(source[0], place, source[n > 1]);
#pragma GCC unroll 4
    for (int k = 2; k < n; k += 2) {
      const __mmask16 beyond = _mm512_cmpge_epi32_mask(place, _mm512_set1_epi32(k * VL));
      column = _mm512_mask_mov_ps(column, beyond, _mm512_permutex2var_ps(source[k], place, source[k + 1 < n ? k + 1 : k]));
    }
    _mm512_storeu_ps(beside + i * VL, column);
  }
}
static int FN(turn_few)(float *beside, const float *x, int64_t n) {
  switch (n) {
    case 2: FN(turn_few_as)(beside, x, 2); return 1;
    case 3: FN(turn_few_as)(beside, x, 3); return 1;
    case 4: FN(turn_few_as)(beside, x, 4); return 1;
    case 5: FN(turn_few_as)(beside, x, 5); return 1;
    case 6: FN(turn_few_as)(beside, x, 6); return 1;
    case 7: FN(turn_few_as)(beside, x, 7); return 1;
    case 8: FN(turn_few_as)(beside, x, 8); return 1;
    default: return 0;
  }
}
#else
TI_INLINE int FN(turn_few)(float *beside, const float *x, int64_t n) { (void)beside; (void)x; (void)n; return 0; }
#endif
static void FN(lay_few)(float *beside, const float *x, int64_t apart, int64_t lanes, int64_t n) {
  if (lanes == VL && apart == n && FN(turn_few)(beside, x, n)) return;
  switch (n) {
    case 1: FN(lay_few_as)(beside, x, apart, lanes, 1); break;
    case 2: FN(lay_few_as)(beside, x, apart, lanes, 2); break;
    case 3: FN(lay_few_as)(beside, x, apart, lanes, 3); break;
    case 4: FN(lay_few_as)(beside, x, apart, lanes, 4); break;
    case 5: FN(lay_few_as)(beside, x, apart, lanes, 5); break;
    case 6: FN(lay_few_as)(beside, x, apart, lanes, 6); break;
    case 7: FN(lay_few_as)(beside, x, apart, lanes, 7); break;
    case 8: FN(lay_few_as)(beside, x, apart, lanes, 8); break;
    default: FN(lay_few_as)(beside, x, apart, lanes, n);
  }
}
/* Rows of a few values each, points or boxes: a row in each lane, for a vector of its own would be all but empty. */
TI_INLINE void FN(reduce_few_as)(float *out, const float *x, const reduce_ints *p, int64_t begin, int64_t end, double scale, const int mode) {
  const VF start = FN(set)((float)FN(neutral)(mode));
  const int64_t n = p->total, stride = p->reduced.strides[0];
  const int root = (int)p->root, adjoin = stride == 1 && p->kept.dims == 1;
  float beside[TI_REDUCE_SHORT * VL] = {0.f};
  int64_t index[TI_REDUCE_DIMS], place = FN(offset_of)(begin, &p->kept, index);
  for (int64_t row = begin; row < end; row += VL) {
    const int64_t lanes = ti_min(VL, end - row);
    if (adjoin) FN(lay_few)(beside, x + row * p->kept.strides[0], p->kept.strides[0], lanes, n);
    else for (int64_t lane = 0; lane < lanes; lane++, place = FN(next_place)(place, &p->kept, index))
      for (int64_t i = 0; i < n; i++) beside[i * VL + lane] = x[place + i * stride];
    VF a[2] = {start, start};
    for (int64_t i = 0; i < n; i++) a[i & 1] = FN(combine)(a[i & 1], FN(load)(beside + i * VL), mode);
    VF r = FN(combine)(a[0], a[1], FN(joining)(mode));
    if (scale != 1.) {
      float each[VL];
      FN(store)(each, r);
      for (int lane = 0; lane < VL; lane++) each[lane] = (float)(root ? sqrt(each[lane] * scale) : each[lane] * scale);
      r = FN(load)(each);
    } else if (root) r = FN(sqrt)(r);
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
/* Rows of neighbours that are reduced at once. */
TI_INLINE void FN(reduce_each_as)(float *out, const float *x, int64_t apart, const reduce_ints *p, int64_t begin, int64_t end, double scale, const int mode) {
  const long n = (long)p->total;
  const int root = (int)p->root;
  for (int64_t item = begin; item < end; item++) {
    const double r = FN(combine1)(FN(neutral)(mode), FN(reduce_block)(x + item * apart, n, mode, 0), FN(joining)(mode)) * scale;
    out[item] = (float)(root ? sqrt(r) : r);
  }
}
static void FN(reduce_each)(float *out, const float *x, int64_t apart, const reduce_ints *p, int64_t begin, int64_t end, double scale) {
#define TI_CASE(m) case TI_FOLDING_##m: FN(reduce_each_as)(out, x, apart, p, begin, end, scale, TI_FOLDING_##m); break;
  switch (p->folding) {
    TI_CASE(SUM) TI_CASE(SUM_SQUARES) TI_CASE(SUM_MAGNITUDES) TI_CASE(PRODUCT) TI_CASE(LARGEST) TI_CASE(SMALLEST)
    default: FN(reduce_each_as)(out, x, apart, p, begin, end, scale, TI_FOLDING_LARGEST_MAGNITUDE);
  }
#undef TI_CASE
}
TI_KERNEL(reduce_rows) {
  (void)scratch;
  const reduce_ints *const p = (const reduce_ints *)ints;
  const double scale = ((const reduce_scalars *)scalars)->scale;
  const int mode = (int)p->folding, is_half = (int)p->is_half;
  const int64_t total = p->total, chunk = p->chunk, chunks = p->chunks;
  const reduce_space *const reduced = &p->reduced;
  const float *const x = (const float *)args[1];
  const uint16_t *const halves = (const uint16_t *)args[1];
  int64_t index[TI_REDUCE_DIMS];
  if (is_half && mode != TI_FOLDING_SUM) return TI_TRAP_INTERNAL;
  /* rows of one run each: where a short one lies takes as long to say as what it holds to add up */
  if (chunks == 1 && reduced->dims == 1) {
    const int64_t stride = reduced->strides[0], apart = p->kept.strides[0];
    if (!is_half && (total <= TI_REDUCE_FEW || (total <= TI_REDUCE_SHORT && stride != 1))) {
      FN(reduce_few)((float *)args[0], x, p, begin, end, scale);
      return TI_OK;
    }
    if (p->kept.dims == 1 && !is_half && stride == 1 && total <= 2048) {
      FN(reduce_each)((float *)args[0], x, apart, p, begin, end, scale);
      return TI_OK;
    }
    for (int64_t item = begin; item < end && p->kept.dims == 1; item++) {
      const double run = is_half ? FN(reduce_halves)(halves + item * apart, total) : FN(reduce_run)(x + item * apart, stride, total, mode);
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
      const double part = is_half ? FN(reduce_halves)(halves + from, run)
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
/* Columns from element `at` on, `n` of a vector's: of halves what they stand for. */
TI_INLINE VF FN(columns_at)(const void *x, int64_t at, long n, const int is_half) {
  if (!is_half) return n < VL ? FN(load_part)((const float *)x + at, n) : FN(load)((const float *)x + at);
  const uint16_t *const halves = (const uint16_t *)x + at;
  if (n >= VL) return FN(from_half)(halves);
  uint16_t lanes[VL] = {0};
  memcpy(lanes, halves, (size_t)n * sizeof(uint16_t));
  return FN(from_half)(lanes);
}
TI_INLINE void FN(columns_block)(
    float *out, const void *x, int64_t at, int64_t first, int64_t todo, const reduce_space *reduced, long width, const int mode,
    double scale, int root, const int is_half) {
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
          for (int j = 0; j < TI_VECTORS; j++) a[j] = FN(combine)(a[j], FN(columns_at)(x, row + j * VL, VL, is_half), mode);
      else
        for (int64_t r = 0; r < r1; r++, row += stride) {
          for (long j = 0; j < vectors; j++) a[j] = FN(combine)(a[j], FN(columns_at)(x, row + j * VL, VL, is_half), mode);
          if (rest) a[vectors] = FN(combine)(a[vectors], FN(columns_at)(x, row + vectors * VL, rest, is_half), mode);
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
#define TI_COLUMNS(m, is_half) \
  FN(columns_block)(out, args[1], place + column, first, todo, &p->reduced, width, m, scale, root, is_half)
#define TI_CASE(m) case TI_FOLDING_##m: TI_COLUMNS(TI_FOLDING_##m, 0); break;
    if (p->is_half) {
      if (mode != TI_FOLDING_SUM) return TI_TRAP_INTERNAL;
      TI_COLUMNS(TI_FOLDING_SUM, 1);
    } else switch (mode) {
      TI_CASE(SUM) TI_CASE(SUM_SQUARES) TI_CASE(SUM_MAGNITUDES) TI_CASE(PRODUCT) TI_CASE(LARGEST) TI_CASE(SMALLEST)
      TI_CASE(LARGEST_MAGNITUDE)
      default: return TI_TRAP_INTERNAL;
    }
  }
  return TI_OK;
}

#include "reduce_integers_body.h"

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
      if (r != r) while (best < n - 1 && x[best] == x[best]) best++;
      else while (best < n - 1 && x[best] != r) best++;
      ((float *)args[0])[item] = x[best];
    }
    indices[item] = best;
  }
  return TI_OK;
}

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

/* One result in each lane: short rows would leave a vector all but empty, and columns lie beside each other. */
TI_KERNEL(logsumexp_lanes) {
  (void)scalars, (void)scratch;
  const logsumexp_lanes_ints *const p = (const logsumexp_lanes_ints *)ints;
  const int64_t n = p->extent, last = p->kept.dims - 1;
  float beside[TI_REDUCE_SHORT * VL] = {0.f}, *const out = (float *)args[0];
  int64_t index[TI_REDUCE_DIMS];
  for (int64_t item = begin, lanes; item < end; item += lanes) {
    int64_t place = FN(offset_of)(item, &p->kept, index), stride = p->stride;
    const float *from = (const float *)args[1] + place;
    lanes = ti_min(VL, end - item);
    if (p->are_beside) {
      lanes = ti_min(lanes, p->kept.shape[last] - index[last]);
    } else {
      for (int64_t lane = 0; lane < lanes; lane++, place = FN(next_place)(place, &p->kept, index))
        for (int64_t i = 0; i < n; i++) beside[i * VL + lane] = ((const float *)args[1])[place + i * stride];
      from = beside;
      stride = VL;
    }
    VF top = FN(set)(-INFINITY), sums[2] = {FN(set)(0.f), FN(set)(0.f)};
    for (int64_t i = 0; i < n; i++) top = FN(combine)(top, FN(load_part)(from + i * stride, lanes), TI_FOLDING_LARGEST);
    top = FN(sel)(FN(eq)(FN(abs)(top), FN(set)(INFINITY)), FN(set)(0.f), top); /* as in logsumexp_rows */
    for (int64_t i = 0; i < n; i++) sums[i & 1] += FN(exp)(FN(load_part)(from + i * stride, lanes) - top);
    FN(store_part)(out + item, FN(log)(sums[0] + sums[1]) + top, lanes);
  }
  return TI_OK;
}

#undef TI_VECTORS
#undef TI_COLUMNS
#undef TI_CASE
