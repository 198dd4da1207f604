/* The chain interpreter: runs a fused chain of elementwise instructions over blocks of the iteration space.
 *
 * A block's values lie in registers in the thread's scratch, small enough to stay in L1. Operands that lie row-major
 * and have the type of a register are read, and results written, in place.
 */
#include "rounding_body.h"
#define HALF_VL (VL / 2)
typedef int64_t FN(vl) __attribute__((vector_size(VL * 4), aligned(8), may_alias));
typedef uint64_t FN(vul) __attribute__((vector_size(VL * 4), aligned(8), may_alias));
typedef uint8_t FN(vb) __attribute__((vector_size(VL / 2), aligned(1), may_alias));
typedef double FN(vd) __attribute__((vector_size(VL * 4), aligned(8), may_alias));
typedef float FN(vh) __attribute__((vector_size(VL * 2), aligned(4), may_alias));
#define L FN(vl)
#define UL FN(vul)
#define B8 FN(vb)

/* d: result; pa, pb, pc: operands; ma, mb, mc: -1, or 0 for an operand that is one value repeated; k: constants. */
#define TI_ARGS char *d, const char *pa, const char *pb, const char *pc, long n, long ma, long mb, long mc, const double *k
#define TI_UNUSED (void)pb, (void)pc, (void)ma, (void)mb, (void)mc, (void)k
#define TI_CONSTANTS \
  const VF K0 = FN(set)((float)k[0]), K1 = FN(set)((float)k[1]), K2 = FN(set)((float)k[2]); (void)K0, (void)K1, (void)K2

/* float, float, float -> float */
#define TI_F(name, expression) \
  static int FN(f_##name)(TI_ARGS) { \
    TI_UNUSED; TI_CONSTANTS; long i = 0; \
    for (; i + VL <= n; i += VL) { \
      VF A = FN(load)((const float *)pa + (i & ma)), B = FN(load)((const float *)pb + (i & mb)), \
        C = FN(load)((const float *)pc + (i & mc)); \
      (void)A, (void)B, (void)C; \
      FN(store)((float *)d + i, expression); \
    } \
    if (i < n) { \
      VF A = FN(load_part)((const float *)pa + (i & ma), n - i), B = FN(load_part)((const float *)pb + (i & mb), n - i), \
        C = FN(load_part)((const float *)pc + (i & mc), n - i); \
      (void)A, (void)B, (void)C; \
      FN(store_part)((float *)d + i, expression, n - i); \
    } \
    return 0; \
  }
/* The same of a function that is long: one copy of it, for whole vectors and for the last. */
#define TI_FUNCTION(name, expression) \
  static int FN(f_##name)(TI_ARGS) { \
    TI_UNUSED; TI_CONSTANTS; \
    for (long i = 0; i < n; i += VL) { \
      VF A = FN(load_most)((const float *)pa + (i & ma), n - i), B = FN(load_most)((const float *)pb + (i & mb), n - i); \
      (void)A, (void)B; \
      FN(store_most)((float *)d + i, expression, n - i); \
    } \
    return 0; \
  }
/* float, float -> bool; the expression is a mask */
#define TI_FB(name, expression) \
  static int FN(b_##name)(TI_ARGS) { \
    TI_UNUSED; long i = 0; \
    for (; i + VL <= n; i += VL) { \
      VF A = FN(load)((const float *)pa + (i & ma)), B = FN(load)((const float *)pb + (i & mb)); (void)A, (void)B; \
      FN(mask_to)((uint8_t *)d + i, expression); \
    } \
    if (i < n) { \
      uint8_t part[16]; \
      VF A = FN(load_part)((const float *)pa + (i & ma), n - i), B = FN(load_part)((const float *)pb + (i & mb), n - i); \
      (void)A, (void)B; \
      FN(mask_to)(part, expression); \
      memcpy(d + i, part, (size_t)(n - i)); \
    } \
    return 0; \
  }
/* long, long, long -> long */
#define TI_L(name, expression) \
  static int FN(l_##name)(TI_ARGS) { \
    TI_UNUSED; long i = 0; \
    for (; i + HALF_VL <= n; i += HALF_VL) { \
      L A = *(const L *)((const int64_t *)pa + (i & ma)), B = *(const L *)((const int64_t *)pb + (i & mb)); (void)A, (void)B; \
      *(L *)((int64_t *)d + i) = (expression); \
    } \
    if (i < n) { \
      size_t bytes = (size_t)(n - i) * 8; \
      L A = {0}, B = {0}, R; memcpy(&A, (const int64_t *)pa + (i & ma), bytes); memcpy(&B, (const int64_t *)pb + (i & mb), bytes); \
      (void)A, (void)B; R = (expression); memcpy((int64_t *)d + i, &R, bytes); \
    } \
    return 0; \
  }
