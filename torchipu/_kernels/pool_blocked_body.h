/* Pooling over channels in blocks, and what is done to each element; table/pool_blocked.py says what the kernels take. */
#include "table/conv_blocked.h"
#include "table/pool_blocked.h"
#include "blocked_ending_body.h"

/* The window's offsets that lie within the image: [*first, *end). */
static inline void FN(clip_window)(int64_t at, int64_t size, int64_t window, int64_t dilation, int64_t *first, int64_t *end) {
  *first = at < 0 ? ti_ceil(-at, dilation) : 0;
  *end = at >= size ? *first : ti_max(*first, ti_min(window, ti_ceil(size - at, dilation)));
}

static inline float FN(pooled_pixels)(const pool_blocked_ints *p, int64_t row, int64_t column, int64_t pixels) {
  const blocked_window s = p->window;
  if (p->divisor) return (float)p->divisor;
  if (p->pooling == TI_POOLING_AVERAGE) return (float)pixels;
  return (float)((ti_min(row + s.kh, s.h + s.ph) - row) * (ti_min(column + s.kw, s.w + s.pw) - column));
}

TI_KERNEL(pool_blocked) {
  const pool_blocked_ints *const p = (const pool_blocked_ints *)ints;
  const blocked_window s = p->window;
  const int is_max = p->pooling == TI_POOLING_MAXIMUM;
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t row = item % s.oh * s.sh - s.ph, plane = item / s.oh;
    const float *const x = (const float *)args[1] + plane * s.h * s.w * VL;
    float *y = (float *)args[0] + item * s.ow * VL;
    int64_t r0, r1, c0, c1;
    FN(clip_window)(row, s.h, s.kh, s.dh, &r0, &r1);
    for (int64_t i = 0; i < s.ow; i++, y += VL) {
      const int64_t column = i * s.sw - s.pw;
      FN(clip_window)(column, s.w, s.kw, s.dw, &c0, &c1);
      VF v = FN(set)(is_max ? -INFINITY : 0.f);
      for (int64_t r = r0; r < r1; r++)
        for (int64_t c = c0; c < c1; c++) {
          const VF other = FN(load)(x + ((row + r * s.dh) * s.w + column + c * s.dw) * VL);
          if (is_max) v = FN(maximum)(v, other);
          else v += other;
        }
      const int64_t pixels = (r1 - r0) * (c1 - c0);
      if (!is_max && pixels > 0) v /= FN(pooled_pixels)(p, row, column, pixels);
      FN(store)(y, v);
    }
  }
  return TI_OK;
}

TI_KERNEL(mean_blocked) {
  const mean_blocked_ints *const p = (const mean_blocked_ints *)ints;
  (void)scalars; (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const float *x = (const float *)args[1] + item * p->h * p->w * VL;
    float *const y = (float *)args[0] + item * VL;
    double total[VL] = {0};
    for (int64_t r = 0; r < p->h; r++) {
      VF sum = FN(set)(0.f), other = sum;
      int64_t c = 0;
      for (; c + 2 <= p->w; c += 2, x += 2 * VL) { sum += FN(load)(x); other += FN(load)(x + VL); }
      for (; c < p->w; c++, x += VL) sum += FN(load)(x);
      sum += other;
      for (int64_t l = 0; l < VL; l++) total[l] += sum[l];
    }
    for (int64_t l = 0; l < VL; l++) y[l] = (float)(total[l] / (double)(p->h * p->w));
  }
  return TI_OK;
}

/* Ends `count` pixels from `to` floats on, nothing rounded. */
TI_INLINE void FN(end_some)(const FN(blocked_ending) *e, float *y, const float *x, VF factor, VF shift, const int count, ptrdiff_t to) {
  const VF none = FN(set)(0.f), first = e->first ? FN(load)(e->first) : none;
  const VF scale = e->is_affine ? FN(load)(e->scale) : none, shifted = e->is_affine ? FN(load)(e->shift) : none;
  VF v[4];
  TI_EACH(count) v[p] = FN(fma)(FN(load)(x + to + p * VL), factor, shift);
  shift = shifted;
#define TI_PLACE(p) to + p * VL
#define TI_KEEP(op) (void)0
  TI_END_ROUNDED(e->first, first, scale, shift, e->activation, count, TI_PLACE, TI_KEEP);
#undef TI_PLACE
#undef TI_KEEP
  TI_EACH(count) FN(store)(y + to + p * VL, v[p]);
}
/* Ends pixels that lie one behind the other, nothing rounded. */
static void FN(end_in_registers)(const FN(blocked_ending) *e, float *y, const float *x, VF factor, VF shift, int64_t pixels) {
  int64_t i = 0;
  for (; i + 4 <= pixels; i += 4) FN(end_some)(e, y, x, factor, shift, 4, i * VL);
  for (; i < pixels; i++) FN(end_some)(e, y, x, factor, shift, 1, i * VL);
}

TI_KERNEL(end_blocked) {
  const end_blocked_ints *const p = (const end_blocked_ints *)ints;
  const int64_t blocks = ti_ceil(p->channels, VL);
  enum { RUN = 64 };  /* pixels at a time: they stay in the first cache between two passes */
  int32_t at[RUN];
  (void)scalars; (void)scratch;
  for (int64_t i = 0; i < RUN; i++) at[i] = (int32_t)(i * VL);
  for (int64_t item = begin; item < end; item++) {
    const int64_t block = item % blocks, first = item * p->pixels * VL;
    const float *const x = (const float *)args[1] + first;
    float *const y = (float *)args[0] + first;
    VF factor = FN(set)(1.f), shift = FN(set)(-0.f);  /* which changes nothing */
    if (p->has_factor) factor = FN(load)((const float *)args[2] + item * VL);
    if (p->has_shift) shift = FN(load)((const float *)args[3] + item * VL);
    FN(blocked_ending) e = FN(begin_ending)(args + 2 + p->has_factor + p->has_shift, p->flags, p->activation, blocks * VL, block * VL, args[0], p->channels, p->pixels);
    FN(move_ending)(&e, first);
    if (!e.rounding.is_any) {
      FN(end_in_registers)(&e, y, x, factor, shift, p->pixels);
      continue;
    }
    for (int64_t i = 0; i < p->pixels; i += RUN) {
      const int64_t count = ti_min(RUN, p->pixels - i);
      for (int64_t k = i * VL; k < (i + count) * VL; k += VL) FN(store)(y + k, FN(fma)(FN(load)(x + k), factor, shift));
      FN(end_block)(&e, y + i * VL, at, count, 0);
      FN(move_ending)(&e, count * VL);
    }
  }
  return TI_OK;
}
