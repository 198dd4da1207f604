/* What scales gradients of a whole model: their norm and its bound, the scale of the loss, the running mean.
 *
 * Items are blocks of 4096 elements unless it is said that there is one. Sums and counts are 64-bit words; sums are
 * doubles, added up in the order of the blocks. */
#include <unistd.h>
#include "update_state_body.h"

/* block_squares: args partial (doubles), grad; ints as in update_state_body.h. The sum of squares of each block. Lanes
 * are added as doubles: the squares of large gradients, scaled besides, go beyond what a float holds. */
TI_KERNEL(block_squares) {
  for (int64_t item = begin; item < end; item++) {
    const int64_t last = ti_min(ints[0], (item + 1) * FN(SPAN));
    double sum[16] = {0}; /* the same whatever the instruction set */
    for (int64_t i = item * FN(SPAN); i < last; i += VL) {
      float lanes[VL];
      FN(store)(lanes, FN(keep_most)(FN(read)(args, ints[1], 1, i, last - i), last - i));
      for (int j = 0; j < VL; j++) sum[(i + j) & 15] += (double)lanes[j] * lanes[j];
    }
    double total = 0;
    for (int j = 0; j < 16; j++) total += sum[j];
    ((double *)args[0])[item] = total;
  }
  return TI_OK;
}

/* add_doubles: args sum, then terms; ints [arguments with terms, words of each ...]. One item. */
TI_KERNEL(add_doubles) {
  double total = 0;
  for (int64_t k = 0; k < ints[0]; k++)
    for (int64_t i = 0; i < ints[k + 1]; i++) total += ((const double *)args[k + 1])[i];
  *(double *)args[0] = total;
  return TI_OK;
}

/* clip: args hyper out, hyper, sum of squares; scalars [largest norm]. One item. The factor on gradients that brings
 * their norm down to the largest: that of torch.nn.utils.clip_grad_norm_, NaN where the norm is NaN. */
TI_KERNEL(clip) {
  double *out = (double *)args[0];
  memcpy(out, args[1], 16 * sizeof *out);
  const double norm = sqrt(*(const double *)args[2]) * fabs(out[FN(GRAD_SCALE)]);
  const double factor = scalars[0] / (norm + 1e-6);
  if (!(factor >= 1)) out[FN(GRAD_SCALE)] *= factor;
  return TI_OK;
}

/* clip_values: args clipped, grad, hyper; ints as in update_state_body.h; scalars [largest magnitude]. Elements beyond
 * what becomes the largest magnitude by the factor on gradients are brought there: torch.nn.utils.clip_grad_value_,
 * which leaves NaN alone. */
TI_KERNEL(clip_values) {
  const int64_t last = ti_min(ints[0], end * FN(SPAN)), h = ints[1];
  const float limit = (float)(scalars[0] / fabs(((const double *)args[2])[FN(GRAD_SCALE)]));
  FN(target) to;
  FN(aim)(&to, args, ints);
  for (int64_t i = begin * FN(SPAN); i < last; i += VL) {
    float lanes[VL];
    FN(store)(lanes, FN(read)(args, h, 1, i, last - i));
    for (int j = 0; j < VL; j++) lanes[j] = lanes[j] > limit ? limit : lanes[j] < -limit ? -limit : lanes[j];
    FN(write)(&to, 0, i, last - i, FN(load)(lanes));
  }
  return TI_OK;
}

/* unscale: args hyper out, hyper, loss scale (float); one item. */
TI_KERNEL(unscale) {
  double *out = (double *)args[0];
  memcpy(out, args[1], 16 * sizeof *out);
  out[FN(GRAD_SCALE)] /= *(const float *)args[2];
  return TI_OK;
}

/* block_counts: args partial (words), grad; ints as in update_state_body.h; scalars [edge]. How many elements of each
 * block lie beyond the edge; NaN does. */
TI_KERNEL(block_counts) {
  const float edge = (float)scalars[0];
  for (int64_t item = begin; item < end; item++) {
    const int64_t last = ti_min(ints[0], (item + 1) * FN(SPAN));
    int64_t count = 0;
    for (int64_t i = item * FN(SPAN); i < last; i += VL) {
      float lanes[VL];
      FN(store)(lanes, FN(keep_most)(FN(read)(args, ints[1], 1, i, last - i), last - i));
      for (int j = 0; j < VL; j++) count += !(fabsf(lanes[j]) <= edge);
    }
    ((int64_t *)args[0])[item] = count;
  }
  return TI_OK;
}

/* add_counts: args counter [beyond, all], partial; ints [blocks, elements]. One item. */
TI_KERNEL(add_counts) {
  int64_t *counter = (int64_t *)args[0];
  for (int64_t i = 0; i < ints[0]; i++) counter[0] += ((const int64_t *)args[1])[i];
  counter[1] += ints[1];
  return TI_OK;
}