/* long, long -> bool; the expression is a vector of 0 and -1 */
#define TI_LB(name, expression) \
  static int FN(b_##name)(TI_ARGS) { \
    TI_UNUSED; long i = 0; \
    for (; i + HALF_VL <= n; i += HALF_VL) { \
      L A = *(const L *)((const int64_t *)pa + (i & ma)), B = *(const L *)((const int64_t *)pb + (i & mb)); (void)A, (void)B; \
      *(B8 *)(d + i) = __builtin_convertvector((expression) & 1, B8); \
    } \
    for (; i < n; i++) { \
      L A = ((const int64_t *)pa)[i & ma] + (L){0}, B = ((const int64_t *)pb)[i & mb] + (L){0}; (void)A, (void)B; \
      d[i] = (char)((expression)[0] & 1); \
    } \
    return 0; \
  }
/* bool, bool -> bool */
#define TI_B(name, expression) \
  static int FN(b_##name)(TI_ARGS) { \
    TI_UNUSED; \
    for (long i = 0; i < n; i++) { \
      uint8_t A = (uint8_t)pa[i], B = (uint8_t)pb[i]; (void)B; \
      d[i] = (char)(expression); \
    } \
    return 0; \
  }
/* one element at a time */
#define TI_SCALAR(class, type_in, type_out, name, ...) \
  static int FN(class##_##name)(TI_ARGS) { \
    TI_UNUSED; \
    for (long i = 0; i < n; i++) { \
      type_in A = ((const type_in *)pa)[i & ma], B = ((const type_in *)pb)[i & mb]; type_out R; (void)A, (void)B; \
      __VA_ARGS__; \
      ((type_out *)d)[i] = R; \
    } \
    return 0; \
  }

/* ------------------------------------------------------------------ float arithmetic */
TI_F(copy, A)
TI_F(add, A + B)
TI_F(sub, A - B)
TI_F(mul, A *B)
TI_F(div, A / B)
TI_F(max, FN(maximum)(A, B))
TI_F(min, FN(minimum)(A, B))
TI_F(add_scaled, FN(fma)(K0, B, A))
TI_F(fma3, FN(fma)(K0 * B, C, A))
TI_F(addcdiv, A + K0 * (B / C))
TI_F(lerp, FN(sel)(FN(lt)(FN(abs)(C), FN(set)(0.5f)), FN(fma)(C, B - A, A), B - (B - A) * (1.f - C)))
TI_F(neg, -A)
TI_F(abs, FN(abs)(A))
TI_F(sign, FN(sel)(FN(lt)(FN(set)(0.f), A), FN(set)(1.f), FN(sel)(FN(lt)(A, FN(set)(0.f)), FN(set)(-1.f), FN(set)(0.f))))
TI_F(exp, FN(exp)(A))
TI_F(expm1, FN(expm1)(A))
TI_F(log, FN(log)(A))
TI_F(log1p, FN(log1p)(A))
TI_F(log2, FN(log2)(A))
TI_F(log10, FN(log10)(A))
TI_F(sqrt, FN(sqrt)(A))
TI_F(rsqrt, 1.f / FN(sqrt)(A))
TI_F(recip, 1.f / A)
TI_F(square, A *A)
TI_F(cube, A *A *A)
TI_F(sin, FN(sin)(A))
TI_F(cos, FN(cos)(A))
TI_F(tanh, FN(tanh)(A))
TI_F(sigmoid, FN(sigmoid)(A))
TI_F(erf, FN(erf)(A))
TI_F(floor, FN(floor)(A))
TI_F(ceil, FN(ceil)(A))
TI_F(round, FN(nearest)(A))
TI_F(trunc, FN(trunc)(A))
#include "powers_body.h"
TI_F(pow, FN(power)(A, B))
#include "circle_functions_body.h"
#include "error_functions_body.h"
#include "gamma_functions_body.h"
#include "remainder_body.h"

