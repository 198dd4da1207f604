/* Chains of which a value is reduced as it comes, and not stored; included by elementwise_body.h.
 *
 * A piece of the value lies in a register of the chain's, near enough to be read at once. Sums are those of
 * reduce_body.h: in lanes of at most 2048 neighbours, or of 32 rows.
 */
#include "fold_rows_body.h"
/* Where a value lies after a piece; one that is repeated is spread over its register first. */
static const float *FN(value_of)(FN(chain_call) *c, int64_t slot, long n) {
  if (!c->mask[slot]) {
    FN(load_run)(c->own[slot], c->at[slot], TI_FLOAT, 0, n);
    c->at[slot] = c->own[slot], c->mask[slot] = -1, c->filled_by[slot] = -1;
  }
  return (const float *)c->at[slot];
}
/* Rows of few values, which adjoin: a row in each lane. */
TI_INLINE void FN(fold_few_as)(float *out, const float *x, int64_t rows, int64_t n, double scale, const int root, const int mode) {
  float beside[TI_REDUCE_FEW * VL] = {0.f};
  for (int64_t row = 0; row < rows; row += VL) {
    const int64_t lanes = ti_min(VL, rows - row);
    FN(lay_few)(beside, x + row * n, n, lanes, n);
    FN(store_most)(out + row, FN(few_beside)(beside, n, scale, root, mode), lanes);
  }
}
static void FN(fold_few)(float *out, const float *x, int64_t rows, int64_t n, int mode, double scale, int root) {
#define TI_CASE(m) case TI_FOLDING_##m: FN(fold_few_as)(out, x, rows, n, scale, root, TI_FOLDING_##m); break;
  switch (mode) {
    TI_CASE(SUM) TI_CASE(SUM_SQUARES) TI_CASE(SUM_MAGNITUDES) TI_CASE(PRODUCT) TI_CASE(LARGEST) TI_CASE(SMALLEST)
    default: FN(fold_few_as)(out, x, rows, n, scale, root, TI_FOLDING_LARGEST_MAGNITUDE);
  }
#undef TI_CASE
}
/* near += rows of so many columns, some vectors of them at a time */
TI_INLINE void FN(fold_vectors)(float *near, const float *x, const float *y, int64_t rows, int64_t columns, const int vectors, int64_t n, const int mode) {
  VF a[4];
  for (int j = 0; j < vectors; j++) a[j] = FN(load)(near + j * VL);
  for (int64_t r = 0; r < rows; r++, x += columns, y += y ? columns : 0)
    for (int j = 0; j < vectors; j++) {
      const VF v = n < VL ? FN(load_part)(x, n) : FN(load)(x + j * VL);
      a[j] = y ? FN(combine_both)(a[j], v, n < VL ? FN(load_part)(y, n) : FN(load)(y + j * VL), mode) : FN(combine)(a[j], v, mode);
    }
  for (int j = 0; j < vectors; j++) FN(store)(near + j * VL, a[j]);
}
TI_INLINE void FN(fold_down_as)(float *near, const float *x, const float *y, int64_t rows, int64_t columns, const int mode) {
  int64_t j = 0;
  for (; j + 4 * VL <= columns; j += 4 * VL) FN(fold_vectors)(near + j, x + j, y ? y + j : 0, rows, columns, 4, VL, mode);
  for (; j + VL <= columns; j += VL) FN(fold_vectors)(near + j, x + j, y ? y + j : 0, rows, columns, 1, VL, mode);
  if (j < columns) FN(fold_vectors)(near + j, x + j, y ? y + j : 0, rows, columns, 1, columns - j, mode);
}
static void FN(fold_down)(float *near, const float *x, const float *y, int64_t rows, int64_t columns, int mode) {
  if (y) {
    if (mode == TI_FOLDING_SUM) FN(fold_down_as)(near, x, y, rows, columns, TI_FOLDING_SUM);
    else if (mode == TI_FOLDING_SUM_SQUARES) FN(fold_down_as)(near, x, y, rows, columns, TI_FOLDING_SUM_SQUARES);
    else FN(fold_down_as)(near, x, y, rows, columns, TI_FOLDING_SUM_MAGNITUDES);
    return;
  }
#define TI_CASE(m) case TI_FOLDING_##m: FN(fold_down_as)(near, x, 0, rows, columns, TI_FOLDING_##m); break;
  switch (mode) {
    TI_CASE(SUM) TI_CASE(SUM_SQUARES) TI_CASE(SUM_MAGNITUDES) TI_CASE(PRODUCT) TI_CASE(LARGEST) TI_CASE(SMALLEST)
    default: FN(fold_down_as)(near, x, 0, rows, columns, TI_FOLDING_LARGEST_MAGNITUDE);
  }
#undef TI_CASE
}
/* A row that is longer than a piece, or a part of it. */
static int FN(fold_long)(FN(chain_call) *c, const chain_fold_ints *p, int64_t start, int64_t length, int64_t piece, double *result) {
  const int mode = (int)p->folding;
  double r = FN(neutral)(mode);
  for (int64_t done = 0; done < length;) {
    const long n = FN(cut_piece)(c, start + done, (long)ti_min(piece, length - done), 1);
    const int trap = FN(run_piece)(c, start + done, n);
    if (trap) return trap;
    const float *const x = FN(value_of)(c, p->value, n);
    const double part = p->other < 0 ? FN(reduce_run)(x, 1, n, mode) : FN(reduce_both)(x, FN(value_of)(c, p->other, n), n, mode);
    r = FN(combine1)(r, part, FN(joining)(mode));
    done += n;
  }
  *result = r;
  return TI_OK;
}
/* Down columns: `columns` of the `width` that a row has, `rows` rows from an element on. */
static int FN(fold_columns)(FN(chain_call) *c, const chain_fold_ints *p, int64_t start, int64_t rows, int64_t columns, int64_t piece,
                            float *near, float *out, double scale) {
  const int mode = (int)p->folding, join = FN(joining)(mode);
  const VF neutral = FN(set)((float)FN(neutral)(mode));
  float *const sums = near + p->block + VL;
  for (int64_t j = 0; j < columns; j += VL) FN(store)(near + j, neutral), FN(store)(sums + j, neutral);
  const int is_whole = columns == p->columns;
  const int64_t most = is_whole ? ti_max(1, ti_min(32, piece / columns)) : 1;
  for (int64_t row = 0, held = 0; row < rows;) {
    long n = (long)(columns * ti_min(ti_min(most, 32 - held), rows - row));
    const int64_t first = start + row * p->columns;
    n = FN(cut_piece)(c, first, n, columns);
    const int trap = FN(run_piece)(c, first, n);
    if (trap) return trap;
    const float *const x = FN(value_of)(c, p->value, n), *const y = p->other < 0 ? 0 : FN(value_of)(c, p->other, n);
    FN(fold_down)(near, x, y, n / columns, columns, mode);
    row += n / columns, held += n / columns;
    if (held < 32 && row < rows) continue;
    for (int64_t j = 0; j < columns; j += VL) {
      FN(store)(sums + j, FN(combine)(FN(load)(sums + j), FN(load)(near + j), join));
      FN(store)(near + j, neutral);
    }
    held = 0;
  }
  for (int64_t j = 0; j < columns; j += VL) {
    VF r = FN(load)(sums + j) * (float)scale;
    if (p->root) r = FN(sqrt)(r);
    FN(store_most)(out + j, r, columns - j);
  }
  return TI_OK;
}
TI_KERNEL(chain_fold) {
  const chain_fold_ints *const p = (const chain_fold_ints *)ints;
  const double scale = ((const chain_fold_scalars *)scalars)->scale;
  const int64_t length = p->length, results = p->results, together = p->together, chunk = p->chunk, chunks = p->chunks;
  const int64_t block = p->block, columns = p->columns;
  const int mode = (int)p->folding, root = (int)p->root;
  float *const out = (float *)args[p->out];
  FN(chain_call) c;
  /* Pieces of several rows begin at multiples of as many elements: what repeats in them is loaded once. */
  FN(begin_chain)(&c, args, (char *)scratch, p->program, ((const chain_fold_scalars *)scalars)->constants, (int)p->num_slots,
                  (int)p->num_instructions, together > 0 ? together * length : block, block);
  const int64_t piece = c.is_direct ? TI_PIECE_BLOCKS * block : block;
  if (columns) {
    const int64_t panels = ti_ceil(columns, block);
    float *const near = (float *)((char *)scratch + p->near_bytes);
    for (int64_t item = begin; item < end; item++) {
      const int64_t number = item % chunks, panel = item / chunks % panels, outer = item / chunks / panels;
      const int64_t first = number * chunk, column = panel * block;
      const int trap = FN(fold_columns)(
          &c, p, (outer * length + first) * columns + column, ti_min(chunk, length - first), ti_min(block, columns - column),
          piece, near, out + (number * results + outer) * columns + column, scale);
      if (trap) return trap;
    }
    return TI_OK;
  }
  if (!together) {
    for (int64_t item = begin; item < end; item++) {
      const int64_t first = item % chunks * chunk;
      double r;
      const int64_t start = item / chunks * length + first;
      const int trap = FN(fold_long)(&c, p, start, ti_min(chunk, length - first), piece, &r);
      if (trap) return trap;
      out[item] = (float)(root ? sqrt(r * scale) : r * scale);
    }
    return TI_OK;
  }
  const int64_t stop = ti_min(results, end * together);
  const int64_t most = together * (c.is_direct ? TI_PIECE_BLOCKS : 1);
  for (int64_t row = begin * together; row < stop;) {
    const long n = FN(cut_piece)(&c, row * length, (long)(ti_min(most, stop - row) * length), length);
    const int trap = FN(run_piece)(&c, row * length, n);
    if (trap) return trap;
    const float *const x = FN(value_of)(&c, p->value, n), *const y = p->other < 0 ? 0 : FN(value_of)(&c, p->other, n);
    if (length <= TI_REDUCE_FEW) FN(fold_few)(out + row, x, n / length, length, mode, scale, root);
    else FN(fold_rows)(out + row, x, y, length, n / length, (long)length, mode, scale, root);
    row += n / length;
  }
  return TI_OK;
}
