/* The instructions of the chain interpreter; the letter before the underscore is the class of the result.
 *
 *   f  float32 register     l  int64 register     b  bool register (one byte, 0 or 1)
 */
#ifndef TORCHIPU_ELEMENTWISE_OPS_H
#define TORCHIPU_ELEMENTWISE_OPS_H
#define TI_VECTOR_OPS(X) \
  X(x_load) X(x_store) X(x_round_store) X(f_round_by) X(f_copy) X(l_copy) X(b_copy) \
  X(f_from_l) X(f_from_b) X(l_from_f) X(l_from_b) X(b_from_f) X(b_from_l) \
  X(f_round_half) X(l_wrap_int) X(l_wrap_short) X(l_wrap_char) X(l_wrap_uchar) \
  X(f_add) X(f_sub) X(f_mul) X(f_div) X(f_max) X(f_min) X(f_pow) \
  X(f_add_scaled) X(f_fma3) X(f_addcdiv) X(f_lerp) \
  X(f_neg) X(f_abs) X(f_sign) X(f_exp) X(f_expm1) X(f_log) X(f_log1p) X(f_log2) X(f_log10) X(f_sqrt) X(f_rsqrt) \
  X(f_recip) X(f_square) X(f_cube) X(f_sin) X(f_cos) X(f_tanh) X(f_sigmoid) X(f_erf) \
  X(f_exp2) \
  X(f_floor) X(f_ceil) X(f_round) X(f_trunc) X(f_relu) X(f_leaky_relu) X(f_elu) X(f_gelu) X(f_gelu_tanh) X(f_silu) \
  X(f_mish) X(f_softplus) X(f_log_sigmoid) X(f_hardsigmoid) X(f_hardswish) X(f_clamp) X(f_clamp_min) X(f_clamp_max) \
  X(f_threshold) X(f_nan_to_num) \
  X(f_threshold_grad) X(f_gelu_grad) X(f_gelu_tanh_grad) X(f_silu_grad) X(f_sigmoid_grad) X(f_tanh_grad) \
  X(f_hardtanh_grad) X(f_hardsigmoid_grad) X(f_hardswish_grad) X(f_softplus_grad) X(f_leaky_relu_grad) X(f_elu_grad) \
  X(f_elu_result_grad) X(f_dropout_grad) X(f_log_sigmoid_grad) \
  X(f_where) X(l_where) X(b_where) \
  X(b_eq_f) X(b_ne_f) X(b_lt_f) X(b_le_f) X(b_eq_l) X(b_ne_l) X(b_lt_l) X(b_le_l) X(b_isnan) X(b_isinf) X(b_isfinite) \
  X(b_and) X(b_or) X(b_xor) X(b_not) \
  X(l_add) X(l_sub) X(l_mul) X(l_neg) X(l_abs) X(l_sign) X(l_max) X(l_min) X(l_and) X(l_or) X(l_xor) X(l_not) \
  X(f_copysign) X(f_fmax) X(f_fmin) X(f_frac) X(f_heaviside) X(f_angle) X(f_logit) X(f_logit_grad) X(f_logaddexp) \
  X(f_logaddexp2) X(f_xlogy) X(f_xlog1py) X(f_entr) X(f_sinc) X(f_hardshrink) X(f_softshrink) X(f_shrink_grad) \
  X(f_mish_grad) X(f_prelu) X(f_prelu_grad) X(f_prelu_weight_grad) X(f_glu) X(f_glu_gate_grad) X(b_signbit) \
  X(b_isposinf) X(b_isneginf) X(b_signbit_l)
/* Those that take their elements one at a time. */
#define TI_SCALAR_OPS(X) \
  X(f_fmod) X(f_remainder) X(f_floor_div) X(f_atan2) X(f_tan) X(f_atan) X(f_asin) X(f_acos) X(f_sinh) X(f_cosh) \
  X(f_erfc) X(l_floor_div) X(l_trunc_div) X(l_remainder) X(l_fmod) X(l_pow) X(l_shift_left) X(l_shift_right) \
  X(f_hypot) X(f_nextafter) X(f_frexp) X(l_frexp_exponent) X(l_gcd) X(l_lcm) X(f_nextafter_half) X(f_asinh) \
  X(f_acosh) X(f_atanh) X(f_erfinv) X(f_erfcx) X(f_ndtri) X(f_log_ndtr) X(f_lgamma) X(f_digamma) X(f_polygamma) \
  X(f_zeta) X(f_igamma) X(f_igammac) X(f_i0) X(f_i0e) X(f_i1) X(f_i1e) X(f_k0) X(f_k1) X(f_k0e) X(f_k1e) X(f_j0) \
  X(f_j1) X(f_y0) X(f_y1) X(f_spherical_j0) X(f_airy) X(f_chebyshev_t) X(f_chebyshev_u) X(f_chebyshev_v) \
  X(f_chebyshev_w) X(f_shifted_chebyshev_t) X(f_shifted_chebyshev_u) X(f_shifted_chebyshev_v) \
  X(f_shifted_chebyshev_w) X(f_hermite_h) X(f_hermite_he) X(f_laguerre) X(f_legendre)
#define TI_CHAIN_OPS(X) TI_VECTOR_OPS(X) TI_SCALAR_OPS(X)

enum {
#define X(name) TI_OP_##name,
  TI_CHAIN_OPS(X)
#undef X
  TI_NUM_CHAIN_OPS
};
static const char *const TI_CHAIN_OP_NAMES[] = {
#define X(name) #name,
  TI_CHAIN_OPS(X)
#undef X
};
static const char *const TI_SCALAR_OP_NAMES[] = {
#define X(name) #name,
  TI_SCALAR_OPS(X)
#undef X
};
enum { TI_NUM_SCALAR_OPS = sizeof TI_SCALAR_OP_NAMES / sizeof *TI_SCALAR_OP_NAMES };
/* Element types as ints name them. */
enum { TI_FLOAT, TI_HALF, TI_BOOL, TI_LONG, TI_INT, TI_SHORT, TI_CHAR, TI_UCHAR };
/* What a slot of a chain is; see elementwise_body.h. */
enum { TI_SLOT_DIRECT, TI_SLOT_REGISTER, TI_SLOT_CONSTANT, TI_SLOT_UNIFORM, TI_SLOT_WALK };
enum { TI_MAX_SLOTS = 256, TI_MAX_DIMS = 8, TI_SLOT_INTS = 5 + 2 * 8, TI_INSTRUCTION_INTS = 6, TI_CHAIN_HEADER = 4 };
#endif
