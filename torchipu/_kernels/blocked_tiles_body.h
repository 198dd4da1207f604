/* The functions of tiles of blocks that convolutions with channels in blocks call, compiled once. */
#include "registers_body.h"
#include "blocked_tile_body.h"

/* Channels of a turn of the loop: with more of them, of long instructions, it outgrows what a core keeps decoded. */
enum { FN(TURN) = VL == 16 ? 4 : VL };

/* Adds the products of channel i behind those that `p` and `w` show. */
TI_INLINE void FN(add_channel)(const int nb, const int np, const float *w, ptrdiff_t w_block, const float *const *p, int64_t i, VF *sum) {
  VF weight[FN(MOST_BLOCKS)];
#pragma GCC unroll 4
  for (int b = 0; b < nb; b++) weight[b] = FN(load)(w + b * w_block);
#pragma GCC unroll 12
  for (int j = 0; j < np; j++) {
    if (nb == 1) {
      FN(add_product_of)(&sum[j], p[j] + i, weight[0]);
      continue;
    }
    const VF v = FN(broadcast)(p[j] + i);
#pragma GCC unroll 4
    for (int b = 0; b < nb; b++) FN(add_product)(&sum[j * nb + b], v, weight[b]);
  }
}

TI_INLINE void FN(find_sources)(const int np, const float *x, const int32_t *from, const float **p) {
#pragma GCC unroll 12
  for (int j = 0; j < np; j++) p[j] = x + from[j];
}

/* Each pixel has a pointer of its own, which is moved: an address with an index takes an instruction more in each product. */
TI_INLINE void FN(move_sources)(const int np, ptrdiff_t by, const float **p) {
#pragma GCC unroll 12
  for (int j = 0; j < np; j++) {
    p[j] += by;
    __asm__("" : "+r"(p[j]));
  }
}

/* Fetches the pixels of the next tile, where these lie behind those of this one: each block is another stream of short pieces,
 * of which the processor does not see in time that they go on. Short vectors leave it the time, and lose some hundredths. */
TI_INLINE void FN(fetch_sources)(const int np, const float *const *p) {
#pragma GCC unroll 12
  for (int j = 0; j < np; j++) __builtin_prefetch(p[j] + np * VL);
}

/* Adds the products of blocks of channels. */
TI_INLINE void FN(add_blocks)(const int nb, const int np, const FN(blocked_tile) *t, VF *sum) {
  const int32_t *const taps = t->taps;
  const int64_t num_taps = t->num_taps;
  const ptrdiff_t moved = FN(TURN) < VL ? VL : 0, to_next_block = t->x_block + taps[0] - taps[num_taps - 1] - moved;
  const float *w = t->w, *p[FN(MOST_PIXELS)];
  FN(find_sources)(np, t->x + taps[0], t->from, p);
  for (int64_t block = 0; block < t->blocks; block++)
    for (int64_t tap = 1; tap <= num_taps; tap++) {
      if (VL == 16 && num_taps == 1) FN(fetch_sources)(np, p);
#pragma GCC unroll 1
      for (int turn = 0; turn < VL / FN(TURN); turn++, w += FN(TURN) * VL) {
#pragma GCC unroll 8
        for (int i = 0; i < FN(TURN); i++) FN(add_channel)(nb, np, w + i * VL, t->w_block, p, i, sum);
        if (moved) FN(move_sources)(np, FN(TURN), p);
      }
      FN(move_sources)(np, tap < num_taps ? taps[tap] - taps[tap - 1] - moved : to_next_block, p);
    }
}

TI_INLINE void FN(activate_tile)(const int count, const int activation, VF *sum) {
#pragma GCC unroll 24
  for (int i = 0; i < count; i++) sum[i] = FN(activated)(activation, sum[i]);
}

/* Ends sums while they are in registers. */
TI_INLINE void FN(end_tile)(const int nb, const int np, const FN(blocked_tile) *t, VF *sum) {
  const FN(blocked_ending) e = *t->ending;
#pragma GCC unroll 4
  for (int b = 0; b < nb; b++) {
    if (e.is_affine) {
      const VF scale = FN(load)(e.scale + b * VL), shift = FN(load)(e.shift + b * VL);
#pragma GCC unroll 12
      for (int j = 0; j < np; j++) sum[j * nb + b] = FN(fma)(sum[j * nb + b], scale, shift);
    }
    if (e.added)
#pragma GCC unroll 12
      for (int j = 0; j < np; j++) sum[j * nb + b] += FN(load)(e.added + b * t->y_block + t->to[j]);
    if (e.gate)
#pragma GCC unroll 12
      for (int j = 0; j < np; j++) sum[j * nb + b] = FN(gated)(sum[j * nb + b], FN(load)(e.gate + b * t->y_block + t->to[j]));
  }
  switch (e.activation) {
    case TI_ACTIVATION_RELU: FN(activate_tile)(nb * np, TI_ACTIVATION_RELU, sum); break;
    case TI_ACTIVATION_RELU6: FN(activate_tile)(nb * np, TI_ACTIVATION_RELU6, sum); break;
    case TI_ACTIVATION_HARDSWISH: FN(activate_tile)(nb * np, TI_ACTIVATION_HARDSWISH, sum); break;
    case TI_ACTIVATION_HARDSIGMOID: FN(activate_tile)(nb * np, TI_ACTIVATION_HARDSIGMOID, sum); break;
    default: break;
  }
}

