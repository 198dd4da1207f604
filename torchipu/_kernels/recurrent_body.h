/* Recurrent layers: the whole loop over time of a block of samples, with the products of the inputs given. */
#include "gemm_body.h"

#ifndef TORCHIPU_RECURRENT_SHAPE
#define TORCHIPU_RECURRENT_SHAPE
static inline int64_t ti_gates_of(int64_t cell) { return cell == TI_CELL_LSTM ? 4 : cell == TI_CELL_GRU ? 3 : 1; }
static inline int64_t ti_gates(const recurrent_ints *s) { return s->hidden * ti_gates_of(s->cell); }
/* Values kept for the backward: the gates and the cell, or the gates and the recurrent half of the new gate. */
static inline int64_t ti_kept(const recurrent_ints *s) { return s->hidden * (s->cell == TI_CELL_LSTM ? 5 : s->cell == TI_CELL_GRU ? 4 : 0); }
#endif

#define ROW(P) FN(load_most)((P) + j, H - j)
#define PUT(P, X) FN(store_most)((P) + j, (X), H - j)

/* Columns [j0, j1), whole panels, of c[m][n] (+)= a[m][k] b, with b[k][n] in panels as matmul_pack leaves them */
static void FN(columns_product)(float *c, const float *a, const float *b, int64_t m, int64_t k, int64_t n, int64_t j0, int64_t j1, int accumulate) {
  for (int64_t j = j0; j < j1; j += TI_PANEL)
    for (int64_t k0 = 0; k0 < k; k0 += TI_SUM_BLOCK) {
      ti_tile t = {.a = a + k0, .as = k, .ak = 1, .b = b + j * k + k0 * TI_PANEL, .bs = TI_PANEL, .c = c + j, .ldc = n,
                   .k = ti_min(TI_SUM_BLOCK, k - k0), .accumulate = accumulate || k0 > 0};
      FN(tiles_k_rows)(t, m, ti_min(TI_PANEL, n - j));
    }
}
static void FN(rows_product)(float *c, const float *a, const float *b, int64_t m, int64_t k, int64_t n, int accumulate) {
  FN(columns_product)(c, a, b, m, k, n, 0, n, accumulate);
}

/* Packs weights [gates * hidden][state] as [vector of units][state][gates][VL], zero beyond the last unit: the sums of all
 * gates of a vector of units then come of one stream, every line of which is read whole. */
TI_KERNEL(recurrence_pack) {
  const recurrence_pack_ints *const p = (const recurrence_pack_ints *)ints;
  const int64_t G = p->gates, H = p->hidden, K = p->state, parts = ti_ceil(K, p->block);
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t k0 = item % parts * p->block, first = item / parts * TI_UNITS, summands = ti_min(p->block, K - k0);
    for (int64_t unit = first; unit < ti_min(first + TI_UNITS, H); unit += VL) {
      const int64_t units = ti_min(VL, H - unit);
      float *d = (float *)args[0] + (unit / VL * K + k0) * G * VL;
      if (units < VL) memset(d, 0, sizeof(float) * (size_t)(summands * G * VL));
      for (int64_t g = 0; g < G; g++)
        FN(transpose)((const float *)args[1] + (g * H + unit) * K + k0, K, d + g * VL, G * VL, units, summands);
    }
  }
  return TI_OK;
}

#ifndef TORCHIPU_CELLS
#define TORCHIPU_CELLS
/* Some rows of a step, and where what belongs to their units begins. */
typedef struct {
  const float *state, *weight, *bias, *x, *before; /* bias may be NULL */
  float *cell, *h, *kept;                          /* kept may be NULL */
  ptrdiff_t state_row, x_row, before_row, h_row, kept_row, block;
  int64_t summands, hidden, units;
  int kind;
} ti_cells;
enum { TI_MOST_SUMS = 24 };
#endif

/* At most VL units of one row: gates from the sums of their products, the new state, what the backward needs. An LSTM's
 * state is left to cell_state, with its last gate in sums[3]. */
