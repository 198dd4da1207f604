/* Losses: negative log-likelihood over classes, and losses of pairs of elements. A reduced loss is summed over fixed
 * chunks in float, and over the chunks in double. */

/* Reads element i of an index tensor of 4 or 8 bytes. */
TI_INLINE int64_t FN(index_at)(const char *p, int64_t bytes, int64_t i) {
  return bytes == 8 ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}

TI_KERNEL(nll) {
  float *out = (float *)args[0];
  const float *x = (const float *)args[1], *w = (const float *)args[3];
  const nll_ints *const p = (const nll_ints *)ints;
  const int64_t count = p->positions, classes = p->classes, inner = p->inner, reduction = p->reduction, chunk = p->chunk;
  for (int64_t item = begin; item < end; item++) {
    double loss = 0, total = 0;
    for (int64_t i = item * chunk; i < ti_min(count, (item + 1) * chunk); i++) {
      const int64_t k = FN(index_at)(args[2], p->target_bytes, i);
      float value = 0.0f;
      if (k != p->ignored) {
        if (k < 0 || k >= classes) return TI_TRAP_INDEX;
        const float weight = p->has_weight ? w[k] : 1.0f;
        value = -x[(i / inner * classes + k) * inner + i % inner] * weight;
        total += weight;
      }
      if (reduction == TI_REDUCTION_NONE) out[i] = value;
      loss += value;
    }
    if (reduction) out[2 * item] = (float)loss, out[2 * item + 1] = (float)total;
  }
  return TI_OK;
}

TI_KERNEL(nll_total) {
  const nll_total_ints *const p = (const nll_total_ints *)ints;
  const float *partials = (const float *)args[2];
  double loss = 0, total = 0;
  for (int64_t i = 0; i < p->chunks; i++) loss += partials[2 * i], total += partials[2 * i + 1];
  *(float *)args[0] = (float)(p->is_mean ? loss / total : loss);
  *(float *)args[1] = (float)total;
  return TI_OK;
}

TI_KERNEL(nll_grad) {
  const float *dy = (const float *)args[1], *w = (const float *)args[3];
  const nll_grad_ints *const p = (const nll_grad_ints *)ints;
  const int64_t classes = p->classes, inner = p->inner, reduction = p->reduction;
  const float share = reduction == TI_REDUCTION_MEAN ? 1.0f / *(const float *)args[4] : 1.0f;
  for (int64_t item = begin; item < end; item++) {
    float *dx = (float *)args[0] + item * classes * inner;
    memset(dx, 0, (size_t)(classes * inner) * sizeof(float));
    for (int64_t j = 0; j < inner; j++) {
      const int64_t i = item * inner + j, k = FN(index_at)(args[2], p->target_bytes, i);
      if (k == p->ignored) continue;
      if (k < 0 || k >= classes) return TI_TRAP_INDEX;
      dx[k * inner + j] = -(reduction ? dy[0] * share : dy[i]) * (p->has_weight ? w[k] : 1.0f);
    }
  }
  return TI_OK;
}

TI_INLINE float FN(pair)(int64_t kind, float x, float t, float w, float pw, float beta) {
  const float d = x - t, a = fabsf(d);
  switch (kind) {
    case TI_PAIR_LOSS_MSE: return d * d;
    case TI_PAIR_LOSS_SMOOTH_L1: return a < beta ? 0.5f * d * d / beta : a - 0.5f * beta;
    case TI_PAIR_LOSS_HUBER: return a <= beta ? 0.5f * d * d : beta * (a - 0.5f * beta);
    case TI_PAIR_LOSS_CROSS_ENTROPY: {
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
    case TI_PAIR_LOSS_MSE: return 2.0f * d;
    case TI_PAIR_LOSS_SMOOTH_L1: return d <= -beta ? -1.0f : d >= beta ? 1.0f : d / beta;
    case TI_PAIR_LOSS_HUBER: return d <= -beta ? -beta : d >= beta ? beta : d;
    default: {
      const float spread = (1.0f - x) * x;
      return w * d / (spread < 1e-12f ? 1e-12f : spread);
    }
  }
}

TI_KERNEL(pair_loss) {
  float *out = (float *)args[0];
  const float *x = (const float *)args[1], *t = (const float *)args[2], *w = (const float *)args[3];
  const float *pw = (const float *)args[4], beta = (float)((const pair_loss_scalars *)scalars)->beta;
  const pair_loss_ints *const p = (const pair_loss_ints *)ints;
  const int64_t n = p->elements, kind = p->kind, reduction = p->reduction, period = p->period, chunk = p->chunk;
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item * chunk, last = ti_min(n, first + chunk);
    if (kind == TI_PAIR_LOSS_MSE && reduction) {
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
      const float value = FN(pair)(kind, x[i], t[i], p->has_weight ? w[i] : 1.0f, period ? pw[i % period] : 1.0f, beta);
      if (reduction == TI_REDUCTION_NONE) out[i] = value;
      sum += value;
    }
    if (reduction) out[item] = (float)sum;
  }
  return TI_OK;
}

TI_KERNEL(pair_total) {
  const float *partials = (const float *)args[1];
  double loss = 0;
  for (int64_t i = 0; i < ((const pair_total_ints *)ints)->chunks; i++) loss += partials[i];
  *(float *)args[0] = (float)(loss / ((const pair_total_scalars *)scalars)->divisor);
  return TI_OK;
}

TI_KERNEL(pair_loss_grad) {
  float *dx = (float *)args[0];
  const float *dy = (const float *)args[1], *x = (const float *)args[2], *t = (const float *)args[3];
  const pair_loss_grad_ints *const p = (const pair_loss_grad_ints *)ints;
  const pair_loss_grad_scalars *const q = (const pair_loss_grad_scalars *)scalars;
  const float *w = (const float *)args[4], beta = (float)q->beta, share = (float)(1.0 / q->divisor);
  const int64_t kind = p->kind, reduction = p->reduction;
  if (kind == TI_PAIR_LOSS_MSE && reduction) {
    const float scale = 2.0f * dy[0] * share;
    for (int64_t i = begin; i < end; i++) dx[i] = (x[i] - t[i]) * scale;
    return TI_OK;
  }
  for (int64_t i = begin; i < end; i++)
    dx[i] = FN(slope)(kind, x[i], t[i], p->has_weight ? w[i] : 1.0f, beta) * (reduction ? dy[0] * share : dy[i]);
  return TI_OK;
}