TI_INLINE void FN(blocked_sums)(const int nb, const int np, const FN(blocked_tile) *t) {
  VF sum[24];
  const float *w = t->w, *x = t->x, *p[FN(MOST_PIXELS)];
  const ptrdiff_t w_block = t->w_block;
  const int32_t *const from = t->from, *const taps = t->taps;
  const int64_t num_taps = t->num_taps;
#pragma GCC unroll 24
  for (int i = 0; i < nb * np; i++) sum[i] = FN(set)(0);
  if (t->blocks > 0 && num_taps > 0) {
    FN(add_blocks)(nb, np, t, sum);
    w += t->blocks * num_taps * VL * VL;
    x += t->blocks * t->x_block;
  }
  const int64_t rest = t->rest, channel = t->channel;
  for (int64_t c0 = 0; c0 < rest; c0 += VL) {  /* channels one by one, whose weights are in blocks all the same */
    const int64_t end = ti_min(VL, rest - c0) * channel;
    for (int64_t tap = 0; tap < num_taps; tap++) {
      FN(find_sources)(np, x + c0 * channel + taps[tap], from, p);
#pragma GCC unroll 1
      for (int64_t i = 0; i < end; i += channel, w += VL) FN(add_channel)(nb, np, w, w_block, p, i, sum);
    }
  }
  if (t->accumulate)
#pragma GCC unroll 12
    for (int j = 0; j < np; j++)
#pragma GCC unroll 4
      for (int b = 0; b < nb; b++) sum[j * nb + b] += FN(load)(t->y + b * t->y_block + t->to[j]);
  if (t->ending) FN(end_tile)(nb, np, t, sum);
#pragma GCC unroll 12
  for (int j = 0; j < np; j++)
#pragma GCC unroll 4
    for (int b = 0; b < nb; b++) FN(store)(t->y + b * t->y_block + t->to[j], sum[j * nb + b]);
}
#undef TI_BLOCKED
#define TI_BLOCKED(B_, P_) static __attribute__((noinline)) void FN(blocked_##B_##_##P_)(const FN(blocked_tile) *t) { FN(blocked_sums)(B_, P_, t); }
TI_BLOCKED(1, 1) TI_BLOCKED(1, 2) TI_BLOCKED(1, 3) TI_BLOCKED(1, 4) TI_BLOCKED(1, 5) TI_BLOCKED(1, 6) TI_BLOCKED(1, 7) TI_BLOCKED(1, 8)
TI_BLOCKED(1, 9) TI_BLOCKED(1, 10)
TI_BLOCKED(2, 1) TI_BLOCKED(2, 2) TI_BLOCKED(2, 3) TI_BLOCKED(2, 4) TI_BLOCKED(2, 5) TI_BLOCKED(2, 6)
#if VL == 16
TI_BLOCKED(3, 1) TI_BLOCKED(3, 2) TI_BLOCKED(3, 3) TI_BLOCKED(3, 4)
TI_BLOCKED(1, 11) TI_BLOCKED(1, 12)
TI_BLOCKED(2, 7) TI_BLOCKED(2, 8) TI_BLOCKED(2, 9) TI_BLOCKED(2, 10) TI_BLOCKED(2, 11) TI_BLOCKED(2, 12)
TI_BLOCKED(3, 5) TI_BLOCKED(3, 6) TI_BLOCKED(3, 7) TI_BLOCKED(3, 8)
TI_BLOCKED(4, 1) TI_BLOCKED(4, 2) TI_BLOCKED(4, 3) TI_BLOCKED(4, 4) TI_BLOCKED(4, 5) TI_BLOCKED(4, 6)
#endif
void (*const FN(blocked_table)[FN(MOST_BLOCKS)][FN(MOST_PIXELS)])(const FN(blocked_tile) *) = {
#if VL == 16
  {FN(blocked_1_1), FN(blocked_1_2), FN(blocked_1_3), FN(blocked_1_4), FN(blocked_1_5), FN(blocked_1_6), FN(blocked_1_7), FN(blocked_1_8),
   FN(blocked_1_9), FN(blocked_1_10), FN(blocked_1_11), FN(blocked_1_12)},
  {FN(blocked_2_1), FN(blocked_2_2), FN(blocked_2_3), FN(blocked_2_4), FN(blocked_2_5), FN(blocked_2_6), FN(blocked_2_7), FN(blocked_2_8),
   FN(blocked_2_9), FN(blocked_2_10), FN(blocked_2_11), FN(blocked_2_12)},
  {FN(blocked_3_1), FN(blocked_3_2), FN(blocked_3_3), FN(blocked_3_4), FN(blocked_3_5), FN(blocked_3_6), FN(blocked_3_7), FN(blocked_3_8)},
  {FN(blocked_4_1), FN(blocked_4_2), FN(blocked_4_3), FN(blocked_4_4), FN(blocked_4_5), FN(blocked_4_6)},
#else
  {FN(blocked_1_1), FN(blocked_1_2), FN(blocked_1_3), FN(blocked_1_4), FN(blocked_1_5), FN(blocked_1_6), FN(blocked_1_7), FN(blocked_1_8),
   FN(blocked_1_9), FN(blocked_1_10)},
  {FN(blocked_2_1), FN(blocked_2_2), FN(blocked_2_3), FN(blocked_2_4), FN(blocked_2_5), FN(blocked_2_6)},
#endif
};
