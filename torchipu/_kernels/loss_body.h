/* Losses: negative log-likelihood over classes, and losses of pairs of elements. A reduced loss is summed over fixed
 * chunks in float, and over the chunks in double. */
#include "table/convert.h"

/* Reads element i of an index tensor of 4 or 8 bytes. */
TI_INLINE int64_t FN(index_at)(const char *p, int64_t bytes, int64_t i) {
  return bytes == 8 ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}

/* Element i of numbers. */
TI_INLINE float FN(element)(const char *p, int64_t i, int64_t stored) {
  if (stored == TI_STORED_FLOATS) return ((const float *)p)[i];
  const uint16_t lanes[16] = {((const uint16_t *)p)[i]};
  return (stored == TI_STORED_HALVES ? FN(from_half)(lanes) : FN(from_bfloat)(lanes))[0];
}

TI_KERNEL(nll) {
  float *out = (float *)args[0];
  const float *w = (const float *)args[3];
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
        value = -FN(element)(args[1], (i / inner * classes + k) * inner + i % inner, p->stored) * weight;
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
  memset((float *)args[0] + begin * classes * inner, 0, (size_t)((end - begin) * classes * inner) * sizeof(float));
  for (int64_t item = begin; item < end; item++) {
    float *dx = (float *)args[0] + item * classes * inner;
    for (int64_t j = 0; j < inner; j++) {
      const int64_t i = item * inner + j, k = FN(index_at)(args[2], p->target_bytes, i);
      if (k == p->ignored) continue;
      if (k < 0 || k >= classes) return TI_TRAP_INDEX;
      dx[k * inner + j] = -(reduction ? dy[0] * share : dy[i]) * (p->has_weight ? w[k] : 1.0f);
    }
  }
  return TI_OK;
}

TI_INLINE VF FN(pair)(const int kind, VF x, VF t, VF w, VF pw, VF beta) {
  const VF d = x - t, a = FN(abs)(d), zero = FN(set)(0.0f);
  switch (kind) {
    case TI_PAIR_LOSS_MSE: return d * d;
    case TI_PAIR_LOSS_SMOOTH_L1: return FN(sel)(FN(lt)(a, beta), 0.5f * d * d / beta, a - 0.5f * beta);
    case TI_PAIR_LOSS_HUBER: return FN(sel)(FN(le)(a, beta), 0.5f * d * d, beta * (a - 0.5f * beta));
    case TI_PAIR_LOSS_CROSS_ENTROPY: {
      const VF least = FN(set)(-100.0f), p = FN(log)(x), q = FN(log1p)(-x);
      return -w * (t * FN(max)(least, p) + (1.0f - t) * FN(max)(least, q));  /* NaN passes: it is the second operand */
    }
    default: {
      /* log(sigmoid(x)), without overflow for x far below 0 */
      const VF tail = FN(log1p)(FN(exp)(-FN(abs)(x))) - FN(min)(zero, x);
      return w * ((1.0f - t) * x + ((pw - 1.0f) * t + 1.0f) * tail);
    }
  }
}

/* Positive weights of the elements from i on, which repeat. */
TI_INLINE VF FN(repeated)(const float *pw, int64_t period, int64_t i) {
  VF v;
  if (period == 1) return FN(set)(pw[0]);
  for (int64_t lane = 0, at = i % period; lane < VL; lane++, at = at + 1 == period ? 0 : at + 1) v[lane] = pw[at];
  return v;
}

/* Losses of elements [first, last) and their sum, which is added up in the lanes of a vector. */
TI_INLINE double FN(pairs)(const int kind, char *const *args, const pair_loss_ints *p, float beta, int64_t first, int64_t last) {
  float *const out = (float *)args[0];
  const float *const x = (const float *)args[1], *const t = (const float *)args[2], *const w = (const float *)args[3];
  const float *const pw = (const float *)args[4];
  VF sum = FN(set)(0.0f);
  for (int64_t i = first; i < last; i += VL) {
    const int64_t n = last - i;
    const VF weight = p->has_weight ? FN(load_most)(w + i, n) : FN(set)(1.0f);
    const VF value = FN(pair)(kind, FN(load_most)(x + i, n), FN(load_most)(t + i, n), weight,
                              p->period ? FN(repeated)(pw, p->period, i) : FN(set)(1.0f), FN(set)(beta));
    if (p->reduction == TI_REDUCTION_NONE) FN(store_most)(out + i, value, n);
    else sum += FN(keep_most)(value, n);
  }
  return FN(sum_lanes)(sum);
}

