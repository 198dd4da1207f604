/* What becomes of sums that lie in blocks of channels: a bias or a normalisation, an addend, an activation. */
#include "conv_ending_body.h"

typedef struct {
  const float *added;          /* lies as the results do; NULL for none */
  const float *scale, *shift;  /* of each result of the blocks */
  int is_affine, activation;
} FN(blocked_ending);

TI_INLINE VF FN(activated)(const int activation, VF v) {
  const VF six = FN(set)(6.f), zero = FN(set)(0.f);
  switch (activation) {
    case TI_ACTIVATION_RELU: return FN(relu)(v);
    case TI_ACTIVATION_RELU6: return FN(minimum)(FN(relu)(v), six);
    case TI_ACTIVATION_HARDSWISH: return v * FN(minimum)(FN(maximum)(v + 3.f, zero), six) / 6.f;
    case TI_ACTIVATION_HARDSIGMOID: return FN(minimum)(FN(maximum)(v + 3.f, zero), six) / 6.f;
    case TI_ACTIVATION_SILU: return v / (1.f + FN(exp)(-v));
    case TI_ACTIVATION_SIGMOID: return FN(sigmoid)(v);
    case TI_ACTIVATION_GELU: return 0.5f * v * (1.f + FN(erf)(v * 0.70710678f));
    default: return v;
  }
}

/* Ends `count` pixels of one block, whose place in the results `at` tells. */
TI_INLINE void FN(end_pixels)(const FN(blocked_ending) e, const int activation, float *y, const int32_t *at, int64_t count, int64_t block) {
  const VF scale = FN(load)(e.scale + block * VL), shift = FN(load)(e.shift + block * VL);
  for (int64_t i = 0; i < count; i++) {
    VF v = FN(load)(y + at[i]);
    if (e.is_affine) v = FN(fma)(v, scale, shift);
    if (e.added) v += FN(load)(e.added + at[i]);
    FN(store)(y + at[i], FN(activated)(activation, v));
  }
}

static void FN(end_block)(const FN(blocked_ending) *e, float *y, const int32_t *at, int64_t count, int64_t block) {
  switch (e->activation) {
    case TI_ACTIVATION_NONE: if (e->is_affine || e->added) FN(end_pixels)(*e, TI_ACTIVATION_NONE, y, at, count, block); break;
    case TI_ACTIVATION_RELU: FN(end_pixels)(*e, TI_ACTIVATION_RELU, y, at, count, block); break;
    case TI_ACTIVATION_RELU6: FN(end_pixels)(*e, TI_ACTIVATION_RELU6, y, at, count, block); break;
    case TI_ACTIVATION_HARDSWISH: FN(end_pixels)(*e, TI_ACTIVATION_HARDSWISH, y, at, count, block); break;
    case TI_ACTIVATION_HARDSIGMOID: FN(end_pixels)(*e, TI_ACTIVATION_HARDSIGMOID, y, at, count, block); break;
    case TI_ACTIVATION_SILU: FN(end_pixels)(*e, TI_ACTIVATION_SILU, y, at, count, block); break;
    case TI_ACTIVATION_SIGMOID: FN(end_pixels)(*e, TI_ACTIVATION_SIGMOID, y, at, count, block); break;
    default: FN(end_pixels)(*e, TI_ACTIVATION_GELU, y, at, count, block); break;
  }
}

/* Reads what follows the three first arguments; scale and shift of the results [first, first + count) go to `room`,
 * `lanes` floats for each. */
static FN(blocked_ending) FN(begin_ending)(char *const *args, int flags, int activation, double epsilon, int64_t first, int64_t count,
                                           int64_t lanes, float *room) {
  FN(blocked_ending) e = {.scale = room, .shift = room + lanes, .activation = activation,
                          .is_affine = flags & (TI_CONV_ENDING_HAS_BIAS | TI_CONV_ENDING_HAS_NORM)};
  const int before = !!(flags & TI_CONV_ENDING_HAS_BIAS) + 2 * !!(flags & TI_CONV_ENDING_HAS_NORM) +
                     !!(flags & TI_CONV_ENDING_HAS_NORM_WEIGHT) + !!(flags & TI_CONV_ENDING_HAS_NORM_BIAS);
  memset(room, 0, sizeof(float) * 2 * (size_t)lanes);
  FN(find_affine)(args + 3, flags, epsilon, first, count, room, room + lanes);
  if (flags & TI_CONV_ENDING_HAS_ADDEND) e.added = (const float *)args[3 + before];
  return e;
}
