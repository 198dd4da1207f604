/* Batch normalisation of channels that lie in blocks; table/batch_norm_blocked.py says what the kernels take.
 *
 * A lane of the kernels of rows holds the sums of every so-manieth position. Here a vector holds those of a block of
 * channels, and there are as many vectors as lanes there: row_sums_body.h says which position goes to which. */
#include "table/batch_norm_blocked.h"
#include "batch_splits_body.h"

enum {
  FN(SUM_LANES) = 4 * VL,   /* of `add_sum` */
  FN(PAIR_LANES) = 2 * VL,  /* of `add_squares` and `add_products` */
  FN(HELD) = VL / 2,        /* lanes whose sums are in registers at a time */
  FN(TURNS) = 4             /* of these lanes, for which the positions stay in a first-level cache */
};

/* Where the positions end that go to all of so many lanes in turn, and where those that fill the first VL of them. */
typedef struct { int64_t all, first; } FN(turns);
TI_INLINE FN(turns) FN(turns_of)(int64_t n, int64_t lanes) { return (FN(turns)){n / lanes * lanes, n / VL * VL}; }

/* sum[lane] += x of n positions. */
static void FN(add_sum_blocked)(const float *x, int64_t n, VF *sum) {
  enum { LANES = FN(SUM_LANES), HELD = FN(HELD), TURNS = FN(TURNS) };
  const FN(turns) turns = FN(turns_of)(n, LANES);
  int64_t i = 0;
  for (; i < turns.all; i += TURNS * LANES) {
    const int64_t end = ti_min(turns.all, i + TURNS * LANES);
    for (int64_t lane = 0; lane < LANES; lane += HELD) {
      VF held[HELD];
#pragma GCC unroll 8
      for (int k = 0; k < HELD; k++) held[k] = sum[lane + k];
      for (int64_t at = i; at < end; at += LANES)
#pragma GCC unroll 8
        for (int k = 0; k < HELD; k++) {
          const float *const from = x + (at + lane + k) * VL;
          __builtin_prefetch(from + TURNS * LANES * VL);  /* runs so short are not fetched ahead by themselves */
          held[k] += FN(load)(from);
        }
#pragma GCC unroll 8
      for (int k = 0; k < HELD; k++) sum[lane + k] = held[k];
    }
  }
  for (i = turns.all; i < turns.first; i += VL)
    for (int64_t k = 0; k < VL; k++) sum[k] += FN(load)(x + (i + k) * VL);
  for (int64_t k = 0; i + k < n; k++) sum[VL + k] += FN(load)(x + (i + k) * VL);
}

/* first[lane] += x - centre, second[lane] += (x - centre)^2; of a g first[lane] += g, second[lane] += g (x - centre). */
TI_INLINE void FN(add_pairs_at)(const float *x, const float *g, VF centre, VF *first, VF *second) {
  const VF d = FN(load)(x) - centre, f = g ? FN(load)(g) : d;
  *first += f, *second = FN(fma)(f, d, *second);
}
TI_INLINE void FN(add_pairs_of)(const float *x, const float *g, const int has_g, int64_t n, VF centre, VF *first, VF *second) {
  enum { LANES = FN(PAIR_LANES), HELD = FN(HELD), TURNS = FN(TURNS) };
  const FN(turns) turns = FN(turns_of)(n, LANES);
  int64_t i = 0;
  for (; i < turns.all; i += TURNS * LANES) {
    const int64_t end = ti_min(turns.all, i + TURNS * LANES);
    for (int64_t lane = 0; lane < LANES; lane += HELD) {
      VF s[HELD], t[HELD];
#pragma GCC unroll 8
      for (int k = 0; k < HELD; k++) s[k] = first[lane + k], t[k] = second[lane + k];
      for (int64_t at = (i + lane) * VL; at < (end + lane) * VL; at += LANES * VL)
#pragma GCC unroll 8
        for (int k = 0; k < HELD; k++) {
          const float *const from = x + at + k * VL, *const with = has_g ? g + at + k * VL : NULL;
          __builtin_prefetch(from + TURNS * LANES * VL);
          if (has_g) __builtin_prefetch(with + TURNS * LANES * VL);
          FN(add_pairs_at)(from, with, centre, s + k, t + k);
        }
#pragma GCC unroll 8
      for (int k = 0; k < HELD; k++) first[lane + k] = s[k], second[lane + k] = t[k];
    }
  }
  for (i = turns.all; i < turns.first; i += VL)
    for (int64_t k = 0; k < VL; k++)
      FN(add_pairs_at)(x + (i + k) * VL, has_g ? g + (i + k) * VL : NULL, centre, first + k, second + k);
  for (int64_t k = 0; i + k < n; k++)
    FN(add_pairs_at)(x + (i + k) * VL, has_g ? g + (i + k) * VL : NULL, centre, first + VL + k, second + VL + k);
}
static void FN(add_squares_blocked)(const float *x, int64_t n, VF centre, VF *first, VF *second) {
  FN(add_pairs_of)(x, NULL, 0, n, centre, first, second);
}
static void FN(add_products_blocked)(const float *x, const float *g, int64_t n, VF centre, VF *first, VF *second) {
  FN(add_pairs_of)(x, g, 1, n, centre, first, second);
}

