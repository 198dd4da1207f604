/* Losses: negative log-likelihood over classes, and losses of pairs of elements. A reduced loss is summed over fixed
 * chunks in float, and over the chunks in double. */

/* Reads element i of an index tensor of 4 or 8 bytes. */
TI_INLINE int64_t FN(index_at)(const char *p, int64_t bytes, int64_t i) {
  return bytes == 8 ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}

/* nll: args out [outer, inner] (reduction 0) or partials [chunks, 2] (loss, weight), x [outer, classes, inner], target
 * [outer, inner], weight [classes]; ints outer*inner, classes, inner, ignore_index, reduction, target bytes, has
 * weight, positions in a chunk. Items: chunks. Traps on a class out of range. */
TI_KERNEL(nll) {
  float *out = (float *)args[0];
  const float *x = (const float *)args[1], *w = (const float *)args[3];
  const int64_t count = ints[0], classes = ints[1], inner = ints[2], ignored = ints[3], reduction = ints[4];
  const int64_t chunk = ints[7];
  for (int64_t item = begin; item < end; item++) {
    double loss = 0, total = 0;
    for (int64_t i = item * chunk; i < ti_min(count, (item + 1) * chunk); i++) {
      const int64_t k = FN(index_at)(args[2], ints[5], i);
      float value = 0.0f;
      if (k != ignored) {
        if (k < 0 || k >= classes) return TI_TRAP_INDEX;
        const float weight = ints[6] ? w[k] : 1.0f;
        value = -x[(i / inner * classes + k) * inner + i % inner] * weight;
        total += weight;
      }
      if (reduction == 0) out[i] = value;
      loss += value;
    }
    if (reduction) out[2 * item] = (float)loss, out[2 * item + 1] = (float)total;
  }
  return TI_OK;
}

/* nll_total: args loss [], total weight [], partials [chunks, 2]; ints chunks, mean. One item. */
TI_KERNEL(nll_total) {
  const float *partials = (const float *)args[2];
  double loss = 0, total = 0;
  for (int64_t i = 0; i < ints[0]; i++) loss += partials[2 * i], total += partials[2 * i + 1];
  *(float *)args[0] = (float)(ints[1] ? loss / total : loss);
  *(float *)args[1] = (float)total;
  return TI_OK;
}

/* nll_grad: args dx [outer, classes, inner], dy ([] or [outer, inner]), target, weight, total weight []; ints outer,
 * classes, inner, ignore_index, reduction, target bytes, has weight. Items: outer. */
TI_KERNEL(nll_grad) {
  const float *dy = (const float *)args[1], *w = (const float *)args[3];
  const int64_t classes = ints[1], inner = ints[2], ignored = ints[3], reduction = ints[4];
  const float share = reduction == 1 ? 1.0f / *(const float *)args[4] : 1.0f;
  for (int64_t item = begin; item < end; item++) {
    float *dx = (float *)args[0] + item * classes * inner;
    memset(dx, 0, (size_t)(classes * inner) * sizeof(float));
    for (int64_t j = 0; j < inner; j++) {
      const int64_t i = item * inner + j, k = FN(index_at)(args[2], ints[5], i);
      if (k == ignored) continue;
      if (k < 0 || k >= classes) return TI_TRAP_INDEX;
      dx[k * inner + j] = -(reduction ? dy[0] * share : dy[i]) * (ints[6] ? w[k] : 1.0f);
    }
  }
  return TI_OK;
}

enum { FN(MSE), FN(SMOOTH_L1), FN(HUBER), FN(BCE), FN(BCE_LOGITS) };

TI_INLINE float FN(pair)(int64_t kind, float x, float t, float w, float pw, float beta) {
  const float d = x - t, a = fabsf(d);
  switch (kind) {
    case FN(MSE): return d * d;
    case FN(SMOOTH_L1): return a < beta ? 0.5f * d * d / beta : a - 0.5f * beta;
    case FN(HUBER): return a <= beta ? 0.5f * d * d : beta * (a - 0.5f * beta);
    case FN(BCE): {
      float p = logf(x), q = log1pf(-x);
      p = p < -100.0f ? -100.0f : p, q = q < -100.0f ? -100.0f : q;
      return -w * (t * p + (1.0f - t) * q);
    }
    default: {
      /* log(sigmoid(x)), without overflow for x far below 0 */
      const float tail = log1pf(expf(-fabsf(x))) - (x < 0.0f ? x : x != x ? x : 0.0f);
      return w * ((1.0f - t) * x + ((pw - 1.0f) * t + 1.0f) * tail);
    }
  }
}

