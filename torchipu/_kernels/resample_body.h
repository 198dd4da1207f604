/* Weighted sums along a dimension, for interpolation, and sums of windows that overlap. */
#include "matrix_transpose_body.h"

/* Taps of which every output of a piece has as many; those of all outputs for one tap lie together. */
TI_INLINE void FN(weigh_piece)(float *restrict out, const float *in, const int32_t *from, const float *by, int64_t count, int taps) {
  for (int64_t i = 0; i < count; i++) {
    float sum = by[i] * in[from[i]];
    for (int t = 1; t < taps; t++) sum += by[t * count + i] * in[from[t * count + i]];
    out[i] = sum;
  }
}
TI_KERNEL(weighted_columns) {
  const weighted_columns_ints *const p = (const weighted_columns_ints *)ints;
  const int64_t pieces = p->pieces, *places = (const int64_t *)args[2];
  for (int64_t item = begin; item < end; item++) {
    const int64_t row = item / pieces, *piece = places + item % pieces * 4, count = piece[1];
    float *out = (float *)args[0] + row * p->outputs + piece[0];
    const float *in = (const float *)args[1] + row * p->inputs, *by = (const float *)args[4] + piece[3];
    const int32_t *from = (const int32_t *)args[3] + piece[3];
    switch (piece[2]) {
      case 0: memset(out, 0, (size_t)count * sizeof(float)); break;
      case 1: FN(weigh_piece)(out, in, from, by, count, 1); break;
      case 2: FN(weigh_piece)(out, in, from, by, count, 2); break;
      case 4: FN(weigh_piece)(out, in, from, by, count, 4); break;
      default: FN(weigh_piece)(out, in, from, by, count, (int)piece[2]);
    }
  }
  return TI_OK;
}

/* The lane of sixteen values that each word of `at` names. */
TI_INLINE VF FN(lanes_of)(const float *p, const int32_t *at) {
#ifdef TI_PORTABLE
  VF picked;
  for (int i = 0; i < VL; i++) picked[i] = p[at[i]];
  return picked;
#else
  const __m256i lanes = _mm256_loadu_si256((const __m256i *)at);
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(p), lanes), high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(p + 8), lanes);
  return (VF)_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(lanes, 28)));
#endif
}
TI_INLINE VF FN(weigh_group)(const float *in, const int32_t *bases, const int32_t *lanes, const float *by, int taps) {
  VF sum = FN(lanes_of)(in + bases[0], lanes) * FN(load)(by);
  for (int t = 1; t < taps; t++) sum = FN(fma)(FN(lanes_of)(in + bases[t], lanes + t * VL), FN(load)(by + t * VL), sum);
  return sum;
}
TI_KERNEL(weighted_groups) {
  const weighted_groups_ints *const p = (const weighted_groups_ints *)ints;
  for (int64_t row = begin; row < end; row++) {
    const float *in = (const float *)args[1] + row * p->inputs, *by = (const float *)args[5];
    float *out = (float *)args[0] + row * p->outputs;
    const int32_t *bases = (const int32_t *)args[3], *lanes = (const int32_t *)args[4];
    for (const int32_t *group = (const int32_t *)args[2], *last = group + 2 * p->groups; group < last; group += 2) {
      const int count = group[0], taps = group[1];
      VF sum = {0};
      switch (taps) {
        case 0: break;
        case 1: sum = FN(weigh_group)(in, bases, lanes, by, 1); break;
        case 2: sum = FN(weigh_group)(in, bases, lanes, by, 2); break;
        case 4: sum = FN(weigh_group)(in, bases, lanes, by, 4); break;
        default: sum = FN(weigh_group)(in, bases, lanes, by, taps);
      }
      FN(store_most)(out, sum, count);
      out += count, bases += taps, lanes += taps * VL, by += taps * VL;
    }
  }
  return TI_OK;
}