/* ------------------------------------------------------------------ activations; gradients take (gradient, x or y) */
#define ZERO FN(set)(0.f)
static inline VF FN(gelu_inner)(VF x) { return 0.797884561f * FN(fma)(x * x * x, FN(set)(0.044715f), x); }
static inline VF FN(softplus1)(VF x) { return FN(max)(x, ZERO) + FN(log1p)(FN(exp)(-FN(abs)(x))); }
static inline VF FN(clamp)(VF x, VF lo, VF hi) {
  x = FN(sel)(FN(lt)(x, lo), lo, x);
  return FN(sel)(FN(lt)(hi, x), hi, x);
}
static inline VF FN(gelu_tanh_slope)(VF x) {
  VF t = FN(tanh)(FN(gelu_inner)(x)), inner = 0.797884561f * FN(fma)(x * x, FN(set)(3.f * 0.044715f), FN(set)(1.f));
  return 0.5f * (1.f + t) + 0.5f * x * (1.f - t * t) * inner;
}
static inline VF FN(silu_slope)(VF x) { VF s = FN(sigmoid)(x); return s * FN(fma)(x, 1.f - s, FN(set)(1.f)); }
TI_F(relu, FN(relu)(A))
TI_F(leaky_relu, FN(sel)(FN(lt)(ZERO, A), A, A *K0))
TI_F(elu, FN(sel)(FN(le)(A, ZERO), FN(expm1)(A *K2) * (K0 * K1), A *K1)) /* alpha, scale, input scale */
TI_F(gelu, FN(gelu)(A))
TI_F(gelu_tanh, 0.5f * A * (1.f + FN(tanh)(FN(gelu_inner)(A))))
TI_F(silu, A / (1.f + FN(exp)(-A)))
TI_F(mish, A *FN(tanh)(FN(log1p)(FN(exp)(A))))
TI_F(softplus, FN(sel)(FN(lt)(K1, A *K0), A, FN(log1p)(FN(exp)(A *K0)) / K0)) /* beta, threshold */
TI_F(log_sigmoid, FN(min)(ZERO, A) - FN(log1p)(FN(exp)(-FN(abs)(A))))
TI_F(hardsigmoid, FN(clamp)(A + 3.f, ZERO, FN(set)(6.f)) / 6.f)
TI_F(hardswish, A *FN(clamp)(A + 3.f, ZERO, FN(set)(6.f)) / 6.f)
TI_F(clamp, FN(clamp)(A, K0, K1))
TI_F(clamp_min, FN(sel)(FN(lt)(A, K0), K0, A))
TI_F(clamp_max, FN(sel)(FN(lt)(K0, A), K0, A))
TI_F(threshold, FN(sel)(FN(le)(A, K0), K1, A))
TI_F(nan_to_num, FN(sel)(FN(isnan)(A), K0, FN(sel)(FN(eq)(A, FN(set)(INFINITY)), K1, FN(sel)(FN(eq)(A, FN(set)(-INFINITY)), K2, A))))
TI_F(threshold_grad, FN(sel)(FN(le)(B, K0), ZERO, A))
TI_F(gelu_grad, A *FN(fma)(B * 0.398942280f, FN(exp)(-0.5f * B * B), FN(phi)(B)))
TI_F(gelu_tanh_grad, A *FN(gelu_tanh_slope)(B))
TI_F(silu_grad, A *FN(silu_slope)(B))
TI_F(sigmoid_grad, A * (1.f - B) * B)
TI_F(tanh_grad, A * (1.f - B * B))
TI_F(hardtanh_grad, FN(sel)(FN(mand)(FN(lt)(K0, B), FN(lt)(B, K1)), A, ZERO))
TI_F(hardsigmoid_grad, FN(sel)(FN(mand)(FN(lt)(FN(set)(-3.f), B), FN(lt)(B, FN(set)(3.f))), A / 6.f, ZERO))
TI_F(hardswish_grad, FN(sel)(FN(le)(B, FN(set)(-3.f)), ZERO, FN(sel)(FN(lt)(B, FN(set)(3.f)), A * (B / 3.f + 0.5f), A)))
TI_F(softplus_grad, FN(sel)(FN(lt)(K1, B *K0), A, A *FN(sigmoid)(B *K0)))
TI_F(leaky_relu_grad, FN(sel)(FN(lt)(ZERO, B), A, A *K0))
TI_F(elu_grad, FN(sel)(FN(le)(B, ZERO), A * (K2 * K0 * K1) * FN(exp)(B *K2), A *K1))
TI_F(elu_result_grad, FN(sel)(FN(le)(B, ZERO), A *K2 * (B + K0 * K1), A *K1))
TI_F(log_sigmoid_grad, A *FN(sigmoid)(-B))

