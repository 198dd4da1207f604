/* Optimisers and accumulation: each writes its state in place. Arithmetic is float whatever the type in memory.
 * fill_zero and increment have items and ints of their own; for those of the others see update_state_body.h. */
#include "update_state_body.h"

/* accumulate: args acc, grad. acc += grad. */
TI_KERNEL(accumulate) {
  const int64_t last = ti_min(ints[0], end * FN(SPAN)), h = ints[1];
  FN(target) to;
  FN(aim)(&to, args, ints);
  for (int64_t i = begin * FN(SPAN); i < last; i += VL)
    FN(write)(&to, 0, i, last - i, FN(read)(args, h, 0, i, last - i) + FN(read)(args, h, 1, i, last - i));
  return TI_OK;
}

/* fill_zero: args out; ints bytes. Items: blocks of 65536 bytes. */
TI_KERNEL(fill_zero) {
  memset(args[0] + begin * 65536, 0, (size_t)(ti_min(ints[0], end * 65536) - begin * 65536));
  return TI_OK;
}

/* increment: args step. One item. */
TI_KERNEL(increment) {
  *(float *)args[0] += 1.0f;
  return TI_OK;
}

/* sgd: args param, momentum buffer, grad, hyper, step; flags 1 has a momentum buffer. */
TI_KERNEL(sgd) {
  const double *hyper = (const double *)args[3];
  const int64_t last = ti_min(ints[0], end * FN(SPAN)), h = ints[1], flags = ints[2];
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
TI_KERNEL(adam) {
  const double *hyper = (const double *)args[5], step = *(const float *)args[6];
  const int64_t last = ti_min(ints[0], end * FN(SPAN)), h = ints[1], flags = ints[2];
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
    FN(write)(&to, 0, i, width, param - mean / (FN(sqrt)(most) * root + eps) * rate);
  }
  return TI_OK;
}

/* rmsprop: args param, square_avg, momentum buffer, grad_avg, grad, hyper, step; flags 1 momentum, 2 centred,
 * 4 as TensorFlow has it: eps under the root, the rate within the momentum. */
TI_KERNEL(rmsprop) {
  const double *hyper = (const double *)args[5];
  const int64_t last = ti_min(ints[0], end * FN(SPAN)), h = ints[1], flags = ints[2];
  FN(target) to;
  FN(aim)(&to, args, ints);
  const float scale = (float)(hyper[FN(MAXIMIZE)] != 0 ? -hyper[FN(GRAD_SCALE)] : hyper[FN(GRAD_SCALE)]);
  const float decay = (float)hyper[FN(WEIGHT_DECAY)], alpha = (float)hyper[FN(ALPHA)];
  const float fresh = (float)(1.0 - hyper[FN(ALPHA)]), eps = (float)hyper[FN(EPS)], rate = (float)hyper[FN(LR)];
  const float momentum = (float)hyper[FN(MOMENTUM)];
  const float eps_inside = flags & 4 ? eps : 0.0f, eps_outside = flags & 4 ? 0.0f : eps;
  const float within = flags & 4 ? rate : 1.0f, after = flags & 4 ? 1.0f : rate;
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
    VF move = grad * within / (FN(sqrt)(spread + eps_inside) + eps_outside);
    if (flags & 1) {
      move = FN(read)(args, h, 2, i, width) * momentum + move;
      FN(write)(&to, 2, i, width, move);
    }
    FN(write)(&to, 0, i, width, param - move * after);
  }
  return TI_OK;
}