/* join_counts: args counter [beyond, all], then counters; ints [counters]. One item. */
TI_KERNEL(join_counts) {
  int64_t beyond = 0, all = 0;
  for (int64_t k = 0; k < ints[0]; k++) {
    beyond += ((const int64_t *)args[k + 1])[0];
    all += ((const int64_t *)args[k + 1])[1];
  }
  ((int64_t *)args[0])[0] = beyond;
  ((int64_t *)args[0])[1] = all;
  return TI_OK;
}

/* adapt_scale: args loss scale (float), history [beyond, all, updates], counter [beyond, all]; ints [updates after which
 * the scale changes]; scalars [share of elements beyond the edge that is too many, factor, smallest, largest]. One item.
 * The history holds what was counted since the last change. */
TI_KERNEL(adapt_scale) {
  const int64_t *counter = (const int64_t *)args[2];
  int64_t *history = (int64_t *)args[1];
  float *scale = (float *)args[0];
  history[0] += counter[0];
  history[1] += counter[1];
  if (++history[2] < ints[0]) return TI_OK;
  const int is_high = (double)history[0] > scalars[0] * (double)history[1];
  const double next = is_high ? *scale / scalars[1] : *scale * scalars[1];
  if (next >= scalars[2] && next <= scalars[3]) *scale = (float)next;
  memset(history, 0, 3 * sizeof *history);
  return TI_OK;
}

/* accumulate_mean: args acc, grad, count (float); the mean of the count + 1 gradients so far. Divided before they are
 * added, so that a half accumulator holds what a single gradient would. */
TI_KERNEL(accumulate_mean) {
  const int64_t last = ti_min(ints[0], end * FN(SPAN)), h = ints[1];
  const double count = *(const float *)args[2];
  const float keep = (float)(count / (count + 1)), fresh = (float)(1 / (count + 1));
  FN(target) to;
  FN(aim)(&to, args, ints);
  for (int64_t i = begin * FN(SPAN); i < last; i += VL) {
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

enum { FN(OF_FLOATS), FN(OF_HALVES), FN(OF_WORDS) };

/* What a half holds of each value. */
TI_INLINE VF FN(as_halves)(VF v) {
  return FN(of_halves)(FN(nearest_halves)(v));
}

/* Element i and its neighbours of floats or halves. */
TI_INLINE VF FN(take)(const char *values, int64_t type, int64_t i, int64_t width) {
  char *const args[1] = {(char *)values};
  return FN(read)(args, type == FN(OF_HALVES), 0, i, width);
}

TI_INLINE void FN(give)(char *values, int64_t type, int64_t i, int64_t width, VF v) {
  if (type == FN(OF_HALVES)) {
    const FN(halves) halves = FN(nearest_halves)(v);
    uint16_t *p = (uint16_t *)values + i;
    if (width >= VL) FN(store_halves)(p, halves);
    else memcpy(p, &halves, (size_t)width * 2);
    return;
  }
  FN(store_most)((float *)values + i, v, width);
}

/* add: args sum, left, right; ints [elements, type]. Items are blocks of 4096 elements. The sum may lie where an operand
 * does; that of two halves is rounded to the nearest. */
TI_KERNEL(add) {
  const int64_t last = ti_min(ints[0], end * FN(SPAN)), type = ints[1];
  if (type == FN(OF_WORDS)) {
    for (int64_t i = begin * FN(SPAN); i < last; i++)
      ((int64_t *)args[0])[i] = ((const int64_t *)args[1])[i] + ((const int64_t *)args[2])[i];
    return TI_OK;
  }
  for (int64_t i = begin * FN(SPAN); i < last; i += VL)
    FN(give)(args[0], type, i, last - i, FN(take)(args[1], type, i, last - i) + FN(take)(args[2], type, i, last - i));
  return TI_OK;
}

/* fold_replica: args slots of a stack, what a replica has, its number; ints [elements, type, slots, then for each replica
 * how many sums lie on the stack before it, and how many of them it joins]; scalars [factor]. Items are blocks of 4096
 * elements. What the replica has, times the factor, is added to the topmost sums, the latest first, each time as its
 * type holds it, and put on the stack in their place. */
TI_KERNEL(fold_replica) {
  const int64_t last = ti_min(ints[0], end * FN(SPAN)), type = ints[1], slots = ints[2];
  const int64_t replica = *(const int64_t *)args[slots + 1];
  const int64_t depth = ints[3 + 2 * replica], joins = ints[4 + 2 * replica];
  char *const held = args[slots], *const to = args[depth - joins];
  if (type == FN(OF_WORDS)) {
    for (int64_t i = begin * FN(SPAN); i < last; i++) {
      int64_t sum = ((const int64_t *)held)[i];
      for (int64_t k = 1; k <= joins; k++) sum += ((const int64_t *)args[depth - k])[i];
      ((int64_t *)to)[i] = sum;
    }
    return TI_OK;
  }
  const float factor = (float)scalars[0];
  for (int64_t i = begin * FN(SPAN); i < last; i += VL) {
    VF sum = FN(take)(held, type, i, last - i) * factor;
    for (int64_t k = 1; k <= joins; k++) {
      if (type == FN(OF_HALVES)) sum = FN(as_halves)(sum);
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
