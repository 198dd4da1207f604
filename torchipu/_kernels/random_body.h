/* Random values from Philox; table/random.py says what the kernels take. */
#include "philox.h"
#if VL == 16
#define TI_MUL_EVEN(a, b) ((VU)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define TI_SHIFT64(a) ((VU)_mm512_srli_epi64((__m512i)(a), 32))
#define TI_ODD(even, odd) ((VU)_mm512_mask_mov_epi32((__m512i)(even), 0xaaaa, (__m512i)(odd)))
#define TI_UP64(a) ((VU)_mm512_slli_epi64((__m512i)(a), 32))
#else
#define TI_MUL_EVEN(a, b) ((VU)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define TI_SHIFT64(a) ((VU)_mm256_srli_epi64((__m256i)(a), 32))
#define TI_ODD(even, odd) ((VU)_mm256_blend_epi32((__m256i)(even), (__m256i)(odd), 0xaa))
#define TI_UP64(a) ((VU)_mm256_slli_epi64((__m256i)(a), 32))
#endif
TI_INLINE void FN(multiply)(VU a, uint32_t factor, VU *high, VU *low) {
  const VU m = (VU){0} + factor;
  VU even = TI_MUL_EVEN(a, m), odd = TI_MUL_EVEN(TI_SHIFT64(a), m);
  *low = TI_ODD(even, TI_UP64(odd));
  *high = TI_ODD(TI_SHIFT64(even), odd);
}
/* The random words of an item; state is [seed, replica, op, micro-batch], and the upper half of the third is the number of
 * the element that comes first. */
static inline void FN(words)(const int64_t *state, int64_t item, uint32_t *out) {
  for (int lane = 0; lane < 16; lane += VL) {
    VU c0, c1 = (VU){0} + (uint32_t)state[3], c2 = (VU){0} + (uint32_t)state[2], c3 = (VU){0} + (uint32_t)state[1], h0, l0, h1, l1;
    for (int j = 0; j < VL; j++) c0[j] = (uint32_t)(16 * item + lane + j);
    uint32_t k0 = (uint32_t)state[0], k1 = (uint32_t)((uint64_t)state[0] >> 32);
    for (int round = 0; round < TI_PHILOX_ROUNDS; round++) {
      FN(multiply)(c0, TI_PHILOX_M0, &h0, &l0);
      FN(multiply)(c2, TI_PHILOX_M1, &h1, &l1);
      c0 = h1 ^ c1 ^ k0;
      c2 = h0 ^ c3 ^ k1;
      c1 = l1;
      c3 = l0;
      k0 += TI_PHILOX_W0;
      k1 += TI_PHILOX_W1;
    }
    *(VU *)(out + lane) = c0;
    *(VU *)(out + 16 + lane) = c1;
    *(VU *)(out + 32 + lane) = c2;
    *(VU *)(out + 48 + lane) = c3;
  }
}
TI_INLINE VU FN(words_at)(const uint32_t *words) {
  VU w;
  memcpy(&w, words, sizeof w);
  return w;
}
/* Uniform in [0, 1), RANDOM_BITS. */
static inline VF FN(uniform_of)(const uint32_t *words) { return FN(tofloat)((VI)(FN(words_at)(words) >> (32 - TI_RANDOM_BITS))) * 0x1p-24f; }
/* Uniform in (0, 1], 32 bits, rounded. */
static inline VF FN(positive_of)(const uint32_t *words) {
  VU w = FN(words_at)(words);
  VF all = FN(fma)(FN(tofloat)((VI)(w >> 16)), FN(set)(65536.f), FN(tofloat)((VI)(w & 0xffff)));
  return FN(fma)(all, FN(set)(0x1p-32f), FN(set)(0x1p-33f));
}
/* Elements of an item, in runs that lie within an item of the whole result: `start` is the first of n, `words` are its
 * words and those behind it, and `skip` of the item are before it. */
