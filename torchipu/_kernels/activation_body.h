/* Activations of results that a kernel has just computed, as the chain interpreter computes them. */
#include "table/conv_blocked.h"

/* NaN passes: the instructions return their second operand where either is one. */
TI_INLINE VF FN(between)(float low, VF v, float high) {
#if VL == 16
  return (VF)_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), (__m512)v));
#else
  return (VF)_mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), (__m256)v));
#endif
}

TI_INLINE VF FN(hard_gate)(VF v) { return FN(between)(0.f, FN(fma)(v, FN(set)(1.f / 6.f), FN(set)(.5f)), 1.f); }

/* v / (1 + exp(-v)). The division is an estimate that Newton's method makes exact to two units in the last place; where
 * exp(-v) would be infinite, at results of less than 1e-35, they are zero. */
TI_INLINE VF FN(silu)(VF v) {
  const VF below = FN(max)(FN(set)(-87.f), v), d = 1.f + FN(exp)(-below);
#if VL == 16
  VF r = (VF)_mm512_rcp14_ps((__m512)d);
  r = FN(fma)(FN(fma)(-d, r, FN(set)(1.f)), r, r);
  return v * r;
#else
  return v / d;
#endif
}

TI_INLINE VF FN(activated)(const int activation, VF v) {
  switch (activation) {
    case TI_ACTIVATION_RELU: return FN(max)(FN(set)(0.f), v);
    case TI_ACTIVATION_RELU6: return FN(between)(0.f, v, 6.f);
    case TI_ACTIVATION_HARDSWISH: return v * FN(hard_gate)(v);
    case TI_ACTIVATION_HARDSIGMOID: return FN(hard_gate)(v);
    case TI_ACTIVATION_SILU: return FN(silu)(v);
    case TI_ACTIVATION_SIGMOID: return FN(sigmoid)(v);
    case TI_ACTIVATION_GELU: return FN(gelu)(v);
    default: return v;
  }
}
