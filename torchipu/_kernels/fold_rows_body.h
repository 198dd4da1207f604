/* Rows of neighbours that are reduced to a number each, in a fixed order: how numbers are joined, lanes, and rows. */
#include "lane_sums_body.h"
#include "table/convert.h"
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
/* The least or the greatest of up to 2048 neighbours in each lane: what is no number is looked for in pairs. */
TI_INLINE VF FN(extremes)(const float *x, long n, const int mode) {
  const VF start = FN(set)((float)FN(neutral)(mode));
  VF a[4] = {start, start, start, start};
  VM strange = FN(unordered)(start, start);
  long i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL) {
    VF each[4];
    for (int j = 0; j < 4; j++) {
      each[j] = FN(load)(x + i + j * VL);
      const VF size = mode == TI_FOLDING_LARGEST_MAGNITUDE ? FN(abs)(each[j]) : each[j];
      a[j] = mode == TI_FOLDING_SMALLEST ? FN(min)(size, a[j]) : FN(max)(size, a[j]);
    }
    strange = FN(mor)(strange, FN(mor)(FN(unordered)(each[0], each[1]), FN(unordered)(each[2], each[3])));
  }
  if (FN(any)(strange)) {
    for (long k = 0; k < i; k++)
      if (x[k] != x[k]) return FN(set)(x[k]);
  }
  for (; i + VL <= n; i += VL) a[0] = FN(combine)(a[0], FN(load)(x + i), mode);
  if (i < n) a[1] = FN(sel)(FN(first)(n - i), FN(combine)(a[1], FN(load_part)(x + i, n - i), mode), a[1]);
  const int join = FN(joining)(mode);
  return FN(combine)(FN(combine)(a[0], a[1], join), FN(combine)(a[2], a[3], join), join);
}
/* a with a number more, and what there is of a second one: sums are of products then, others of differences. */
TI_INLINE VF FN(combine_both)(VF a, VF x, VF y, const int mode) {
  return mode == TI_FOLDING_SUM ? FN(fma)(x, y, a) : FN(combine)(a, x - y, mode);
}
/* What a vector of halves or bfloats stands for. */
TI_INLINE VF FN(from_stored)(const uint16_t *p, const int stored) {
  return stored == TI_STORED_BFLOATS ? FN(from_bfloat)(p) : FN(from_half)(p);
}
/* What up to 2048 neighbours come to in each lane; floats, halves or bfloats; together with those of y, where there are some. */
TI_INLINE VF FN(fold_lanes)(const void *from, const float *y, long n, const int mode, const int stored) {
  const float *const x = (const float *)from;
  const uint16_t *const h = (const uint16_t *)from;
  if (stored == TI_STORED_FLOATS && !y && (mode == TI_FOLDING_LARGEST || mode == TI_FOLDING_SMALLEST || mode == TI_FOLDING_LARGEST_MAGNITUDE))
    return FN(extremes)(x, n, mode);
  const VF start = FN(set)((float)FN(neutral)(mode));
  VF a[4] = {start, start, start, start};
  long i = 0;
#define TI_NEXT(a, at) \
  (y ? FN(combine_both)(a, FN(load)(x + (at)), FN(load)(y + (at)), mode) \
     : FN(combine)(a, stored != TI_STORED_FLOATS ? FN(from_stored)(h + (at), stored) : FN(load)(x + (at)), mode))
  for (; i + 4 * VL <= n; i += 4 * VL)
    for (int j = 0; j < 4; j++) a[j] = TI_NEXT(a[j], i + j * VL);
  for (; i + VL <= n; i += VL) a[0] = TI_NEXT(a[0], i);
#undef TI_NEXT
  if (i < n) {
    /* lanes past the end keep their accumulator */
    uint16_t lanes[VL] = {0};
    if (stored != TI_STORED_FLOATS) memcpy(lanes, h + i, (size_t)(n - i) * sizeof *h);
    const VF rest = stored != TI_STORED_FLOATS ? FN(from_stored)(lanes, stored) : FN(load_part)(x + i, n - i);
    const VF next = y ? FN(combine_both)(a[1], rest, FN(load_part)(y + i, n - i), mode) : FN(combine)(a[1], rest, mode);
    a[1] = FN(sel)(FN(first)(n - i), next, a[1]);
  }
  const int join = FN(joining)(mode);
  return FN(combine)(FN(combine)(a[0], a[1], join), FN(combine)(a[2], a[3], join), join);
}
/* Reduces up to 2048 neighbours, as they are stored. */
TI_INLINE double FN(reduce_block)(const void *from, long n, const int mode, const int stored) {
  return FN(join_lanes)(FN(fold_lanes)(from, 0, n, mode, stored), FN(joining)(mode));
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
TI_INLINE double FN(reduce_stored_as)(const uint16_t *x, int64_t n, const int mode, const int stored) {
  double r = FN(neutral)(mode);
  for (int64_t i = 0; i < n; i += 2048)
    r = FN(combine1)(r, FN(reduce_block)(x + i, (long)(n - i < 2048 ? n - i : 2048), mode, stored), FN(joining)(mode));
  return r;
}
static double FN(reduce_stored)(const uint16_t *x, int64_t n, int mode, int stored) {
#define TI_CASE(m) \
  case TI_FOLDING_##m: \
    return stored == TI_STORED_BFLOATS ? FN(reduce_stored_as)(x, n, TI_FOLDING_##m, TI_STORED_BFLOATS) \
                                       : FN(reduce_stored_as)(x, n, TI_FOLDING_##m, TI_STORED_HALVES);
  switch (mode) {
    TI_CASE(SUM) TI_CASE(SUM_SQUARES) TI_CASE(SUM_MAGNITUDES) TI_CASE(PRODUCT) TI_CASE(LARGEST) TI_CASE(SMALLEST)
    default: break;
  }
#undef TI_CASE
  return stored == TI_STORED_BFLOATS ? FN(reduce_stored_as)(x, n, TI_FOLDING_LARGEST_MAGNITUDE, TI_STORED_BFLOATS)
                                     : FN(reduce_stored_as)(x, n, TI_FOLDING_LARGEST_MAGNITUDE, TI_STORED_HALVES);
}
/* Two runs together: a sum of products, of squares of differences or of their magnitudes. */
static double FN(reduce_both)(const float *x, const float *y, int64_t n, int mode) {
  double r = 0;
  for (int64_t i = 0; i < n; i += 2048) {
    const long part = (long)(n - i < 2048 ? n - i : 2048);
    r += FN(sum_lanes)(
        mode == TI_FOLDING_SUM ? FN(fold_lanes)(x + i, y + i, part, TI_FOLDING_SUM, 0)
        : mode == TI_FOLDING_SUM_SQUARES ? FN(fold_lanes)(x + i, y + i, part, TI_FOLDING_SUM_SQUARES, 0)
                                         : FN(fold_lanes)(x + i, y + i, part, TI_FOLDING_SUM_MAGNITUDES, 0));
  }
  return r;
}
#if VL == 16
/* out[v] = what the lanes of held[v] come to, for up to 16 vectors at once: as FN(join_lanes) does, halves again and again. */
TI_INLINE void FN(join_lanes_of)(const int count, const VF *held, float *out, const int mode) {
  __m512 v[16];
#define TI_JOIN(a, b) (__m512)FN(combine)((VF)(a), (VF)(b), mode)
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    const __m512 a = (__m512)held[2 * i < count ? 2 * i : 0], b = (__m512)held[2 * i + 1 < count ? 2 * i + 1 : 0];
    v[i] = TI_JOIN(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
    v[i] = TI_JOIN(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88), _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xdd));
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++)
    v[i] = TI_JOIN(_mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0x44), _mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0xee));
  const __m512 all = TI_JOIN(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd));
