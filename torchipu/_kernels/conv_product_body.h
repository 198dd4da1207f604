/* Convolutions and their gradients as matrix products over columns of pixels, thirty-two pixels side by side.
 *
 * The left operand is the weights as they lie in memory: nothing is packed, which matters where images are small and
 * weights are many. The right operand, the pixels that each element of the window meets, is laid out in panels of 32
 * lanes, a block of summands at a time, so that it stays in the cache. A panel may span rows and images, so that small
 * images fill it as well as large ones do.
 */
#include "gemm_body.h"
#include "conv_ending_body.h"

#ifndef TORCHIPU_CONV_PRODUCT
#define TORCHIPU_CONV_PRODUCT
enum { TI_RUNS = 4, TI_AHEAD = 36 /* summands that weights are fetched ahead */, TI_SHIFTS = 1024 /* taps */ };
/* Where the lanes of a vector come from. A run is a stretch of lanes whose elements lie `step` apart: lane l is read at
 * x[index[run] + l * step]. With more than TI_RUNS runs, each lane has an index of its own. */
typedef struct {
  int32_t runs;              /* TI_RUNS + 1: each lane has its own index */
  uint32_t mask[TI_RUNS];    /* lanes of each run; mask[0] holds all lanes where each has its own index */
  int32_t index[16];
} ti_source;

/* Adds the lanes [lane, end), the first of which is read at `from`. */
static inline void ti_add_run(ti_source *s, int lane, int end, int64_t from, int64_t step) {
  const int32_t index = (int32_t)(from - lane * step);
  const uint32_t lanes = (uint32_t)((1ull << end) - (1ull << lane));
  if (s->runs <= TI_RUNS && s->runs && s->index[s->runs - 1] == index) { s->mask[s->runs - 1] |= lanes; return; }
  if (s->runs < TI_RUNS) { s->index[s->runs] = index; s->mask[s->runs++] = lanes; return; }
  if (s->runs == TI_RUNS) {
    int32_t first[TI_RUNS];
    memcpy(first, s->index, sizeof first);
    memset(s->index, 0, sizeof s->index);
    for (int r = 0; r < TI_RUNS; r++)
      for (int l = 0; l < 16; l++) if (s->mask[r] >> l & 1) s->index[l] = (int32_t)(first[r] + l * step);
    for (int r = 1; r < TI_RUNS; r++) { s->mask[0] |= s->mask[r]; s->mask[r] = 0; }
    s->runs++;
  }
  s->mask[0] |= lanes;
  for (int l = lane; l < end; l++) s->index[l] = (int32_t)(index + l * step);
}
#endif

enum { FN(WIDE) = TI_LANES / VL };  /* vectors of a panel */

/* Fills the sources of `panels` panels from lane q0: table[panel][tap][vector], relative to the image of lane q0.
 * Returns the most runs of a vector. */
static int FN(find_sources)(const grid *g, const grid_tap *taps, int64_t count, int64_t q0, int64_t panels, ti_source *table) {
  const int64_t all = g->n * g->gh * g->gw, image = g->g * g->c * g->h * g->w, first = q0 / (g->gh * g->gw);
  int most = 0;
  memset(table, 0, sizeof(ti_source) * (size_t)(panels * count * FN(WIDE)));
  for (int64_t q = q0; q < ti_min(all, q0 + panels * TI_LANES);) {
    const int64_t b = q % g->gw, a = q / g->gw % g->gh, n = q / (g->gw * g->gh) - first;
    const int lane = (int)((q - q0) % VL);
    const int64_t length = ti_min(ti_min(VL - lane, g->gw - b), all - q);
    ti_source *s = table + (q - q0) / TI_LANES * count * FN(WIDE) + (q - q0) % TI_LANES / VL;
    for (int64_t t = 0; t < count; t++, s += FN(WIDE)) {
      const int64_t row = a * g->sh + taps[t].row, col = b * g->sw + taps[t].column;
      if (row < 0 || row >= g->h) continue;
      const int64_t lo = col < 0 ? ti_ceil(-col, g->sw) : 0;
      const int64_t hi = col < g->w ? ti_min(length, ti_ceil(g->w - col, g->sw)) : 0;
      if (lo >= hi) continue;
      ti_add_run(s, lane + (int)lo, lane + (int)hi, n * image + row * g->w + col + lo * g->sw, g->sw);
      if (s->runs > most) most = s->runs;
    }
    q += length;
  }
  return most;
}

