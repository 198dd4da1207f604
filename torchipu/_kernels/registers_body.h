/* Loads and products that stay in the registers they are meant for. */
#undef TI_REG
#if VL == 16
#define TI_REG "v"
#else
#define TI_REG "x"
#endif

TI_INLINE VF FN(broadcast)(const float *p) {
#if VL == 16
  __m512 v = _mm512_set1_ps(*p);
#else
  __m256 v = _mm256_broadcast_ss(p);
#endif
#ifndef TI_PORTABLE
  __asm__("" : "+" TI_REG(v));  /* one load that both columns use, instead of a memory operand in each */
#endif
  return (VF)v;
}

/* c += a b in the register of c: left to itself, the compiler sums into that of a, and copies registers in each turn. */
TI_INLINE void FN(add_product)(VF *c, VF a, VF b) {
#ifdef TI_PORTABLE
  *c = FN(fma)(a, b, *c);
#else
  __asm__("vfmadd231ps %2, %1, %0" : "+" TI_REG(*c) : TI_REG(a), TI_REG(b));
#endif
}

/* c += *p b, in one instruction that reads *p for itself where there is one: where nothing else takes what p shows, a
 * broadcast of its own would make two of it. */
TI_INLINE void FN(add_product_of)(VF *c, const float *p, VF b) {
#if VL == 16 && !defined __SANITIZE_ADDRESS__  /* which does not see what assembler reads */
  __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(*c) : "v"(b), "m"(*p));
#else
  FN(add_product)(c, FN(broadcast)(p), b);
#endif
}
