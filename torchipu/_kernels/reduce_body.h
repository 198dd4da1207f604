/* Reductions over any dimensions of a strided operand.
 *
 * Float sums add at most 2048 values in vector lanes before they go to a double (rows), or 32 rows before they go to
 * a second accumulator (columns): errors stay near one rounding, whatever the length.
 */
#ifndef TORCHIPU_REDUCE_DIMS
#define TORCHIPU_REDUCE_DIMS
enum { TI_REDUCE_DIMS = 8, TI_REDUCE_HEADER = 8 };
#endif
enum { FN(SUM), FN(SUM_SQUARES), FN(SUM_MAGNITUDES), FN(PRODUCT), FN(LARGEST), FN(SMALLEST), FN(LARGEST_MAGNITUDE) };

/* Strided index space: n dims, shape at s, strides at s + TI_REDUCE_DIMS. */
static inline int64_t FN(offset_of)(int64_t number, int n, const int64_t *s, int64_t *index) {
  int64_t offset = 0;
  for (int i = n - 1; i >= 0; i--) {
    index[i] = number % s[i];
    number /= s[i];
    offset += index[i] * s[TI_REDUCE_DIMS + i];
  }
  return offset;
}
/* Moves to the beginning of the next run of the last dimension; returns the new offset. */
static inline int64_t FN(next_run)(int64_t offset, int n, const int64_t *s, int64_t *index) {
  offset -= index[n - 1] * s[TI_REDUCE_DIMS + n - 1];
  index[n - 1] = 0;
  for (int i = n - 2; i >= 0; i--) {
    offset += s[TI_REDUCE_DIMS + i];
    if (++index[i] < s[i]) break;
    offset -= s[i] * s[TI_REDUCE_DIMS + i];
    index[i] = 0;
  }
  return offset;
}
static inline VF FN(combine)(VF a, VF x, int mode) {
  switch (mode) {
    case FN(SUM): return a + x;
    case FN(SUM_SQUARES): return FN(fma)(x, x, a);
    case FN(SUM_MAGNITUDES): return a + FN(abs)(x);
    case FN(PRODUCT): return a * x;
    case FN(LARGEST): return FN(maximum)(a, x);
    case FN(SMALLEST): return FN(minimum)(a, x);
    default: return FN(maximum)(a, FN(abs)(x));
  }
}
static inline double FN(combine1)(double a, double x, int mode) {
  switch (mode) {
    case FN(SUM): return a + x;
    case FN(SUM_SQUARES): return a + x * x;
    case FN(SUM_MAGNITUDES): return a + fabs(x);
    case FN(PRODUCT): return a * x;
    case FN(LARGEST): return x > a || x != x ? x : a;
    case FN(SMALLEST): return x < a || x != x ? x : a;
    default: return fabs(x) > a || x != x ? fabs(x) : a;
  }
}
/* How results of parts are joined: squares and magnitudes have been taken by then. */
static inline int FN(joining)(int mode) {
  return mode == FN(SUM_SQUARES) || mode == FN(SUM_MAGNITUDES) ? FN(SUM) : mode == FN(LARGEST_MAGNITUDE) ? FN(LARGEST) : mode;
}
static inline double FN(neutral)(int mode) {
  return mode == FN(PRODUCT) ? 1. : mode == FN(LARGEST) ? -INFINITY : mode == FN(SMALLEST) ? INFINITY : 0.;
}
/* Reduces up to 2048 neighbours. */
TI_INLINE double FN(reduce_block)(const float *x, long n, const int mode) {
  const VF start = FN(set)((float)FN(neutral)(mode));
  VF a[4] = {start, start, start, start};
  long i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL)
    for (int j = 0; j < 4; j++) a[j] = FN(combine)(a[j], FN(load)(x + i + j * VL), mode);
  for (; i + VL <= n; i += VL) a[0] = FN(combine)(a[0], FN(load)(x + i), mode);
  if (i < n) {
    /* lanes past the end keep their accumulator */
    a[1] = FN(sel)(FN(first)(n - i), FN(combine)(a[1], FN(load_part)(x + i, n - i), mode), a[1]);
  }
  const int join = FN(joining)(mode);
  VF all = FN(combine)(FN(combine)(a[0], a[1], join), FN(combine)(a[2], a[3], join), join);
  if (join == FN(SUM)) return FN(sum_lanes)(all);
  float lanes[VL];
  FN(store)(lanes, all);
  double r = lanes[0];
  for (int j = 1; j < VL; j++) r = FN(combine1)(r, lanes[j], join);
  return r;
}
TI_INLINE double FN(reduce_run_as)(const float *x, int64_t stride, int64_t n, const int mode) {
  double r = FN(neutral)(mode);
  if (stride == 1) {
    for (int64_t i = 0; i < n; i += 2048)
      r = FN(combine1)(r, FN(reduce_block)(x + i, (long)(n - i < 2048 ? n - i : 2048), mode), FN(joining)(mode));
    return r;
  }
  for (int64_t i = 0; i < n; i++) r = FN(combine1)(r, x[i * stride], mode);
  return r;
}
static double FN(reduce_run)(const float *x, int64_t stride, int64_t n, int mode) {
  switch (mode) {
    case FN(SUM): return FN(reduce_run_as)(x, stride, n, FN(SUM));
    case FN(SUM_SQUARES): return FN(reduce_run_as)(x, stride, n, FN(SUM_SQUARES));
    case FN(SUM_MAGNITUDES): return FN(reduce_run_as)(x, stride, n, FN(SUM_MAGNITUDES));
    case FN(PRODUCT): return FN(reduce_run_as)(x, stride, n, FN(PRODUCT));
    case FN(LARGEST): return FN(reduce_run_as)(x, stride, n, FN(LARGEST));
    case FN(SMALLEST): return FN(reduce_run_as)(x, stride, n, FN(SMALLEST));
    default: return FN(reduce_run_as)(x, stride, n, FN(LARGEST_MAGNITUDE));
  }
}
/* reduce_rows: args [out float, in float]; each result is reduced by itself.
 *
 *   ints    [mode, kept dims, reduced dims, reduced elements, chunk, chunks, root,
 *            kept shape[8], kept strides[8], reduced shape[8], reduced strides[8]]
 *   scalars [scale]: multiplies the result; with root, the square root is taken after that
 *   items   results x chunks: chunk c reduces elements [c * chunk, ...) of the reduced space to out[item]
 */