/* Where the taps of lanes are read: tap t of vector v of a panel at x + by[t], from sources[panel * each + t * next + v];
 * columns go by tap, then by channel, where by_tap says so. */
typedef struct { const ti_source *sources; const int64_t *by; int64_t each, next; int most, by_tap; } FN(reach);

/* Finds what `panels` panels from lane q0 meet. Where no window reaches beyond its image, all taps see the same lanes, so
 * many elements apart, and these are found once. `by` has room for TI_SHIFTS. */
static FN(reach) FN(find_reach)(const grid *g, const grid_tap *taps, int64_t count, int64_t q0, int64_t panels, ti_source *table, int64_t *by) {
  int is_inside = count <= TI_SHIFTS;
  for (int64_t t = 0; t < count && is_inside; t++) {
    is_inside = taps[t].row >= 0 && taps[t].row + (g->gh - 1) * g->sh < g->h && taps[t].column >= 0 && taps[t].column + (g->gw - 1) * g->sw < g->w;
    by[t] = taps[t].row * g->w + taps[t].column;
  }
  const grid_tap none = {0};
  FN(reach) found = {.sources = table, .by = is_inside ? by : NULL, .next = is_inside ? 0 : FN(WIDE)};
  found.each = is_inside ? FN(WIDE) : count * FN(WIDE);
  found.most = FN(find_sources)(g, is_inside ? &none : taps, is_inside ? 1 : count, q0, panels, table);
  return found;
}

/* One vector, lanes without a source 0. `most` bounds the runs. */
TI_INLINE VF FN(fetch)(const ti_source *s, const float *x, const int64_t step, const int most) {
#if VL == 16
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512 v = _mm512_setzero_ps();
  if (most > TI_RUNS && s->runs > TI_RUNS)
    return (VF)_mm512_mask_i32gather_ps(v, (__mmask16)s->mask[0], _mm512_loadu_si512(s->index), x, 4);
  if (step == 1) {
#pragma GCC unroll 4
    for (int r = 0; r < (most < TI_RUNS ? most : TI_RUNS); r++) v = _mm512_mask_loadu_ps(v, (__mmask16)s->mask[r], x + s->index[r]);
  } else if (step == 2) {
    for (int r = 0; r < s->runs; r++) {
      const float *p = x + s->index[r];
      const uint32_t bits = _pdep_u32(s->mask[r], 0x55555555u), high = _pdep_u32(s->mask[r] >> 8, 0x55555555u);
      const __m512 pairs = _mm512_permutex2var_ps(_mm512_maskz_loadu_ps((__mmask16)bits, p), _mm512_slli_epi32(lane, 1),
                                                  _mm512_maskz_loadu_ps((__mmask16)high, p + 16));
      v = _mm512_mask_mov_ps(v, (__mmask16)s->mask[r], pairs);
    }
  } else {
    for (int r = 0; r < s->runs; r++) {
      const __m512i apart = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)step));
      v = _mm512_mask_i32gather_ps(v, (__mmask16)s->mask[r], _mm512_add_epi32(apart, _mm512_set1_epi32(s->index[r])), x, 4);
    }
  }
  return (VF)v;
#else
  VF v = {0};
  if (step == 1 && s->runs <= TI_RUNS) {
    for (int r = 0; r < s->runs; r++) v = (VF)((VI)v | (VI)FN(load_lanes)(x + s->index[r], s->mask[r]));
    return v;
  }
  for (int r = 0; r < (s->runs > TI_RUNS ? 1 : s->runs); r++)
    for (int l = 0; l < VL; l++)
      if (s->mask[r] >> l & 1) v[l] = s->runs > TI_RUNS ? x[s->index[l]] : x[s->index[r] + l * step];
  return v;
#endif
}

/* The rows of summands (channel, tap), or (tap, channel), of `panels` panels, `pitch` floats apart, for `channels` channels
 * from x. Panels run within a channel, so that planes are read along their rows. */
