/* Products whose running sums are halves, as the matrix unit keeps them with half partials.
 *
 * Products of halves are exact in a float. The sums of a group of channels are floats; then the sum so far is written back as a
 * half, rounded as the machine does: source ipu_hardware.md, section 5. Where tiles share the summands, each begins at zero,
 * and what they come to is added up as floats, in the order of the tiles, and rounded to a half.
 */
#include "gemm_body.h"
#include "rounding_body.h"

#ifndef TORCHIPU_HALF_PRODUCT
#define TORCHIPU_HALF_PRODUCT
enum { TI_RADICES = 4, TI_HALF_ROWS = 8 };
static inline int64_t ti_place_at(const int64_t *sizes, const int64_t *strides, int64_t i) {
  int64_t at = 0;
  for (int k = 0; k < TI_RADICES; k++) { at += i % sizes[k] * strides[k]; i /= sizes[k]; }
  return at;
}
#endif

/* A tile of up to 8 rows and the columns of two vectors: some summands, in groups after each of which the sums are rounded. */
typedef struct {
  const float *a[TI_HALF_ROWS];
  const float *b;
  const int64_t *places;   /* where the rows of B lie, or NULL: 32 floats apart */
  float *c;                /* [rows][32] */
  int64_t ak, k, size, results, first, rows[TI_HALF_ROWS], column;
  FN(keys) keys;
  int starts, is_stochastic, overflow;
} FN(half_tile);

TI_INLINE void FN(half_tile_of)(const int mr, const FN(half_tile) *t, int n) {
  VF c0[TI_HALF_ROWS], c1[TI_HALF_ROWS];
  const float *a[TI_HALF_ROWS];
  const int n0 = n < VL ? n : VL, n1 = n - n0;
#pragma GCC unroll 8
  for (int i = 0; i < mr; i++) {
    a[i] = t->a[i];
    c0[i] = t->starts ? FN(set)(0) : FN(load)(t->c + i * TI_PANEL);
    c1[i] = t->starts ? FN(set)(0) : FN(load)(t->c + i * TI_PANEL + VL);
  }
  const float *b = t->b;
  const int64_t *places = t->places, ak = t->ak;
  int64_t number = t->first;
  for (int64_t from = 0; from < t->k; from += t->size, number++) {
    const int64_t length = ti_min(t->size, t->k - from);
    for (int64_t k = 0; k < length; k++) {
      const float *row = places ? b + *places++ : b;
      VF b0, b1;
      if (n == TI_NR) { b0 = FN(load)(row); b1 = FN(load)(row + VL); }
      else { b0 = FN(load_part)(row, n0); b1 = n1 > 0 ? FN(load_part)(row + VL, n1) : FN(set)(0); }
      if (!places) b += TI_PANEL;
#pragma GCC unroll 8
      for (int i = 0; i < mr; i++) {
        const VF x = FN(broadcast)(a[i]);
        c0[i] = FN(fma)(x, b0, c0[i]);
        c1[i] = FN(fma)(x, b1, c1[i]);
        a[i] += ak;
      }
    }
    if (t->is_stochastic) {
#pragma GCC unroll 8
      for (int i = 0; i < mr; i++) {
        const int64_t element = number * t->results + t->rows[i] + t->column;
        c0[i] = FN(rounded_by)(c0[i], FN(random_words_from)(t->keys, element), t->overflow);
        c1[i] = FN(rounded_by)(c1[i], FN(random_words_from)(t->keys, element + VL), t->overflow);
      }
    } else if (t->overflow == TI_HALF_OVERFLOW_INFINITY) {
#pragma GCC unroll 8
      for (int i = 0; i < mr; i++) {
        c0[i] = FN(of_halves)(FN(nearest_halves)(c0[i]));
        c1[i] = FN(of_halves)(FN(nearest_halves)(c1[i]));
      }
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < mr; i++) {
        c0[i] = FN(rounded_to_nearest)(c0[i], t->overflow);
        c1[i] = FN(rounded_to_nearest)(c1[i], t->overflow);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < mr; i++) { FN(store)(t->c + i * TI_PANEL, c0[i]); FN(store)(t->c + i * TI_PANEL + VL, c1[i]); }
}
#undef TI_HALF_TILE
#define TI_HALF_TILE(MR_) \
  static __attribute__((noinline)) void FN(half_tile_##MR_)(const FN(half_tile) *t, int n) { FN(half_tile_of)(MR_, t, n); }
TI_HALF_TILE(1) TI_HALF_TILE(2) TI_HALF_TILE(3) TI_HALF_TILE(4)
#if VL == 16
TI_HALF_TILE(5) TI_HALF_TILE(6) TI_HALF_TILE(7) TI_HALF_TILE(8)
enum { FN(HALF_MR) = 8 };
static void (*const FN(half_tiles)[])(const FN(half_tile) *, int) = {
  0, FN(half_tile_1), FN(half_tile_2), FN(half_tile_3), FN(half_tile_4), FN(half_tile_5), FN(half_tile_6), FN(half_tile_7),
  FN(half_tile_8)};
#else
enum { FN(HALF_MR) = 4 };
static void (*const FN(half_tiles)[])(const FN(half_tile) *, int) = {
  0, FN(half_tile_1), FN(half_tile_2), FN(half_tile_3), FN(half_tile_4)};
#endif

/* The sums of all rows of an item and a panel as halves by value, with the bits of one group more. */
static void FN(half_sums)(const FN(half_tile) *t, float *sums, const int64_t *numbers, int64_t rows) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < TI_PANEL; j += VL) {
      const VF v = FN(load)(sums + r * TI_PANEL + j);
      const int64_t element = t->first * t->results + numbers[r] + t->column + j;
      FN(store)(sums + r * TI_PANEL + j, t->is_stochastic ? FN(rounded_by)(v, FN(random_words_from)(t->keys, element), t->overflow)
                                                          : FN(rounded_to_nearest)(v, t->overflow));
    }
}