TI_KERNEL(reduce_rows) {
  (void)scratch;
  const int mode = (int)ints[0], nk = (int)ints[1], nr = (int)ints[2];
  const int64_t total = ints[3], chunk = ints[4], chunks = ints[5];
  const int64_t *kept = ints + TI_REDUCE_HEADER, *reduced = kept + 2 * TI_REDUCE_DIMS;
  int64_t index[TI_REDUCE_DIMS];
  for (int64_t item = begin; item < end; item++) {
    const float *x = (const float *)args[1] + FN(offset_of)(item / chunks, nk, kept, index);
    const int64_t first = item % chunks * chunk;
    int64_t todo = total - first < chunk ? total - first : chunk, offset = FN(offset_of)(first, nr, reduced, index);
    double r = FN(neutral)(mode);
    while (todo > 0) {
      int64_t run = reduced[nr - 1] - index[nr - 1] < todo ? reduced[nr - 1] - index[nr - 1] : todo;
      r = FN(combine1)(r, FN(reduce_run)(x + offset, reduced[TI_REDUCE_DIMS + nr - 1], run, mode), FN(joining)(mode));
      todo -= run;
      offset = FN(next_run)(offset, nr, reduced, index);
    }
    r *= scalars[0];
    ((float *)args[0])[item] = (float)(ints[6] ? sqrt(r) : r);
  }
  return TI_OK;
}

