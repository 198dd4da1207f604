/* Division of integers of 64 bits; included by elementwise_body.h. Numbers below 2^51 are divided as doubles: the whole
 * number next to their quotient is off by one at most, and what is left says whether it is.
 */
#ifndef TORCHIPU_DIVISIONS
#define TORCHIPU_DIVISIONS
enum { TI_FLOOR_DIV, TI_TRUNC_DIV, TI_REMAINDER, TI_FMOD };
#endif
#define TI_ROUNDING ((FN(vd)){0} + 6755399441055744.) /* 1.5 * 2^52: a whole part in the low bits */
TI_INLINE int FN(are_all)(L mask) {
  L other = ~mask;
  int64_t any = 0;
  for (int j = 0; j < HALF_VL; j++) any |= other[j];
  return !any;
}
TI_INLINE L FN(divided_small)(L a, L b, const int way) {
  const FN(vd) x = (FN(vd))(a + (L)TI_ROUNDING) - TI_ROUNDING, y = (FN(vd))(b + (L)TI_ROUNDING) - TI_ROUNDING;
  L q = (L)(x / y + TI_ROUNDING) - (L)TI_ROUNDING;
  L r = (L)((UL)a - (UL)q * (UL)b);
  /* what is left has the sign of the divisor, or that of the number */
  const L sign = way == TI_FLOOR_DIV || way == TI_REMAINDER ? b : a;
  const L is_off = (r != 0) & ((r ^ sign) < 0), is_negative = (a ^ b) < 0;
  const L step = way == TI_FLOOR_DIV || way == TI_REMAINDER ? (L){0} + 1 : (is_negative & -1) | (~is_negative & 1);
  q -= is_off & step;
  r += is_off & (((step > 0) & b) | ((step < 0) & -b));
  return way == TI_FLOOR_DIV || way == TI_TRUNC_DIV ? q : r;
}
TI_INLINE int64_t FN(divided_one)(int64_t a, int64_t b, const int way) {
  const int is_quotient = way == TI_FLOOR_DIV || way == TI_TRUNC_DIV;
  if (b == -1) return is_quotient ? (int64_t)(0 - (uint64_t)a) : 0;
  int64_t q = a / b, r = a % b;
  if ((way == TI_FLOOR_DIV || way == TI_REMAINDER) && r != 0 && (r < 0) != (b < 0)) q--, r += b;
  return is_quotient ? q : r;
}
#define TI_DIVISION(name, way) \
  static int FN(l_##name)(TI_ARGS) { \
    TI_UNUSED; \
    for (long i = 0; i < n; i += HALF_VL) { \
      const int64_t *const a = (const int64_t *)pa + (i & ma), *const b = (const int64_t *)pb + (i & mb); \
      const long some = n - i; \
      L A = (L){0}, B = (L){0} + 1, R; \
      if (some >= HALF_VL) A = *(const L *)a, B = *(const L *)b; \
      else memcpy(&A, a, (size_t)some * 8), memcpy(&B, b, (size_t)some * 8); \
      if (!FN(are_all)(B != 0)) return TI_TRAP_RANGE; \
      const L limit = (L){0} + (1ll << 51); \
      if (__builtin_expect(FN(are_all)((A < limit) & (A > -limit) & (B < limit) & (B > -limit)), 1)) R = FN(divided_small)(A, B, way); \
      else for (int j = 0; j < HALF_VL; j++) R[j] = FN(divided_one)(A[j], B[j], way); \
      if (some >= HALF_VL) *(L *)((int64_t *)d + i) = R; \
      else memcpy((int64_t *)d + i, &R, (size_t)some * 8); \
    } \
    return 0; \
  }
TI_DIVISION(floor_div, TI_FLOOR_DIV)
TI_DIVISION(trunc_div, TI_TRUNC_DIV)
TI_DIVISION(remainder, TI_REMAINDER)
TI_DIVISION(fmod, TI_FMOD)
#undef TI_DIVISION
#undef TI_ROUNDING