#undef TI_JOIN
  /* as FN(sums_of) leaves them */
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_mask_storeu_ps(out, (__mmask16)((1u << count) - 1), _mm512_permutexvar_ps(order, all));
}
#else
TI_INLINE void FN(join_lanes_of)(const int count, const VF *held, float *out, const int mode) {
  for (int i = 0; i < count; i++) out[i] = (float)FN(join_lanes)(held[i], mode);
}
#endif
/* Rows of up to 2048 neighbours, `apart` from each other, of which as many results lie side by side: as many rows at once
 * as a vector has lanes, for to join the lanes of each by themselves takes longer than to add a short row up. */
TI_INLINE void FN(fold_rows_as)(
    float *out, const float *x, const float *y, int64_t apart, int64_t rows, long n, double scale, const int root, const int mode) {
  const int join = FN(joining)(mode);
  for (int64_t row = 0; row < rows; row += VL) {
    const int count = (int)ti_min(VL, rows - row);
    float each[VL] = {0.f};
    if (mode == TI_FOLDING_PRODUCT) {
      for (int i = 0; i < count; i++) {
        const double r = FN(join_lanes)(FN(fold_lanes)(x + (row + i) * apart, 0, n, mode, 0), mode) * scale;
        out[row + i] = (float)(root ? sqrt(r) : r);
      }
      continue;
    }
    VF held[VL];
    if (count < 1) __builtin_unreachable();  /* the compiler cannot tell that there is a first one */
    for (int i = 0; i < count; i++)
      held[i] = FN(fold_lanes)(x + (row + i) * apart, y ? y + (row + i) * apart : 0, n, mode, 0);
    if (join == TI_FOLDING_SUM) FN(sums_of)(count, held, each);
    else FN(join_lanes_of)(count, held, each, join);
    if (scale != 1. || root)
      for (int i = 0; i < count; i++) each[i] = (float)(root ? sqrt(each[i] * scale) : each[i] * scale);
    FN(store_most)(out + row, FN(load)(each), count);
  }
}
static void FN(fold_rows)(
    float *out, const float *x, const float *y, int64_t apart, int64_t rows, long n, int mode, double scale, int root) {
  if (y) {
    if (mode == TI_FOLDING_SUM) FN(fold_rows_as)(out, x, y, apart, rows, n, scale, root, TI_FOLDING_SUM);
    else if (mode == TI_FOLDING_SUM_SQUARES) FN(fold_rows_as)(out, x, y, apart, rows, n, scale, root, TI_FOLDING_SUM_SQUARES);
    else FN(fold_rows_as)(out, x, y, apart, rows, n, scale, root, TI_FOLDING_SUM_MAGNITUDES);
    return;
  }
#define TI_CASE(m) case TI_FOLDING_##m: FN(fold_rows_as)(out, x, 0, apart, rows, n, scale, root, TI_FOLDING_##m); break;
  switch (mode) {
    TI_CASE(SUM) TI_CASE(SUM_SQUARES) TI_CASE(SUM_MAGNITUDES) TI_CASE(PRODUCT) TI_CASE(LARGEST) TI_CASE(SMALLEST)
    default: FN(fold_rows_as)(out, x, 0, apart, rows, n, scale, root, TI_FOLDING_LARGEST_MAGNITUDE);
  }
#undef TI_CASE
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
/* What the rows beside each other come to, each in its lane. */
TI_INLINE VF FN(few_beside)(const float *beside, int64_t n, double scale, const int root, const int mode) {
  const VF start = FN(set)((float)FN(neutral)(mode));
  VF a[2] = {start, start};
  for (int64_t i = 0; i < n; i++) a[i & 1] = FN(combine)(a[i & 1], FN(load)(beside + i * VL), mode);
  VF r = FN(combine)(a[0], a[1], FN(joining)(mode));
  if (scale != 1.) {
    float each[VL];
    FN(store)(each, r);
    for (int lane = 0; lane < VL; lane++) each[lane] = (float)(root ? sqrt(each[lane] * scale) : each[lane] * scale);
    r = FN(load)(each);
  } else if (root) r = FN(sqrt)(r);
  return r;
}