#define TI_COLUMNS 64
#define TI_VECTORS (TI_COLUMNS / VL)
TI_INLINE void FN(columns_block)(
    float *out, const float *x, int64_t first, int64_t todo, int nr, const int64_t *reduced, long width, const int mode,
    double scale, int root) {
  const int join = FN(joining)(mode);
  const VF start = FN(set)((float)FN(neutral)(mode));
  VF sums[TI_VECTORS], a[TI_VECTORS];
  for (int j = 0; j < TI_VECTORS; j++) sums[j] = start;
  int64_t index[TI_REDUCE_DIMS], offset = FN(offset_of)(first, nr, reduced, index);
  const long vectors = width / VL, rest = width % VL;
  while (todo > 0) {
    int64_t run = reduced[nr - 1] - index[nr - 1] < todo ? reduced[nr - 1] - index[nr - 1] : todo;
    const int64_t stride = reduced[TI_REDUCE_DIMS + nr - 1];
    const float *row = x + offset;
    for (int64_t r0 = 0; r0 < run; r0 += 32) {
      const int64_t r1 = run - r0 < 32 ? run - r0 : 32;
      for (int j = 0; j < TI_VECTORS; j++) a[j] = start;
      if (width == TI_COLUMNS)
        for (int64_t r = 0; r < r1; r++, row += stride)
          for (int j = 0; j < TI_VECTORS; j++) a[j] = FN(combine)(a[j], FN(load)(row + j * VL), mode);
      else
        for (int64_t r = 0; r < r1; r++, row += stride) {
          for (long j = 0; j < vectors; j++) a[j] = FN(combine)(a[j], FN(load)(row + j * VL), mode);
          if (rest) a[vectors] = FN(combine)(a[vectors], FN(load_part)(row + vectors * VL, rest), mode);
        }
      for (int j = 0; j < TI_VECTORS; j++) sums[j] = FN(combine)(sums[j], a[j], join);
    }
    todo -= run;
    offset = FN(next_run)(offset, nr, reduced, index);
  }
  for (long j = 0; j * VL < width; j++) {
    VF r = sums[j] * (float)scale;
    if (root) r = FN(sqrt)(r);
    if ((j + 1) * VL <= width) FN(store)(out + j * VL, r);
    else FN(store_part)(out + j * VL, r, width - j * VL);
  }
}
/* reduce_columns: args [out float, in float]; the last kept dimension is dense and is reduced 64 columns at a time.
 *
 *   ints, scalars  as reduce_rows; kept shape and strides leave out the dense dimension, whose size is ints[7]
 *   items   kept x panels of 64 columns x chunks; chunk c of row k writes out[(c * kept + k) * columns ...]
 */
TI_KERNEL(reduce_columns) {
  (void)scratch;
  const int mode = (int)ints[0], nk = (int)ints[1], nr = (int)ints[2], root = (int)ints[6];
  const int64_t total = ints[3], chunk = ints[4], chunks = ints[5], columns = ints[7];
  const int64_t *kept = ints + TI_REDUCE_HEADER, *reduced = kept + 2 * TI_REDUCE_DIMS;
  const int64_t panels = (columns + TI_COLUMNS - 1) / TI_COLUMNS;
  int64_t index[TI_REDUCE_DIMS], rows = 1;
  for (int i = 0; i < nk; i++) rows *= kept[i];
  for (int64_t item = begin; item < end; item++) {
    const int64_t c = item % chunks, panel = item / chunks % panels, k = item / chunks / panels, column = panel * TI_COLUMNS;
    const float *x = (const float *)args[1] + FN(offset_of)(k, nk, kept, index) + column;
    float *out = (float *)args[0] + (c * rows + k) * columns + column;
    const int64_t first = c * chunk, todo = total - first < chunk ? total - first : chunk;
    const long width = (long)(columns - column < TI_COLUMNS ? columns - column : TI_COLUMNS);
#define TI_CASE(m) case FN(m): FN(columns_block)(out, x, first, todo, nr, reduced, width, FN(m), scalars[0], root); break;
    switch (mode) {
      TI_CASE(SUM) TI_CASE(SUM_SQUARES) TI_CASE(SUM_MAGNITUDES) TI_CASE(PRODUCT) TI_CASE(LARGEST) TI_CASE(SMALLEST)
      TI_CASE(LARGEST_MAGNITUDE)
      default: return TI_TRAP_INTERNAL;
    }
  }
  return TI_OK;
}

/* reduce_integers: args [out long, in long]; ints as reduce_rows, modes SUM, PRODUCT, LARGEST, SMALLEST.
 * reduce_bools: args [out bool, in bool]; LARGEST is any, SMALLEST is all.
 */
#define TI_WALK_REDUCTION(name, type, initial, statement) \
  TI_KERNEL(name) { \
    (void)scalars, (void)scratch; \
    const int mode = (int)ints[0], nk = (int)ints[1], nr = (int)ints[2]; \
    const int64_t total = ints[3], chunk = ints[4], chunks = ints[5]; \
    const int64_t *kept = ints + TI_REDUCE_HEADER, *reduced = kept + 2 * TI_REDUCE_DIMS; \
    int64_t index[TI_REDUCE_DIMS]; \
    for (int64_t item = begin; item < end; item++) { \
      const type *x = (const type *)args[1] + FN(offset_of)(item / chunks, nk, kept, index); \
      const int64_t first = item % chunks * chunk; \
      int64_t todo = total - first < chunk ? total - first : chunk, offset = FN(offset_of)(first, nr, reduced, index); \
      type r = initial; \
      while (todo > 0) { \
        int64_t run = reduced[nr - 1] - index[nr - 1] < todo ? reduced[nr - 1] - index[nr - 1] : todo; \
        const int64_t stride = reduced[TI_REDUCE_DIMS + nr - 1]; \
        const type *row = x + offset; \
        statement \
        todo -= run; \
        offset = FN(next_run)(offset, nr, reduced, index); \
      } \
      ((type *)args[0])[item] = r; \
    } \
    return TI_OK; \
  }
