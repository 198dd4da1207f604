/* What scales gradients of a whole model; table/scaling.py says what the kernels take. */
#include <unistd.h>
#include "update_state_body.h"

/* Lanes are added as doubles: the squares of large gradients, scaled besides, go beyond what a float holds. */
TI_KERNEL(block_squares) {
  const update_ints *const n = (const update_ints *)ints;
  for (int64_t item = begin; item < end; item++) {
    const int64_t last = ti_min(n->elements, (item + 1) * TI_SPAN);
    double sum[16] = {0}; /* the same whatever the instruction set */
    for (int64_t i = item * TI_SPAN; i < last; i += VL) {
      float lanes[VL];
      FN(store)(lanes, FN(keep_most)(FN(read)(args, n->halves, 1, i, last - i), last - i));
      for (int j = 0; j < VL; j++) sum[(i + j) & 15] += (double)lanes[j] * lanes[j];
    }
    double total = 0;
    for (int j = 0; j < 16; j++) total += sum[j];
    ((double *)args[0])[item] = total;
  }
  return TI_OK;
}

TI_KERNEL(add_doubles) {
  const add_doubles_ints *const n = (const add_doubles_ints *)ints;
  double total = 0;
  for (int64_t k = 0; k < n->num_terms; k++)
    for (int64_t i = 0; i < n->words[k]; i++) total += ((const double *)args[k + 1])[i];
  *(double *)args[0] = total;
  return TI_OK;
}

TI_KERNEL(clip) {
  double *out = (double *)args[0];
  memcpy(out, args[1], TI_HYPER_WORDS * sizeof *out);
  const double norm = sqrt(*(const double *)args[2]) * fabs(out[TI_HYPER_GRAD_SCALE]);
  const double factor = ((const clip_scalars *)scalars)->largest / (norm + 1e-6);
  if (!(factor >= 1)) out[TI_HYPER_GRAD_SCALE] *= factor;
  return TI_OK;
}

TI_KERNEL(clip_values) {
  const update_ints *const n = (const update_ints *)ints;
  const int64_t last = ti_min(n->elements, end * TI_SPAN), h = n->halves;
  const float limit = (float)(((const clip_values_scalars *)scalars)->largest / fabs(((const double *)args[2])[TI_HYPER_GRAD_SCALE]));
  FN(target) to;
  FN(aim)(&to, args, ints);
  for (int64_t i = begin * TI_SPAN; i < last; i += VL) {
    float lanes[VL];
    FN(store)(lanes, FN(read)(args, h, 1, i, last - i));
    for (int j = 0; j < VL; j++) lanes[j] = lanes[j] > limit ? limit : lanes[j] < -limit ? -limit : lanes[j];
    FN(write)(&to, 0, i, last - i, FN(load)(lanes));
  }
  return TI_OK;
}

TI_KERNEL(unscale) {
  double *out = (double *)args[0];
  memcpy(out, args[1], TI_HYPER_WORDS * sizeof *out);
  out[TI_HYPER_GRAD_SCALE] /= *(const float *)args[2];
  return TI_OK;
}

TI_KERNEL(block_counts) {
  const update_ints *const n = (const update_ints *)ints;
  const float edge = (float)((const block_counts_scalars *)scalars)->edge;
  for (int64_t item = begin; item < end; item++) {
    const int64_t last = ti_min(n->elements, (item + 1) * TI_SPAN);
    int64_t count = 0;
    for (int64_t i = item * TI_SPAN; i < last; i += VL) {
      float lanes[VL];
      FN(store)(lanes, FN(keep_most)(FN(read)(args, n->halves, 1, i, last - i), last - i));
      for (int j = 0; j < VL; j++) count += !(fabsf(lanes[j]) <= edge);
    }
    ((int64_t *)args[0])[item] = count;
  }
  return TI_OK;
}

TI_KERNEL(add_counts) {
  int64_t *counter = (int64_t *)args[0];
  const add_counts_ints *const n = (const add_counts_ints *)ints;
  for (int64_t i = 0; i < n->blocks; i++) counter[0] += ((const int64_t *)args[1])[i];
  counter[1] += n->elements;
  return TI_OK;
}

TI_KERNEL(join_counts) {
  int64_t beyond = 0, all = 0;
  for (int64_t k = 0; k < ((const join_counts_ints *)ints)->counters; k++) {
    beyond += ((const int64_t *)args[k + 1])[0];
    all += ((const int64_t *)args[k + 1])[1];
  }
  ((int64_t *)args[0])[0] = beyond;
  ((int64_t *)args[0])[1] = all;
  return TI_OK;
}

TI_KERNEL(adapt_scale) {
  const adapt_scale_scalars *const by = (const adapt_scale_scalars *)scalars;
  const int64_t *counter = (const int64_t *)args[2];
  int64_t *history = (int64_t *)args[1];
  float *scale = (float *)args[0];
  history[0] += counter[0];
  history[1] += counter[1];
  if (++history[2] < ((const adapt_scale_ints *)ints)->period) return TI_OK;
  const int is_high = (double)history[0] > by->share * (double)history[1];
  const double next = is_high ? *scale / by->factor : *scale * by->factor;
  if (next >= by->least && next <= by->most) *scale = (float)next;
  memset(history, 0, 3 * sizeof *history);
  return TI_OK;
}

