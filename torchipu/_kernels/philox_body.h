/* Vectors of Philox words; included by bodies that draw, once for each instruction set.
 *
 * FN(words) gives the 64 words of an item: word w of lane l is that of the block with the counter
 * (16 item + l, micro-batch, op, replica) under the key (seed low, seed high), whatever the vector length.
 */
typedef uint32_t FN(vu) __attribute__((vector_size(VL * 4), aligned(4), may_alias));
#if VL == 16
#define TI_MUL_EVEN(a, b) ((FN(vu))_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define TI_SHIFT64(a) ((FN(vu))_mm512_srli_epi64((__m512i)(a), 32))
#define TI_ODD(even, odd) ((FN(vu))_mm512_mask_mov_epi32((__m512i)(even), 0xaaaa, (__m512i)(odd)))
#define TI_UP64(a) ((FN(vu))_mm512_slli_epi64((__m512i)(a), 32))
#else
#define TI_MUL_EVEN(a, b) ((FN(vu))_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define TI_SHIFT64(a) ((FN(vu))_mm256_srli_epi64((__m256i)(a), 32))
#define TI_ODD(even, odd) ((FN(vu))_mm256_blend_epi32((__m256i)(even), (__m256i)(odd), 0xaa))
#define TI_UP64(a) ((FN(vu))_mm256_slli_epi64((__m256i)(a), 32))
#endif
static inline __attribute__((always_inline)) void FN(multiply)(FN(vu) a, uint32_t factor, FN(vu) *high, FN(vu) *low) {
  const FN(vu) m = (FN(vu)){0} + factor;
  FN(vu) even = TI_MUL_EVEN(a, m), odd = TI_MUL_EVEN(TI_SHIFT64(a), m);
  *low = TI_ODD(even, TI_UP64(odd));
  *high = TI_ODD(TI_SHIFT64(even), odd);
}
/* The 64 random words of an item; state is [seed, replica in the low half, op, micro-batch]. */
static inline void FN(words)(const int64_t *state, int64_t item, uint32_t *out) {
  for (int lane = 0; lane < 16; lane += VL) {
    FN(vu) c0, c1 = (FN(vu)){0} + (uint32_t)state[3], c2 = (FN(vu)){0} + (uint32_t)state[2], c3 = (FN(vu)){0} + (uint32_t)state[1], h0, l0, h1, l1;
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
    *(FN(vu) *)(out + lane) = c0;
    *(FN(vu) *)(out + 16 + lane) = c1;
    *(FN(vu) *)(out + 32 + lane) = c2;
    *(FN(vu) *)(out + 48 + lane) = c3;
  }
}
#undef TI_MUL_EVEN
#undef TI_SHIFT64
#undef TI_ODD
#undef TI_UP64
