/* Optimisers and accumulation; table/update.py says what the kernels take. */
#include "update_state_body.h"

/* What an update takes besides its operands, of which `flags` are the kernel's own. */
#ifndef TORCHIPU_UPDATE
#define TORCHIPU_UPDATE
typedef struct {
  float scale, decay, keep, momentum, fresh1, beta2, fresh2, eps, root, rate;
  int64_t flags;
  int first, nesterov;
} ti_update;
static inline float ti_scale_of(const double *hyper) {
  return (float)(hyper[TI_HYPER_MAXIMIZE] != 0 ? -hyper[TI_HYPER_GRAD_SCALE] : hyper[TI_HYPER_GRAD_SCALE]);
}
#endif

/* Calls FN(verb) for each vector of the items. Where all of the first operands are floats, or all halves, as most are,
 * nothing is asked again for each vector, and the compiler sees that none of them holds the addresses of others. */
#undef TI_EACH_VECTOR
#define TI_EACH_VECTOR(verb, operands, by) \
  do { \
    const update_ints *const n = (const update_ints *)ints; \
    const int64_t last = ti_min(n->elements, end * TI_SPAN), all = (1 << operands) - 1; \
    int64_t i = begin * TI_SPAN; \
    FN(target) to; \
    char *own[operands]; \
    memcpy(own, args, sizeof own); \
    FN(aim)(&to, args, ints); \
    if (!n->halves) { \
      FN(target) floats = {.args = own}; \
      for (; i + VL <= last; i += VL) FN(verb)(&floats, by, own, 0, i, VL); \
    } else if (n->halves == all) { \
      FN(target) halves = to; \
      halves.args = own; \
      halves.halves = all; \
      if (!to.is_stochastic) TI_EACH_GROUP(verb, by, 0); \
      else if (to.shares) TI_EACH_GROUP(verb, by, 1); \
    } \
    for (; i < last; i += VL) FN(verb)(&to, by, args, n->halves, i, last - i); \
  } while (0)
/* Pairs of vectors are rounded at once. */
#undef TI_EACH_GROUP
#if VL == 16
#define TI_EACH_GROUP(verb, by, random) \
  do { \
    const FN(rounding_constants) constants = FN(hold_constants)(); \
    const int operands = (int)(sizeof own / sizeof *own); \
    halves.is_stochastic = halves.collects = random; \
    if (random) halves.place = FN(places_of)(halves.keys[0], i, 1); \
    for (int64_t group = i / 32; group < last / 32; group++) { \
      FN(verb)(&halves, by, own, all, group * 32, VL); \
      FN(verb)(&halves, by, own, all, group * 32 + VL, VL); \
      if (random) FN(write_pairs)(&halves, &constants, operands, own, group * 32); \
      i += 32; \
    } \
  } while (0)
#else
#define TI_EACH_GROUP(verb, by, random) \
  do { \
    halves.is_stochastic = random; \
    for (int64_t group = i / 32; group < last / 32; group++) { \
      for (int lane = 0; lane < 32; lane += VL) FN(verb)(&halves, by, own, all, group * 32 + lane, VL); \
      i += 32; \
    } \
  } while (0)
#endif

TI_INLINE void FN(accumulate_vector)(FN(target) *to, const ti_update *by, char *const *args, int64_t h, int64_t i, int64_t width) {
  (void)by;
  FN(write)(to, 0, i, width, FN(read)(args, h, 0, i, width) + FN(read)(args, h, 1, i, width));
}

TI_KERNEL(accumulate) {
  TI_EACH_VECTOR(accumulate_vector, 2, NULL);
  return TI_OK;
}

TI_KERNEL(fill_zero) {
  const int64_t num_bytes = ((const fill_zero_ints *)ints)->num_bytes;
  memset(args[0] + begin * TI_ZERO_SPAN, 0, (size_t)(ti_min(num_bytes, end * TI_ZERO_SPAN) - begin * TI_ZERO_SPAN));
  return TI_OK;
}

TI_KERNEL(increment) {
  *(float *)args[0] += 1.0f;
  return TI_OK;
}

TI_INLINE void FN(sgd_vector)(FN(target) *to, const ti_update *by, char *const *args, int64_t h, int64_t i, int64_t width) {
  const VF param = FN(read)(args, h, 0, i, width);
  VF grad = FN(gradient)(FN(read)(args, h, 2, i, width), param, by->scale, by->decay);
  if (by->flags & TI_SGD_FLAG_HAS_MOMENTUM) {
    VF buffer = grad;
    if (!by->first) buffer = FN(read)(args, h, 1, i, width) * by->momentum + grad * by->fresh1;
    FN(write)(to, 1, i, width, buffer);
    if (by->nesterov) grad = grad + buffer * by->momentum;
    else grad = buffer;
  }
  FN(write)(to, 0, i, width, param - grad * by->rate);
}

