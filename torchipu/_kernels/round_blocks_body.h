/* The rounding of what a kernel has written; table/round_blocks.py says what it takes. A run of elements may begin and end
 * anywhere.
 */
#include "narrow_row_body.h"
#include "rounding_body.h"

#ifndef TORCHIPU_ROUND_BLOCKS
#define TORCHIPU_ROUND_BLOCKS
/* Most places are of the first run of their dimension: a division takes as long as rounding a group does. */
static inline int64_t ti_element(const block_dim *d, int64_t x) {
  if (x < d->inner) return x * d->step;
  const int64_t row = x / d->inner;
  return x % d->inner * d->step + row % d->middle * d->outer + row / d->middle * d->outmost;
}
#endif

/* `h` is NULL where floats alone are wanted. */
typedef struct { float *s; uint16_t *h; FN(keys) keys; int is_stochastic, overflow, keeps, to_bfloats; } FN(rounding);

/* `count` elements from `first` on, `step` apart. */
static void FN(round_spread)(const FN(rounding) *r, int64_t first, int64_t count, int64_t step) {
  float floats[VL];
  uint16_t halves[VL] = {0};
  for (int64_t done = 0; done < count; done += VL, first += VL * step) {
    const int64_t some = ti_min(VL, count - done);
    for (int64_t i = 0; i < some; i++) floats[i] = r->s[first + i * step];
    if (r->is_stochastic) FN(round_apart)(halves, floats, r->keys, first, step, some, r->overflow);
    else FN(round_nearest)(halves, floats, some, r->overflow);
    for (int64_t i = 0; i < some && r->h; i++) r->h[first + i * step] = halves[i];
    if (!r->keeps) continue;
    FN(store)(floats, FN(from_half)(halves));
    for (int64_t i = 0; i < some; i++) r->s[first + i * step] = floats[i];
  }
}

/* `rows` runs, `apart` from each other: more than one only of neighbouring elements that are rounded stochastically. */
static void FN(round_elements)(const FN(rounding) *r, int64_t first, int64_t count, int64_t step, int64_t rows, int64_t apart) {
  if (r->to_bfloats) {
    if (step == 1) FN(narrow_row)(r->h + first, r->s + first, count);
    else for (int64_t i = 0; i < count; i++) FN(narrow_row)(r->h + first + i * step, r->s + first + i * step, 1);
  } else if (step == 1 && r->is_stochastic) {
    FN(round_from)(r->s, r->h, r->keeps, r->keys, first, count, rows, apart, r->overflow);
  } else if (step == 1 && r->keeps) {
    FN(round_nearest_here)(r->s + first, r->h ? r->h + first : NULL, count, r->overflow);
  } else if (step == 1) {
    FN(round_nearest)(r->h + first, r->s + first, count, r->overflow);
  } else {
    FN(round_spread)(r, first, count, step);
  }
}

TI_KERNEL(round_blocks) {
  (void)scalars, (void)scratch;
  const round_blocks_ints *const p = (const round_blocks_ints *)ints;
  const int64_t *state = (const int64_t *)args[2];
  const int is_stochastic = !FN(rounds_to_nearest)(state);
  const FN(keys) keys = is_stochastic ? FN(keys_of)(state) : (FN(keys)){0, 0};
  const FN(rounding) r = {
    .s = (float *)args[0] - p->begins, .h = p->keeps == TI_KEPT_FLOATS ? NULL : (uint16_t *)args[1], .keys = keys,
    .is_stochastic = is_stochastic, .overflow = (int)p->overflow, .keeps = p->keeps != TI_KEPT_HALVES,
    .to_bfloats = (int)p->to_bfloats,
  };
  if (p->run) {  /* what a chunk has written is one run */
    const int64_t first = begin * p->run;
    FN(round_elements)(&r, first, ti_min(end * p->run, p->elements) - first, 1, 1, 0);
    return TI_OK;
  }
  const int64_t dims = p->num_dims, along = p->along, across = along == dims - 1 ? dims - 2 : dims - 1;
  const block_dim *d = p->dims;
  const int takes_rows = across >= 0 && d[along].step == 1 && is_stochastic && !r.to_bfloats;
  for (int64_t item = begin; item < end; item++) {
    int64_t first[TI_BLOCK_DIMS], last[TI_BLOCK_DIMS], at[TI_BLOCK_DIMS], rest = item;
    for (int64_t k = dims - 1; k >= 0; k--) {
      const int64_t blocks = (d[k].size + d[k].block - 1) / d[k].block;
      first[k] = at[k] = rest % blocks * d[k].block;
      last[k] = first[k] + d[k].block < d[k].size ? first[k] + d[k].block : d[k].size;
      rest /= blocks;
    }
    int64_t rows = 1;
    if (takes_rows && first[across] / d[across].inner == (last[across] - 1) / d[across].inner) {
      rows = last[across] - first[across];
      last[across] = first[across] + 1;
    }
    for (;;) {
      int64_t base = p->first;
      for (int64_t k = 0; k < dims; k++)
        if (k != along) base += ti_element(d + k, at[k]);
      for (int64_t x = first[along]; x < last[along];) {
        const int64_t inner = d[along].inner, room = inner - (x < inner ? x : x % inner), left = last[along] - x;
        const int64_t count = left < room ? left : room;
        FN(round_elements)(&r, base + ti_element(d + along, x), count, d[along].step, rows, rows > 1 ? d[across].step : 0);
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