TI_INLINE float FN(slope)(int64_t kind, float x, float t, float w, float beta) {
  const float d = x - t;
  switch (kind) {
    case FN(MSE): return 2.0f * d;
    case FN(SMOOTH_L1): return d <= -beta ? -1.0f : d >= beta ? 1.0f : d / beta;
    case FN(HUBER): return d <= -beta ? -beta : d >= beta ? beta : d;
    default: {
      const float spread = (1.0f - x) * x;
      return w * d / (spread < 1e-12f ? 1e-12f : spread);
    }
  }
}

/* pair_loss: args out [n] (reduction 0) or partials [chunks], x, target, weight [n], positive weight (period p); ints
 * n, kind (0 mse, 1 smooth l1, 2 huber, 3 binary cross-entropy, 4 the same of logits), reduction, has weight, p (0: no
 * positive weight), elements in a chunk; scalars beta or delta. Items: chunks. */
TI_KERNEL(pair_loss) {
  float *out = (float *)args[0];
  const float *x = (const float *)args[1], *t = (const float *)args[2], *w = (const float *)args[3];
  const float *pw = (const float *)args[4], beta = (float)scalars[0];
  const int64_t n = ints[0], kind = ints[1], reduction = ints[2], period = ints[4], chunk = ints[5];
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item * chunk, last = ti_min(n, first + chunk);
    if (kind == FN(MSE) && reduction) {
      VF s = {0};
      int64_t i = first;
      for (; i + VL <= last; i += VL) {
        const VF d = FN(load)(x + i) - FN(load)(t + i);
        s += d * d;
      }
      double sum = FN(sum_lanes)(s);
      for (; i < last; i++) sum += FN(pair)(kind, x[i], t[i], 1.0f, 1.0f, beta);
      out[item] = (float)sum;
      continue;
    }
    double sum = 0;
    for (int64_t i = first; i < last; i++) {
      const float value = FN(pair)(kind, x[i], t[i], ints[3] ? w[i] : 1.0f, period ? pw[i % period] : 1.0f, beta);
      if (reduction == 0) out[i] = value;
      sum += value;
    }
    if (reduction) out[item] = (float)sum;
  }
  return TI_OK;
}

/* pair_total: args loss [], partials [chunks]; ints chunks; scalars divisor. One item. */
TI_KERNEL(pair_total) {
  const float *partials = (const float *)args[1];
  double loss = 0;
  for (int64_t i = 0; i < ints[0]; i++) loss += partials[i];
  *(float *)args[0] = (float)(loss / scalars[0]);
  return TI_OK;
}

/* pair_loss_grad: args dx [n], dy ([] or [n]), x, target, weight; ints n, kind, reduction, has weight; scalars beta,
 * divisor. Items: elements. */
TI_KERNEL(pair_loss_grad) {
  float *dx = (float *)args[0];
  const float *dy = (const float *)args[1], *x = (const float *)args[2], *t = (const float *)args[3];
  const float *w = (const float *)args[4], beta = (float)scalars[0], share = (float)(1.0 / scalars[1]);
  const int64_t kind = ints[1], reduction = ints[2];
  if (kind == FN(MSE) && reduction) {
    const float scale = 2.0f * dy[0] * share;
    for (int64_t i = begin; i < end; i++) dx[i] = (x[i] - t[i]) * scale;
    return TI_OK;
  }
  for (int64_t i = begin; i < end; i++)
    dx[i] = FN(slope)(kind, x[i], t[i], ints[3] ? w[i] : 1.0f, beta) * (reduction ? dy[0] * share : dy[i]);
  return TI_OK;
}
