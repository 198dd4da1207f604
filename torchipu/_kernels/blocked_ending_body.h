/* What becomes of sums that lie in blocks of channels: a bias or a normalisation, an addend, an activation. */
typedef struct {
  const float *added;          /* lies as the results do; NULL for none */
  const float *scale, *shift;  /* of each result of the blocks */
  int is_affine, activation;
} FN(blocked_ending);

/* NaN passes: the instructions return their second operand where either is one. */
TI_INLINE VF FN(between)(float low, VF v, float high) {
#if VL == 16
  return (VF)_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), (__m512)v));
#else
  return (VF)_mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), (__m256)v));
#endif
}

TI_INLINE VF FN(hard_gate)(VF v) { return FN(between)(0.f, FN(fma)(v, FN(set)(1.f / 6.f), FN(set)(.5f)), 1.f); }

TI_INLINE VF FN(activated)(const int activation, VF v) {
  switch (activation) {
    case TI_ACTIVATION_RELU: return FN(relu)(v);
    case TI_ACTIVATION_RELU6: return FN(between)(0.f, v, 6.f);
    case TI_ACTIVATION_HARDSWISH: return v * FN(hard_gate)(v);
    case TI_ACTIVATION_HARDSIGMOID: return FN(hard_gate)(v);
    case TI_ACTIVATION_SILU: return v / (1.f + FN(exp)(-v));
    case TI_ACTIVATION_SIGMOID: return FN(sigmoid)(v);
    case TI_ACTIVATION_GELU: return 0.5f * v * (1.f + FN(erf)(v * 0.70710678f));
    default: return v;
  }
}

/* Whether an ending takes so few instructions that sums are ended in the registers that hold them. */
static inline int FN(is_short)(const FN(blocked_ending) *e) { return e->activation <= TI_ACTIVATION_HARDSIGMOID; }

/* Ends `count` pixels of one block, whose place in the results `at` tells. */
TI_INLINE void FN(end_pixels)(const FN(blocked_ending) e, const int activation, float *y, const int32_t *at, int64_t count, int64_t block) {
  VF scale = FN(set)(1.f), shift = FN(set)(0.f);
  if (e.is_affine) { scale = FN(load)(e.scale + block * VL); shift = FN(load)(e.shift + block * VL); }
  for (int64_t i = 0; i < count; i++) {
    VF v = FN(load)(y + at[i]);
    if (e.is_affine) v = FN(fma)(v, scale, shift);
    if (e.added) v += FN(load)(e.added + at[i]);
    FN(store)(y + at[i], FN(activated)(activation, v));
  }
}

static void FN(end_block)(const FN(blocked_ending) *e, float *y, const int32_t *at, int64_t count, int64_t block) {
  switch (e->activation) {
    case TI_ACTIVATION_NONE: if (e->is_affine || e->added) FN(end_pixels)(*e, TI_ACTIVATION_NONE, y, at, count, block); break;
    case TI_ACTIVATION_RELU: FN(end_pixels)(*e, TI_ACTIVATION_RELU, y, at, count, block); break;
    case TI_ACTIVATION_RELU6: FN(end_pixels)(*e, TI_ACTIVATION_RELU6, y, at, count, block); break;
    case TI_ACTIVATION_HARDSWISH: FN(end_pixels)(*e, TI_ACTIVATION_HARDSWISH, y, at, count, block); break;
    case TI_ACTIVATION_HARDSIGMOID: FN(end_pixels)(*e, TI_ACTIVATION_HARDSIGMOID, y, at, count, block); break;
    case TI_ACTIVATION_SILU: FN(end_pixels)(*e, TI_ACTIVATION_SILU, y, at, count, block); break;
    case TI_ACTIVATION_SIGMOID: FN(end_pixels)(*e, TI_ACTIVATION_SIGMOID, y, at, count, block); break;
    default: FN(end_pixels)(*e, TI_ACTIVATION_GELU, y, at, count, block); break;
  }
}

/* Reads scales and shifts, `channels` of each, of which those from `first` on count here, and what is added. */
static FN(blocked_ending) FN(begin_ending)(char *const *args, int64_t flags, int64_t activation, int64_t channels, int64_t first) {
  FN(blocked_ending) e = {.is_affine = flags & TI_BLOCKED_ENDING_HAS_AFFINE ? 1 : 0, .activation = (int)activation};
  if (e.is_affine) {
    e.scale = (const float *)*args++ + first;
    e.shift = e.scale + channels;
  }
  if (flags & TI_BLOCKED_ENDING_HAS_ADDEND) e.added = (const float *)*args;
  return e;
}
