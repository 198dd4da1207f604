/* Instructions on integers of 32, 16 and 8 bits as they lie in memory; included by elementwise_body.h. Their registers are
 * the classes i, s and c. What depends on the sign has a form of its own for bytes without one, which ends in u. Sums,
 * differences and products are those of numbers without a sign, which wrap.
 */
typedef int16_t FN(signed_vs) __attribute__((vector_size(VL * 4), aligned(2), may_alias));
typedef int8_t FN(signed_vc) __attribute__((vector_size(VL * 4), aligned(1), may_alias));
typedef uint8_t FN(bools_i) __attribute__((vector_size(VL), aligned(1), may_alias));
/* As many as there are in a vector of words. */
typedef int16_t FN(few_s) __attribute__((vector_size(VL * 2), aligned(2), may_alias));
typedef int8_t FN(few_c) __attribute__((vector_size(VL), aligned(1), may_alias));
typedef uint8_t FN(few_u) __attribute__((vector_size(VL), aligned(1), may_alias));

/* A and B are vectors V of T; their result R is one of as many elements, type_out in memory */
#define TI_N(class_and_name, T, V, type_out, R, expression) \
  static int FN(class_and_name)(TI_ARGS) { \
    TI_UNUSED; \
    enum { LANES = sizeof(V) / sizeof(T) }; \
    for (long i = 0; i < n; i += LANES) { \
      const T *const a = (const T *)pa + (i & ma), *const b = (const T *)pb + (i & mb); \
      V A, B; (void)B; \
      if (n - i >= LANES) { \
        A = *(const V *)a, B = *(const V *)b; \
        *(R *)((type_out *)d + i) = (expression); \
      } else { \
        const size_t some = (size_t)(n - i); \
        A = (V){0}, B = (V){0}; \
        memcpy(&A, a, some * sizeof(T)), memcpy(&B, b, some * sizeof(T)); \
        const R last = (expression); \
        memcpy((type_out *)d + i, &last, some * sizeof(type_out)); \
      } \
    } \
    return 0; \
  }