/* What the sums of VL lanes come to, as `sum_lanes` adds them. */
TI_INLINE VF FN(sum_held_lanes)(VF *sum) {
  for (int64_t half = VL / 2; half > 0; half /= 2)
    for (int64_t k = 0; k < half; k++) sum[k] += sum[k + half];
  return sum[0];
}
TI_INLINE VF FN(sum_pair_lanes)(VF *sum) {
  for (int64_t k = 0; k < VL; k++) sum[k] += sum[VL + k];
  return FN(sum_held_lanes)(sum);
}

/* A split of a block of channels: where it begins, in which of the blocks, and how much of it there is. */
typedef struct { int64_t block, split, at, rows, width, stride; } FN(blocked_split);

TI_INLINE FN(blocked_split) FN(blocked_split_of)(FN(geometry) g, int64_t item) {
  const int64_t blocks = ti_ceil(g.c, VL), block = item / g.splits, split = item % g.splits;
  const int64_t first = split / g.pieces * g.rows, at = split % g.pieces * g.piece;
  return (FN(blocked_split)){
      block, split, ((first * blocks + block) * g.l + at) * VL, ti_min(g.rows, g.n - first), ti_min(g.piece, g.l - at),
      blocks * g.l * VL};
}

/* Stores two numbers for each channel of the block, where the kernels of rows have them. */
TI_INLINE void FN(store_partials)(float *partials, FN(geometry) g, FN(blocked_split) s, const float *first, const float *second) {
  const int64_t from = s.block * VL, count = ti_min(VL, g.c - from);
  for (int64_t k = 0; k < count; k++) {
    float *const p = partials + 2 * ((from + k) * g.splits + s.split);
    p[0] = first[k], p[1] = second[k];
  }
}

TI_KERNEL(batch_moments_blocked) {
  enum { LANES = FN(SUM_LANES), PAIRS = FN(PAIR_LANES) };
  const FN(geometry) g = FN(geometry_of)((const batch_ints *)ints);
  (void)scalars, (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const FN(blocked_split) s = FN(blocked_split_of)(g, item);
    const float *const x = (const float *)args[1] + s.at;
    const double count = (double)s.rows * (double)s.width;
    VF sum[LANES], around[PAIRS], squares[PAIRS];
    float total[VL], rest[VL], spread[VL];
    for (int64_t k = 0; k < LANES; k++) sum[k] = FN(set)(0);
    for (int64_t r = 0; r < s.rows; r++) FN(add_sum_blocked)(x + r * s.stride, s.width, sum);
    for (int64_t k = 0; k < VL; k++) sum[k] = (sum[k] + sum[VL + k]) + (sum[2 * VL + k] + sum[3 * VL + k]);
    FN(store)(total, FN(sum_held_lanes)(sum));
    for (int64_t k = 0; k < VL; k++) total[k] = (float)(total[k] / count);
    for (int64_t k = 0; k < PAIRS; k++) around[k] = squares[k] = FN(set)(0);
    for (int64_t r = 0; r < s.rows; r++) FN(add_squares_blocked)(x + r * s.stride, s.width, FN(load)(total), around, squares);
    FN(store)(rest, FN(sum_pair_lanes)(around));
    FN(store)(spread, FN(sum_pair_lanes)(squares));
    for (int64_t k = 0; k < VL; k++) {
      const double left = rest[k], about = spread[k] - left * left / count;
      total[k] = (float)(total[k] + left / count);
      spread[k] = about < 0 ? 0.0f : (float)about;
    }
    FN(store_partials)((float *)args[0], g, s, total, spread);
  }
  return TI_OK;
}