static void FN(cell_forward)(const ti_cells *t, VF *sums, int64_t row, int64_t unit) {
  const int64_t H = t->hidden, n = t->units - unit;
  const float *x = t->x + row * t->x_row + unit;
  float *h = t->h + row * t->h_row + unit, *kept = t->kept ? t->kept + row * t->kept_row + unit : NULL;
#define GATE(N) (FN(load_most)(x + (N) * H, n) + sums[N])
#define KEEP(N, X) FN(store_most)(kept + (N) * H, (X), n)
  if (t->kind == TI_CELL_LSTM) {
    float *cell = t->cell + row * H + unit;
    const VF i = FN(sigmoid)(GATE(0)), f = FN(sigmoid)(GATE(1)), g = FN(tanh)(GATE(2)), o = FN(sigmoid)(GATE(3));
    const VF c = f * FN(load_most)(cell, n) + i * g;
    if (kept) { KEEP(0, i); KEEP(1, f); KEEP(2, g); KEEP(3, o); KEEP(4, c); }
    FN(store_most)(cell, c, n);
    sums[3] = o;
  } else if (t->kind == TI_CELL_GRU) {
    const VF r = FN(sigmoid)(GATE(0)), z = FN(sigmoid)(GATE(1)), inner = sums[2];
    const VF g = FN(tanh)(FN(load_most)(x + 2 * H, n) + r * inner);
    if (kept) { KEEP(0, r); KEEP(1, z); KEEP(2, g); KEEP(3, inner); }
    FN(store_most)(h, g + z * (FN(load_most)(t->before + row * t->before_row + unit, n) - g), n);
  } else FN(store_most)(h, t->kind == TI_CELL_TANH ? FN(tanh)(GATE(0)) : FN(relu)(GATE(0)), n);
#undef GATE
#undef KEEP
}

/* The state of an LSTM. Apart from its cell, so that what one row waits for is short, and rows overlap. */
static void FN(cell_state)(const ti_cells *t, const VF *sums, int64_t row, int64_t unit) {
  const int64_t n = t->units - unit;
  FN(store_most)(t->h + row * t->h_row + unit, sums[3] * FN(tanh)(FN(load_most)(t->cell + row * t->hidden + unit, n)), n);
}

/* mr rows and `subs` vectors of units: all sums of their gates stay in registers. */
TI_INLINE void FN(cells)(const int gates, const int subs, const int mr, const ti_cells *t) {
  const int nv = gates * subs;
  VF sums[TI_MOST_SUMS];
#pragma GCC unroll 8
  for (int s = 0; s < subs; s++)
#pragma GCC unroll 4
    for (int g = 0; g < gates; g++) {
      const VF first = t->bias ? FN(load_most)(t->bias + g * t->hidden + s * VL, t->units - s * VL) : FN(set)(0);
#pragma GCC unroll 8
      for (int i = 0; i < mr; i++) {
        sums[i * nv + s * gates + g] = first;
        /* Wanted when the sums are done. What is fetched a step ahead has by then made room for the weights. */
        _mm_prefetch((const char *)(t->x + i * t->x_row + g * t->hidden + s * VL), _MM_HINT_T0);
        if (t->kept) __builtin_prefetch(t->kept + i * t->kept_row + g * t->hidden + s * VL, 1);
      }
    }
  const float *a = t->state, *b = t->weight;
  for (int64_t k = 0; k < t->summands; k++, a++, b += gates * VL) {
    VF row[8];
#pragma GCC unroll 8
    for (int s = 0; s < subs; s++)
#pragma GCC unroll 4
      for (int g = 0; g < gates; g++)
        row[s * gates + g] = FN(load)(b + s * t->block + g * VL);
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
      const VF x = FN(broadcast)(a + i * t->state_row);
#pragma GCC unroll 8
      for (int v = 0; v < nv; v++) sums[i * nv + v] = FN(fma)(x, row[v], sums[i * nv + v]);
    }
  }
  VF held[TI_MOST_SUMS];  /* in memory: the loop below is not unrolled */
