/* The rounding of what a kernel has written: it ends a call of any kernel, chunk by chunk, on the thread and in the cache
 * where the floats are. Its items are those of the kernel that it ends.
 *
 * The bits of an element are those of its number within the result, whoever writes it and in whatever order: a run of
 * elements may begin and end anywhere, and is rounded in the groups of 32 that rounding_body.h counts.
 */
#ifndef TORCHIPU_ROUND_BLOCKS
#define TORCHIPU_ROUND_BLOCKS
enum { TI_BLOCK_DIMS = 6, TI_GROUP = 32 };
/* A dimension of the space that items cut into blocks. Place x is element x % inner * step + x / inner % middle * outer +
 * x / inner / middle * outmost. */
typedef struct { int64_t size, block, inner, step, middle, outer, outmost; } ti_block_dim;

static inline int64_t ti_element(const ti_block_dim *d, int64_t x) {
  const int64_t row = x / d->inner;
  return x % d->inner * d->step + row % d->middle * d->outer + row / d->middle * d->outmost;
}
#endif
#include "rounding_body.h"

typedef struct { const float *s; uint16_t *h; FN(keys) keys; int is_stochastic, overflow; } FN(rounding);

/* `count` elements from `first` on, `step` apart and none beyond the group of 32 that holds the first: through a group
 * of which the others are not looked at. */
static void FN(round_part)(const FN(rounding) *r, int64_t first, int64_t count, int64_t step) {
  float floats[TI_GROUP] = {0};
  uint16_t halves[TI_GROUP];
  const int64_t group = first / TI_GROUP * TI_GROUP, at = first - group;
  for (int64_t i = 0; i < count; i++) floats[at + i * step] = r->s[first + i * step];
  if (r->is_stochastic) FN(round_keyed)(halves, floats, r->keys, group, TI_GROUP, r->overflow);
  else FN(round_nearest)(halves, floats, TI_GROUP, r->overflow);
  for (int64_t i = 0; i < count; i++) r->h[first + i * step] = halves[at + i * step];
}

static void FN(round_elements)(const FN(rounding) *r, int64_t first, int64_t count, int64_t step) {
  if (step == 1 && !r->is_stochastic) {
    FN(round_nearest)(r->h + first, r->s + first, count, r->overflow);
    return;
  }
  while (count > 0) {
    const int64_t at = first % TI_GROUP;
    int64_t some = step == 1 && at == 0 ? count : (TI_GROUP - 1 - at) / step + 1;
    if (some > count) some = count;
    if (step == 1 && at == 0) FN(round_keyed)(r->h + first, r->s + first, r->keys, first, some, r->overflow);
    else FN(round_part)(r, first, some, step);
    first += some * step;
    count -= some;
  }
}

/* round_blocks: args floats, halves, the random words of the result or NULL to round to nearest
 *   ints     [overflow, element that comes first, element that the floats begin with, dimensions, which of them a run goes along, then of each: size, block,
 *            inner, step, middle, outer, outmost; see ti_block_dim]
 *   items    blocks of the space, the last dimension fastest */
TI_KERNEL(round_blocks) {
  (void)scalars, (void)scratch;
  const int64_t *state = (const int64_t *)args[2];
  const int is_stochastic = !FN(rounds_to_nearest)(state);
  const FN(keys) keys = is_stochastic ? FN(keys_of)(state) : (FN(keys)){0, 0};
  const FN(rounding) r = {(const float *)args[0] - ints[2], (uint16_t *)args[1], keys, is_stochastic, (int)ints[0]};
  const int64_t dims = ints[3], along = ints[4];
  const ti_block_dim *d = (const ti_block_dim *)(ints + 5);
  for (int64_t item = begin; item < end; item++) {
    int64_t first[TI_BLOCK_DIMS], last[TI_BLOCK_DIMS], at[TI_BLOCK_DIMS], rest = item;
    for (int64_t k = dims - 1; k >= 0; k--) {
      const int64_t blocks = (d[k].size + d[k].block - 1) / d[k].block;
      first[k] = at[k] = rest % blocks * d[k].block;
      last[k] = first[k] + d[k].block < d[k].size ? first[k] + d[k].block : d[k].size;
      rest /= blocks;
    }
    for (;;) {
      int64_t base = ints[1];
      for (int64_t k = 0; k < dims; k++)
        if (k != along) base += ti_element(d + k, at[k]);
      for (int64_t x = first[along]; x < last[along];) {
        const int64_t room = d[along].inner - x % d[along].inner, left = last[along] - x;
        const int64_t count = left < room ? left : room;
        FN(round_elements)(&r, base + ti_element(d + along, x), count, d[along].step);
        x += count;
      }
      int64_t k = dims - 1;
      for (; k >= 0; k--) {
        if (k == along) continue;
        if (++at[k] < last[k]) break;
        at[k] = first[k];
      }
      if (k < 0) break;
    }
  }
  return TI_OK;
}
