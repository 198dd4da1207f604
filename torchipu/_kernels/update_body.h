/* Optimisers and accumulation: each writes its state in place. Arithmetic is float whatever the type in memory.
 *
 * Hyperparameters are 16 doubles (see HYPER in update.pyx); `halves` in ints has bit k set when argument k is half.
 * Items of all kernels but fill_zero and increment: blocks of 4096 elements; ints are n, halves, flags, what becomes
 * of an overflow, and where the random words by which those written are rounded begin among the arguments, or 0 to
 * round to nearest, and how many there are: one each in their order. */
#include "rowmath_body.h"
#include "rounding_body.h"

enum {
  FN(LR), FN(BETA1), FN(BETA2), FN(EPS), FN(WEIGHT_DECAY), FN(MOMENTUM), FN(DAMPENING), FN(ALPHA), FN(GRAD_SCALE),
  FN(MAXIMIZE), FN(NESTEROV), FN(AMSGRAD), FN(CENTERED)
};
enum { FN(SPAN) = 4096 };

/* Argument k at element i, `width` elements of it. */
TI_INLINE VF FN(read)(char *const *args, int64_t halves, int k, int64_t i, int64_t width) {
  if (halves >> k & 1) {
    const uint16_t *p = (const uint16_t *)args[k] + i;
    if (width >= VL) return FN(ldh)(p);
    uint16_t lanes[VL] = {0};
    memcpy(lanes, p, (size_t)width * 2);
    return FN(ldh)(lanes);
  }
  const float *p = (const float *)args[k] + i;
  return width < VL ? FN(ldn)(p, width, (VF){0}) : FN(ld)(p);
}

/* How the written arguments, of which there are up to four, are rounded. */
typedef struct {
  char *const *args;
  int64_t halves;
  int overflow, is_stochastic;
  FN(keys) keys[4];
} FN(target);

TI_INLINE void FN(aim)(FN(target) *to, char *const *args, const int64_t *ints) {
  to->args = args;
  to->halves = ints[1];
  to->overflow = (int)ints[3];
  to->is_stochastic = ints[4] && !FN(rounds_to_nearest)((const int64_t *)args[ints[4]]);
  for (int k = 0; to->is_stochastic && k < ints[5]; k++) to->keys[k] = FN(keys_of)((const int64_t *)args[ints[4] + k]);
}

TI_INLINE void FN(write_half)(FN(target) *to, int k, int64_t i, int64_t width, VF v) {
  v = to->is_stochastic ? FN(rounded_by)(v, FN(random_halves)(to->keys[k], i), to->overflow)
                        : FN(rounded_to_nearest)(v, to->overflow);
  uint16_t *p = (uint16_t *)to->args[k] + i;
  if (width >= VL) {
    FN(sth)(p, v);
    return;
  }
  uint16_t lanes[VL];
  FN(sth)(lanes, v);
  memcpy(p, lanes, (size_t)width * 2);
}

TI_INLINE void FN(write)(FN(target) *to, int k, int64_t i, int64_t width, VF v) {
  if (to->halves >> k & 1) {
    FN(write_half)(to, k, i, width, v);
    return;
  }
  float *p = (float *)to->args[k] + i;
  if (width < VL) FN(stn)(p, v, width);
  else FN(st)(p, v);
}

/* a + w (b - a), taken from the nearer end. */
TI_INLINE VF FN(lerp)(VF a, VF b, float w) {
  if (w < 0.5f) return a + (b - a) * w;
  return b - (b - a) * (1.0f - w);
}

/* accumulate: args acc, grad. acc += grad. */
static int FN(accumulate)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                          void *scratch) {
  const int64_t last = TI_MIN(ints[0], end * FN(SPAN)), h = ints[1];
  FN(target) to;
  FN(aim)(&to, args, ints);
  for (int64_t i = begin * FN(SPAN); i < last; i += VL)
    FN(write)(&to, 0, i, last - i, FN(read)(args, h, 0, i, last - i) + FN(read)(args, h, 1, i, last - i));
  return TI_OK;
}

/* fill_zero: args out; ints bytes. Items: blocks of 65536 bytes. */
static int FN(fill_zero)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                         void *scratch) {
  memset(args[0] + begin * 65536, 0, (size_t)(TI_MIN(ints[0], end * 65536) - begin * 65536));
  return TI_OK;
}

/* increment: args step. One item. */
static int FN(increment)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                         void *scratch) {
  *(float *)args[0] += 1.0f;
  return TI_OK;
}

/* The gradient as the optimisers use it: unscaled, negated to maximise, with the L2 term where it is coupled. */
TI_INLINE VF FN(gradient)(VF grad, VF param, float scale, float decay) {
  grad = grad * scale;
  if (decay != 0.0f) grad = grad + param * decay;
  return grad;
}