/* nv vectors, the last of `last` lanes, of the sum of weighted rows. */
TI_INLINE void FN(sum_rows)(const int nv, float *out, const float *in, int64_t inner, const int64_t *sources,
                            const float *weights, int64_t taps, int64_t last) {
  VF sum[8];
#pragma GCC unroll 8
  for (int v = 0; v < nv; v++) sum[v] = (VF){0};
  for (int64_t t = 0; t < taps; t++) {
    const float *row = in + sources[t] * inner;
    const VF by = FN(set)(weights[t]);
#pragma GCC unroll 8
    for (int v = 0; v < nv; v++) sum[v] = FN(fma)(by, FN(load_most)(row + v * VL, v + 1 < nv ? VL : last), sum[v]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < nv; v++) FN(store_most)(out + v * VL, sum[v], v + 1 < nv ? VL : last);
}
TI_KERNEL(weighted_taps) {
  const weighted_taps_ints *const shape = (const weighted_taps_ints *)ints;
  const int64_t m = shape->outputs, n = shape->inputs, inner = shape->inner;
  const int64_t *starts = (const int64_t *)args[2];
  for (int64_t item = begin; item < end; item++) {
    const int64_t o = item / m, j = item % m, first = starts[j], taps = starts[j + 1] - first;
    const int64_t *sources = (const int64_t *)args[3] + first;
    const float *in = (const float *)args[1] + o * n * inner, *weights = (const float *)args[4] + first;
    float *out = (float *)args[0] + item * inner;
    if (inner == 1) {
      float sum = taps ? weights[0] * in[sources[0]] : 0.f;
      for (int64_t t = 1; t < taps; t++) sum += weights[t] * in[sources[t]];
      *out = sum;
      continue;
    }
    if (taps == 1 && weights[0] == 1.f) {
      memcpy(out, in + sources[0] * inner, (size_t)inner * sizeof(float));
      continue;
    }
    int64_t i = 0;
    for (; i + 8 * VL <= inner; i += 8 * VL) FN(sum_rows)(8, out + i, in + i, inner, sources, weights, taps, VL);
    for (; i + 2 * VL <= inner; i += 2 * VL) FN(sum_rows)(2, out + i, in + i, inner, sources, weights, taps, VL);
    for (; i < inner; i += VL) FN(sum_rows)(1, out + i, in + i, inner, sources, weights, taps, ti_min(VL, inner - i));
  }
  return TI_OK;
}

/* Adds the runs of a row to the columns from which padding took them; the first row that is folded sets the columns. */
static void FN(fold_row)(float *out, const float *in, const int64_t *run, int64_t runs, int64_t columns, int is_first) {
  for (const int64_t *last = run + 4 * runs; run < last; run += 4) {
    const float *from = in + run[0];
    float *to = out + run[2];
    const int64_t length = run[1];
    if (is_first && run[3] == 1 && length == columns) memcpy(out, from, (size_t)columns * sizeof(float));
    else {
      if (is_first) memset(out, 0, (size_t)columns * sizeof(float));
      if (run[3] == 1) for (int64_t i = 0; i < length; i++) to[i] += from[i];
      else for (int64_t i = 0; i < length; i++) to[i * run[3]] += from[i];
    }
    is_first = 0;
  }
}
TI_KERNEL(fold_rows) {
  const fold_rows_ints *const p = (const fold_rows_ints *)ints;
  const int64_t *planes = (const int64_t *)args[2], *sources = planes + p->depth + 1;
  const int64_t *lines = sources + planes[p->depth], *line_sources = lines + p->height + 1;
  const int64_t *runs = line_sources + lines[p->height];
  for (int64_t item = begin; item < end; item++) {
    const int64_t y = item % p->height, z = item / p->height % p->depth, o = item / p->height / p->depth;
    const float *in = (const float *)args[1] + o * p->padded_rows * p->padded_columns;
    float *out = (float *)args[0] + item * p->columns;
    int is_first = 1;
    for (int64_t i = planes[z]; i < planes[z + 1]; i++)
      for (int64_t j = lines[y]; j < lines[y + 1]; j++, is_first = 0)
        FN(fold_row)(out, in + (sources[i] + line_sources[j]) * p->padded_columns, runs, p->runs, p->columns, is_first);
    if (is_first) memset(out, 0, (size_t)p->columns * sizeof(float));
  }
  return TI_OK;
}

TI_KERNEL(add_strided) {
  const add_strided_ints *const shape = (const add_strided_ints *)ints;
  const int64_t dims = shape->dims, *sizes = shape->layout, *to = sizes + dims, *from = to + dims;
  const int64_t run = sizes[dims - 1], out_step = to[dims - 1], in_step = from[dims - 1];
  for (int64_t item = begin; item < end; item++) {
    int64_t rest = item, write = 0, read = 0;
    for (int64_t d = dims - 2; d >= 0; d--) {
      write += rest % sizes[d] * to[d];
      read += rest % sizes[d] * from[d];
      rest /= sizes[d];
    }
    float *out = (float *)args[0] + write;
    const float *in = (const float *)args[1] + read;
    if (out_step == 1 && in_step == 1) for (int64_t i = 0; i < run; i++) out[i] += in[i];
    else for (int64_t i = 0; i < run; i++) out[i * out_step] += in[i * in_step];
  }
  return TI_OK;
}

TI_INLINE void FN(add_line)(float *to, const float *from, int64_t n) {
  int64_t i = 0;
  for (; i + VL <= n; i += VL) FN(store)(to + i, FN(load)(to + i) + FN(load)(from + i));
  for (; i < n; i++) to[i] += from[i];
}

/* Adds what a window holds at `count` positions to as many rows of sums. */
static void FN(add_window)(const add_windows_ints *p, float *sums, const float *held, int64_t count, float *scratch) {
  const int64_t inner = p->inner, along = p->from_inner, across = p->from_position;
  if (inner == 1 && across == 1) {
    FN(add_line)(sums, held, count);
  } else if (along == 1) {
    for (int64_t w = 0; w < count; w++) FN(add_line)(sums + w * inner, held + w * across, inner);
  } else if (across == 1) {
    for (int64_t i = 0, n; i < inner; i += n) {
      n = ti_min(TI_WINDOW_ELEMENTS, inner - i);
      FN(transpose)(held + i * along, along, scratch, n, n, count);
      for (int64_t w = 0; w < count; w++) FN(add_line)(sums + w * inner + i, scratch + w * n, n);
    }
  } else {
    for (int64_t w = 0; w < count; w++)
      for (int64_t i = 0; i < inner; i++) sums[w * inner + i] += held[w * across + i * along];
  }
}

/* Windows in their order, so that a sum does not depend on how positions are shared out. */
TI_KERNEL(add_windows) {
  const add_windows_ints *const p = (const add_windows_ints *)ints;
  const int64_t blocks = ti_ceil(p->positions, p->block), W = p->size, step = p->step;
  (void)scalars;
  for (int64_t item = begin; item < end; item++) {
    const int64_t outer = item / blocks, t0 = item % blocks * p->block, t1 = ti_min(p->positions, t0 + p->block);
    float *sums = (float *)args[0] + (outer * p->positions + t0) * p->inner;
    const float *held = (const float *)args[1] + outer * p->from_outer;
    memset(sums, 0, (size_t)((t1 - t0) * p->inner) * sizeof(float));
    const int64_t first = t0 < W ? 0 : ti_ceil(t0 - W + 1, step), last = ti_min(p->windows - 1, (t1 - 1) / step);
    for (int64_t n = first; n <= last; n++) {
      const int64_t begins = ti_max(0, t0 - n * step), ends = ti_min(W, t1 - n * step);
      if (begins < ends)
        FN(add_window)(p, sums + (n * step + begins - t0) * p->inner, held + n * p->from_window + begins * p->from_position,
                       ends - begins, (float *)scratch);
    }
  }
  return TI_OK;
}