#define TI_RANDOM(name, numbers, state, ...) \
  TI_KERNEL(name) { \
    (void)scratch, (void)scalars; \
    const numbers *const p = (const numbers *)ints; \
    const int64_t first = (int64_t)((uint64_t)((const int64_t *)args[state])[2] >> 32); \
    const int64_t last = ti_min(p->elements, end * TI_RANDOM_ITEM); \
    uint32_t item[TI_RANDOM_ITEM + 16] __attribute__((aligned(64))) = {0}; \
    for (int64_t start = begin * TI_RANDOM_ITEM; start < last;) { \
      const long skip = (long)((first + start) % TI_RANDOM_ITEM); \
      const long n = (long)ti_min(last - start, TI_RANDOM_ITEM - skip); \
      FN(words)((const int64_t *)args[state], (first + start) / TI_RANDOM_ITEM, item); \
      uint32_t *const words = item + skip; \
      (void)words; \
      __VA_ARGS__ \
      start += n; \
    } \
    return TI_OK; \
  }
#define TI_EACH_VECTOR(body) \
  for (long i = 0; i < n; i += VL) { const long left = n - i; (void)left; body }

TI_RANDOM(random_words, random_ints, 1, {
  memcpy((uint32_t *)args[0] + start, words, (size_t)n * 4);
})
TI_RANDOM(random_dropout, random_ints, 2, {
  const dropout_scalars *const by = (const dropout_scalars *)scalars;
  float *out = (float *)args[0] + start;
  uint8_t *mask = (uint8_t *)args[1] + start;
  const float *x = (const float *)args[3] + start;
  const VF keep = FN(set)((float)by->keep), scale = FN(set)((float)by->scale), none = FN(set)(0.f);
  TI_EACH_VECTOR({
    VM kept = FN(lt)(FN(uniform_of)(words + i), keep);
    FN(store_most)(out + i, FN(load_most)(x + i, left) * FN(sel)(kept, scale, none), left);
    if (left >= VL) FN(mask_to)(mask + i, kept);
    else { uint8_t part[16]; FN(mask_to)(part, kept); memcpy(mask + i, part, (size_t)left); }
  })
})
TI_RANDOM(random_bernoulli, bernoulli_ints, 1, {
  float *out = (float *)args[0] + start;
  const float *chances = p->has_chances ? (const float *)args[2] + start : 0;
  const VF constant = FN(set)((float)((const bernoulli_scalars *)scalars)->chance);
  TI_EACH_VECTOR({
    VF chance = chances ? FN(load_most)(chances + i, left) : constant;
    FN(store_most)(out + i, FN(sel)(FN(lt)(FN(uniform_of)(words + i), chance), FN(set)(1.f), FN(set)(0.f)), left);
  })
})
TI_RANDOM(random_uniform, uniform_ints, 1, {
  const uniform_scalars *const by = (const uniform_scalars *)scalars;
  float *out = (float *)args[0] + start;
  const VF from = FN(set)((float)by->low), span = FN(set)((float)by->span);
  if (p->bits < TI_RANDOM_BITS) for (long i = 0; i < n; i++) words[i] &= ~0u << (32 - p->bits);
  TI_EACH_VECTOR({ FN(store_most)(out + i, FN(fma)(FN(uniform_of)(words + i), span, from), left); })
})
TI_RANDOM(random_normal, random_ints, 1, {
  const normal_scalars *const by = (const normal_scalars *)scalars;
  float *out = (float *)args[0] + start;
  float values[TI_RANDOM_ITEM];
  const VF mean = FN(set)((float)by->mean), deviation = FN(set)((float)by->deviation);
  for (int pair = 0; pair < TI_RANDOM_ITEM; pair += 32)
    for (int lane = pair; lane < pair + 16; lane += VL) {
      VF radius = FN(sqrt)(-2.f * FN(log)(FN(positive_of)(item + lane))) * deviation;
      VF angle = FN(uniform_of)(item + lane + 16) * 6.28318531f;
      FN(store)(values + lane, FN(fma)(radius, FN(sine)(angle, 1), mean));
      FN(store)(values + lane + 16, FN(fma)(radius, FN(sine)(angle, 0), mean));
    }
  memcpy(out, values + skip, (size_t)n * 4);
})
TI_RANDOM(random_integers, random_integers_ints, 1, {
  int64_t *out = (int64_t *)args[0] + start;
  for (long i = 0; i < n; i++) {
    uint64_t word = 0;
    memcpy(&word, words + i, sizeof *words);
    out[i] = p->low + (int64_t)((word * (uint64_t)p->span) >> 32);
  }
})
TI_RANDOM(random_exponential, random_ints, 1, {
  float *out = (float *)args[0] + start;
  const VF scale = FN(set)((float)(-1 / ((const exponential_scalars *)scalars)->rate));
  TI_EACH_VECTOR({ FN(store_most)(out + i, FN(log)(FN(positive_of)(words + i)) * scale, left); })
})
TI_KERNEL(random_permutation) {
  (void)scratch, (void)scalars, (void)begin, (void)end;
  uint32_t words[TI_RANDOM_ITEM] __attribute__((aligned(64)));
  int64_t *out = (int64_t *)args[0];
  const int64_t n = ((const random_ints *)ints)->elements;
  for (int64_t i = 0; i < n; i++) {
    if (i % TI_RANDOM_ITEM == 0) FN(words)((const int64_t *)args[1], i / TI_RANDOM_ITEM, words);
    const int64_t j = (int64_t)(((uint64_t)words[i % TI_RANDOM_ITEM] * (uint64_t)(i + 1)) >> 32);
    out[i] = out[j];
    out[j] = i;
  }
  return TI_OK;
}
TI_KERNEL(random_choice) {
  (void)scalars;
  const random_choice_ints *const p = (const random_choice_ints *)ints;
  const int64_t n = p->choices, samples = p->samples, draws = p->replaces ? samples : n;
  double *sums = (double *)scratch;
  int64_t *chosen = (int64_t *)(sums + n);
  uint32_t words[TI_RANDOM_ITEM] __attribute__((aligned(64)));
  const int64_t first = (int64_t)((uint64_t)((const int64_t *)args[1])[2] >> 32) / ti_max(samples, 1);
  for (int64_t row = begin; row < end; row++) {
    const float *weights = (const float *)args[2] + row * n;
    int64_t *out = (int64_t *)args[0] + row * samples;
    const int64_t items = ti_ceil(ti_max(n, samples), TI_RANDOM_ITEM);
    int64_t positive = 0;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
      if (!(weights[i] >= 0) || isinf(weights[i])) return TI_TRAP_RANGE;
      positive += weights[i] > 0;
      sum += weights[i];
      sums[i] = sum;
    }
    if (!(sum > 0) || (!p->replaces && positive < samples)) return TI_TRAP_RANGE;
    int64_t held = 0;
    for (int64_t i = 0; i < draws; i++) {
      if (i % TI_RANDOM_ITEM == 0) FN(words)((const int64_t *)args[1], (first + row) * items + i / TI_RANDOM_ITEM, words);
      const double u = ((double)words[i % TI_RANDOM_ITEM] + 0.5) * 0x1p-32;
      if (p->replaces) {
        int64_t low = 0, high = n - 1;
        while (low < high) {
          const int64_t middle = (low + high) / 2;
          if (sums[middle] > u * sum) high = middle;
          else low = middle + 1;
        }
        while (!(weights[low] > 0)) low--;
        out[i] = low;
        continue;
      }
      if (!(weights[i] > 0)) continue;
      /* Insertion into the first ones so far; sums[i] is no longer needed. */
      sums[i] = -log(u) / weights[i];
      if (held == samples && sums[i] >= sums[chosen[held - 1]]) continue;
      int64_t at = held < samples ? held++ : held - 1;
      for (; at > 0 && sums[chosen[at - 1]] > sums[i]; at--) chosen[at] = chosen[at - 1];
      chosen[at] = i;
    }
    if (!p->replaces) memcpy(out, chosen, (size_t)samples * sizeof(int64_t));
  }
  return TI_OK;
}
#undef TI_MUL_EVEN
#undef TI_SHIFT64
#undef TI_ODD
#undef TI_UP64
#undef TI_RANDOM
#undef TI_EACH_VECTOR
