/* How optimisers and accumulation read and write what they keep; included once for each instruction set.
 *
 * Hyperparameters are 16 doubles (see HYPER in update.pyx). Items are blocks of 4096 elements. ints are n; halves,
 * whose bit k is set when argument k is half; flags; what becomes of an overflow; where the random words by which
 * those written are rounded begin among the arguments, or 0 to round to nearest; and how many there are: one each in
 * their order. */
#include "rounding_body.h"

enum {
  FN(LR), FN(BETA1), FN(BETA2), FN(EPS), FN(WEIGHT_DECAY), FN(MOMENTUM), FN(DAMPENING), FN(ALPHA), FN(GRAD_SCALE),
  FN(MAXIMIZE), FN(NESTEROV), FN(AMSGRAD), FN(CENTERED), FN(BIAS_CORRECTION), FN(MAX_WEIGHT_NORM),
  FN(TRUST_COEFFICIENT)
};
enum { FN(SPAN) = 4096 };

/* Argument k at element i, `width` elements of it. */
TI_INLINE VF FN(read)(char *const *args, int64_t halves, int k, int64_t i, int64_t width) {
  if (halves >> k & 1) {
    const uint16_t *p = (const uint16_t *)args[k] + i;
    if (width >= VL) return FN(from_half)(p);
    uint16_t lanes[VL] = {0};
    memcpy(lanes, p, (size_t)width * 2);
    return FN(from_half)(lanes);
  }
  return FN(load_most)((const float *)args[k] + i, width);
}

/* How the written arguments, of which there are up to four, are rounded. */
typedef struct {
  char *const *args;
  int64_t halves;
  int overflow, is_stochastic;
  FN(keys) keys[4];
  VU words[4][16 / VL];  /* random words, of which the elements 16 further on take the other halves */
} FN(target);

TI_INLINE void FN(aim)(FN(target) *to, char *const *args, const int64_t *ints) {
  memset(to->words, 0, sizeof to->words);
  to->args = args;
  to->halves = ints[1];
  to->overflow = (int)ints[3];
  to->is_stochastic = ints[4] && !FN(rounds_to_nearest)((const int64_t *)args[ints[4]]);
  for (int k = 0; to->is_stochastic && k < ints[5]; k++) to->keys[k] = FN(keys_of)((const int64_t *)args[ints[4] + k]);
}

TI_INLINE VU FN(bits_for)(FN(target) *to, int k, int64_t i) {
  VU *words = &to->words[k][(i & 15) / VL];
  if (i & 16) return *words >> 16;
  *words = FN(random_words)(to->keys[k], i);
  return *words & 0xffff;
}

TI_INLINE void FN(write_half)(FN(target) *to, int k, int64_t i, int64_t width, VF v) {
  const FN(halves) halves =
      to->is_stochastic ? FN(halves_by)(v, FN(bits_for)(to, k, i), to->overflow)
                        : FN(nearest_halves)(to->overflow == FN(OVERFLOW_INFINITY) ? v : FN(rounded_to_nearest)(v, to->overflow));
  uint16_t *p = (uint16_t *)to->args[k] + i;
  if (width >= VL) FN(store_halves)(p, halves);
  else memcpy(p, &halves, (size_t)width * 2);
}

TI_INLINE void FN(write)(FN(target) *to, int k, int64_t i, int64_t width, VF v) {
  if (to->halves >> k & 1) {
    FN(write_half)(to, k, i, width, v);
    return;
  }
  FN(store_most)((float *)to->args[k] + i, v, width);
}

/* a + w (b - a), taken from the nearer end. */
TI_INLINE VF FN(lerp)(VF a, VF b, float w) {
  if (w < 0.5f) return a + (b - a) * w;
  return b - (b - a) * (1.0f - w);
}

/* The gradient as the optimisers use it: unscaled, negated to maximise, with the L2 term where it is coupled. */
TI_INLINE VF FN(gradient)(VF grad, VF param, float scale, float decay) {
  grad = grad * scale;
  if (decay != 0.0f) grad = grad + param * decay;
  return grad;
}