TI_INLINE void FN(columns_of)(const FN(reach) *from, int64_t taps, int64_t panels, int64_t pitch, const float *x, int64_t plane, int64_t channels,
                              const int64_t step, const int most, float *d) {
  const int64_t along = from->by_tap ? TI_LANES : taps * TI_LANES, further = from->by_tap ? (channels - 1) * TI_LANES : 0;
  for (int64_t c = 0; c < channels; c++, x += plane, d += along)
    for (int64_t p = 0; p < panels; p++) {
      const ti_source *s = from->sources + p * from->each;
      float *to = d + p * pitch;
      for (int64_t t = 0; t < taps; t++, s += from->next, to += further)
        for (int v = 0; v < FN(WIDE); v++, to += VL) FN(store)(to, FN(fetch)(s + v, x + (from->by ? from->by[t] : 0), step, most));
    }
}
static void FN(columns)(const FN(reach) *from, int64_t taps, int64_t panels, int64_t pitch, const float *x, int64_t plane, int64_t channels,
                        int64_t step, float *d) {
  if (step == 1 && from->most <= 1) FN(columns_of)(from, taps, panels, pitch, x, plane, channels, 1, 1, d);
  else if (step == 1 && from->most <= 2) FN(columns_of)(from, taps, panels, pitch, x, plane, channels, 1, 2, d);
  else if (step == 1 && from->most <= TI_RUNS) FN(columns_of)(from, taps, panels, pitch, x, plane, channels, 1, TI_RUNS, d);
  else if (step == 2 && from->most <= TI_RUNS) FN(columns_of)(from, taps, panels, pitch, x, plane, channels, 2, TI_RUNS, d);
  else FN(columns_of)(from, taps, panels, pitch, x, plane, channels, step, TI_RUNS + 1, d);
}

/* C[mr x 32] = A B, or += : A(i, k) = a[i * as + k], or a[i * as + offsets[k]], or packed a[k * mr + i]; B [k][32]. The
 * sum begins at zero and is added to what C holds at its end, so that long sums are sums of short ones. */
/* What becomes of the sums at last: act(scale sum + shift + added), by row, and 0 where `gate` is not above 0; `to` is
 * NULL while sums go on. */
