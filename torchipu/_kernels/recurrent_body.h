/* Recurrent layers: the whole loop over time of a block of samples, with the products of the inputs given. */
#include "gemm_body.h"

#ifndef TORCHIPU_RECURRENT_SHAPE
#define TORCHIPU_RECURRENT_SHAPE
static inline int64_t ti_gates(const recurrent_ints *s) { return s->hidden * (s->cell == TI_CELL_LSTM ? 4 : s->cell == TI_CELL_GRU ? 3 : 1); }
/* Values kept for the backward: the gates and the cell, or the gates and the recurrent half of the new gate. */
static inline int64_t ti_kept(const recurrent_ints *s) { return s->hidden * (s->cell == TI_CELL_LSTM ? 5 : s->cell == TI_CELL_GRU ? 4 : 0); }
#endif

#define ROW(P) FN(load_most)((P) + j, H - j)
#define PUT(P, X) FN(store_most)((P) + j, (X), H - j)
#define GATE(N) (ROW(x + (N) * H) + ROW(sums + (N) * H)) /* the sum of a gate: added here, where it is read, no pass of its own */
#define EACH(H_) for (int64_t j = 0, H = (H_); j < H; j += VL)

/* c[m][n] (+)= a[m][k] b, with b[k][n] in panels as matmul_pack leaves them; the first also takes a bias for each column,
 * or NULL */
static void FN(rows_product)(float *c, const float *a, const float *b, const float *bias, int64_t m, int64_t k, int64_t n, int accumulate) {
  for (int64_t j = 0; j < n; j += TI_PANEL) {
    ti_tile t = {.a = a, .as = k, .ak = 1, .b = b + j * k, .bs = TI_PANEL, .c = c + j, .ldc = n, .k = k, .n1 = 1, .n2 = 1,
                 .accumulate = accumulate, .col_bias = bias ? bias + j : NULL};
    FN(tiles_k_rows)(t, m, ti_min(TI_PANEL, n - j));
  }
}

/* One sample of one step: gates from their sums, the new state at `h`, what the backward needs at `kept`.
 * x: products of the inputs, before: the state before, cell: the cell state, updated in place. */
TI_INLINE void FN(cell_forward)(int64_t kind, int64_t hidden, const float *sums, const float *x, const float *before, float *cell,
                                float *h, float *kept) {
  EACH(hidden) {
    if (kind == TI_CELL_TANH) PUT(h, FN(tanh)(GATE(0)));
    else if (kind == TI_CELL_RELU) PUT(h, FN(relu)(GATE(0)));
    else if (kind == TI_CELL_LSTM) {
      const VF i = FN(sigmoid)(GATE(0)), f = FN(sigmoid)(GATE(1)), g = FN(tanh)(GATE(2)), o = FN(sigmoid)(GATE(3));
      const VF c = f * ROW(cell) + i * g;
      PUT(kept, i); PUT(kept + H, f); PUT(kept + 2 * H, g); PUT(kept + 3 * H, o); PUT(kept + 4 * H, c);
      PUT(cell, c);
      PUT(h, o * FN(tanh)(c));
    } else {
      const VF r = FN(sigmoid)(GATE(0)), z = FN(sigmoid)(GATE(1)), inner = ROW(sums + 2 * H);
      const VF n = FN(tanh)(ROW(x + 2 * H) + r * inner);
      PUT(kept, r); PUT(kept + H, z); PUT(kept + 2 * H, n); PUT(kept + 3 * H, inner);
      PUT(h, n + z * (ROW(before) - n));
    }
  }
}

