/* How neighbouring pixels end where all ops that round do so stochastically: what groups of pixels share stays at hand, and each
 * activation has a loop of its own. Groups are whole, so that nothing is asked of single pixels.
 */
#include "blocked_ending_body.h"

/* Where an op draws, at the first pixel and from each to the next; its second key. */
typedef struct {
  int rounds, begins;  /* `begins`: elsewhere than the op before */
  VU place, apart, second;
} FN(drawn_op);

/* What the ops of one block take; what is read lies beside the first pixel. */
typedef struct {
  VF first, scale, shift;
  const float *added, *gate;
  int has_first, is_affine, overflow;
  VU place, apart;  /* those of the first op that draws */
  FN(drawn_op) ops[TI_ROUNDED_OPS];
} FN(drawn_ending);

TI_INLINE FN(drawn_ending) FN(drawn_of)(const FN(blocked_ending) *e, ptrdiff_t to, const FN(blocked_place) *at, int64_t block) {
  const FN(blocked_rounding) *const r = &e->rounding;
  FN(drawn_ending) d = {.added = e->added ? e->added + to : NULL, .gate = e->gate ? e->gate + to : NULL,
                        .has_first = e->first != NULL, .is_affine = e->is_affine, .overflow = r->overflow};
  if (e->first) d.first = FN(load)(e->first + block * VL);
  if (e->is_affine) { d.scale = FN(load)(e->scale + block * VL); d.shift = FN(load)(e->shift + block * VL); }
  for (int op = TI_ROUNDED_OPS - 1; op >= 0; op--) {
    const FN(rounded_op) *const o = r->ops + op;
    d.ops[op] = (FN(drawn_op)){o->is_rounded, o->begins, FN(drawn_at)(o, at), (VU){0} + FN(drawn_apart)(r, o), (VU){0} + o->keys.second};
    if (!o->is_rounded) continue;
    d.place = d.ops[op].place;
    d.apart = d.ops[op].apart;
  }
  return d;
}

/* For how many groups of pixels each op does not ask whether values are normal halves. */
typedef struct {
  int groups[TI_ROUNDED_OPS];
} FN(unasked);

#if VL == 16
/* The constants of rounding, which are read from memory: registers are wanted for other things. */
TI_INLINE FN(rounding_constants) FN(name_constants)(void) {
  return (FN(rounding_constants)){.exponent = (VU){0} + 0xff800000u, .least = (VU){0} + 0x38800000, .less = (VU){0} + (uint32_t)-(42 << 23),
                                  .upper = (VU){0} + 0xffff0000u, .largest = FN(set)(0x1p16f), .size = (VU){0} + 0x7fffffffu,
                                  .kept_bits = (VU){0} + ~0x1fffu, .range = (VU){0} + (0x477fdfffu - 0x38800000u)};
}

/* As `round_normal` where there are no zeros. */
TI_INLINE int FN(round_all_normal)(const FN(rounding_constants) *c, const int count, const VU *words, VF *v) {
  VU rounded[4];
  if (!FN(add_bits)(c->kept_bits, c->largest, (VF)c->least, count, words, v, rounded)) return 0;
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) v[p] = (VF)rounded[p];
  return 1;
}

/* The same where zeros are as usual as others: they are looked for first. */
TI_INLINE int FN(round_normal_or_zero)(const FN(rounding_constants) *c, const int count, const VU *words, VF *v) {
  VU rounded[4];
  __m512i fewest = _mm512_set1_epi32(-1);  /* twice the size of those that are not zero */
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) {
    const __mmask16 others = _mm512_test_epi32_mask((__m512i)v[p], (__m512i)c->size);
    rounded[p] = (VU)_mm512_mask_and_epi32((__m512i)v[p], others, (__m512i)((VU)v[p] + (words[p] >> 19)), (__m512i)c->kept_bits);
    fewest = _mm512_mask_min_epu32(fewest, others, fewest, (__m512i)(rounded[p] + rounded[p]));
  }
  __m512 most = _mm512_range_ps((__m512)rounded[0], (__m512)rounded[count - 1], 11);  /* NaN passes by */