TI_KERNEL(sgd) {
  const double *hyper = (const double *)args[3];
  const ti_update by = {
    .flags = ((const update_ints *)ints)->flags, .first = *(const float *)args[4] <= 1.0f,
    .nesterov = hyper[TI_HYPER_NESTEROV] != 0, .scale = ti_scale_of(hyper), .decay = (float)hyper[TI_HYPER_WEIGHT_DECAY],
    .momentum = (float)hyper[TI_HYPER_MOMENTUM], .fresh1 = (float)(1.0 - hyper[TI_HYPER_DAMPENING]),
    .rate = (float)hyper[TI_HYPER_LR],
  };
  TI_EACH_VECTOR(sgd_vector, 3, &by);
  return TI_OK;
}

TI_INLINE void FN(adam_vector)(FN(target) *to, const ti_update *by, char *const *args, int64_t h, int64_t i, int64_t width) {
  VF param = FN(read)(args, h, 0, i, width);
  const VF grad = FN(gradient)(FN(read)(args, h, 4, i, width), param, by->scale, by->decay);
  param = param * by->keep;
  const VF mean = FN(lerp)(FN(read)(args, h, 1, i, width), grad, by->fresh1);
  const VF square = FN(read)(args, h, 2, i, width) * by->beta2 + grad * grad * by->fresh2;
  VF most = square;
  FN(write)(to, 1, i, width, mean);
  FN(write)(to, 2, i, width, square);
  if (by->flags & TI_ADAM_FLAG_AMSGRAD) {
    most = FN(max)(FN(read)(args, h, 3, i, width), square);
    FN(write)(to, 3, i, width, most);
  }
  FN(write)(to, 0, i, width, param - mean / (FN(sqrt)(most) * by->root + by->eps) * by->rate);
}

/* Bias corrections are taken in double. */
TI_KERNEL(adam) {
  const double *hyper = (const double *)args[5], step = *(const float *)args[6];
  const int64_t flags = ((const update_ints *)ints)->flags;
  const int decoupled = (flags & TI_ADAM_FLAG_DECOUPLED) != 0;
  const double bias1 = 1.0 - pow(hyper[TI_HYPER_BETA1], step), bias2 = 1.0 - pow(hyper[TI_HYPER_BETA2], step);
  const ti_update by = {
    .flags = flags, .scale = ti_scale_of(hyper), .decay = decoupled ? 0.0f : (float)hyper[TI_HYPER_WEIGHT_DECAY],
    .keep = decoupled ? (float)(1.0 - hyper[TI_HYPER_LR] * hyper[TI_HYPER_WEIGHT_DECAY]) : 1.0f,
    .fresh1 = (float)(1.0 - hyper[TI_HYPER_BETA1]), .beta2 = (float)hyper[TI_HYPER_BETA2],
    .fresh2 = (float)(1.0 - hyper[TI_HYPER_BETA2]), .eps = (float)hyper[TI_HYPER_EPS],
    .root = (float)(1.0 / sqrt(bias2)), .rate = (float)(hyper[TI_HYPER_LR] / bias1),
  };
  TI_EACH_VECTOR(adam_vector, 5, &by);
  return TI_OK;
}

TI_INLINE void FN(rmsprop_vector)(FN(target) *to, const ti_update *by, char *const *args, int64_t h, int64_t i, int64_t width) {
  const int of_tensorflow = (by->flags & TI_RMSPROP_FLAG_OF_TENSORFLOW) != 0;
  const float eps_inside = of_tensorflow ? by->eps : 0.0f, eps_outside = of_tensorflow ? 0.0f : by->eps;
  const float within = of_tensorflow ? by->rate : 1.0f, after = of_tensorflow ? 1.0f : by->rate;
  const VF param = FN(read)(args, h, 0, i, width);
  const VF grad = FN(gradient)(FN(read)(args, h, 4, i, width), param, by->scale, by->decay);
  const VF square = FN(read)(args, h, 1, i, width) * by->beta2 + grad * grad * by->fresh2;
  VF spread = square;
  FN(write)(to, 1, i, width, square);
  if (by->flags & TI_RMSPROP_FLAG_CENTRED) {
    const VF mean = FN(lerp)(FN(read)(args, h, 3, i, width), grad, by->fresh2);
    FN(write)(to, 3, i, width, mean);
    spread = square - mean * mean;
  }
  VF move = grad * within / (FN(sqrt)(spread + eps_inside) + eps_outside);
  if (by->flags & TI_RMSPROP_FLAG_HAS_MOMENTUM) {
    move = FN(read)(args, h, 2, i, width) * by->momentum + move;
    FN(write)(to, 2, i, width, move);
  }
  FN(write)(to, 0, i, width, param - move * after);
}

TI_KERNEL(rmsprop) {
  const double *hyper = (const double *)args[5];
  const ti_update by = {
    .flags = ((const update_ints *)ints)->flags, .scale = ti_scale_of(hyper), .decay = (float)hyper[TI_HYPER_WEIGHT_DECAY],
    .momentum = (float)hyper[TI_HYPER_MOMENTUM], .beta2 = (float)hyper[TI_HYPER_ALPHA],
    .fresh2 = (float)(1.0 - hyper[TI_HYPER_ALPHA]), .eps = (float)hyper[TI_HYPER_EPS], .rate = (float)hyper[TI_HYPER_LR],
  };
  TI_EACH_VECTOR(rmsprop_vector, 5, &by);
  return TI_OK;
}