static double FN(pairs_of)(char *const *args, const pair_loss_ints *p, float beta, int64_t first, int64_t last) {
  switch (p->kind) {
    case TI_PAIR_LOSS_MSE: return FN(pairs)(TI_PAIR_LOSS_MSE, args, p, beta, first, last);
    case TI_PAIR_LOSS_SMOOTH_L1: return FN(pairs)(TI_PAIR_LOSS_SMOOTH_L1, args, p, beta, first, last);
    case TI_PAIR_LOSS_HUBER: return FN(pairs)(TI_PAIR_LOSS_HUBER, args, p, beta, first, last);
    case TI_PAIR_LOSS_CROSS_ENTROPY: return FN(pairs)(TI_PAIR_LOSS_CROSS_ENTROPY, args, p, beta, first, last);
    default: return FN(pairs)(TI_PAIR_LOSS_CROSS_ENTROPY_LOGITS, args, p, beta, first, last);
  }
}

TI_KERNEL(pair_loss) {
  const float beta = (float)((const pair_loss_scalars *)scalars)->beta;
  const pair_loss_ints *const p = (const pair_loss_ints *)ints;
  (void)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item * p->chunk;
    const double sum = FN(pairs_of)(args, p, beta, first, ti_min(p->elements, first + p->chunk));
    if (p->reduction) ((float *)args[0])[item] = (float)sum;
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

TI_INLINE VF FN(slope)(const int kind, VF x, VF t, VF w, VF beta) {
  const VF d = x - t;
  switch (kind) {
    case TI_PAIR_LOSS_MSE: return d + d;
    case TI_PAIR_LOSS_SMOOTH_L1: return FN(sel)(FN(lt)(FN(abs)(d), beta), d / beta, FN(sel)(FN(isnan)(d), d, FN(copysign)(FN(set)(1.0f), d)));
    case TI_PAIR_LOSS_HUBER: return FN(max)(-beta, FN(min)(beta, d));  /* NaN passes: it is the second operand */
    default: {
      const VF spread = (1.0f - x) * x;
      return w * d / FN(max)(FN(set)(1e-12f), spread);
    }
  }
}

/* Gradients of elements [begin, end): a slope times `share` of the loss's gradient, which is one for all or for each. */
TI_INLINE void FN(slopes)(const int kind, char *const *args, const pair_loss_grad_ints *p, float beta, float share, int64_t begin, int64_t end) {
  const float *const dy = (const float *)args[1], *const x = (const float *)args[2], *const t = (const float *)args[3];
  const float *const w = (const float *)args[4];
  for (int64_t i = begin; i < end; i += VL) {
    const int64_t n = end - i;
    const VF weight = p->has_weight ? FN(load_most)(w + i, n) : FN(set)(1.0f);
    const VF dl = p->reduction ? FN(set)(dy[0] * share) : FN(load_most)(dy + i, n);
    FN(store_most)((float *)args[0] + i, FN(slope)(kind, FN(load_most)(x + i, n), FN(load_most)(t + i, n), weight, FN(set)(beta)) * dl, n);
  }
}

TI_KERNEL(pair_loss_grad) {
  const pair_loss_grad_ints *const p = (const pair_loss_grad_ints *)ints;
  const pair_loss_grad_scalars *const q = (const pair_loss_grad_scalars *)scalars;
  const float beta = (float)q->beta, share = (float)(1.0 / q->divisor);
  (void)scratch;
  switch (p->kind) {
    case TI_PAIR_LOSS_MSE: FN(slopes)(TI_PAIR_LOSS_MSE, args, p, beta, share, begin, end); break;
    case TI_PAIR_LOSS_SMOOTH_L1: FN(slopes)(TI_PAIR_LOSS_SMOOTH_L1, args, p, beta, share, begin, end); break;
    case TI_PAIR_LOSS_HUBER: FN(slopes)(TI_PAIR_LOSS_HUBER, args, p, beta, share, begin, end); break;
    default: FN(slopes)(TI_PAIR_LOSS_CROSS_ENTROPY, args, p, beta, share, begin, end); break;
  }
  return TI_OK;
}