#define TI_CHOICE(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))
#define TI_OF_BOTH(c, U, S, V) \
  TI_N(c##_add, U, V, U, V, A + B) TI_N(c##_sub, U, V, U, V, A - B) TI_N(c##_mul, U, V, U, V, A *B) \
  TI_N(c##_neg, U, V, U, V, (V){0} - A) TI_N(c##_not, U, V, U, V, ~A) \
  TI_N(c##_and, U, V, U, V, A &B) TI_N(c##_or, U, V, U, V, A | B) TI_N(c##_xor, U, V, U, V, A ^ B) \
  TI_N(c##_abs, U, V, U, V, TI_CHOICE((V)((S)A < 0), (V){0} - A, A))
#define TI_OF_ONE(c, suffix, T, V) \
  TI_N(c##_max##suffix, T, V, T, V, TI_CHOICE(A > B, A, B)) TI_N(c##_min##suffix, T, V, T, V, TI_CHOICE(A < B, A, B))
TI_OF_BOTH(i, uint32_t, VI, VU)
TI_OF_BOTH(s, uint16_t, FN(signed_vs), FN(vs))
TI_OF_BOTH(c, uint8_t, FN(signed_vc), FN(vc))
TI_OF_ONE(i, , int32_t, VI)
TI_OF_ONE(s, , int16_t, FN(signed_vs))
TI_OF_ONE(c, , int8_t, FN(signed_vc))
TI_OF_ONE(c, _u, uint8_t, FN(vc))

#define TI_AS_BOOLS(mask, V, bools) __builtin_convertvector((V)(mask) & 1, bools)
#define TI_ORDERS(c, T, S, V, bools) \
  TI_N(b_lt_##c, T, S, uint8_t, bools, TI_AS_BOOLS(A < B, V, bools)) TI_N(b_le_##c, T, S, uint8_t, bools, TI_AS_BOOLS(A <= B, V, bools))
#define TI_COMPARISONS(c, T, S, V, bools) \
  TI_N(b_eq_##c, T, S, uint8_t, bools, TI_AS_BOOLS(A == B, V, bools)) TI_N(b_ne_##c, T, S, uint8_t, bools, TI_AS_BOOLS(A != B, V, bools)) \
  TI_N(b_from_##c, T, S, uint8_t, bools, TI_AS_BOOLS(A != 0, V, bools)) TI_ORDERS(c, T, S, V, bools)
TI_COMPARISONS(i, int32_t, VI, VU, FN(bools_i))
TI_COMPARISONS(s, int16_t, FN(signed_vs), FN(vs), FN(bools_s))
TI_COMPARISONS(c, int8_t, FN(signed_vc), FN(vc), FN(vc))
TI_ORDERS(u, uint8_t, FN(vc), FN(vc), FN(vc))

/* ------------------------------------------------------------------ by way of words */
/* Shifts by fewer than no or by more bits than there are: all bits leave, and those of the sign come in on the left. */
TI_INLINE VI FN(shifted_left)(VI a, VI by) {
  const VI inside = (by >= 0) & (by < 32);
  return (VI)(((VU)a << (VU)(by & 31)) & (VU)inside);
}
TI_INLINE VI FN(shifted_right)(VI a, VI by) {
  const VI inside = (by >= 0) & (by < 32);
  return a >> ((by & inside) | (31 & ~inside));
}
/* What l_from_f leaves in the low 32 bits. */
TI_INLINE VI FN(words_of)(VF x) {
  const VM inside = FN(mand)(FN(le)(FN(set)(-0x1p31f), x), FN(lt)(x, FN(set)(0x1p31f)));
  VI words = FN(toint)(FN(trunc)(x));
  if (__builtin_expect(FN(bits)(inside) != (1u << VL) - 1, 0))
    for (int j = 0; j < VL; j++) words[j] = (int32_t)(x[j] >= -0x1p63f && x[j] < 0x1p63f ? (int64_t)x[j] : INT64_MIN);
  return words;
}
/* The expression makes words of the words A and B; a few vectors of them are cut down at once, which takes fewer shuffles. */
#define TI_CUT(class_and_name, T, type_in, load, expression) \
  static int FN(class_and_name)(TI_ARGS) { \
    TI_UNUSED; \
    enum { LANES = 4 * VL }; \
    int32_t words[LANES]; \
    for (long i = 0; i < n; i += LANES) { \
      const long some = n - i < LANES ? n - i : LANES; \
      for (long j = 0; j < some; j += VL) { \
        const long left = n - i - j; \
        const type_in A = load(pa, i + j, ma, left), B = load(pb, i + j, mb, left); (void)B; \
        *(VI *)(words + j) = (expression); \
      } \
      if (some == LANES) for (long j = 0; j < LANES; j++) ((T *)d)[i + j] = (T)words[j]; \
      else for (long j = 0; j < some; j++) ((T *)d)[i + j] = (T)words[j]; \
    } \
    return 0; \
  }
/* Words of shorter numbers: the compiler itself would convert them one by one. */
#ifdef TI_PORTABLE
#define TI_WIDENED(name, few, wide, narrow) \
  TI_INLINE VI FN(widened_##name)(few x) { return __builtin_convertvector(x, VI); }
#elif VL == 16
#define TI_WIDENED(name, few, wide, narrow) \
  TI_INLINE VI FN(widened_##name)(few x) { return (VI)_mm512_cvtep##narrow##_epi32((wide)x); }
#else
#define TI_WIDENED(name, few, wide, narrow) \
  TI_INLINE VI FN(widened_##name)(few x) { \
    __m128i low = _mm_setzero_si128(); \
    memcpy(&low, &x, sizeof x); \
    return (VI)_mm256_cvtep##narrow##_epi32(low); \
  }
#endif
TI_INLINE VI FN(widened_i)(VI x) { return x; }
TI_WIDENED(s, FN(few_s), __m256i, i16)
TI_WIDENED(c, FN(few_c), __m128i, i8)
TI_WIDENED(u, FN(few_u), __m128i, u8)
#undef TI_WIDENED
#define TI_LOADER(name, T, few) \
  TI_INLINE VI FN(words_##name)(const char *p, long i, long mask, long left) { \
    few x = {0}; \
    if (left >= VL) x = *(const few *)((const T *)p + (i & mask)); \
    else memcpy(&x, (const T *)p + (i & mask), (size_t)left * sizeof(T)); \
    return FN(widened_##name)(x); \
  }
TI_LOADER(i, int32_t, VI)
TI_LOADER(s, int16_t, FN(few_s))
TI_LOADER(c, int8_t, FN(few_c))
TI_LOADER(u, uint8_t, FN(few_u))
TI_INLINE VF FN(words_f)(const char *p, long i, long mask, long left) { return FN(load_most)((const float *)p + (i & mask), left); }
#define TI_BY_WORDS(c, suffix, name, T, few) \
  TI_CUT(c##_shift_right##suffix, T, VI, FN(words_##name), FN(shifted_right)(A, B)) \
  TI_N(f_from_##name, T, few, float, VF, FN(tofloat)(FN(widened_##name)(A)))
#define TI_TO_THE_LEFT(c, T) \
  TI_CUT(c##_shift_left, T, VI, FN(words_##c), FN(shifted_left)(A, B)) \
  TI_CUT(c##_from_f, T, VF, FN(words_f), FN(words_of)(A))
TI_BY_WORDS(i, , i, int32_t, VI)
TI_BY_WORDS(s, , s, int16_t, FN(few_s))
TI_BY_WORDS(c, , c, int8_t, FN(few_c))
TI_BY_WORDS(c, _u, u, uint8_t, FN(few_u))
TI_TO_THE_LEFT(i, int32_t)
TI_TO_THE_LEFT(s, int16_t)
TI_TO_THE_LEFT(c, int8_t)

TI_N(s_copy, uint16_t, FN(vs), uint16_t, FN(vs), A)
/* Halves, or bfloats, as words with a sign: numbers below zero lie between that of -0.0 and that of the least infinity, which
 * is the last operand, NaNs of that sign behind it. */
TI_N(s_relu, int16_t, FN(signed_vs), int16_t, FN(signed_vs), A & ~((A > INT16_MIN) & (A <= B)))
/* A where what was handed to the ReLU, B, is above zero or NaN. */
static int FN(s_relu_grad)(TI_ARGS) {
  TI_UNUSED;
  enum { LANES = 2 * VL };
  const int16_t least = *(const int16_t *)pc;
  for (long i = 0; i < n; i += LANES) {
    const int16_t *const a = (const int16_t *)pa + (i & ma), *const b = (const int16_t *)pb + (i & mb);
    const size_t some = (size_t)ti_min(LANES, n - i) * sizeof *a;
    FN(signed_vs) A = {0}, B = {0};
    if (n - i >= LANES) A = *(const FN(signed_vs) *)a, B = *(const FN(signed_vs) *)b;
    else memcpy(&A, a, some), memcpy(&B, b, some);
    A &= ~((B <= least) | (B == 0));
    if (n - i >= LANES) *(FN(signed_vs) *)((int16_t *)d + i) = A;
    else memcpy((int16_t *)d + i, &A, some);
  }
  return 0;
}
static int FN(i_from_b)(TI_ARGS) {
  TI_UNUSED;
  for (long i = 0; i < n; i++) ((int32_t *)d)[i] = pa[i] != 0;
  return 0;
}
static int FN(s_from_b)(TI_ARGS) {
  TI_UNUSED;
  for (long i = 0; i < n; i++) ((int16_t *)d)[i] = pa[i] != 0;
  return 0;
}
#undef TI_N
#undef TI_CHOICE
#undef TI_OF_BOTH
#undef TI_OF_ONE
#undef TI_AS_BOOLS
#undef TI_ORDERS
#undef TI_COMPARISONS
#undef TI_CUT
#undef TI_LOADER
#undef TI_BY_WORDS
#undef TI_TO_THE_LEFT