#pragma GCC unroll 24
  for (int v = 0; v < mr * nv; v++) held[v] = sums[v];
#pragma GCC unroll 1
  for (int64_t i = 0; i < mr; i++)
    for (int s = 0; s < subs; s++) FN(cell_forward)(t, held + i * nv + s * gates, i, s * VL);
  if (gates != 4) return;
#pragma GCC unroll 1
  for (int64_t i = 0; i < mr; i++)
    for (int s = 0; s < subs; s++) FN(cell_state)(t, held + i * nv + s * gates, i, s * VL);
}

#undef TI_CELLS
#define TI_CELLS(G_, S_, MR_) \
  static __attribute__((noinline)) void FN(cells_##G_##_##S_##_##MR_)(const ti_cells *t) { FN(cells)(G_, S_, MR_, t); }
TI_CELLS(1, 1, 1) TI_CELLS(1, 1, 2) TI_CELLS(1, 1, 3) TI_CELLS(1, 4, 1) TI_CELLS(1, 4, 2) TI_CELLS(1, 4, 3) TI_CELLS(1, 8, 1)
TI_CELLS(3, 1, 1) TI_CELLS(3, 1, 2) TI_CELLS(3, 1, 3) TI_CELLS(3, 1, 4) TI_CELLS(3, 2, 1) TI_CELLS(3, 2, 2)
TI_CELLS(4, 1, 1) TI_CELLS(4, 1, 2) TI_CELLS(4, 1, 3) TI_CELLS(4, 2, 1)
#if VL == 16
TI_CELLS(1, 1, 4) TI_CELLS(1, 1, 5) TI_CELLS(1, 1, 6) TI_CELLS(1, 4, 4) TI_CELLS(1, 4, 5) TI_CELLS(1, 4, 6) TI_CELLS(1, 8, 2) TI_CELLS(1, 8, 3)
TI_CELLS(3, 1, 5) TI_CELLS(3, 1, 6) TI_CELLS(3, 1, 7) TI_CELLS(3, 1, 8) TI_CELLS(3, 2, 3) TI_CELLS(3, 2, 4)
TI_CELLS(4, 1, 4) TI_CELLS(4, 1, 5) TI_CELLS(4, 1, 6) TI_CELLS(4, 2, 2) TI_CELLS(4, 2, 3)
#endif
/* Register tiles of a cell: of many rows, of few rows and more units, and of the vector of units that may be left. */
typedef struct { int most, few, subs_many, subs_few; void (*many[9])(const ti_cells *), (*few_rows[5])(const ti_cells *), (*single[9])(const ti_cells *); } FN(cell_tiles);
#define C(G_, S_, MR_) FN(cells_##G_##_##S_##_##MR_)
#if VL == 16
static const FN(cell_tiles) FN(tiles_of_1) = {6, 3, 4, 8,
  {0, C(1, 4, 1), C(1, 4, 2), C(1, 4, 3), C(1, 4, 4), C(1, 4, 5), C(1, 4, 6)}, {0, C(1, 8, 1), C(1, 8, 2), C(1, 8, 3)},
  {0, C(1, 1, 1), C(1, 1, 2), C(1, 1, 3), C(1, 1, 4), C(1, 1, 5), C(1, 1, 6)}};
static const FN(cell_tiles) FN(tiles_of_3) = {8, 4, 1, 2,
  {0, C(3, 1, 1), C(3, 1, 2), C(3, 1, 3), C(3, 1, 4), C(3, 1, 5), C(3, 1, 6), C(3, 1, 7), C(3, 1, 8)},
  {0, C(3, 2, 1), C(3, 2, 2), C(3, 2, 3), C(3, 2, 4)},
  {0, C(3, 1, 1), C(3, 1, 2), C(3, 1, 3), C(3, 1, 4), C(3, 1, 5), C(3, 1, 6), C(3, 1, 7), C(3, 1, 8)}};
static const FN(cell_tiles) FN(tiles_of_4) = {6, 3, 1, 2,
  {0, C(4, 1, 1), C(4, 1, 2), C(4, 1, 3), C(4, 1, 4), C(4, 1, 5), C(4, 1, 6)}, {0, C(4, 2, 1), C(4, 2, 2), C(4, 2, 3)},
  {0, C(4, 1, 1), C(4, 1, 2), C(4, 1, 3), C(4, 1, 4), C(4, 1, 5), C(4, 1, 6)}};
#else
static const FN(cell_tiles) FN(tiles_of_1) = {3, 1, 4, 8, {0, C(1, 4, 1), C(1, 4, 2), C(1, 4, 3)}, {0, C(1, 8, 1)},
  {0, C(1, 1, 1), C(1, 1, 2), C(1, 1, 3)}};
static const FN(cell_tiles) FN(tiles_of_3) = {4, 2, 1, 2, {0, C(3, 1, 1), C(3, 1, 2), C(3, 1, 3), C(3, 1, 4)}, {0, C(3, 2, 1), C(3, 2, 2)},
  {0, C(3, 1, 1), C(3, 1, 2), C(3, 1, 3), C(3, 1, 4)}};
static const FN(cell_tiles) FN(tiles_of_4) = {3, 1, 1, 2, {0, C(4, 1, 1), C(4, 1, 2), C(4, 1, 3)}, {0, C(4, 2, 1)},
  {0, C(4, 1, 1), C(4, 1, 2), C(4, 1, 3)}};
#endif
#undef C

/* A step of all rows, the units from `first` on as far as `last`: weights of some after those of others, each for all
 * rows while they are near. */
static void FN(cells_step)(const ti_cells *step, int64_t rows, int64_t first, int64_t last) {
  const FN(cell_tiles) *tiles = step->kind == TI_CELL_LSTM ? &FN(tiles_of_4) : step->kind == TI_CELL_GRU ? &FN(tiles_of_3) : &FN(tiles_of_1);
  const int64_t vectors = ti_ceil(last, VL), even = ti_even(rows, tiles->most), few = rows <= tiles->few;
  const int64_t several = few ? tiles->subs_few : tiles->subs_many;
  for (int64_t v = first / VL, subs; v < vectors; v += subs) {
    const int64_t unit = v * VL, whole = v + several <= vectors;
    subs = whole ? several : 1;
    ti_cells t = *step;
    t.weight += v * t.block;
    if (t.bias) t.bias += unit;
    t.x += unit; t.before += unit; t.cell += unit; t.h += unit;
    if (t.kept) t.kept += unit;
    t.units = t.hidden - unit;
    for (int64_t i = 0; i < rows; i += even) {
      const int64_t mr = ti_min(even, rows - i);
      (!whole ? tiles->single : few ? tiles->few_rows : tiles->many)[mr](&t);
      t.state += mr * t.state_row; t.x += mr * t.x_row; t.before += mr * t.before_row; t.cell += mr * t.hidden; t.h += mr * t.h_row;
      if (t.kept) t.kept += mr * t.kept_row;
    }
  }
}

/* Copies columns of rows that are as wide on both sides. */
static inline void FN(copy_columns)(float *to, const float *from, int64_t rows, int64_t width, int64_t j0, int64_t j1) {
  for (int64_t r = 0; r < rows; r++) memcpy(to + r * width + j0, from + r * width + j0, sizeof(float) * (size_t)(j1 - j0));
}

/* One step of some rows and units; `full` has room for states before their projection. */
static void FN(step_forward)(const recurrent_ints *s, char *const *args, int64_t step, int64_t b0, int64_t rows, int64_t first, int64_t last, float *full) {
  const int64_t gates = ti_gates(s), kept = ti_kept(s), place = (s->reverse ? s->time - 1 - step : step) * s->batch + b0;
  float *const y = (float *)args[0] + place * s->state, *const cell = (float *)args[1] + (s->cell == TI_CELL_LSTM ? b0 * s->hidden : 0);
  const float *const before = step ? y + (s->reverse ? 1 : -1) * s->batch * s->state : (const float *)args[4] + b0 * s->state;
  if (!step && s->cell == TI_CELL_LSTM) FN(copy_columns)(cell, (const float *)args[5] + b0 * s->hidden, rows, s->hidden, first, last);
  const ti_cells t = {
    .state = before, .weight = (const float *)args[6], .bias = s->cell == TI_CELL_GRU ? (const float *)args[7] : NULL,
    .x = (const float *)args[3] + place * gates, .before = before, .cell = cell, .h = s->projects ? full : y,
    .kept = s->keeps && kept ? (float *)args[2] + place * kept : NULL, .state_row = s->state, .x_row = gates,
    .before_row = s->state, .h_row = s->projects ? s->hidden : s->state, .kept_row = kept,
    .block = s->state * ti_gates_of(s->cell) * VL, .summands = s->state, .hidden = s->hidden, .kind = (int)s->cell,
  };
  FN(cells_step)(&t, rows, first, last);
  if (s->projects) FN(rows_product)(y, full, (const float *)args[8], rows, s->hidden, s->state, 0);
}

TI_KERNEL(recurrence) {
  const recurrent_ints *const s = (const recurrent_ints *)ints;
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    if (s->parts) {
      const int64_t part = item % s->parts, first = part * s->units;
      FN(step_forward)(s, args, item / s->parts, 0, s->batch, first, ti_min(first + s->units, s->hidden), NULL);
      continue;
    }
    const int64_t b0 = item * s->rows, rows = ti_min(s->rows, s->batch - b0);
    for (int64_t step = 0; step < s->time; step++) FN(step_forward)(s, args, step, b0, rows, 0, s->hidden, (float *)scratch);
  }
  return TI_OK;
}

