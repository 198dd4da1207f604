/* What becomes of sums that lie in blocks of channels: a bias or a normalisation, an addend, a gate, an activation; with
 * half results each of these but the gate is rounded. */
#include "blocked_rounding_body.h"

typedef struct {
  const float *first;          /* added to the sums before they are rounded; NULL for nothing */
  const float *added, *gate;   /* lie as the results do; NULL for none */
  const float *scale, *shift;  /* of each result of the blocks */
  int is_affine, activation;
  FN(blocked_rounding) rounding;
} FN(blocked_ending);

/* NaN passes: the instructions return their second operand where either is one. */
TI_INLINE VF FN(between)(float low, VF v, float high) {
#if VL == 16
  return (VF)_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), (__m512)v));
#else
  return (VF)_mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), (__m256)v));
#endif
}

TI_INLINE VF FN(hard_gate)(VF v) { return FN(between)(0.f, FN(fma)(v, FN(set)(1.f / 6.f), FN(set)(.5f)), 1.f); }

/* v / (1 + exp(-v)). The division is an estimate that Newton's method makes exact to two units in the last place; where
 * exp(-v) would be infinite, at results of less than 1e-35, they are zero. */
TI_INLINE VF FN(silu)(VF v) {
  const VF below = FN(max)(FN(set)(-87.f), v), d = 1.f + FN(exp)(-below);
#if VL == 16
  VF r = (VF)_mm512_rcp14_ps((__m512)d);
  r = FN(fma)(FN(fma)(-d, r, FN(set)(1.f)), r, r);
  return v * r;
#else
  return v / d;
#endif
}

TI_INLINE VF FN(activated)(const int activation, VF v) {
  switch (activation) {
    case TI_ACTIVATION_RELU: return FN(max)(FN(set)(0.f), v);
    case TI_ACTIVATION_RELU6: return FN(between)(0.f, v, 6.f);
    case TI_ACTIVATION_HARDSWISH: return v * FN(hard_gate)(v);
    case TI_ACTIVATION_HARDSIGMOID: return FN(hard_gate)(v);
    case TI_ACTIVATION_SILU: return FN(silu)(v);
    case TI_ACTIVATION_SIGMOID: return FN(sigmoid)(v);
    case TI_ACTIVATION_GELU: return FN(gelu)(v);
    default: return v;
  }
}

/* Whether an ending takes so few instructions that sums are ended in the registers that hold them. */
static inline int FN(is_short)(const FN(blocked_ending) *e) { return e->activation <= TI_ACTIVATION_HARDSIGMOID && !e->rounding.is_any; }

/* Vectors of `count` neighbouring pixels, `to` floats on, that are rounded after each op but the gate, which leaves halves as
 * they are; `first`, `scale` and `shift` are those of their channels. */
TI_INLINE void FN(end_rounded)(const FN(blocked_ending) *e, const int count, VF *v, VF first, VF scale, VF shift, ptrdiff_t to, const FN(blocked_place) *at) {
  const FN(blocked_rounding) *const r = &e->rounding;
#define TI_EACH _Pragma("GCC unroll 4") for (int p = 0; p < count; p++)
  if (e->first) TI_EACH v[p] += first;
  FN(round_op)(r, 0, count, v, at);
  if (e->is_affine) {
    TI_EACH v[p] = FN(fma)(v[p], scale, shift);
    FN(round_op)(r, 1, count, v, at);
  }
  if (e->added) {
    TI_EACH v[p] += FN(load)(e->added + to + p * VL);
    FN(round_op)(r, 2, count, v, at);
  }
  if (e->gate) TI_EACH v[p] = FN(gated)(v[p], FN(load)(e->gate + to + p * VL));
  if (e->activation != TI_ACTIVATION_NONE) {
    TI_EACH v[p] = FN(activated)(e->activation, v[p]);
    FN(round_op)(r, 3, count, v, at);
  }
#undef TI_EACH
}