/* Divided before they are added, so that a half accumulator holds what a single gradient would. */
TI_KERNEL(accumulate_mean) {
  const update_ints *const n = (const update_ints *)ints;
  const int64_t last = ti_min(n->elements, end * TI_SPAN), h = n->halves;
  const double count = *(const float *)args[2];
  const float keep = (float)(count / (count + 1)), fresh = (float)(1 / (count + 1));
  FN(target) to;
  FN(aim)(&to, args, ints);
  for (int64_t i = begin * TI_SPAN; i < last; i += VL) {
    const VF mean = FN(read)(args, h, 0, i, last - i) * keep + FN(read)(args, h, 1, i, last - i) * fresh;
    FN(write)(&to, 0, i, last - i, mean);
  }
  return TI_OK;
}

TI_KERNEL(replica_mean) {
  const replica_mean_ints *const p = (const replica_mean_ints *)ints;
  const int64_t n = p->elements, size = p->group, replicas = p->replicas, apart = p->apart;
  for (int64_t first = 0; first < replicas; first += size)
    for (int64_t i = 0; i < n; i++) {
      double total = 0;
      for (int64_t r = first; r < first + size; r++) total += ((const float *)(args[1] + r * apart))[i];
      for (int64_t r = first; r < first + size; r++) ((float *)(args[0] + r * apart))[i] = (float)(total / (double)size);
    }
  return TI_OK;
}

/* What a half holds of each value. */
TI_INLINE VF FN(as_halves)(VF v) {
  return FN(of_halves)(FN(nearest_halves)(v));
}

/* Element i and its neighbours of floats or halves. */
TI_INLINE VF FN(take)(const char *values, int64_t type, int64_t i, int64_t width) {
  char *const args[1] = {(char *)values};
  return FN(read)(args, type == TI_SUMMED_HALVES, 0, i, width);
}

TI_INLINE void FN(give)(char *values, int64_t type, int64_t i, int64_t width, VF v) {
  if (type == TI_SUMMED_HALVES) {
    const FN(halves) halves = FN(nearest_halves)(v);
    uint16_t *p = (uint16_t *)values + i;
    if (width >= VL) FN(store_halves)(p, halves);
    else memcpy(p, &halves, (size_t)width * 2);
    return;
  }
  FN(store_most)((float *)values + i, v, width);
}

TI_KERNEL(add) {
  const add_ints *const n = (const add_ints *)ints;
  const int64_t last = ti_min(n->elements, end * TI_SPAN), type = n->summed;
  if (type == TI_SUMMED_WORDS) {
    for (int64_t i = begin * TI_SPAN; i < last; i++)
      ((int64_t *)args[0])[i] = ((const int64_t *)args[1])[i] + ((const int64_t *)args[2])[i];
    return TI_OK;
  }
  for (int64_t i = begin * TI_SPAN; i < last; i += VL)
    FN(give)(args[0], type, i, last - i, FN(take)(args[1], type, i, last - i) + FN(take)(args[2], type, i, last - i));
  return TI_OK;
}

TI_KERNEL(fold_replica) {
  const fold_replica_ints *const n = (const fold_replica_ints *)ints;
  const int64_t last = ti_min(n->elements, end * TI_SPAN), type = n->summed, slots = n->slots;
  const int64_t replica = *(const int64_t *)args[slots + 1];
  const int64_t depth = n->pushes[2 * replica], joins = n->pushes[2 * replica + 1];
  char *const held = args[slots], *const to = args[depth - joins];
  if (type == TI_SUMMED_WORDS) {
    for (int64_t i = begin * TI_SPAN; i < last; i++) {
      int64_t sum = ((const int64_t *)held)[i];
      for (int64_t k = 1; k <= joins; k++) sum += ((const int64_t *)args[depth - k])[i];
      ((int64_t *)to)[i] = sum;
    }
    return TI_OK;
  }
  const float factor = (float)((const fold_replica_scalars *)scalars)->factor;
  for (int64_t i = begin * TI_SPAN; i < last; i += VL) {
    VF sum = FN(take)(held, type, i, last - i) * factor;
    for (int64_t k = 1; k <= joins; k++) {
      if (type == TI_SUMMED_HALVES) sum = FN(as_halves)(sum);
      sum = FN(take)(args[depth - k], type, i, last - i) + sum;
    }
    FN(give)(to, type, i, last - i, sum);
  }
  return TI_OK;
}

TI_KERNEL(signal) {
  int64_t *count = (int64_t *)args[0];
  const signal_ints *const p = (const signal_ints *)ints;
  if (++*count < p->calls) return TI_OK;
  *count = 0;
  const uint64_t one = 1;
  return write((int)p->descriptor, &one, sizeof one) == sizeof one ? TI_OK : TI_TRAP_INTERNAL;
}