typedef struct { float *to; const float *added, *gate, *scale, *shift; ptrdiff_t row; int is_relu; } FN(finish);
typedef struct {
  const float *a, *b; float *c; const int32_t *offsets; ptrdiff_t as, ldc; int64_t k; int order, accumulate;
  FN(finish) end;
} FN(panel);
TI_INLINE void FN(panel_of)(const int mr, const int nv, const int order, const FN(panel) *t) {
  VF c0[TI_MR], c1[TI_MR];
  const float *a = t->a, *b = t->b;
  const int32_t *offsets = t->offsets;
  const ptrdiff_t as = order == TI_ORDER_PACKED ? 1 : t->as;
  const int64_t last = t->k;
#pragma GCC unroll 16
  for (int i = 0; i < mr; i++) c0[i] = c1[i] = FN(set)(0);
  if (t->end.to)
#pragma GCC unroll 1
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 1
      for (int v = 0; v < nv; v++) {
        const ptrdiff_t at = i * t->end.row + v * VL;
        __builtin_prefetch(t->end.to + at, 1);
        if (t->end.added) __builtin_prefetch(t->end.added + at);
        if (t->end.gate) __builtin_prefetch(t->end.gate + at);
      }
  for (int64_t k = 0; k < last; k++, b += TI_LANES) {
    const float *p = order == TI_ORDER_GATHERED ? a + offsets[k] : order == TI_ORDER_PACKED ? a + k * mr : a + k;
    if (order == TI_ORDER_GATHERED) __builtin_prefetch(a + offsets[ti_min(k + TI_AHEAD, last - 1)] + k % 8 * 16);
    if (order == TI_ORDER_PACKED) _mm_prefetch((const char *)(p + TI_AHEAD * mr), _MM_HINT_T0);
    const VF b0 = FN(load)(b);
    VF b1;
    if (nv > 1) b1 = FN(load)(b + VL);
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
      if (nv == 1) {
        FN(add_product_of)(&c0[i], p + i * as, b0);
        continue;
      }
      const VF x = FN(broadcast)(p + i * as);
      FN(add_product)(&c0[i], x, b0);
      FN(add_product)(&c1[i], x, b1);
    }
  }
  if (t->accumulate) {
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
      c0[i] += FN(load)(t->c + i * t->ldc);
      if (nv > 1) c1[i] += FN(load)(t->c + i * t->ldc + VL);
    }
  }
  if (t->end.to) {
    const FN(finish) e = t->end;
    if (e.scale) {
#pragma GCC unroll 16
      for (int i = 0; i < mr; i++) {
        const VF scale = FN(set)(e.scale[i]), shift = FN(set)(e.shift[i]);
        c0[i] = c0[i] * scale + shift;
        if (nv > 1) c1[i] = c1[i] * scale + shift;
      }
    }
    if (e.added) {
#pragma GCC unroll 16
      for (int i = 0; i < mr; i++) {
        c0[i] += FN(load)(e.added + i * e.row);
        if (nv > 1) c1[i] += FN(load)(e.added + i * e.row + VL);
      }
    }
    if (e.gate) {
#pragma GCC unroll 16
      for (int i = 0; i < mr; i++) {
        c0[i] = FN(gated)(c0[i], FN(load)(e.gate + i * e.row));
        if (nv > 1) c1[i] = FN(gated)(c1[i], FN(load)(e.gate + i * e.row + VL));
      }
    }
    if (e.is_relu) {
#pragma GCC unroll 16
      for (int i = 0; i < mr; i++) { c0[i] = FN(relu)(c0[i]); if (nv > 1) c1[i] = FN(relu)(c1[i]); }
    }
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
      FN(store)(e.to + i * e.row, c0[i]);
      if (nv > 1) FN(store)(e.to + i * e.row + VL, c1[i]);
    }
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < mr; i++) {
    FN(store)(t->c + i * t->ldc, c0[i]);
    if (nv > 1) FN(store)(t->c + i * t->ldc + VL, c1[i]);
  }
}
#undef TI_PANEL_TILE
#undef TI_PANEL_NAMES
#define TI_PANEL_TILE(M_) \
  static __attribute__((noinline)) void FN(panel_##M_##_1)(const FN(panel) *t) { FN(panel_of)(M_, 1, TI_ORDER_BY_ROW, t); } \
  static __attribute__((noinline)) void FN(panel_##M_##_2)(const FN(panel) *t) { FN(panel_of)(M_, 2, TI_ORDER_BY_ROW, t); } \
  static __attribute__((noinline)) void FN(panel_##M_##_3)(const FN(panel) *t) { FN(panel_of)(M_, 1, TI_ORDER_GATHERED, t); } \
  static __attribute__((noinline)) void FN(panel_##M_##_4)(const FN(panel) *t) { FN(panel_of)(M_, 2, TI_ORDER_GATHERED, t); } \
  static __attribute__((noinline)) void FN(panel_##M_##_5)(const FN(panel) *t) { FN(panel_of)(M_, 1, TI_ORDER_PACKED, t); } \
  static __attribute__((noinline)) void FN(panel_##M_##_6)(const FN(panel) *t) { FN(panel_of)(M_, 2, TI_ORDER_PACKED, t); }
#define TI_PANEL_NAMES(M_) \
  {FN(panel_##M_##_1), FN(panel_##M_##_2), FN(panel_##M_##_3), FN(panel_##M_##_4), FN(panel_##M_##_5), FN(panel_##M_##_6)}
TI_PANEL_TILE(1) TI_PANEL_TILE(2) TI_PANEL_TILE(3) TI_PANEL_TILE(4) TI_PANEL_TILE(5) TI_PANEL_TILE(6)
#if VL == 16
TI_PANEL_TILE(7) TI_PANEL_TILE(8) TI_PANEL_TILE(9) TI_PANEL_TILE(10) TI_PANEL_TILE(11) TI_PANEL_TILE(12) TI_PANEL_TILE(13) TI_PANEL_TILE(14)
#endif
/* By rows, then by order and vectors. */
static void (*const FN(panel_table)[TI_MR][6])(const FN(panel) *) = {
  TI_PANEL_NAMES(1), TI_PANEL_NAMES(2), TI_PANEL_NAMES(3), TI_PANEL_NAMES(4), TI_PANEL_NAMES(5), TI_PANEL_NAMES(6),
#if VL == 16
  TI_PANEL_NAMES(7), TI_PANEL_NAMES(8), TI_PANEL_NAMES(9), TI_PANEL_NAMES(10), TI_PANEL_NAMES(11), TI_PANEL_NAMES(12), TI_PANEL_NAMES(13), TI_PANEL_NAMES(14),
#endif
};
/* `rows` rows against the first `lanes` lanes of a panel. */
TI_INLINE void FN(multiply_panel)(FN(panel) t, int64_t rows, int64_t lanes) {
  for (int64_t l = 0; l < lanes; l += 2 * VL, t.b += 2 * VL, t.c += 2 * VL) {
    FN(panel_table)[rows - 1][2 * t.order + (lanes - l > VL)](&t);
    if (t.end.to) t.end.to += 2 * VL;
    if (t.end.added) t.end.added += 2 * VL;
    if (t.end.gate) t.end.gate += 2 * VL;
  }
}

/* Packs A(i, k) = a[i + k * ak] as [tile][k][rows of the tile], along the rows that a has in memory. */
static void FN(pack_turned)(const float *a, ptrdiff_t ak, int64_t m, int64_t even, int64_t depth, float *d) {
  for (int64_t k = 0; k < depth; k++, a += ak)
    for (int64_t i = 0; i < m; i += even) {
      const int64_t rows = ti_min(even, m - i);
      __builtin_prefetch(a + 8 * ak + i);
      FN(store_part)(d + i * depth + k * rows, FN(load_part)(a + i, (int)rows), (int)rows);
    }
}

/* Finishes `rows` rows of one vector of a panel, c[row][TI_LANES], and stores their lanes where they belong. */
TI_INLINE void FN(put)(const ti_source *s, const float *c, int64_t rows, FN(finish) e, int64_t step) {
  const ti_source where = *s;
  if (!where.runs) return;
  for (int64_t i = 0; i < rows; i++, c += TI_LANES, e.to += e.row) {
    VF value = FN(load)(c);
    if (e.scale) value = value * e.scale[i] + e.shift[i];
    if (e.added) { value += FN(fetch)(&where, e.added, step, TI_RUNS + 1); e.added += e.row; }
    if (e.gate) { value = FN(gated)(value, FN(fetch)(&where, e.gate, step, TI_RUNS + 1)); e.gate += e.row; }
    if (e.is_relu) value = FN(relu)(value);
#if VL == 16
    if (step == 1 && where.runs <= TI_RUNS) {
      for (int r = 0; r < where.runs; r++) _mm512_mask_storeu_ps(e.to + where.index[r], (__mmask16)where.mask[r], (__m512)value);
      continue;
    }
#endif
    for (int r = 0; r < (where.runs > TI_RUNS ? 1 : where.runs); r++)
      for (int l = 0; l < VL; l++)
        if (where.mask[r] >> l & 1) e.to[where.runs > TI_RUNS ? where.index[l] : where.index[r] + l * step] = value[l];
  }
}

/* Whether the lanes of a panel lie side by side where they are stored. */
TI_INLINE int FN(is_whole)(const ti_source *s, int64_t step) {
  for (int v = 0; v < FN(WIDE); v++)
    if (step != 1 || s[v].runs != 1 || s[v].mask[0] != (1u << VL) - 1 || s[v].index[0] != s[0].index[0] + v * VL) return 0;
  return 1;
}

/* Where the lanes of `panels` panels from lane q0 are stored, relative to the first image: table[panel][vector]. */
static void FN(find_targets)(const grid *g, const grid_target *to_where, int64_t q0, int64_t panels, ti_source *table) {
  const int64_t all = g->n * g->gh * g->gw, image = g->g * g->m * to_where->plane, n0 = q0 / (g->gh * g->gw);
  memset(table, 0, sizeof(ti_source) * (size_t)(panels * FN(WIDE)));
  for (int64_t q = q0; q < ti_min(all, q0 + panels * TI_LANES);) {
    const int64_t b = q % g->gw, a = q / g->gw % g->gh, n = q / (g->gw * g->gh) - n0;
    const int lane = (int)((q - q0) % VL);
    const int64_t length = ti_min(ti_min(VL - lane, g->gw - b), all - q);
    const int64_t to = n * image + to_where->first + a * to_where->down + b * to_where->across;
    ti_add_run(table + (q - q0) / VL, lane, lane + (int)length, to, to_where->across);
    q += length;
  }
}

TI_KERNEL(conv_product) {
  const conv_product_ints *const sizes = (const conv_product_ints *)ints;
  const grid g = sizes->grid;
  const int64_t taps = sizes->num_taps, most_panels = sizes->panels, most_rows = sizes->rows, block = sizes->channels, segment = sizes->segment;
  const int64_t lanes = g.n * g.gh * g.gw, parts = ti_ceil(lanes, most_panels * TI_LANES), shares = ti_ceil(g.m, most_rows);
  const int64_t plane = g.h * g.w, depth = block * taps, channel = sizes->weight_channel;
  const grid_tap *list = sizes->taps;
  const int flags = (int)sizes->flags, order = (int)sizes->order;
  float *columns = (float *)scratch, *results = columns + most_panels * depth * TI_LANES, *scale = results + most_panels * most_rows * TI_LANES;
  float *shift = scale + ti_ceil(most_rows, 16) * 16;
  float *packed = shift + ti_ceil(most_rows, 16) * 16;
  int32_t *offsets = (int32_t *)(packed + (order == TI_ORDER_PACKED ? most_rows * depth : 0));
  ti_source *sources = (ti_source *)(offsets + ti_ceil(depth, 16) * 16), *targets = sources + most_panels * taps * FN(WIDE);
  int64_t by[TI_SHIFTS];
  for (int64_t k = 0; k < depth; k++) offsets[k] = (int32_t)(k / taps * channel + list[k % taps].weight);
  for (int64_t item = begin; item < end; item++) {
    const int64_t m0 = item % shares * most_rows, q0 = item / shares % parts * most_panels * TI_LANES, group = item / (shares * parts);
    const int64_t rows = ti_min(most_rows, g.m - m0), even = ti_even(rows, TI_MR), n0 = q0 / (g.gh * g.gw);
    const int64_t panels = ti_min(most_panels, ti_ceil(lanes - q0, TI_LANES));
    const float *x = (const float *)args[1] + (n0 * g.g + group) * g.c * plane;
    const float *w = (const float *)args[2] + group * sizes->weight_group + m0 * sizes->weight_row;
    const ptrdiff_t at = ((n0 * g.g + group) * g.m + m0) * sizes->target.plane;
    float *const y = (float *)args[0] + at;
    char *const *like = args + 3 + !!(flags & TI_CONV_ENDING_HAS_BIAS) + 2 * !!(flags & TI_CONV_ENDING_HAS_NORM) + !!(flags & TI_CONV_ENDING_HAS_NORM_WEIGHT) + !!(flags & TI_CONV_ENDING_HAS_NORM_BIAS);
    const float *const added = flags & TI_CONV_ENDING_HAS_ADDEND ? (const float *)*like++ + at : NULL, *const gate = flags & TI_CONV_ENDING_HAS_GATE ? (const float *)*like + at : NULL;
    FN(reach) reach = FN(find_reach)(&g, list, taps, q0, panels, sources, by);
    reach.by_tap = order == TI_ORDER_BY_TAP;
    FN(find_targets)(&g, &sizes->target, q0, panels, targets);
    FN(find_affine)(args + 3, flags, ((const conv_product_scalars *)scalars)->epsilon, group * g.m + m0, rows, scale, shift);
    if (taps == 0) memset(results, 0, sizeof(float) * (size_t)(panels * most_rows * TI_LANES));
    for (int64_t c = 0; c < g.c; c += block) {
      const int64_t channels = ti_min(block, g.c - c), k = channels * taps;
      FN(columns)(&reach, taps, panels, depth * TI_LANES, x + c * plane, plane, channels, g.sw, columns);
      if (order == TI_ORDER_PACKED) FN(pack_turned)(w + c * channel, channel, rows, even, k, packed);
      for (int64_t i = 0; i < rows; i += even) {
        const int64_t height = ti_min(even, rows - i);
        const float *a = w + i * sizes->weight_row + c * channel, *next = i + even < rows ? a + even * sizes->weight_row : NULL;
        if (order == TI_ORDER_PACKED) a = packed + i * k;
        if (order == TI_ORDER_READY) a = (const float *)args[2] + (group * g.m + m0 + i) * g.c * taps + c * taps * height;
        for (int64_t from = 0, length; from < ti_max(k, 1); from += ti_max(length, 1)) {
          /* Where channels adjoin, those of a tap are summed at a time. */
          const int64_t at = order == TI_ORDER_BY_TAP ? list[from / channels].weight + from % channels : from;
          length = ti_min(segment, order == TI_ORDER_BY_TAP ? channels - from % channels : k - from);
          const int is_last = c + block >= g.c && from + length >= k;
          for (int64_t p = 0; p < panels; p++) {
            const ti_source *to = targets + p * FN(WIDE);
            float *const tile = results + (p * most_rows + i) * TI_LANES;
            const ptrdiff_t row = i * sizes->target.plane;
            const FN(finish) end = {.to = y + row, .added = added ? added + row : NULL, .gate = gate ? gate + row : NULL,
                                    .scale = flags & (TI_CONV_ENDING_HAS_BIAS | TI_CONV_ENDING_HAS_NORM) ? scale + i : NULL, .shift = shift + i,
                                    .row = sizes->target.plane, .is_relu = flags & TI_CONV_ENDING_IS_RELU};
            FN(panel) t = {.a = order == TI_ORDER_GATHERED ? a : a + at * (order == TI_ORDER_BY_ROW || order == TI_ORDER_BY_TAP ? 1 : height), .as = sizes->weight_row,
                           .offsets = offsets + from, .b = columns + (p * depth + from) * TI_LANES, .c = tile, .ldc = TI_LANES,
                           .k = length, .order = order == TI_ORDER_READY ? TI_ORDER_PACKED : order == TI_ORDER_BY_TAP ? TI_ORDER_BY_ROW : order, .accumulate = c + from > 0};
            const int is_whole = is_last && FN(is_whole)(to, sizes->target.across);
            if (is_whole) {
              t.end = end;
              t.end.to += to->index[0];
              if (added) t.end.added += to->index[0];
              if (gate) t.end.gate += to->index[0];
            }
            /* The weights of the rows that come next, a part with each panel: a line is too far from the one before it
             * for the processor to foresee it. */
            if (next && (order == TI_ORDER_BY_ROW || order == TI_ORDER_BY_TAP))
              for (int64_t r = height * p / panels; r < ti_min(height * (p + 1) / panels, rows - i - even); r++)
                for (int64_t l = 0; l < length; l += 16) _mm_prefetch((const char *)(next + r * sizes->weight_row + at + l), _MM_HINT_T1);
            if (taps) FN(multiply_panel)(t, height, ti_min(TI_LANES, lanes - q0 - p * TI_LANES));
            if (!is_last || (is_whole && taps)) continue;
            for (int v = 0; v < FN(WIDE); v++) FN(put)(to + v, tile + v * VL, height, end, sizes->target.across);
          }
        }
      }
    }
  }
  return TI_OK;
}

/* Columns of a panel of up to 32 summands from `first` for the 32 lanes of `table`, lanes down: d[lane][32]. */
TI_INLINE void FN(turned_of)(const FN(reach) *from, int64_t panel, int64_t taps, const float *x, int64_t plane, int64_t first, int64_t count, int64_t step, const int most, float *d) {
  _Alignas(64) float block[VL * VL];
  for (int64_t k0 = 0; k0 < TI_LANES; k0 += VL)
    for (int v = 0; v < FN(WIDE); v++) {
      const ti_source *s = from->sources + panel * from->each + v;
      int64_t c = (first + k0) / taps, t = (first + k0) % taps;
      for (int k = 0; k < VL; k++) {
        const int there = k0 + k < count;
        FN(store)(block + k * VL, there ? FN(fetch)(s + t * from->next, x + c * plane + (from->by ? from->by[t] : 0), step, most) : FN(set)(0));
        if (++t == taps) { t = 0; c++; }
      }
      FN(transpose_block)(block, VL, d + v * VL * TI_LANES + k0, TI_LANES, VL, 0);
    }
}
static void FN(turned_columns)(const FN(reach) *from, int64_t panel, int64_t taps, const float *x, int64_t plane, int64_t first, int64_t count, int64_t step, float *d) {
  if (step == 1 && from->most <= 1) FN(turned_of)(from, panel, taps, x, plane, first, count, 1, 1, d);
  else if (step == 1 && from->most <= 2) FN(turned_of)(from, panel, taps, x, plane, first, count, 1, 2, d);
  else if (step == 1 && from->most <= TI_RUNS) FN(turned_of)(from, panel, taps, x, plane, first, count, 1, TI_RUNS, d);
  else if (step == 2 && from->most <= TI_RUNS) FN(turned_of)(from, panel, taps, x, plane, first, count, 2, TI_RUNS, d);
  else FN(turned_of)(from, panel, taps, x, plane, first, count, step, TI_RUNS + 1, d);
}

TI_KERNEL(conv_product_weight) {
  const conv_product_weight_ints *const sizes = (const conv_product_weight_ints *)ints;
  const grid g = sizes->grid;
  const int64_t taps = sizes->num_taps, length = sizes->lanes, most_panels = sizes->panels, most_rows = sizes->rows;
  const int64_t chunks = sizes->chunks, K = g.c * taps, pixels = g.gh * g.gw, plane = g.h * g.w;
  const int64_t parts = ti_ceil(K, most_panels * TI_LANES), shares = ti_ceil(g.m, most_rows);
  /* Blocks of lanes stay within an image where images are large: their gradients are then read in place. */
  const int in_place = length <= pixels;
  const int64_t each = in_place ? ti_ceil(pixels, length) : 1, blocks = in_place ? g.n * each : ti_ceil(g.n * pixels, length);
  const grid_target to = {.plane = pixels, .first = 0, .down = g.gw, .across = 1};
  const grid_tap *list = sizes->taps;
  int64_t by[TI_SHIFTS];
  float *columns = (float *)scratch, *results = columns + length * TI_LANES * most_panels, *left = results + most_panels * TI_LANES * most_rows;
  ti_source *sources = (ti_source *)(left + length * most_rows), *targets = sources + length / TI_LANES * taps * FN(WIDE);
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t k0 = item % parts * most_panels * TI_LANES, m0 = item / parts % shares * most_rows;
    const int64_t group = item / (parts * shares) % g.g, chunk = item / (parts * shares * g.g);
    const int64_t rows = ti_min(most_rows, g.m - m0), even = ti_even(rows, TI_MR), panels = ti_min(most_panels, ti_ceil(K - k0, TI_LANES));
    const int64_t first = blocks * chunk / chunks, last = blocks * (chunk + 1) / chunks;
    float *const d = (float *)args[0] + ((chunk * g.g + group) * g.m + m0) * K + k0;
    for (int64_t b = first; b < last; b++) {
      const int64_t q0 = in_place ? b / each * pixels + b % each * length : b * length, n0 = q0 / pixels;
      const int64_t lanes = ti_min(length, (in_place ? (n0 + 1) * pixels : g.n * pixels) - q0), wide = ti_ceil(lanes, TI_LANES);
      const float *x = (const float *)args[2] + (n0 * g.g + group) * g.c * plane;
      const float *dy = (const float *)args[1] + ((n0 * g.g + group) * g.m + m0) * pixels, *a = dy + q0 % pixels;
      const FN(reach) reach = FN(find_reach)(&g, list, taps, q0, wide, sources, by);
      if (!in_place) {
        FN(find_targets)(&g, &to, q0, wide, targets);
        for (int64_t i = 0; i < rows; i++)
          for (int64_t v = 0; v < wide * FN(WIDE); v++) FN(store)(left + i * length + v * VL, FN(fetch)(targets + v, dy + i * pixels, 1, TI_RUNS + 1));
        a = left;
      }
      for (int64_t p = 0; p < panels; p++) {
        const int64_t k = k0 + p * TI_LANES;
        for (int64_t l = 0; l < wide; l++)
          FN(turned_columns)(&reach, l, taps, x, plane, k, ti_min(TI_LANES, K - k), g.sw, columns + (p * length + l * TI_LANES) * TI_LANES);
      }
      for (int64_t i = 0; i < rows; i += even)
        for (int64_t p = 0; p < panels; p++) {
          const int64_t as = in_place ? pixels : length, height = ti_min(even, rows - i), width = ti_min(TI_LANES, K - k0 - p * TI_LANES);
          float *const tile = results + (p * most_rows + i) * TI_LANES, *const there = d + i * K + p * TI_LANES;
          const int direct = last - first == 1 && width == TI_LANES;
          const FN(panel) t = {.a = a + i * as, .b = columns + p * length * TI_LANES, .c = direct ? there : tile,
                               .as = as, .ldc = direct ? K : TI_LANES, .k = lanes, .accumulate = b > first};
          FN(multiply_panel)(t, height, width);
          if (direct || b + 1 < last) continue;
          for (int64_t r = 0; r < height; r++)
            for (int64_t v = 0; v < width; v += VL)
              FN(store_part)(there + r * K + v, FN(load)(tile + r * TI_LANES + v), (int)ti_min(VL, width - v));
        }
    }
  }
  return TI_OK;
}