/* Some units of one sample of one step backwards: gradients of the gates' sums at `d` (of their recurrent half at
 * `inner`, GRU). dh: gradient of the state, which GRU replaces by its direct share; dc: of the cell, updated in place. */
TI_INLINE void FN(cell_backward)(int64_t kind, int64_t H, int64_t first, int64_t last, float *dh, float *dc, const float *y,
                                 const float *kept, const float *before, float *d, float *inner) {
  const int64_t width = kind == TI_CELL_LSTM ? 5 : kind == TI_CELL_GRU ? 4 : 0;
  for (int64_t j = first; j < last; j += VL) {
    const VF g0 = ROW(dh);
    /* what the forward kept of the next sample: too much for all of it to have been fetched by the hardware */
    for (int64_t part = 0; part < width; part++) _mm_prefetch((const char *)(kept + (width + part) * H + j), _MM_HINT_T0);
    if (kind == TI_CELL_TANH) { const VF v = ROW(y); PUT(d, g0 * (1.0f - v * v)); }
    else if (kind == TI_CELL_RELU) PUT(d, (VF)((VI)g0 & (VI)(ROW(y) > FN(set)(0.0f))));
    else if (kind == TI_CELL_LSTM) {
      const VF i = ROW(kept), f = ROW(kept + H), g = ROW(kept + 2 * H), o = ROW(kept + 3 * H), t = FN(tanh)(ROW(kept + 4 * H));
      const VF c = ROW(dc) + g0 * o * (1.0f - t * t);
      PUT(d, c * g * i * (1.0f - i));
      PUT(d + H, c * ROW(before) * f * (1.0f - f));
      PUT(d + 2 * H, c * i * (1.0f - g * g));
      PUT(d + 3 * H, g0 * t * o * (1.0f - o));
      PUT(dc, c * f);
    } else {
      const VF r = ROW(kept), z = ROW(kept + H), n = ROW(kept + 2 * H);
      const VF dn = g0 * (1.0f - z) * (1.0f - n * n), dr = dn * ROW(kept + 3 * H) * r * (1.0f - r);
      const VF dz = g0 * (ROW(before) - n) * z * (1.0f - z);
      PUT(d, dr); PUT(d + H, dz); PUT(d + 2 * H, dn);
      PUT(inner, dr); PUT(inner + H, dz); PUT(inner + 2 * H, dn * r);
      PUT(dh, g0 * z);
    }
  }
}