/* ------------------------------------------------------------------ comparisons and selection */
TI_FB(eq_f, FN(eq)(A, B))
TI_FB(ne_f, FN(ne)(A, B))
TI_FB(lt_f, FN(lt)(A, B))
TI_FB(le_f, FN(le)(A, B))
TI_FB(isnan, FN(isnan)(A))
TI_FB(isinf, FN(eq)(FN(abs)(A), FN(set)(INFINITY)))
TI_FB(isfinite, FN(lt)(FN(abs)(A), FN(set)(INFINITY)))
TI_FB(from_f, FN(ne)(A, FN(set)(0.f)))
TI_LB(eq_l, A == B)
TI_LB(ne_l, A != B)
TI_LB(lt_l, A < B)
TI_LB(le_l, A <= B)
TI_LB(from_l, A != 0)
TI_B(and, A & B)
TI_B(or, A | B)
TI_B(xor, A ^ B)
TI_B(not, A ^ 1)

static inline VM FN(mask_part)(const uint8_t *p, long n) {
  uint8_t part[16] = {0};
  memcpy(part, p, (size_t)n);
  return FN(mask_of)(part);
}
static int FN(f_where)(TI_ARGS) {
  TI_UNUSED; long i = 0;
  const uint8_t *a = (const uint8_t *)pa; const float *b = (const float *)pb, *c = (const float *)pc;
  for (; i + VL <= n; i += VL)
    FN(store)((float *)d + i, FN(sel)(FN(mask_of)(a + i), FN(load)(b + (i & mb)), FN(load)(c + (i & mc))));
  if (i < n)
    FN(store_part)((float *)d + i, FN(sel)(FN(mask_part)(a + i, n - i), FN(load_part)(b + (i & mb), n - i),
                                           FN(load_part)(c + (i & mc), n - i)), n - i);
  return 0;
}
/* (gradient, mask): gradient * mask * K0, as eager multiplies, so that an infinite gradient under a 0 gives NaN */
static int FN(f_dropout_grad)(TI_ARGS) {
  TI_UNUSED; TI_CONSTANTS; long i = 0;
  const float *a = (const float *)pa; const uint8_t *b = (const uint8_t *)pb;
  for (; i + VL <= n; i += VL)
    FN(store)((float *)d + i, FN(load)(a + (i & ma)) * FN(sel)(FN(mask_of)(b + i), K0, ZERO));
  if (i < n)
    FN(store_part)((float *)d + i, FN(load_part)(a + (i & ma), n - i) * FN(sel)(FN(mask_part)(b + i, n - i), K0, ZERO), n - i);
  return 0;
}
/* Without a branch on each condition: those may come in any order. bools: as many bytes as V has lanes */
#define TI_WHERE(name, T, V, bools) \
  static int FN(name)(TI_ARGS) { \
    TI_UNUSED; \
    const T *const b = (const T *)pb, *const c = (const T *)pc; \
    const long lanes = (long)(sizeof(V) / sizeof(T)); \
    long i = 0; \
    for (; i + lanes <= n; i += lanes) { \
      const V taken = (V)(__builtin_convertvector(*(const bools *)(pa + i), V) != 0); \
      *(V *)((T *)d + i) = (taken & *(const V *)(b + (i & mb))) | (~taken & *(const V *)(c + (i & mc))); \
    } \
    for (; i < n; i++) ((T *)d)[i] = pa[i] ? b[i & mb] : c[i & mc]; \
    return 0; \
  }
typedef uint16_t FN(vs) __attribute__((vector_size(VL * 4), aligned(2), may_alias));
typedef uint8_t FN(vc) __attribute__((vector_size(VL * 4), aligned(1), may_alias));
typedef uint8_t FN(bools_s) __attribute__((vector_size(VL * 2), aligned(1), may_alias));
TI_WHERE(l_where, int64_t, L, B8)
TI_WHERE(s_where, uint16_t, FN(vs), FN(bools_s))
TI_WHERE(b_where, uint8_t, FN(vc), FN(vc))
static int FN(b_copy)(TI_ARGS) { TI_UNUSED; memcpy(d, pa, (size_t)n); return 0; }