TI_WALK_REDUCTION(reduce_integers, int64_t,
  (mode == FN(PRODUCT) ? 1 : mode == FN(LARGEST) ? INT64_MIN : mode == FN(SMALLEST) ? INT64_MAX : 0), {
  switch (mode) {
    case FN(SUM): for (int64_t i = 0; i < run; i++) r = (int64_t)((uint64_t)r + (uint64_t)row[i * stride]); break;
    case FN(PRODUCT): for (int64_t i = 0; i < run; i++) r = (int64_t)((uint64_t)r * (uint64_t)row[i * stride]); break;
    case FN(LARGEST): for (int64_t i = 0; i < run; i++) r = row[i * stride] > r ? row[i * stride] : r; break;
    default: for (int64_t i = 0; i < run; i++) r = row[i * stride] < r ? row[i * stride] : r; break;
  }
})
TI_WALK_REDUCTION(reduce_bools, uint8_t, (mode == FN(SMALLEST)), {
  if (mode == FN(LARGEST)) for (int64_t i = 0; i < run; i++) r |= row[i * stride];
  else for (int64_t i = 0; i < run; i++) r &= row[i * stride];
})

/* arg_rows: args [values, indices long, in] over rows that lie dense; values and in are float, or long.
 *
 *   ints   [row length, smallest, is long]   items  rows
 * The first NaN wins, else the first of equal extremes.
 */
TI_KERNEL(arg_rows) {
  (void)scalars, (void)scratch;
  const int64_t n = ints[0];
  const int smallest = (int)ints[1];
  int64_t *indices = (int64_t *)args[1];
  for (int64_t item = begin; item < end; item++) {
    int64_t best = 0;
    if (ints[2]) {
      const int64_t *x = (const int64_t *)args[2] + item * n;
      for (int64_t i = 1; i < n; i++) if (smallest ? x[i] < x[best] : x[i] > x[best]) best = i;
      ((int64_t *)args[0])[item] = x[best];
    } else {
      const float *x = (const float *)args[2] + item * n;
      float r = (float)FN(reduce_run)(x, 1, n, smallest ? FN(SMALLEST) : FN(LARGEST));
      if (r != r) while (best < n - 1 && x[best] == x[best]) best++;
      else while (best < n - 1 && x[best] != r) best++;
      ((float *)args[0])[item] = x[best];
    }
    indices[item] = best;
  }
  return TI_OK;
}

/* moment_rows: args [variance float, mean float, in float] over rows that lie dense; two passes.
 *
 *   ints   [row length, root]   scalars  [divisor]: at most 0 gives infinity or NaN as eager does   items  rows
 */
TI_KERNEL(moment_rows) {
  (void)scratch;
  const int64_t n = ints[0];
  for (int64_t item = begin; item < end; item++) {
    const float *x = (const float *)args[2] + item * n;
    const double mean = FN(reduce_run)(x, 1, n, FN(SUM)) / (double)n;
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
    const double variance = squares / (scalars[0] > 0 ? scalars[0] : 0.);
    ((float *)args[0])[item] = (float)(ints[1] ? sqrt(variance) : variance);
    ((float *)args[1])[item] = (float)mean;
  }
  return TI_OK;
}

/* logsumexp_rows: args [out float, in float] over rows that lie dense.   ints [row length]   items  rows */
TI_KERNEL(logsumexp_rows) {
  (void)scalars, (void)scratch;
  const int64_t n = ints[0];
  for (int64_t item = begin; item < end; item++) {
    const float *x = (const float *)args[1] + item * n;
    float top = (float)FN(reduce_run)(x, 1, n, FN(LARGEST));
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

#undef TI_COLUMNS
#undef TI_VECTORS
#undef TI_CASE
#undef TI_WALK_REDUCTION
