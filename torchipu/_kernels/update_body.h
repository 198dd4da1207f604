/* Optimisers and accumulation; table/update.py says what the kernels take. */
#include "update_state_body.h"

TI_KERNEL(accumulate) {
  const update_ints *const n = (const update_ints *)ints;
  const int64_t last = ti_min(n->elements, end * TI_SPAN), h = n->halves;
  FN(target) to;
  FN(aim)(&to, args, ints);
  for (int64_t i = begin * TI_SPAN; i < last; i += VL)
    FN(write)(&to, 0, i, last - i, FN(read)(args, h, 0, i, last - i) + FN(read)(args, h, 1, i, last - i));
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

TI_KERNEL(sgd) {
  const double *hyper = (const double *)args[3];
  const update_ints *const n = (const update_ints *)ints;
  const int64_t last = ti_min(n->elements, end * TI_SPAN), h = n->halves, flags = n->flags;
  FN(target) to;
  FN(aim)(&to, args, ints);
  const int first = *(const float *)args[4] <= 1.0f, nesterov = hyper[TI_HYPER_NESTEROV] != 0;
  const float scale = (float)(hyper[TI_HYPER_MAXIMIZE] != 0 ? -hyper[TI_HYPER_GRAD_SCALE] : hyper[TI_HYPER_GRAD_SCALE]);
  const float decay = (float)hyper[TI_HYPER_WEIGHT_DECAY], momentum = (float)hyper[TI_HYPER_MOMENTUM];
  const float fresh = (float)(1.0 - hyper[TI_HYPER_DAMPENING]), rate = (float)hyper[TI_HYPER_LR];
  for (int64_t i = begin * TI_SPAN; i < last; i += VL) {
    const int64_t width = last - i;
    const VF param = FN(read)(args, h, 0, i, width);
    VF grad = FN(gradient)(FN(read)(args, h, 2, i, width), param, scale, decay);
    if (flags & TI_SGD_FLAG_HAS_MOMENTUM) {
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

/* Bias corrections are taken in double. */
TI_KERNEL(adam) {
  const double *hyper = (const double *)args[5], step = *(const float *)args[6];
  const update_ints *const n = (const update_ints *)ints;
  const int64_t last = ti_min(n->elements, end * TI_SPAN), h = n->halves, flags = n->flags;
  FN(target) to;
  FN(aim)(&to, args, ints);
  const float scale = (float)(hyper[TI_HYPER_MAXIMIZE] != 0 ? -hyper[TI_HYPER_GRAD_SCALE] : hyper[TI_HYPER_GRAD_SCALE]);
  const float decay = flags & TI_ADAM_FLAG_DECOUPLED ? 0.0f : (float)hyper[TI_HYPER_WEIGHT_DECAY];
  const float keep = flags & TI_ADAM_FLAG_DECOUPLED ? (float)(1.0 - hyper[TI_HYPER_LR] * hyper[TI_HYPER_WEIGHT_DECAY]) : 1.0f;
  const float beta2 = (float)hyper[TI_HYPER_BETA2], eps = (float)hyper[TI_HYPER_EPS];
  const float fresh1 = (float)(1.0 - hyper[TI_HYPER_BETA1]), fresh2 = (float)(1.0 - hyper[TI_HYPER_BETA2]);
  const double bias1 = 1.0 - pow(hyper[TI_HYPER_BETA1], step), bias2 = 1.0 - pow(hyper[TI_HYPER_BETA2], step);
  const float rate = (float)(hyper[TI_HYPER_LR] / bias1), root = (float)(1.0 / sqrt(bias2));
  for (int64_t i = begin * TI_SPAN; i < last; i += VL) {
    const int64_t width = last - i;
    VF param = FN(read)(args, h, 0, i, width);
    const VF grad = FN(gradient)(FN(read)(args, h, 4, i, width), param, scale, decay);
    param = param * keep;
    const VF mean = FN(lerp)(FN(read)(args, h, 1, i, width), grad, fresh1);
    const VF square = FN(read)(args, h, 2, i, width) * beta2 + grad * grad * fresh2;
    VF most = square;
    FN(write)(&to, 1, i, width, mean);
    FN(write)(&to, 2, i, width, square);
    if (flags & TI_ADAM_FLAG_AMSGRAD) {
      most = FN(max)(FN(read)(args, h, 3, i, width), square);
      FN(write)(&to, 3, i, width, most);
    }
    FN(write)(&to, 0, i, width, param - mean / (FN(sqrt)(most) * root + eps) * rate);
  }
  return TI_OK;
}

TI_KERNEL(rmsprop) {
  const double *hyper = (const double *)args[5];
  const update_ints *const n = (const update_ints *)ints;
  const int64_t last = ti_min(n->elements, end * TI_SPAN), h = n->halves, flags = n->flags;
  FN(target) to;
  FN(aim)(&to, args, ints);
  const float scale = (float)(hyper[TI_HYPER_MAXIMIZE] != 0 ? -hyper[TI_HYPER_GRAD_SCALE] : hyper[TI_HYPER_GRAD_SCALE]);
  const float decay = (float)hyper[TI_HYPER_WEIGHT_DECAY], alpha = (float)hyper[TI_HYPER_ALPHA];
  const float fresh = (float)(1.0 - hyper[TI_HYPER_ALPHA]), eps = (float)hyper[TI_HYPER_EPS], rate = (float)hyper[TI_HYPER_LR];
  const float momentum = (float)hyper[TI_HYPER_MOMENTUM];
  const float eps_inside = flags & TI_RMSPROP_FLAG_OF_TENSORFLOW ? eps : 0.0f, eps_outside = flags & TI_RMSPROP_FLAG_OF_TENSORFLOW ? 0.0f : eps;
  const float within = flags & TI_RMSPROP_FLAG_OF_TENSORFLOW ? rate : 1.0f, after = flags & TI_RMSPROP_FLAG_OF_TENSORFLOW ? 1.0f : rate;
  for (int64_t i = begin * TI_SPAN; i < last; i += VL) {
    const int64_t width = last - i;
    const VF param = FN(read)(args, h, 0, i, width);
    const VF grad = FN(gradient)(FN(read)(args, h, 4, i, width), param, scale, decay);
    const VF square = FN(read)(args, h, 1, i, width) * alpha + grad * grad * fresh;
    VF spread = square;
    FN(write)(&to, 1, i, width, square);
    if (flags & TI_RMSPROP_FLAG_CENTRED) {
      const VF mean = FN(lerp)(FN(read)(args, h, 3, i, width), grad, fresh);
      FN(write)(&to, 3, i, width, mean);
      spread = square - mean * mean;
    }
    VF move = grad * within / (FN(sqrt)(spread + eps_inside) + eps_outside);
    if (flags & TI_RMSPROP_FLAG_HAS_MOMENTUM) {
      move = FN(read)(args, h, 2, i, width) * momentum + move;
      FN(write)(&to, 2, i, width, move);
    }
    FN(write)(&to, 0, i, width, param - move * after);
  }
  return TI_OK;
}