/* ------------------------------------------------------------------ conversions between classes */
static int FN(f_from_b)(TI_ARGS) {
  TI_UNUSED; long i = 0;
  const uint8_t *a = (const uint8_t *)pa;
  for (; i + VL <= n; i += VL) FN(store)((float *)d + i, FN(sel)(FN(mask_of)(a + i), FN(set)(1.f), ZERO));
  if (i < n) FN(store_part)((float *)d + i, FN(sel)(FN(mask_part)(a + i, n - i), FN(set)(1.f), ZERO), n - i);
  return 0;
}
TI_SCALAR(f, int64_t, float, from_l, R = (float)A)
static int FN(l_from_f)(TI_ARGS) {
  TI_UNUSED;
  long i = 0;
#if VL == 16
  for (; ma && i + 8 <= n; i += 8)
    _mm512_storeu_si512((int64_t *)d + i, _mm512_cvttps_epi64(_mm256_loadu_ps((const float *)pa + i)));
#endif
  for (; i < n; i++) {
    float x = ((const float *)pa)[i & ma];
    /* what the conversion instruction gives out of range; C leaves it undefined */
    ((int64_t *)d)[i] = x >= -9223372036854775808.f && x < 9223372036854775808.f ? (int64_t)x : INT64_MIN;
  }
  return 0;
}
static int FN(l_from_b)(TI_ARGS) {
  TI_UNUSED;
  for (long i = 0; i < n; i++) ((int64_t *)d)[i] = (uint8_t)pa[i] != 0;
  return 0;
}
static int FN(f_round_half)(TI_ARGS) {
  TI_UNUSED; long i = 0;
  const float *a = (const float *)pa;
  uint16_t half[16];
  for (; i + VL <= n; i += VL) { FN(to_half)(half, FN(load)(a + (i & ma))); FN(store)((float *)d + i, FN(from_half)(half)); }
  if (i < n) {
    FN(to_half)(half, FN(load_part)(a + (i & ma), n - i));
    FN(store_part)((float *)d + i, FN(from_half)(half), n - i);
  }
  return 0;
}

/* ------------------------------------------------------------------ integers; they wrap as eager's do */
TI_L(copy, A)
TI_L(wrap_int, (L)((UL)A << 32) >> 32)
TI_L(wrap_short, (L)((UL)A << 48) >> 48)
TI_L(wrap_char, (L)((UL)A << 56) >> 56)
TI_L(wrap_uchar, A & 255)
TI_L(add, (L)((UL)A + (UL)B))
TI_L(sub, (L)((UL)A - (UL)B))
TI_L(mul, (L)((UL)A *(UL)B))
TI_L(neg, (L)((UL){0} - (UL)A))
TI_L(abs, (L)((UL)(A ^ (A >> 63)) - (UL)(A >> 63)))
TI_L(sign, (A >> 63) | ((A > 0) & 1))
TI_L(max, ((A > B) & A) | (~(A > B) & B))
TI_L(min, ((A < B) & A) | (~(A < B) & B))
TI_L(and, A &B)
TI_L(or, A | B)
TI_L(xor, A ^ B)
TI_L(not, ~A)
/* By fewer than no or by more bits than there are: all bits leave, and those of the sign come in on the left. */
#define TI_INSIDE ((B >= 0) & (B < 64))
TI_L(shift_left, (L)((UL)A << (UL)(B & 63)) & TI_INSIDE)
TI_L(shift_right, A >> ((B & TI_INSIDE) | (63 & ~TI_INSIDE)))
#undef TI_INSIDE

TI_SCALAR(l, int64_t, int64_t, pow, {
  uint64_t base = (uint64_t)A, power = 1;
  if (B < 0) R = A == 1 ? 1 : A == -1 ? (B & 1 ? -1 : 1) : 0;
  else { for (int64_t e = B; e; e >>= 1) { if (e & 1) power *= base; base *= base; } R = (int64_t)power; }
})

#include "elementwise_division_body.h"
#include "elementwise_narrow_body.h"
#include "elementwise_special_body.h"
#include "elementwise_operands_body.h"

/* Loads, stores and rounding are done by the interpreter itself, which knows shapes and numbers of elements. */
static int FN(x_load)(TI_ARGS) { (void)d, (void)pa, (void)n; TI_UNUSED; return TI_TRAP_INTERNAL; }
static int FN(x_store)(TI_ARGS) { (void)d, (void)pa, (void)n; TI_UNUSED; return TI_TRAP_INTERNAL; }
static int FN(x_multiply_pairs)(TI_ARGS) { (void)d, (void)pa, (void)n; TI_UNUSED; return TI_TRAP_INTERNAL; }
static int FN(x_load_pair)(TI_ARGS) { (void)d, (void)pa, (void)n; TI_UNUSED; return TI_TRAP_INTERNAL; }
static int FN(x_store_pair)(TI_ARGS) { (void)d, (void)pa, (void)n; TI_UNUSED; return TI_TRAP_INTERNAL; }
static int FN(x_round_store)(TI_ARGS) { (void)d, (void)pa, (void)n; TI_UNUSED; return TI_TRAP_INTERNAL; }
static int FN(f_round_by)(TI_ARGS) { (void)d, (void)pa, (void)n; TI_UNUSED; return TI_TRAP_INTERNAL; }
static int (*const FN(instructions)[])(TI_ARGS) = {
#define X(name) FN(name),
    TI_CHAIN_OPS(X)
#undef X
};