/* Gradients of some rows and units in one step, counted from the last: of the state at dh[rows][state], from those of
 * the step behind it, then of the gates' sums. `full` has room for gradients before a projection. The step behind all
 * others has gradients of the first states alone. */
static void FN(step_backward)(const recurrent_ints *s, char *const *args, int64_t step, int64_t b0, int64_t rows, int64_t first, int64_t last,
                              float *dh, float *dc, float *full) {
  const int64_t gates = ti_gates(s), kept = ti_kept(s), is_lstm = s->cell == TI_CELL_LSTM, is_gru = s->cell == TI_CELL_GRU;
  const int64_t t = s->reverse ? step : s->time - 1 - step, place = t * s->batch + b0, is_first = step == s->time - 1;
  const int64_t later = (s->reverse ? t - 1 : t + 1) * s->batch + b0, earlier = (s->reverse ? t + 1 : t - 1) * s->batch + b0;
  if (step) FN(columns_product)(dh, (const float *)args[is_gru] + later * gates, (const float *)args[10], rows, gates, s->state, first, last, (int)is_gru);
  else {
    for (int64_t r = 0; r < rows; r++) memset(dh + r * s->state + first, 0, sizeof(float) * (size_t)(last - first));
    if (is_lstm) FN(copy_columns)(dc, (const float *)args[5] + b0 * s->hidden, rows, s->hidden, s->projects ? 0 : first, s->projects ? s->hidden : last);
  }
  if (step == s->time) return;
  const float *const dy = (const float *)args[4] + place * s->state, *const y = (const float *)args[7] + place * s->state;
  float *const d = (float *)args[0] + place * gates, *const inner = is_gru ? (float *)args[1] + place * gates : d, *total = dh;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = first; j < last; j++) dh[r * s->state + j] += dy[r * s->state + j];
  if (s->projects) {
    memcpy((float *)args[1] + place * s->state, dh, sizeof(float) * (size_t)(rows * s->state));
    FN(rows_product)(full, dh, (const float *)args[11], rows, s->state, s->hidden, 0);
    total = full; first = 0; last = s->hidden;
  }
  for (int64_t r = 0; r < rows; r++) {
    const float *before = NULL;
    if (is_lstm) before = is_first ? (const float *)args[9] + (b0 + r) * s->hidden : (const float *)args[6] + (earlier + r) * kept + 4 * s->hidden;
    if (is_gru) before = is_first ? (const float *)args[8] + (b0 + r) * s->state : (const float *)args[7] + (earlier + r) * s->state;
    FN(cell_backward)(s->cell, s->hidden, first, last, total + r * s->hidden, dc + r * s->hidden, y + r * s->state,
                      (const float *)args[6] + (place + r) * kept, before, d + r * gates, inner + r * gates);
  }
}

TI_KERNEL(recurrence_backward) {
  const recurrent_ints *const s = (const recurrent_ints *)ints;
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    if (s->parts) {
      const int64_t part = item % s->parts, first = part * s->units;
      FN(step_backward)(s, args, item / s->parts, 0, s->batch, first, ti_min(first + s->units, s->hidden), (float *)args[2], (float *)args[3], NULL);
      continue;
    }
    const int64_t b0 = item * s->rows, rows = ti_min(s->rows, s->batch - b0);
    float *dh = (float *)scratch, *dc = dh + s->rows * s->state, *full = dc + s->rows * s->hidden;
    for (int64_t step = 0; step <= s->time; step++) FN(step_backward)(s, args, step, b0, rows, 0, s->state, dh, dc, full);
    memcpy((float *)args[2] + b0 * s->state, dh, sizeof(float) * (size_t)(rows * s->state));
    if (s->cell == TI_CELL_LSTM) memcpy((float *)args[3] + b0 * s->hidden, dc, sizeof(float) * (size_t)(rows * s->hidden));
  }
  return TI_OK;
}
#undef ROW
#undef PUT
