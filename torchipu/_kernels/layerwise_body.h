/* LAMB and LARS; table/layerwise.py says what the kernels take. */
#include "update_state_body.h"

/* Sums of squares of two vectors, kept as doubles. */
typedef struct {
  VF a[2], b[2];
} FN(squares);

TI_INLINE void FN(add_pair)(FN(squares) *sum, int64_t turn, VF a, VF b) {
  sum->a[turn & 1] += a * a;
  sum->b[turn & 1] += b * b;
}

TI_INLINE void FN(put_pair)(double *partial, int64_t item, const FN(squares) *sum) {
  partial[2 * item] = FN(sum_lanes)(sum->a[0] + sum->a[1]);
  partial[2 * item + 1] = FN(sum_lanes)(sum->b[0] + sum->b[1]);
}

TI_KERNEL(lamb_direction) {
  const double *hyper = (const double *)args[6], step = *(const float *)args[7];
  const update_ints *const n = (const update_ints *)ints;
  const int64_t h = n->halves;
  const int corrected = hyper[TI_HYPER_BIAS_CORRECTION] != 0;
  const float scale = (float)hyper[TI_HYPER_GRAD_SCALE], decay = (float)hyper[TI_HYPER_WEIGHT_DECAY];
  const float beta2 = (float)hyper[TI_HYPER_BETA2], eps = (float)hyper[TI_HYPER_EPS];
  const float fresh1 = (float)(1.0 - hyper[TI_HYPER_BETA1]), fresh2 = (float)(1.0 - hyper[TI_HYPER_BETA2]);
  const float first = corrected ? (float)(1.0 / (1.0 - pow(hyper[TI_HYPER_BETA1], step))) : 1.0f;
  const float root = corrected ? (float)(1.0 / sqrt(1.0 - pow(hyper[TI_HYPER_BETA2], step))) : 1.0f;
  FN(target) to;
  FN(aim)(&to, args, ints);
  for (int64_t item = begin; item < end; item++) {
    const int64_t last = ti_min(n->elements, (item + 1) * TI_SPAN);
    FN(squares) sum = {{{0}}, {{0}}};
    for (int64_t i = item * TI_SPAN, turn = 0; i < last; i += VL, turn++) {
      const int64_t width = last - i;
      const VF param = FN(read)(args, h, 4, i, width), grad = FN(read)(args, h, 5, i, width) * scale;
      const VF mean = FN(lerp)(FN(read)(args, h, 0, i, width), grad, fresh1);
      const VF square = FN(read)(args, h, 1, i, width) * beta2 + grad * grad * fresh2;
      FN(write)(&to, 0, i, width, mean);
      FN(write)(&to, 1, i, width, square);
      const VF move = FN(keep_most)(mean * first / (FN(sqrt)(square) * root + eps) + param * decay, width);
      FN(write)(&to, 2, i, width, move);
      FN(add_pair)(&sum, turn, FN(keep_most)(param, width), move);
    }
    FN(put_pair)((double *)args[3], item, &sum);
  }
  return TI_OK;
}

TI_KERNEL(lars_norms) {
  const update_ints *const n = (const update_ints *)ints;
  const int64_t h = n->halves;
  for (int64_t item = begin; item < end; item++) {
    const int64_t last = ti_min(n->elements, (item + 1) * TI_SPAN);
    FN(squares) sum = {{{0}}, {{0}}};
    for (int64_t i = item * TI_SPAN, turn = 0; i < last; i += VL, turn++)
      FN(add_pair)(&sum, turn, FN(keep_most)(FN(read)(args, h, 1, i, last - i), last - i),
                   FN(keep_most)(FN(read)(args, h, 2, i, last - i), last - i));
    FN(put_pair)((double *)args[0], item, &sum);
  }
  return TI_OK;
}

TI_KERNEL(trust_ratio) {
  const double *partial = (const double *)args[1], *hyper = (const double *)args[2];
  const trust_ratio_ints *const p = (const trust_ratio_ints *)ints;
  const int is_lars = p->rule == TI_LAYERWISE_LARS;
  double weight = 0, other = 0;
  for (int64_t i = 0; i < p->blocks; i++) weight += partial[2 * i], other += partial[2 * i + 1];
  weight = sqrt(weight), other = sqrt(other);
  if (is_lars) other *= fabs(hyper[TI_HYPER_GRAD_SCALE]);
  double ratio = 1;
  if (is_lars && weight > 0 && other > 0)
    ratio = hyper[TI_HYPER_TRUST_COEFFICIENT] * weight / (other + hyper[TI_HYPER_WEIGHT_DECAY] * weight + hyper[TI_HYPER_EPS]);
  else if (!is_lars && weight > 0 && other > 0)
    ratio = (weight < hyper[TI_HYPER_MAX_WEIGHT_NORM] ? weight : hyper[TI_HYPER_MAX_WEIGHT_NORM]) / other;
  *(float *)args[0] = (float)ratio;
  return TI_OK;
}

TI_KERNEL(lamb_apply) {
  const double *hyper = (const double *)args[3];
  const update_ints *const n = (const update_ints *)ints;
  const int64_t last = ti_min(n->elements, end * TI_SPAN), h = n->halves;
  const float rate = (float)(hyper[TI_HYPER_LR] * *(const float *)args[1]);
  FN(target) to;
  FN(aim)(&to, args, ints);
  for (int64_t i = begin * TI_SPAN; i < last; i += VL)
    FN(write)(&to, 0, i, last - i, FN(read)(args, h, 0, i, last - i) - FN(read)(args, h, 2, i, last - i) * rate);
  return TI_OK;
}

TI_KERNEL(lars_apply) {
  const double *hyper = (const double *)args[4];
  const update_ints *const n = (const update_ints *)ints;
  const int64_t last = ti_min(n->elements, end * TI_SPAN), h = n->halves;
  const float scale = (float)hyper[TI_HYPER_GRAD_SCALE], decay = (float)hyper[TI_HYPER_WEIGHT_DECAY];
  const float momentum = (float)hyper[TI_HYPER_MOMENTUM], rate = (float)(hyper[TI_HYPER_LR] * *(const float *)args[2]);
  FN(target) to;
  FN(aim)(&to, args, ints);
  for (int64_t i = begin * TI_SPAN; i < last; i += VL) {
    const int64_t width = last - i;
    const VF param = FN(read)(args, h, 0, i, width);
    const VF grad = FN(read)(args, h, 3, i, width) * scale + param * decay;
    const VF move = FN(read)(args, h, 1, i, width) * momentum + grad * rate;
    FN(write)(&to, 1, i, width, move);
    FN(write)(&to, 0, i, width, param - move);
  }
  return TI_OK;
}