/* Fills a constant's cache line, or the whole register of a bool or another byte. */
static void FN(fill_constant)(char *reg, int dtype, int64_t integer, double number, int64_t block) {
  if (dtype <= TI_HALF) for (int i = 0; i < VL; i++) ((float *)reg)[i] = (float)number;
  else if (dtype == TI_BOOL) memset(reg, (int)(integer & 255), (size_t)block);
  else if (dtype == TI_INT) for (int i = 0; i < VL; i++) ((int32_t *)reg)[i] = (int32_t)integer;
  else if (dtype == TI_SHORT) for (int i = 0; i < 2 * VL; i++) ((int16_t *)reg)[i] = (int16_t)integer;
  else for (int i = 0; i < HALF_VL; i++) ((int64_t *)reg)[i] = integer;
}

#include "pair_products_body.h"
/* Brings elements [start, start + n) of an operand to a register, or shows them there where they lie. */
TI_INLINE void FN(load_operand)(char *const *args, const chain_slot *slots, const chain_instruction *q, int number, int64_t start,
                                long n, int64_t block, const int64_t *from, char **at, char *const *own, long *mask, int *filled_by) {
  const chain_slot *const slot = slots + q->a;
  const int last = (int)slot->num_dims - 1, dtype = (int)slot->dtype;
  char *const base = args[slot->argument], *const to = own[q->result];
  if (slots[q->result].kind == TI_SLOT_KIND_REGISTER) {
    if (FN(has_stretches)(slot) && from[q->a] >= 0) {
      char *const first = base + from[q->a] * FN(host_bytes)(dtype);
      filled_by[q->result] = -1;
      mask[q->result] = slot->strides[last] ? -1 : 0;
      /* one value repeated lies behind the register, which may become the result's */
      char *const line = to + block * FN(register_bytes)(dtype);
      at[q->result] = slot->strides[last] ? first : line;
      if (!slot->strides[last]) FN(load_run)(line, first, dtype, 0, VL * 4 / FN(register_bytes)(dtype));
      return;
    }
    /* what repeats within a block is there from the one before */
    const int repeats = last > 0 && slot->strides[0] == 0 && n == block && start % block == 0;
    if (repeats && filled_by[q->result] == number) return;
    filled_by[q->result] = repeats && FN(repeats_in)(slot, block) ? number : -1;
    at[q->result] = to;
    mask[q->result] = -1;
  }
  FN(walk)(to, base, slot, start, n, 0);
}