#pragma GCC unroll 2
  for (int p = 1; p < count - 1; p++) most = _mm512_range_ps(most, (__m512)rounded[p], 11);
  if (__builtin_expect(_mm512_cmp_ps_mask(most, (__m512)c->largest, _CMP_GE_OQ) | _mm512_cmplt_epu32_mask(fewest, (__m512i)(c->least + c->least)), 0)) return 0;
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) v[p] = (VF)rounded[p];
  return 1;
}

/* Rounds `count` vectors by their words if they are normal halves, or zero where these are usual. Returns whether they are. */
TI_INLINE int FN(round_usual)(const int has_zeros, const int count, VF *v, const VU *words) {
  const FN(rounding_constants) constants = FN(name_constants)();
  return has_zeros ? FN(round_normal_or_zero)(&constants, count, words, v) : FN(round_all_normal)(&constants, count, words, v);
}
#else
/* Eight lanes have no loops for what is usual: `end_all_drawn` asks for none. */
TI_INLINE int FN(round_usual)(const int has_zeros, const int count, VF *v, const VU *words) {
  (void)has_zeros, (void)count, (void)v, (void)words;
  return 0;
}
#endif

/* The same of all vectors. */
TI_INLINE void FN(round_at_random)(int *unasked, const int count, VF *v, const VU *words, int overflow) {
#if VL == 16
  const FN(rounding_constants) constants = FN(name_constants)();
  if (*unasked > 0) --*unasked;
  else if (FN(round_normal_or_zero)(&constants, count, words, v)) return;
  else *unasked = FN(GROUPS_BEYOND);
  FN(halves) halves[FN(ROUNDED_PIXELS)];
  FN(halves_of_some)(&constants, count, v, words, overflow, halves);
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) v[p] = FN(of_halves)(halves[p]);
#else
  (void)unasked;
#pragma GCC unroll 4
  for (int p = 0; p < count; p++) v[p] = FN(rounded_by)(v[p], words[p], overflow);
#endif
}

/* Some neighbouring pixels, i behind the first one, at y. Ops that are alike all draw where the first of them does. Without
 * `unasked` nothing is written unless all values are normal halves or, with `has_zeros`, zero; returns whether they are. */
TI_INLINE int FN(end_drawn)(const FN(drawn_ending) *e, FN(unasked) *unasked, const int has_zeros, const int is_alike, const int activation,
                            const int count, float *y, int64_t i, VU place) {
  const int is_gated = activation == TI_ACTIVATION_HARDSWISH || activation == TI_ACTIVATION_HARDSIGMOID;  /* zeros are usual */
  VF v[FN(ROUNDED_PIXELS)];
  VU at[FN(ROUNDED_PIXELS)], factor[FN(ROUNDED_PIXELS)], words[FN(ROUNDED_PIXELS)];
  TI_EACH(count) {
    v[p] = FN(load)(y + (i + p) * VL);
    at[p] = place;
    factor[p] = FN(shared_factor)(place);
    place += e->apart;
  }
#define TI_PLACE(p) (i + p) * VL
#define TI_ROUND(op) \
  if (e->ops[op].rounds) { \
    if (!is_alike && e->ops[op].begins) { \
      place = e->ops[op].place + e->ops[op].apart * (uint32_t)i; \
      TI_EACH(count) { \
        at[p] = place; \
        factor[p] = FN(shared_factor)(place); \
        place += e->ops[op].apart; \
      } \
    } \
    TI_EACH(count) words[p] = factor[p] * (at[p] ^ e->ops[op].second); \
    if (unasked) FN(round_at_random)(unasked->groups + op, count, v, words, e->overflow); \
    else if (!FN(round_usual)(has_zeros || (op == 3 && is_gated), count, v, words)) return 0; \
  }
  TI_END_ROUNDED(e->has_first, e->first, e->scale, e->shift, activation, count, TI_PLACE, TI_ROUND);
#undef TI_PLACE
#undef TI_ROUND
  TI_EACH(count) FN(store)(y + (i + p) * VL, v[p]);
  return 1;
}

