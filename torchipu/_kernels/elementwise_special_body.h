/* Instructions of the chain interpreter that few programs use; included by elementwise_body.h, whose macros they use. */

/* ------------------------------------------------------------------ floats, in vectors */
static inline VF FN(sign_of)(VF x) { return FN(copysign)(FN(set)(1.f), x); }
/* log(exp(a) + exp(b)) from the greater one and what the other adds; equal infinities have no difference */
#define TI_LOG_SUM(small_part) FN(sel)(FN(mand)(FN(eq)(A, B), FN(eq)(FN(abs)(A), FN(set)(INFINITY))), A, FN(max)(A, B) + small_part)
TI_F(copysign, FN(copysign)(A, B))
/* the other operand where one is NaN */
TI_F(fmax, FN(sel)(FN(mor)(FN(lt)(A, B), FN(isnan)(A)), B, A))
TI_F(fmin, FN(sel)(FN(mor)(FN(lt)(B, A), FN(isnan)(A)), B, A))
TI_F(frac, A - FN(trunc)(A))
TI_F(heaviside, FN(sel)(FN(eq)(A, ZERO), B, FN(sel)(FN(lt)(ZERO, A), FN(set)(1.f), ZERO)))
TI_F(angle, FN(sel)(FN(lt)(A, ZERO), FN(set)(3.14159274f), FN(sel)(FN(isnan)(A), A, ZERO)))
TI_F(logit, FN(log)(A / (1.f - A)))
TI_F(logit_grad, FN(sel)(FN(mor)(FN(lt)(B, K0), FN(lt)(K1, B)), K2, A / (B * (1.f - B)))) /* from, to, beyond */
TI_F(logaddexp, TI_LOG_SUM(FN(log1p)(FN(exp)(-FN(abs)(A - B)))))
TI_F(logaddexp2, TI_LOG_SUM(FN(log1p)(FN(exp)(-0.693147182f * FN(abs)(A - B))) * 1.44269504f))
TI_F(xlogy, FN(sel)(FN(isnan)(B), B, FN(sel)(FN(eq)(A, ZERO), ZERO, A *FN(log)(B))))
TI_F(xlog1py, FN(sel)(FN(isnan)(B), B, FN(sel)(FN(eq)(A, ZERO), ZERO, A *FN(log1p)(B))))
TI_F(entr, FN(sel)(FN(lt)(A, ZERO), FN(set)(-INFINITY), FN(sel)(FN(eq)(A, ZERO), ZERO, -A * FN(log)(A))))
TI_F(sinc, FN(sel)(FN(eq)(A, ZERO), FN(set)(1.f), FN(sin)(A * 3.14159274f) / (A * 3.14159274f)))
TI_F(hardshrink, FN(sel)(FN(mand)(FN(le)(-K0, A), FN(le)(A, K0)), ZERO, A))
TI_F(softshrink, FN(sel)(FN(lt)(K0, A), A - K0, FN(sel)(FN(lt)(A, -K0), A + K0, A *ZERO)))
TI_F(shrink_grad, FN(sel)(FN(mor)(FN(lt)(B, -K0), FN(lt)(K0, B)), A, ZERO))
static inline VF FN(mish_slope)(VF x) {
  VF t = FN(tanh)(FN(softplus1)(x));
  return FN(fma)(x * FN(sigmoid)(x), 1.f - t * t, t);
}
TI_F(mish_grad, A *FN(mish_slope)(B))
TI_F(prelu, FN(sel)(FN(lt)(ZERO, A), A, A *B))
TI_F(prelu_grad, FN(sel)(FN(lt)(ZERO, B), A, A *C)) /* gradient, x, weight */
TI_F(prelu_weight_grad, FN(sel)(FN(lt)(ZERO, B), ZERO, A *B))
TI_F(glu, A *FN(sigmoid)(B))
TI_F(glu_gate_grad, A * (FN(sigmoid)(C) * (1.f - FN(sigmoid)(C)) * B)) /* gradient, value, gate */
TI_FB(signbit, FN(lt)(FN(sign_of)(A), ZERO))
TI_FB(isposinf, FN(eq)(A, FN(set)(INFINITY)))
TI_FB(isneginf, FN(eq)(A, FN(set)(-INFINITY)))

/* I_n(x) for n = 0, 1, or exp(-|x|) of it: up to 20 by the power series, whose terms are positive and of which those left out
 * are below a billionth of the sum; beyond one at a time. Of all lanes there are as many, so that none depends on others. */