/* A chain as a call goes through it. */
typedef struct {
  const chain_slot *slots;
  const chain_instruction *program;
  const double *constants;
  char *const *args;
  int64_t block;                    /* elements of a piece that begins where others do */
  int num_instructions, num_direct, num_cut, is_direct;
  char *at[TI_MAX_SLOTS];
  long mask[TI_MAX_SLOTS];
  int direct[TI_MAX_SLOTS], cut[TI_MAX_SLOTS];
  char *own[TI_MAX_SLOTS];          /* where a register's own memory is, whatever it shows */
  int filled_by[TI_MAX_SLOTS];      /* what has loaded a register with what each block begins with; -1 if nothing has */
  int64_t from[TI_MAX_SLOTS];       /* where a stretch of an operand begins; -1 where there is none as long as the piece */
  FN(walked) walked[TI_MAX_SLOTS];  /* of each operand that may cut pieces, in the order of cut */
  FN(keys) keys[TI_MAX_SLOTS];      /* by the slot of the random words; made once for all blocks */
} FN(chain_call);
/* capacity: elements that registers hold */
static void FN(begin_chain)(FN(chain_call) *c, char *const *args, char *scratch, const int64_t *numbers, const double *constants,
                            int num_slots, int num_instructions, int64_t block, int64_t capacity) {
  const chain_slot *const slots = c->slots = (const chain_slot *)numbers;
  c->program = (const chain_instruction *)(slots + num_slots);
  c->constants = constants, c->args = args, c->block = block, c->num_instructions = num_instructions;
  c->num_direct = c->num_cut = 0;
  for (int s = 0; s < num_slots; s++) {
    const chain_slot *slot = slots + s;
    const int dtype = (int)slot->dtype;
    c->mask[s] = -1;
    c->at[s] = c->own[s] = scratch + slot->offset;
    c->filled_by[s] = -1;
    switch (slot->kind) {
      case TI_SLOT_KIND_DIRECT:
        c->direct[c->num_direct++] = s;
        break;
      case TI_SLOT_KIND_CONSTANT:
        FN(fill_constant)(c->at[s], dtype, slot->shape[0], constants[slot->shape[1]], capacity);
        c->mask[s] = dtype == TI_BOOL ? -1 : 0;
        break;
      case TI_SLOT_KIND_UNIFORM:
        FN(load_run)(c->at[s], args[slot->argument], dtype, 0, dtype == TI_BOOL ? capacity : VL * 4 / FN(register_bytes)(dtype));
        c->mask[s] = dtype == TI_BOOL ? -1 : 0;
        break;
      default: break;
    }
  }
  for (int i = 0; i < num_instructions; i++) {
    const chain_instruction *q = c->program + i;
    if (q->operation == TI_OP_f_round_by || q->operation == TI_OP_x_round_store) {
      if (q->b != q->a) c->keys[q->b] = FN(keys_of)((const int64_t *)args[slots[q->b].argument]);
    }
    if (q->operation == TI_OP_x_load && slots[q->result].kind == TI_SLOT_KIND_REGISTER && FN(has_stretches)(slots + q->a))
      c->walked[c->num_cut].start = -1, c->cut[c->num_cut++] = (int)q->a;
  }
  /* what nothing of lies in scratch may be done in longer pieces: to begin one takes as long as some vectors do */
  c->is_direct = 1;
  for (int s = 0; s < num_slots; s++)
    c->is_direct &= slots[s].kind == TI_SLOT_KIND_DIRECT || (slots[s].kind != TI_SLOT_KIND_REGISTER && slots[s].kind != TI_SLOT_KIND_WALK && !c->mask[s]);
}
/* How long the piece from an element on is, n at most: as long as what operands have side by side, where that is long enough.
 * What is not cut within groups is cut between them, where there is more than one; 1 for elements. */