/* Loops for normal halves, for these and zeros, and for all values: each leaves what it cannot round, and all behind it, to the
 * next. Where a channel is dead zeros are many; other values are few or many. */
TI_INLINE void FN(end_all_drawn)(const FN(blocked_ending) *of, const int is_alike, const int activation, float *y, ptrdiff_t to, int64_t count,
                                 const FN(blocked_place) *at, int64_t block) {
  const FN(drawn_ending) e = FN(drawn_of)(of, to, at, block);
  FN(unasked) unasked = {{0}};
  VU place = e.place;
  int64_t i = 0;
#define TI_WHILE(rounded) \
  for (; i + FN(ROUNDED_PIXELS) <= count; i += FN(ROUNDED_PIXELS), place += e.apart * FN(ROUNDED_PIXELS)) \
    if (!(rounded)) break
#if VL == 16
  TI_WHILE(__builtin_expect(FN(end_drawn)(&e, NULL, 0, is_alike, activation, FN(ROUNDED_PIXELS), y + to, i, place), 1));
  TI_WHILE(__builtin_expect(FN(end_drawn)(&e, NULL, 1, is_alike, activation, FN(ROUNDED_PIXELS), y + to, i, place), 1));
#endif
  TI_WHILE(FN(end_drawn)(&e, &unasked, 1, is_alike, activation, FN(ROUNDED_PIXELS), y + to, i, place));
#undef TI_WHILE
  for (; i < count; i++, place += e.apart) FN(end_drawn)(&e, &unasked, 1, is_alike, activation, 1, y + to, i, place);
}

#undef TI_DRAWN
#define TI_DRAWN(activation) \
  static __attribute__((noinline)) void FN(drawn_##activation)(const FN(blocked_ending) *e, float *y, ptrdiff_t to, int64_t count, \
                                                               const FN(blocked_place) *at, int64_t block) { \
    FN(end_all_drawn)(e, 1, TI_ACTIVATION_##activation, y, to, count, at, block); \
  }
/* Ops that draw at several places. */
static __attribute__((noinline)) void FN(drawn_apart_from)(const FN(blocked_ending) *e, float *y, ptrdiff_t to, int64_t count,
                                                           const FN(blocked_place) *at, int64_t block) {
  FN(end_all_drawn)(e, 0, e->activation, y, to, count, at, block);
}
TI_DRAWN(NONE) TI_DRAWN(RELU) TI_DRAWN(RELU6) TI_DRAWN(HARDSWISH) TI_DRAWN(HARDSIGMOID) TI_DRAWN(SILU) TI_DRAWN(SIGMOID) TI_DRAWN(GELU)
static void (*const FN(drawn_table)[])(const FN(blocked_ending) *, float *, ptrdiff_t, int64_t, const FN(blocked_place) *, int64_t) = {
  [TI_ACTIVATION_NONE] = FN(drawn_NONE), [TI_ACTIVATION_RELU] = FN(drawn_RELU), [TI_ACTIVATION_RELU6] = FN(drawn_RELU6),
  [TI_ACTIVATION_HARDSWISH] = FN(drawn_HARDSWISH), [TI_ACTIVATION_HARDSIGMOID] = FN(drawn_HARDSIGMOID),
  [TI_ACTIVATION_SILU] = FN(drawn_SILU), [TI_ACTIVATION_SIGMOID] = FN(drawn_SIGMOID), [TI_ACTIVATION_GELU] = FN(drawn_GELU),
};

static void FN(end_neighbours_drawn)(const FN(blocked_ending) *e, float *y, ptrdiff_t to, int64_t count, const FN(blocked_place) *at, int64_t block) {
  (e->rounding.is_alike ? FN(drawn_table)[e->activation] : FN(drawn_apart_from))(e, y, to, count, at, block);
}