TI_KERNEL(recurrence) {
  const recurrent_ints s = *(const recurrent_ints *)ints;
  const int64_t gates = ti_gates(&s), kept = ti_kept(&s), is_gru = s.cell == TI_CELL_GRU;
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t b0 = item * s.rows, rows = ti_min(s.rows, s.batch - b0);
    float *sums = (float *)scratch, *cell = sums + s.rows * gates, *full = cell + s.rows * s.hidden;
    float *unread = full + s.rows * s.hidden;
    if (s.cell == TI_CELL_LSTM) memcpy(cell, (const float *)args[5] + b0 * s.hidden, sizeof(float) * (size_t)(rows * s.hidden));
    const float *before = (const float *)args[4] + b0 * s.state;
    for (int64_t step = 0; step < s.time; step++) {
      const int64_t place = (s.reverse ? s.time - 1 - step : step) * s.batch + b0;
      const float *x = (const float *)args[3] + place * gates;
      float *y = (float *)args[0] + place * s.state, *h = s.projects ? full : y;
      FN(rows_product)(sums, before, (const float *)args[6], is_gru ? (const float *)args[7] : NULL, rows, s.state, gates, 0);
      for (int64_t r = 0; r < rows; r++)
        FN(cell_forward)(s.cell, s.hidden, sums + r * gates, x + r * gates, before + r * s.state, cell + r * s.hidden,
                         h + r * s.hidden, s.keeps ? (float *)args[2] + (place + r) * kept : unread);
      if (s.projects) FN(rows_product)(y, full, (const float *)args[8], NULL, rows, s.hidden, s.state, 0);
      before = y;
    }
    if (s.cell == TI_CELL_LSTM) memcpy((float *)args[1] + b0 * s.hidden, cell, sizeof(float) * (size_t)(rows * s.hidden));
  }
  return TI_OK;
}

/* One sample of one step backwards: gradients of the gates' sums at `d` (of their recurrent half at `inner`, GRU).
 * dh: gradient of the state, which GRU replaces by its direct share; dc: of the cell, updated in place. */
TI_INLINE void FN(cell_backward)(int64_t kind, int64_t hidden, float *dh, float *dc, const float *y, const float *kept,
                                 const float *before, float *d, float *inner) {
  EACH(hidden) {
    const VF g0 = ROW(dh);
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

TI_KERNEL(recurrence_backward) {
  const recurrent_ints s = *(const recurrent_ints *)ints;
  const int64_t gates = ti_gates(&s), kept = ti_kept(&s), is_lstm = s.cell == TI_CELL_LSTM, is_gru = s.cell == TI_CELL_GRU;
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t b0 = item * s.rows, rows = ti_min(s.rows, s.batch - b0);
    float *dh = (float *)scratch, *dc = dh + s.rows * s.state, *full = dc + s.rows * s.hidden;
    memset(dh, 0, sizeof(float) * (size_t)(rows * s.state));
    if (is_lstm) memcpy(dc, (const float *)args[5] + b0 * s.hidden, sizeof(float) * (size_t)(rows * s.hidden));
    for (int64_t step = 0; step < s.time; step++) {
      const int64_t t = s.reverse ? step : s.time - 1 - step, place = t * s.batch + b0, is_first = step == s.time - 1;
      const int64_t earlier = (s.reverse ? t + 1 : t - 1) * s.batch + b0;
      const float *dy = (const float *)args[4] + place * s.state, *y = (const float *)args[7] + place * s.state;
      float *d = (float *)args[0] + place * gates, *inner = is_gru ? (float *)args[1] + place * gates : d, *total = dh;
      for (int64_t i = 0; i < rows * s.state; i++) dh[i] += dy[i];
      if (s.projects) {
        memcpy((float *)args[1] + place * s.state, dh, sizeof(float) * (size_t)(rows * s.state));
        FN(rows_product)(full, dh, (const float *)args[11], NULL, rows, s.state, s.hidden, 0);
        total = full;
      }
      for (int64_t r = 0; r < rows; r++) {
        const float *before = NULL;
        if (is_lstm) before = is_first ? (const float *)args[9] + (b0 + r) * s.hidden : (const float *)args[6] + (earlier + r) * kept + 4 * s.hidden;
        if (is_gru) before = is_first ? (const float *)args[8] + (b0 + r) * s.state : (const float *)args[7] + (earlier + r) * s.state;
        FN(cell_backward)(s.cell, s.hidden, total + r * s.hidden, dc + r * s.hidden, y + r * s.state,
                          (const float *)args[6] + (place + r) * kept, before, d + r * gates, inner + r * gates);
      }
      FN(rows_product)(dh, inner, (const float *)args[10], NULL, rows, gates, s.state, is_gru);
    }
    memcpy((float *)args[2] + b0 * s.state, dh, sizeof(float) * (size_t)(rows * s.state));
    if (is_lstm) memcpy((float *)args[3] + b0 * s.hidden, dc, sizeof(float) * (size_t)(rows * s.hidden));
  }
  return TI_OK;
}
#undef ROW
#undef PUT
#undef GATE
#undef EACH