TI_INLINE long FN(cut_piece)(FN(chain_call) *c, int64_t start, long n, const int64_t group) {
  for (int j = 0; j < c->num_cut; j++) {
    int64_t run = FN(stretch)(c->slots + c->cut[j], c->walked + j, start, c->from + c->cut[j]);
    if (run >= n) continue;
    if (group > 1) run -= run % group;
    if (run >= TI_LEAST_STRETCH / 2) n = (long)run;
    else c->from[c->cut[j]] = -1;
  }
  return n;
}
/* Brings elements of two operands whose elements take turns to a register each, unless they are there from the block before. */
TI_INLINE void FN(load_pair)(FN(chain_call) *c, const chain_instruction *q, int number, int64_t start, long n) {
  const chain_slot *const slot = c->slots + q->a;
  const int64_t both[] = {q->result, q->c};
  const int repeats = slot->num_dims > 1 && slot->strides[0] == 0 && n == c->block && start % c->block == 0;
  if (repeats && c->filled_by[both[0]] == number && c->filled_by[both[1]] == number) return;
  for (int i = 0; i < 2; i++) {
    c->filled_by[both[i]] = repeats && FN(repeats_in)(slot, c->block) ? number : -1;
    c->at[both[i]] = c->own[both[i]];
    c->mask[both[i]] = -1;
  }
  FN(walk_pair)((float *)c->own[both[0]], (float *)c->own[both[1]], (float *)c->args[slot->argument], slot, start, n, 0);
}
/* Spreads one value repeated over its register, from where runs are stored. */
TI_INLINE void FN(spread)(FN(chain_call) *c, int64_t slot, long n) {
  if (c->mask[slot]) return;
  FN(load_run)(c->own[slot], c->at[slot], (int)c->slots[slot].dtype, 0, n);
  c->at[slot] = c->own[slot], c->mask[slot] = -1, c->filled_by[slot] = -1;
}
/* Runs the instructions on elements [start, start + n). */
TI_INLINE int FN(run_piece)(FN(chain_call) *c, int64_t start, long n) {
  const chain_slot *const slots = c->slots;
  char **const at = c->at, **const own = c->own;
  long *const mask = c->mask;
  for (int j = 0; j < c->num_direct; j++) {
    const chain_slot *const slot = slots + c->direct[j];
    at[c->direct[j]] = own[c->direct[j]] = c->args[slot->argument] + start * FN(register_bytes)((int)slot->dtype);
  }
  for (int i = 0; i < c->num_instructions; i++) {
    const chain_instruction *q = c->program + i;
    if (q->operation == TI_OP_x_load) {
      FN(load_operand)(c->args, slots, q, i, start, n, c->block, c->from, at, own, mask, c->filled_by);
    } else if (q->operation == TI_OP_x_store) {
      const chain_slot *slot = slots + q->result;
      FN(spread)(c, q->a, n);
      FN(walk)(at[q->a], c->args[slot->argument], slot, start, n, 1);
    } else if (q->operation == TI_OP_x_load_pair) {
      FN(load_pair)(c, q, i, start, n);
    } else if (q->operation == TI_OP_x_store_pair) {
      const chain_slot *slot = slots + q->result;
      FN(spread)(c, q->a, n), FN(spread)(c, q->b, n);
      FN(walk_pair)((float *)at[q->a], (float *)at[q->b], (float *)c->args[slot->argument], slot, start, n, 1);
    } else if (q->operation == TI_OP_x_multiply_pairs) {
      const chain_slot *const walks[] = {slots + q->result, slots + q->a, slots + q->b};
      float *const *const memory = (float *const *)c->args;
      FN(multiply_walked)(memory[walks[0]->argument], memory[walks[1]->argument], memory[walks[2]->argument], walks, start, n,
                          c->constants + q->scalar);
    } else if (q->operation == TI_OP_f_round_by || q->operation == TI_OP_x_round_store) {
      const int64_t *state = q->b == q->a ? 0 : (const int64_t *)c->args[slots[q->b].argument];
      const float *from = (const float *)at[q->a];
      const int overflow = (int)c->constants[q->scalar], to_nearest = FN(rounds_to_nearest)(state);
      float *const floats = (float *)own[q->result];
      uint16_t *const halves = (uint16_t *)c->args[slots[q->result].argument] + start;
      if (q->operation == TI_OP_f_round_by && to_nearest) FN(round_run)(floats, from, mask[q->a], 0, start, n, overflow);
      else if (q->operation == TI_OP_f_round_by) FN(round_keyed_run)(floats, from, mask[q->a], c->keys[q->b], start, n, overflow);
      else if (to_nearest) FN(round_to)(halves, from, mask[q->a], 0, start, n, overflow);
      else FN(round_keyed_to)(halves, from, mask[q->a], c->keys[q->b], start, n, overflow);
    } else {
      int trap = FN(instructions)[q->operation](own[q->result], at[q->a], at[q->b], at[q->c], n, mask[q->a], mask[q->b], mask[q->c],
                                                c->constants + q->scalar);
      if (trap) return trap;
    }
    if (q->operation > TI_OP_x_round_store)  /* the last that moves elements */
      at[q->result] = own[q->result], mask[q->result] = -1, c->filled_by[q->result] = -1;
  }
  return TI_OK;
}

#include "elementwise_rows_body.h"
#define TI_PIECE_BLOCKS 4
TI_KERNEL(chain) {
  const chain_ints *const p = (const chain_ints *)ints;
  const int64_t block = p->block, stop = ti_min(p->elements, end * block);
  FN(on_rows) rows;
  FN(find_rows)(p, args, &rows);
  if (rows.function) { FN(run_rows)(&rows, begin * block, stop); return TI_OK; }
  FN(chain_call) c;
  FN(begin_chain)(&c, args, (char *)scratch, p->program, ((const chain_scalars *)scalars)->constants, (int)p->num_slots,
                  (int)p->num_instructions, block, block);
  const int64_t piece = c.is_direct ? TI_PIECE_BLOCKS * block : block;
  for (int64_t start = begin * block; start < stop;) {
    /* what is cut where stretches end would leave the ends of blocks over */
    const int64_t most = c.num_cut ? block : piece - start % piece;
    const long n = FN(cut_piece)(&c, start, (long)ti_min(most, stop - start), 1);
    const int trap = FN(run_piece)(&c, start, n);
    if (trap) return trap;
    start += n;
  }
  return TI_OK;
}
#include "chain_fold_body.h"
#undef L
#undef UL
#undef B8
#undef HALF_VL
#undef ZERO
#undef TI_ARGS
#undef TI_UNUSED
#undef TI_CONSTANTS
#undef TI_F
#undef TI_FUNCTION
#undef TI_FB
#undef TI_L
#undef TI_LB
#undef TI_B
#undef TI_SCALAR
#undef TI_WHERE
#undef TI_LOAD_LOOP
#undef TI_STORE_LOOP
#undef TI_PIECE_BLOCKS