/* Some summands of all rows of an item and the columns of a panel. `t` has what the tiles share. */
static void FN(half_rows)(FN(half_tile) t, const float *a, const int64_t *a_at, const int64_t *numbers, int64_t rows, int64_t width) {
  const int64_t even = ti_even(rows, FN(HALF_MR));
  float *const c = t.c;
  const float *const b = t.b;
  const int64_t column = t.column;
  for (int64_t j = 0; j < width; j += TI_NR) {
    t.b = b + j;
    t.column = column + j;
    for (int64_t i = 0; i < rows; i += even) {
      const int64_t some = ti_min(even, rows - i);
      for (int64_t r = 0; r < some; r++) { t.a[r] = a + a_at[i + r]; t.rows[r] = numbers[i + r]; }
      t.c = c + i * TI_PANEL + j;
      FN(half_tiles)[some](&t, (int)ti_min(TI_NR, width - j));
    }
  }
}

/* The bits of a partial are those of element (1 + its number) * results + the number of its result, each row of results
 * taking a multiple of 32; the result itself has those that come first. */
TI_KERNEL(half_product) {
  const half_product_ints *const sizes = (const half_product_ints *)ints, p = *sizes;
  const half_product_scalars *const factors = (const half_product_scalars *)scalars;
  const int64_t *taps = sizes->taps, *column_taps = taps + 2 * p.num_taps;
  const int64_t *state = p.is_stochastic ? (const int64_t *)args[3 + p.has_addend] : 0;
  int64_t all = 1, shares = 0;
  for (int k = 0; k < TI_RADICES; k++) all *= p.row_sizes[k];
  shares = ti_ceil(p.panels, p.item_panels);
  const int64_t blocks = ti_ceil(all, p.item_rows), padded = p.panels * TI_PANEL;
  const int64_t per_tap = p.panels / p.num_column_taps, depth = p.num_taps * p.channels;
  float *const sums = (float *)scratch, *const totals = sums + p.item_rows * TI_PANEL;
  int64_t *const a_at = (int64_t *)(totals + p.item_rows * TI_PANEL), *const out_at = a_at + p.item_rows;
  int64_t *const numbers = out_at + p.item_rows, *const places = numbers + p.item_rows;
  FN(half_tile) t = {.ak = p.left_channel, .size = p.size, .overflow = (int)p.overflow, .c = sums,
                     .results = p.groups * p.all_rows * padded, .is_stochastic = p.is_stochastic && !FN(rounds_to_nearest)(state)};
  if (t.is_stochastic) t.keys = FN(keys_of)(state);
  const float alpha = (float)factors->alpha, beta = (float)factors->beta;
  for (int64_t item = begin; item < end; item++) {
    const int64_t group = item / (shares * blocks), r0 = item / shares % blocks * p.item_rows, rows = ti_min(p.item_rows, all - r0);
    const int64_t p0 = item % shares * p.item_panels, p1 = ti_min(p.panels, p0 + p.item_panels);
    const float *left = (const float *)args[1] + group * p.left_group, *right = (const float *)args[2] + group * p.right_group;
    float *out = (float *)args[0] + group * p.out_group;
    for (int64_t r = 0; r < rows; r++) {
      a_at[r] = ti_place_at(p.row_sizes, p.left_row, r0 + r);
      out_at[r] = ti_place_at(p.row_sizes, p.out_row, r0 + r);
      numbers[r] = (group * p.all_rows + p.first_number + ti_place_at(p.row_sizes, p.number_row, r0 + r)) * padded;
    }
    for (int64_t panel = p0; panel < p1; panel++) {
      const int64_t tap = panel / per_tap, first = panel % per_tap * TI_PANEL, width = ti_min(TI_PANEL, p.columns - first);
      int64_t tile = -1;
      int has_total = 0;
      t.column = panel * TI_PANEL;
      for (int64_t s = 0; s < p.num_taps; s++) {
        const int64_t block = ti_max(1, TI_HALF_BLOCK / p.size) * p.size;
        for (int64_t k = 0; k < p.channels;) {
          const int64_t number = taps[2 * s + 1] + k / p.size, mine = (number - 1) / p.tile_groups;
          /* up to the end of the tile's share of the summands */
          const int64_t left_over = ((mine + 1) * p.tile_groups - (number - 1)) * p.size;
          t.k = ti_min(ti_min(block, left_over), p.channels - k);
          t.first = number;
          t.starts = mine != tile;
          if (t.starts && tile >= 0) {
            for (int64_t i = 0; i < rows * TI_PANEL; i++) totals[i] = has_total ? totals[i] + sums[i] : sums[i];
            has_total = 1;
          }
          tile = mine;
          if (p.gathers) {
            for (int64_t q = 0; q < t.k; q++) places[q] = ti_place_at(p.summand_sizes, p.right_summand, k + q);
            t.places = places;
            t.b = right + column_taps[2 * tap] + first;
          } else {
            t.b = right + (panel * depth + s * p.channels + k) * TI_PANEL;
          }
          FN(half_rows)(t, left + taps[2 * s] + k * p.left_channel, a_at, numbers, rows, p.gathers ? width : TI_PANEL);
          k += t.k;
        }
      }
      if (has_total) {
        for (int64_t i = 0; i < rows * TI_PANEL; i++) sums[i] = totals[i] + sums[i];
        t.first = p.all_groups + 1;
        FN(half_sums)(&t, sums, numbers, rows);
      }
      if (tile < 0) memset(sums, 0, sizeof(float) * (size_t)(rows * TI_PANEL));
      const int64_t place = (p.gathers ? column_taps[2 * tap + 1] : 0) + first * p.out_column;
      for (int64_t r = 0; r < rows; r++) {
        float *to = out + out_at[r] + place, *from = sums + r * TI_PANEL;
        const float *more = (const float *)args[3] + group * p.addend[0] + (r0 + r) * p.addend[1] + first * p.addend[2];
        if (alpha != 1.0f) for (int64_t i = 0; i < width; i++) from[i] *= alpha;
        if (p.has_addend) for (int64_t i = 0; i < width; i++) from[i] += beta * more[i * p.addend[2]];
        if (p.out_column == 1) memcpy(to, from, sizeof(float) * (size_t)width);
        else for (int64_t i = 0; i < width; i++) to[i * p.out_column] = from[i];
      }
    }
  }
  return TI_OK;
}
