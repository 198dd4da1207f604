/* The instructions of the chain interpreter; the letter before the underscore is the class of the result.
 *
 *   f  float32 register     l  int64 register     b  bool register (one byte, 0 or 1)
 */
#ifndef TORCHIPU_ELEMENTWISE_OPS_H
#define TORCHIPU_ELEMENTWISE_OPS_H
#define TI_CHAIN_OPS(X) \
  X(x_load) X(x_store) X(f_copy) X(l_copy) X(b_copy) \
  X(f_from_l) X(f_from_b) X(l_from_f) X(l_from_b) X(b_from_f) X(b_from_l) \
  X(f_round_half) X(l_wrap_int) X(l_wrap_short) X(l_wrap_char) X(l_wrap_uchar) \
  X(f_add) X(f_sub) X(f_mul) X(f_div) X(f_max) X(f_min) X(f_pow) X(f_fmod) X(f_remainder) X(f_floor_div) \
  X(f_add_scaled) X(f_fma3) X(f_addcdiv) X(f_lerp) X(f_atan2) \
  X(f_neg) X(f_abs) X(f_sign) X(f_exp) X(f_expm1) X(f_log) X(f_log1p) X(f_log2) X(f_log10) X(f_sqrt) X(f_rsqrt) \
  X(f_recip) X(f_square) X(f_cube) X(f_sin) X(f_cos) X(f_tan) X(f_tanh) X(f_sigmoid) X(f_erf) X(f_erfc) X(f_atan) X(f_asin) \
  X(f_acos) X(f_sinh) X(f_cosh) X(f_exp2) \
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
  X(l_shift_left) X(l_shift_right) X(l_floor_div) X(l_trunc_div) X(l_remainder) X(l_fmod) X(l_pow)

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
/* Element types as ints name them. */
enum { TI_FLOAT, TI_HALF, TI_BOOL, TI_LONG, TI_INT, TI_SHORT, TI_CHAR, TI_UCHAR };
/* What a slot of a chain is; see elementwise_body.h. */
enum { TI_SLOT_DIRECT, TI_SLOT_REGISTER, TI_SLOT_CONSTANT, TI_SLOT_UNIFORM, TI_SLOT_WALK };
enum { TI_MAX_SLOTS = 256, TI_MAX_DIMS = 8, TI_SLOT_INTS = 5 + 2 * 8, TI_INSTRUCTION_INTS = 6, TI_CHAIN_HEADER = 4 };
#endif
