/* How optimisers and accumulation read and write what they keep; table/update.py says what UpdateInts hold. */
#include "rounding_body.h"
#include "table/update.h"

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
  int shares;  /* whether all draw at the same places */
  FN(keys) keys[4];
#if VL == 16
  int collects, collected;  /* whether what is written waits for the pair of vectors to be whole; which of them wait */
  VF waiting[4][2];
  VU place;  /* of the elements that are written next */
#endif
} FN(target);

TI_INLINE void FN(aim)(FN(target) *to, char *const *args, const int64_t *ints) {
  const update_ints *const n = (const update_ints *)ints;
  memset(to, 0, sizeof *to);
  to->args = args;
  to->halves = n->halves;
  to->overflow = (int)n->overflow;
  to->is_stochastic = n->first_random && !FN(rounds_to_nearest)((const int64_t *)args[n->first_random]);
  for (int k = 0; to->is_stochastic && k < n->num_random; k++)
    to->keys[k] = FN(keys_of)((const int64_t *)args[n->first_random + k]);
  to->shares = 1;
  for (int k = 1; to->is_stochastic && k < n->num_random; k++) to->shares &= to->keys[k].first == to->keys[0].first;
}

TI_INLINE void FN(write_half)(FN(target) *to, int k, int64_t i, int64_t width, VF v) {
  const FN(halves) halves =
      to->is_stochastic ? FN(halves_by)(v, FN(random_words_from)(to->keys[k], i), to->overflow)
                        : FN(nearest_halves)(to->overflow == TI_HALF_OVERFLOW_INFINITY ? v : FN(rounded_to_nearest)(v, to->overflow));
  uint16_t *p = (uint16_t *)to->args[k] + i;
  if (width >= VL) FN(store_halves)(p, halves);
  else memcpy(p, &halves, (size_t)width * 2);
}

TI_INLINE void FN(write)(FN(target) *to, int k, int64_t i, int64_t width, VF v) {
#if VL == 16
  if (to->collects) {
    to->waiting[k][i >> 4 & 1] = v;
    to->collected |= 1 << k;
    return;
  }
#endif
  if (to->halves >> k & 1) {
    FN(write_half)(to, k, i, width, v);
    return;
  }
  FN(store_most)((float *)to->args[k] + i, v, width);
}

#if VL == 16
/* Rounds the pairs of vectors that wait, from element i on, and writes them; of `count` operands at most, which share their
 * places. */
TI_INLINE void FN(write_pairs)(FN(target) *to, const FN(rounding_constants) *c, const int count, char *const *args, int64_t i) {
  const VU place = to->place, next = place + 16 * TI_ROUNDING_STEP;
  const VU factors[] = {FN(shared_factor)(place), FN(shared_factor)(next)};
#pragma GCC unroll 4
  for (int turn = 1; turn <= 4; turn++) {
    const int k = turn & 3;    /* the parameter, which waits for a root and a division, last */
    if (k >= count) continue;  /* the others are read alone */
    if (!(to->collected >> k & 1)) continue;
    const VU second = (VU){0} + to->keys[k].second, words[] = {factors[0] * (place ^ second), factors[1] * (next ^ second)};
    FN(halves) halves[2];
    FN(halves_of_some)(c, 2, to->waiting[k], words, to->overflow, halves);
    uint16_t *const p = (uint16_t *)args[k] + i;
    FN(store_halves)(p, halves[0]);
    FN(store_halves)(p + 16, halves[1]);
  }
  to->place = place + 32 * TI_ROUNDING_STEP;
  to->collected = 0;
}
#endif

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