/* sgd: args param, momentum buffer, grad, hyper, step; flags 1 has a momentum buffer. */
static int FN(sgd)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                   void *scratch) {
  const double *hyper = (const double *)args[3];
  const int64_t last = TI_MIN(ints[0], end * FN(SPAN)), h = ints[1], flags = ints[2];
  FN(target) to;
  FN(aim)(&to, args, ints);
  const int first = *(const float *)args[4] <= 1.0f, nesterov = hyper[FN(NESTEROV)] != 0;
  const float scale = (float)(hyper[FN(MAXIMIZE)] != 0 ? -hyper[FN(GRAD_SCALE)] : hyper[FN(GRAD_SCALE)]);
  const float decay = (float)hyper[FN(WEIGHT_DECAY)], momentum = (float)hyper[FN(MOMENTUM)];
  const float fresh = (float)(1.0 - hyper[FN(DAMPENING)]), rate = (float)hyper[FN(LR)];
  for (int64_t i = begin * FN(SPAN); i < last; i += VL) {
    const int64_t width = last - i;
    const VF param = FN(read)(args, h, 0, i, width);
    VF grad = FN(gradient)(FN(read)(args, h, 2, i, width), param, scale, decay);
    if (flags & 1) {
      VF buffer = grad;
      if (!first) buffer = FN(read)(args, h, 1, i, width) * momentum + grad * fresh;
      FN(write)(&to, 1, i, width, buffer);
      if (nesterov) grad = grad + buffer * momentum;
      else grad = buffer;
    }
    FN(write)(&to, 0, i, width, param - grad * rate);
  }
  return TI_OK;
}

/* adam: args param, exp_avg, exp_avg_sq, max_exp_avg_sq, grad, hyper, step; flags 1 amsgrad, 2 decoupled weight decay.
 * Bias corrections are taken in double. */
static int FN(adam)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                    void *scratch) {
  const double *hyper = (const double *)args[5], step = *(const float *)args[6];
  const int64_t last = TI_MIN(ints[0], end * FN(SPAN)), h = ints[1], flags = ints[2];
  FN(target) to;
  FN(aim)(&to, args, ints);
  const float scale = (float)(hyper[FN(MAXIMIZE)] != 0 ? -hyper[FN(GRAD_SCALE)] : hyper[FN(GRAD_SCALE)]);
  const float decay = flags & 2 ? 0.0f : (float)hyper[FN(WEIGHT_DECAY)];
  const float keep = flags & 2 ? (float)(1.0 - hyper[FN(LR)] * hyper[FN(WEIGHT_DECAY)]) : 1.0f;
  const float beta2 = (float)hyper[FN(BETA2)], eps = (float)hyper[FN(EPS)];
  const float fresh1 = (float)(1.0 - hyper[FN(BETA1)]), fresh2 = (float)(1.0 - hyper[FN(BETA2)]);
  const double bias1 = 1.0 - pow(hyper[FN(BETA1)], step), bias2 = 1.0 - pow(hyper[FN(BETA2)], step);
  const float rate = (float)(hyper[FN(LR)] / bias1), root = (float)(1.0 / sqrt(bias2));
  for (int64_t i = begin * FN(SPAN); i < last; i += VL) {
    const int64_t width = last - i;
    VF param = FN(read)(args, h, 0, i, width);
    const VF grad = FN(gradient)(FN(read)(args, h, 4, i, width), param, scale, decay);
    param = param * keep;
    const VF mean = FN(lerp)(FN(read)(args, h, 1, i, width), grad, fresh1);
    const VF square = FN(read)(args, h, 2, i, width) * beta2 + grad * grad * fresh2;
    VF most = square;
    FN(write)(&to, 1, i, width, mean);
    FN(write)(&to, 2, i, width, square);
    if (flags & 1) {
      most = FN(max)(FN(read)(args, h, 3, i, width), square);
      FN(write)(&to, 3, i, width, most);
    }
    FN(write)(&to, 0, i, width, param - mean / (FN(vsqrt)(most) * root + eps) * rate);
  }
  return TI_OK;
}

/* rmsprop: args param, square_avg, momentum buffer, grad_avg, grad, hyper, step; flags 1 momentum, 2 centred. */
static int FN(rmsprop)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                       void *scratch) {
  const double *hyper = (const double *)args[5];
  const int64_t last = TI_MIN(ints[0], end * FN(SPAN)), h = ints[1], flags = ints[2];
  FN(target) to;
  FN(aim)(&to, args, ints);
  const float scale = (float)(hyper[FN(MAXIMIZE)] != 0 ? -hyper[FN(GRAD_SCALE)] : hyper[FN(GRAD_SCALE)]);
  const float decay = (float)hyper[FN(WEIGHT_DECAY)], alpha = (float)hyper[FN(ALPHA)];
  const float fresh = (float)(1.0 - hyper[FN(ALPHA)]), eps = (float)hyper[FN(EPS)], rate = (float)hyper[FN(LR)];
  const float momentum = (float)hyper[FN(MOMENTUM)];
  for (int64_t i = begin * FN(SPAN); i < last; i += VL) {
    const int64_t width = last - i;
    const VF param = FN(read)(args, h, 0, i, width);
    const VF grad = FN(gradient)(FN(read)(args, h, 4, i, width), param, scale, decay);
    const VF square = FN(read)(args, h, 1, i, width) * alpha + grad * grad * fresh;
    VF spread = square;
    FN(write)(&to, 1, i, width, square);
    if (flags & 2) {
      const VF mean = FN(lerp)(FN(read)(args, h, 3, i, width), grad, fresh);
      FN(write)(&to, 3, i, width, mean);
      spread = square - mean * mean;
    }
    VF move = grad / (FN(vsqrt)(spread) + eps);
    if (flags & 1) {
      move = FN(read)(args, h, 2, i, width) * momentum + move;
      FN(write)(&to, 2, i, width, move);
    }
    FN(write)(&to, 0, i, width, param - move * rate);
  }
  return TI_OK;
}