TI_INLINE VF FN(bessel_i)(VF x, const int n, const int is_scaled) {
  const VM rare = FN(mor)(FN(lt)(FN(set)(20.f), FN(abs)(x)), FN(isnan)(x));
  const VF a = FN(sel)(rare, ZERO, FN(abs)(x));
  FN(vh) parts[2];
  FN(vd) quarter[2], sum[2];
  memcpy(parts, &a, sizeof a);
  for (int h = 0; h < 2; h++) {
    const FN(vd) wide = __builtin_convertvector(parts[h], FN(vd));
    quarter[h] = 0.25 * wide * wide, sum[h] = (FN(vd)){0} + 1.;
  }
#pragma GCC unroll 28
  for (int k = 28; k; k--)
    for (int h = 0; h < 2; h++) sum[h] = 1. + quarter[h] * (1. / (k * (k + n))) * sum[h];
  for (int h = 0; h < 2; h++) parts[h] = __builtin_convertvector(sum[h], FN(vh));
  VF r;
  memcpy(&r, parts, sizeof r);
  if (n) r *= 0.5f * x;
  if (is_scaled) r *= FN(exp)(-a);
  TI_RARE_LANES(r, rare, (float)(is_scaled ? ti_bessel_i_scaled(x[j], n) : ti_bessel_i(x[j], n)));
  return r;
}
TI_FUNCTION(i0, FN(bessel_i)(A, 0, 0))
TI_FUNCTION(i0e, FN(bessel_i)(A, 0, 1))
TI_FUNCTION(i1, FN(bessel_i)(A, 1, 0))
TI_FUNCTION(i1e, FN(bessel_i)(A, 1, 1))

/* ------------------------------------------------------------------ floats, one at a time */
#define TI_D(name, call) TI_SCALAR(f, float, float, name, R = (float)(call))
/* The neighbour among halves. */
static int FN(f_nextafter_half)(TI_ARGS) {
  TI_UNUSED;
  for (long i = 0; i < n; i++) {
    float from = ((const float *)pa)[i & ma], to = ((const float *)pb)[i & mb];
    uint16_t bits = _cvtss_sh(from, 0);
    if (from != from || to != to) ((float *)d)[i] = from + to;
    else if (from == to) ((float *)d)[i] = to;
    else if (from == 0) ((float *)d)[i] = _cvtsh_ss(to > 0 ? 1 : 0x8001);
    else ((float *)d)[i] = _cvtsh_ss((uint16_t)(bits + ((from < to) == (from > 0) ? 1 : -1)));
  }
  return 0;
}
TI_SCALAR(f, float, float, frexp, { int e; R = frexpf(A, &e); })
TI_SCALAR(l, float, int64_t, frexp_exponent, { int e; (void)frexpf(A, &e); R = isfinite(A) ? e : 0; })
TI_D(erfcx, ti_erfcx(A))
TI_D(log_ndtr, ti_log_ndtr(A))
TI_D(polygamma, ti_polygamma(k[0], A))
TI_D(zeta, ti_zeta(A, B))
TI_D(igamma, ti_igamma(A, B, 0))
TI_D(igammac, ti_igamma(A, B, 1))
TI_D(k0, ti_bessel_k(A, 0, 0))
TI_D(k1, ti_bessel_k(A, 1, 0))
TI_D(k0e, ti_bessel_k(A, 0, 1))
TI_D(k1e, ti_bessel_k(A, 1, 1))
TI_D(j0, ti_bessel_j(A, 0))
TI_D(j1, ti_bessel_j(A, 1))
TI_D(y0, ti_bessel_y(A, 0))
TI_D(y1, ti_bessel_y(A, 1))
TI_D(spherical_j0, ti_spherical_j0(A))
TI_D(airy, ti_airy(A))
TI_D(chebyshev_t, ti_chebyshev(A, B, TI_CHEBYSHEV_T))
TI_D(chebyshev_u, ti_chebyshev(A, B, TI_CHEBYSHEV_U))
TI_D(chebyshev_v, ti_chebyshev(A, B, TI_CHEBYSHEV_V))
TI_D(chebyshev_w, ti_chebyshev(A, B, TI_CHEBYSHEV_W))
TI_D(shifted_chebyshev_t, ti_chebyshev(2. * A - 1, B, TI_CHEBYSHEV_T))
TI_D(shifted_chebyshev_u, ti_chebyshev(2. * A - 1, B, TI_CHEBYSHEV_U))
TI_D(shifted_chebyshev_v, ti_chebyshev(2. * A - 1, B, TI_CHEBYSHEV_V))
TI_D(shifted_chebyshev_w, ti_chebyshev(2. * A - 1, B, TI_CHEBYSHEV_W))
TI_D(hermite_h, ti_hermite(A, B, 2))
TI_D(hermite_he, ti_hermite(A, B, 1))
TI_D(laguerre, ti_laguerre(A, B))
TI_D(legendre, ti_legendre(A, B))

/* ------------------------------------------------------------------ integers */
TI_SCALAR(l, int64_t, int64_t, gcd, R = ti_gcd(A, B))
TI_SCALAR(l, int64_t, int64_t, lcm, R = ti_lcm(A, B))
TI_LB(signbit_l, A < 0)
#undef TI_D
#undef TI_LOG_SUM