/* As `end_pixels`, which follows. */
static __attribute__((noinline)) void FN(round_pixels)(const FN(blocked_ending) *of, float *y, const int32_t *at, int64_t count, int64_t block) {
  const FN(blocked_ending) e = *of;  /* nothing that is stored changes it */
  const VF first = e.first ? FN(load)(e.first + block * VL) : FN(set)(0.f);
  const VF scale = e.is_affine ? FN(load)(e.scale + block * VL) : first, shift = e.is_affine ? FN(load)(e.shift + block * VL) : first;
  for (int64_t i = 0, last; i < count; i = last) {
    FN(blocked_place) place = FN(vector_place)(&e.rounding, y + at[i]);
    const int64_t most = ti_min(count, i + e.rounding.pixels - place.pixel);
    for (last = i + 1; last < most && at[last] == at[last - 1] + VL;) last++;
    for (int64_t j = i, some; j < last; j += some) {
      VF v[FN(ROUNDED_PIXELS)];
      float *const to = y + at[j];
      if (last - j >= FN(ROUNDED_PIXELS)) {
        some = FN(ROUNDED_PIXELS);
        for (int p = 0; p < FN(ROUNDED_PIXELS); p++) v[p] = FN(load)(to + p * VL);
        FN(end_rounded)(&e, FN(ROUNDED_PIXELS), v, first, scale, shift, at[j], &place);
        for (int p = 0; p < FN(ROUNDED_PIXELS); p++) FN(store)(to + p * VL, v[p]);
      } else {
        some = 1;
        v[0] = FN(load)(to);
        FN(end_rounded)(&e, 1, v, first, scale, shift, at[j], &place);
        FN(store)(to, v[0]);
      }
      FN(move_on)(&e.rounding, &place, (uint32_t)some);
    }
  }
}

/* Ends `count` pixels of one block, whose place in the results `at` tells. */
TI_INLINE void FN(end_pixels)(const FN(blocked_ending) e, const int activation, float *y, const int32_t *at, int64_t count, int64_t block) {
  VF scale = FN(set)(1.f), shift = FN(set)(0.f);
  if (e.is_affine) { scale = FN(load)(e.scale + block * VL); shift = FN(load)(e.shift + block * VL); }
  for (int64_t i = 0; i < count; i++) {
    VF v = FN(load)(y + at[i]);
    if (e.is_affine) v = FN(fma)(v, scale, shift);
    if (e.added) v += FN(load)(e.added + at[i]);
    if (e.gate) v = FN(gated)(v, FN(load)(e.gate + at[i]));
    FN(store)(y + at[i], FN(activated)(activation, v));
  }
}

static void FN(end_block)(const FN(blocked_ending) *e, float *y, const int32_t *at, int64_t count, int64_t block) {
  if (e->rounding.is_any) { FN(round_pixels)(e, y, at, count, block); return; }
  switch (e->activation) {
    case TI_ACTIVATION_NONE: if (e->is_affine || e->added || e->gate) FN(end_pixels)(*e, TI_ACTIVATION_NONE, y, at, count, block); break;
    case TI_ACTIVATION_RELU: FN(end_pixels)(*e, TI_ACTIVATION_RELU, y, at, count, block); break;
    case TI_ACTIVATION_RELU6: FN(end_pixels)(*e, TI_ACTIVATION_RELU6, y, at, count, block); break;
    case TI_ACTIVATION_HARDSWISH: FN(end_pixels)(*e, TI_ACTIVATION_HARDSWISH, y, at, count, block); break;
    case TI_ACTIVATION_HARDSIGMOID: FN(end_pixels)(*e, TI_ACTIVATION_HARDSIGMOID, y, at, count, block); break;
    case TI_ACTIVATION_SILU: FN(end_pixels)(*e, TI_ACTIVATION_SILU, y, at, count, block); break;
    case TI_ACTIVATION_SIGMOID: FN(end_pixels)(*e, TI_ACTIVATION_SIGMOID, y, at, count, block); break;
    default: FN(end_pixels)(*e, TI_ACTIVATION_GELU, y, at, count, block); break;
  }
}

/* Goes on to results that lie `floats` further. */
TI_INLINE void FN(move_ending)(FN(blocked_ending) *e, ptrdiff_t floats) {
  if (e->added) e->added += floats;
  if (e->gate) e->gate += floats;
}

/* Reads scales and shifts, `lanes` of each, of which those from `first` on count here, what is added, and the gate. The
 * results of all images have so many channels and pixels. */
static FN(blocked_ending) FN(begin_ending)(char *const *args, int64_t flags, int64_t activation, int64_t lanes, int64_t first,
                                           const void *results, int64_t channels, int64_t pixels) {
  FN(blocked_ending) e = {.is_affine = flags & TI_BLOCKED_ENDING_HAS_AFFINE ? 1 : 0, .activation = (int)activation};
  if (flags & TI_BLOCKED_ENDING_HAS_FIRST) e.first = (const float *)*args++ + lanes + first;
  if (e.is_affine) {
    e.scale = (const float *)*args++ + first;
    e.shift = e.scale + lanes;
  }
  if (flags & TI_BLOCKED_ENDING_HAS_ADDEND) e.added = (const float *)*args++;
  if (flags & TI_BLOCKED_ENDING_HAS_GATE) e.gate = (const float *)*args++;
  e.rounding = FN(begin_rounding)(args, flags, (const float *)results, channels, pixels);
  return e;
}