TI_KERNEL(batch_factors_blocked) {
  const batch_ints *const p = (const batch_ints *)ints;
  const int64_t channels = p->channels, lanes = ti_ceil(channels, VL) * VL;
  float *const first = (float *)args[0], *const affine = (float *)args[1];
  const float *const mean = (const float *)args[2], *const rstd = (const float *)args[3];
  const float *const w = (const float *)args[4], *const b = (const float *)args[5];
  (void)begin, (void)end, (void)scalars, (void)scratch;
  memset(first, 0, 2 * (size_t)lanes * sizeof(float));
  memset(affine, 0, 2 * (size_t)lanes * sizeof(float));
  for (int64_t c = 0; c < channels; c++) {
    first[lanes + c] = -mean[c];
    affine[c] = p->has_weight ? rstd[c] * w[c] : rstd[c];
    affine[lanes + c] = p->has_bias ? b[c] : 0.0f;
  }
  return TI_OK;
}

TI_KERNEL(batch_grad_sums_blocked) {
  enum { PAIRS = FN(PAIR_LANES) };
  const FN(geometry) g = FN(geometry_of)((const batch_ints *)ints);
  (void)scalars, (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const FN(blocked_split) s = FN(blocked_split_of)(g, item);
    const float *const dy = (const float *)args[1] + s.at, *const x = (const float *)args[2] + s.at;
    const VF centre = FN(load_most)((const float *)args[3] + s.block * VL, g.c - s.block * VL);
    VF sum[PAIRS], products[PAIRS];
    float added[VL], multiplied[VL];
    for (int64_t k = 0; k < PAIRS; k++) sum[k] = products[k] = FN(set)(0);
    for (int64_t r = 0; r < s.rows; r++)
      FN(add_products_blocked)(x + r * s.stride, dy + r * s.stride, s.width, centre, sum, products);
    FN(store)(multiplied, FN(sum_pair_lanes)(products));
    FN(store)(added, FN(sum_pair_lanes)(sum));
    FN(store_partials)((float *)args[0], g, s, multiplied, added);
  }
  return TI_OK;
}

TI_KERNEL(batch_grad_apply_blocked) {
  const batch_ints *const p = (const batch_ints *)ints;
  const int64_t channels = p->channels, blocks = ti_ceil(channels, VL), n = p->positions * VL;
  const float *const mean = (const float *)args[3], *const spread = (const float *)args[4];
  const float *const w = p->has_weight ? (const float *)args[5] : NULL;
  const float *const dw = (const float *)args[6], *const db = (const float *)args[7];
  const double around = ((const norm_scalars *)scalars)->eps;
  const float count = (float)(p->samples * p->positions);
  (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const float *const dy = (const float *)args[1] + item * n, *const x = (const float *)args[2] + item * n;
    float *const dx = (float *)args[0] + item * n;
    const int64_t first = item % blocks * VL;
    float centre[VL] = {0}, by_g[VL] = {0}, by_x[VL] = {0}, shift[VL] = {0};
    for (int64_t k = 0; k < ti_min(VL, channels - first); k++) {
      const int64_t c = first + k;
      const float r = p->from_running ? (float)(1.0 / sqrt(spread[c] + around)) : spread[c];
      centre[k] = mean[c], by_g[k] = w ? r * w[c] : r;
      by_x[k] = -by_g[k] * r * dw[c] / count, shift[k] = -by_g[k] * db[c] / count;
    }
    const VF m = FN(load)(centre), a = FN(load)(by_g), b = FN(load)(by_x), c = FN(load)(shift);
    if (p->from_running)
      for (int64_t i = 0; i < n; i += VL) FN(store)(dx + i, FN(fma)(FN(load)(dy + i), a, FN(set)(0.0f)));
    else
      for (int64_t i = 0; i < n; i += VL)
        FN(store)(dx + i, FN(fma)(FN(load)(dy + i), a, FN(fma)(FN(load)(x + i) - m, b, c)));
  }
  return TI_OK;
}
