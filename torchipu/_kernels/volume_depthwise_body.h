/* Three-dimensional convolutions whose groups have a single channel. The depths that windows reach are laid out with their
 * padding; then a tap takes a run of each, as long as the results of a depth, and products are summed in registers.
 */
#include "taken_run_body.h"
#include "table/volume_depthwise.h"

enum { FN(DEPTHWISE_VECTORS) = 8 };  /* that are summed together */

/* Lays out a depth of the input: [what rows leave over][what columns do][rows][columns]; the padding holds zeros already. */
static void FN(lay_depth)(const volume_depthwise_ints *s, const float *x, float *plane) {
  const int64_t rows = s->laid_out[0], columns = s->laid_out[1], down = s->stride[1], across = s->stride[2];
  for (int64_t over = 0; over < down; over++)
    for (int64_t beside = 0; beside < across; beside++, plane += rows * columns) {
      const int64_t first = beside - s->padding[2], above = over - s->padding[1];  /* of the input, in column and row 0 */
      const int64_t lo = first < 0 ? ti_min(columns, ti_ceil(-first, across)) : 0;
      const int64_t hi = s->size[2] > first ? ti_max(lo, ti_min(columns, ti_ceil(s->size[2] - first, across))) : lo;
      const int64_t top = above < 0 ? ti_min(rows, ti_ceil(-above, down)) : 0;
      const int64_t bottom = s->size[1] > above ? ti_max(top, ti_min(rows, ti_ceil(s->size[1] - above, down))) : top;
      const float *from = x + (top * down + above) * s->size[2] + lo * across + first;
      for (int64_t row = top; row < bottom; row++, from += down * s->size[2])
        FN(take_run)(from, across, hi - lo, plane + row * columns + lo);
    }
}
/* Where taps take their values, and what these are multiplied by. */
typedef struct {
  const float *planes, *weights;
  const int64_t *places;
  int64_t count, step;  /* from weight to weight: 1 or -1 */
} FN(volume_taps);
/* d[vectors * VL] = first + the sums over taps of what each takes times its weight */
TI_INLINE void FN(sum_vectors)(float *d, int64_t from, const FN(volume_taps) *t, float first, const int vectors) {
  VF sum[FN(DEPTHWISE_VECTORS)];
  for (int j = 0; j < vectors; j++) sum[j] = FN(set)(first);
  for (int64_t k = 0; k < t->count; k++) {
    const float *const x = t->planes + t->places[k] + from;
    const VF w = FN(set)(t->weights[k * t->step]);
    for (int j = 0; j < vectors; j++) sum[j] = FN(fma)(w, FN(load)(x + j * VL), sum[j]);
  }
  for (int j = 0; j < vectors; j++) FN(store)(d + from + j * VL, sum[j]);
}
/* The same of n results, rounded up to whole vectors. */
static void FN(sum_run)(float *d, int64_t n, const FN(volume_taps) *t, float first) {
  const int64_t vectors = ti_ceil(n, VL), parts = ti_ceil(vectors, FN(DEPTHWISE_VECTORS));
  for (int64_t part = 0, from = 0; part < parts; part++) {
    const int64_t count = (vectors - from) / (parts - part);
    switch (count) {
#define TI_CASE(n) case n: FN(sum_vectors)(d, from * VL, t, first, n); break;
      TI_CASE(1) TI_CASE(2) TI_CASE(3) TI_CASE(4) TI_CASE(5) TI_CASE(6) TI_CASE(7)
#undef TI_CASE
      default: FN(sum_vectors)(d, from * VL, t, first, 8);
    }
    from += count;
  }
}
/* The depths [first, last) of a window that are not in the padding. */
TI_INLINE void FN(reached_depths)(const volume_depthwise_ints *s, int64_t od, int64_t *first, int64_t *last) {
  const int64_t left = s->padding[0] - od * s->stride[0], step = s->dilation[0];
  *first = left > 0 ? ti_min(s->window[0], ti_ceil(left, step)) : 0;
  *last = s->size[0] + left > 0 ? ti_max(*first, ti_min(s->window[0], ti_ceil(s->size[0] + left, step))) : *first;
}
TI_KERNEL(volume_depthwise) {
  const volume_depthwise_ints own = *(const volume_depthwise_ints *)ints, *const s = &own;
  const int64_t blocks = ti_ceil(s->out[0], s->depths), area = s->size[1] * s->size[2];
  const int64_t in_depth = s->window[1] * s->window[2], all = s->window[0] * in_depth, part = s->laid_out[0] * s->laid_out[1];
  const int64_t plane = part * s->stride[1] * s->stride[2];
  const int64_t n = (s->out[1] - 1) * s->laid_out[1] + s->out[2];
  int64_t *const places = (int64_t *)scratch, *const of_depth = places + all;
  float *const planes = (float *)(of_depth + in_depth), *const sums = planes + s->held * plane + TI_DEPTHWISE_RUN;
  (void)scalars;
  for (int64_t k = 0; k < in_depth; k++) {
    const int64_t down = k / s->window[2] * s->dilation[1], across = k % s->window[2] * s->dilation[2];
    of_depth[k] = (down % s->stride[1] * s->stride[2] + across % s->stride[2]) * part + down / s->stride[1] * s->laid_out[1] +
                  across / s->stride[2];
  }
  memset(planes, 0, sizeof(float) * (size_t)(s->held * plane + TI_DEPTHWISE_RUN));
  for (int64_t item = begin; item < end; item++) {
    const int64_t group = item / blocks, begin_depth = item % blocks * s->depths, channel = group % s->channels * s->out_channels;
    const float *const x = (const float *)args[1] + group * s->size[0] * area;
    int64_t ready = 0;  /* the depths of the input before it have been laid out */
    for (int64_t od = begin_depth; od < ti_min(begin_depth + s->depths, s->out[0]); od++) {
      int64_t first, last;
      FN(reached_depths)(s, od, &first, &last);
      const int64_t d = od * s->stride[0] - s->padding[0];
      if (first < last) {
        ready = ti_max(ready, d + first * s->dilation[0]);
        for (; ready <= d + (last - 1) * s->dilation[0]; ready++) FN(lay_depth)(s, x + ready * area, planes + ready % s->held * plane);
      }
      int64_t count = 0;
      for (int64_t kd = first; kd < last; kd++) {
        const int64_t at = (d + kd * s->dilation[0]) % s->held * plane;
        for (int64_t k = 0; k < in_depth; k++) places[count++] = at + of_depth[k];
      }
      for (int64_t o = 0; o < s->out_channels; o++) {
        const float *const w = (const float *)args[2] + (channel + o) * all;
        const FN(volume_taps) taps = {
            .planes = planes, .weights = s->is_turned ? w + all - 1 - first * in_depth : w + first * in_depth, .places = places,
            .count = count, .step = s->is_turned ? -1 : 1};
        FN(sum_run)(sums, n, &taps, s->has_bias ? ((const float *)args[3])[channel + o] : 0.f);
        float *y = (float *)args[0] + ((group * s->out_channels + o) * s->out[0] + od) * s->out[1] * s->out[2];
        for (int64_t row = 0; row < s->out[1]; row++, y += s->out[2]) FN(take_run)(sums + row * s->laid_out[1], 1, s->out[2], y);
      }
    }
  }
  return TI_OK;
}
