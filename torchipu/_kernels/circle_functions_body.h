/* Functions of angles and of the hyperbola, and their inverses; included by elementwise_body.h, whose macros they use.
 *
 * Polynomials are minimax in the square of the reduced argument. What is lost where a large part is split off is kept
 * beside it: products whose rounding is measured are made by fma, so that the compiler joins none of them to a sum.
 */
#define TI_HALF_PI 1.57079637f
#define TI_HALF_PI_LO -4.37113883e-08f

/* ------------------------------------------------------------------ angles */
/* Tangent of |x| < 32768: that of the rest to a multiple of pi/2, or minus its inverse. */
TI_INLINE VF FN(tangent)(VF x) {
  const VF n = FN(nearest)(x * FN(set)(0.636619772f));
  const VF first = FN(fma)(n, FN(set)(-1.5707963705062866f), x);  /* exact */
  const VF next = FN(fma)(n, FN(set)(4.371138828673793e-08f), FN(set)(0.f)), r = first + next, taken = r - first;
  const VF lost = FN(fma)(n, FN(set)(1.7151245e-15f), FN(fma)(n, FN(set)(4.371138828673793e-08f), -next)) +
                  ((first - (r - taken)) + (next - taken));
  const VF s = r * r;
  VF p = FN(set)(0.00437257811f);
  p = FN(fma)(p, s, FN(set)(9.84075523e-05f));
  p = FN(fma)(p, s, FN(set)(0.0108273737f));
  p = FN(fma)(p, s, FN(set)(0.0212862175f));
  p = FN(fma)(p, s, FN(set)(0.0540589131f));
  p = FN(fma)(p, s, FN(set)(0.133326754f));
  p = FN(fma)(p, s, FN(set)(0.333333492f));
  const VF above = FN(fma)(p * s, r, FN(fma)(lost, s, lost));  /* what the tangent has above r; lost (1 + tan^2), nearly */
  const VF t = r + above, rest = above - (t - r);
  /* -1 / (t + rest), with one step of Newton's for what the quotient lost */
  const VF q = -1.f / t, inverse = FN(fma)(q, FN(fma)(q, t, FN(set)(1.f)) + q * rest, q);
  return FN(sel)(FN(ieq)(FN(toint)(n) & 1, FN(iset)(1)), inverse, t);
}
static inline VF FN(tan)(VF x) {
  VF t = FN(sel)(FN(eq)(x, FN(set)(0.f)), x, FN(tangent)(x));
  TI_RARE_LANES(t, FN(lt)(FN(set)(32768.f), FN(abs)(x)), tanf(x[j]));
  return t;
}
/* Angle of a tangent in [0, 1]. */
TI_INLINE VF FN(angle_of)(VF t) {
  const VF s = t * t;
  VF p = FN(set)(-0.00179311971f);
  p = FN(fma)(p, s, FN(set)(0.0109113548f));
  p = FN(fma)(p, s, FN(set)(-0.0311696008f));
  p = FN(fma)(p, s, FN(set)(0.0579466969f));
  p = FN(fma)(p, s, FN(set)(-0.0840262622f));
  p = FN(fma)(p, s, FN(set)(0.109518223f));
  p = FN(fma)(p, s, FN(set)(-0.142641515f));
  p = FN(fma)(p, s, FN(set)(0.19998537f));
  p = FN(fma)(p, s, FN(set)(-0.333332986f));
  return FN(fma)(p * s, t, t);
}
TI_INLINE VF FN(atan)(VF x) {
  const VF a = FN(abs)(x);
  const VM far = FN(lt)(FN(set)(1.f), a);
  const VF r = FN(angle_of)(FN(sel)(far, 1.f / a, a));
  return FN(copysign)(FN(sel)(far, TI_HALF_PI - (r - TI_HALF_PI_LO), r), x);
}
/* The angle of the point (x, y). */
TI_INLINE VF FN(atan2)(VF y, VF x) {
  const VF a = FN(abs)(y), b = FN(abs)(x), low = FN(min)(a, b), high = FN(max)(a, b);
  const VM steep = FN(lt)(b, a);
  VF q = low / high;  /* that of two infinities is 1, of two zeros 0 */
  q = FN(sel)(FN(eq)(low, high), FN(sel)(FN(eq)(high, FN(set)(0.f)), FN(set)(0.f), FN(set)(1.f)), q);
  const VI left = (VI)x & FN(iset)((int32_t)0x80000000);
  const VF r = FN(angle_of)(q), quarters = FN(sel)(steep, FN(set)(1.f), (VF)((left >> 31) & (VI)FN(set)(2.f)));
  const VF turned = (VF)((VI)FN(sel)(steep, -r, r) ^ left);
  const VF angle = FN(fma)(quarters, FN(set)(TI_HALF_PI), FN(fma)(quarters, FN(set)(TI_HALF_PI_LO), turned));
  return FN(sel)(FN(mor)(FN(isnan)(x), FN(isnan)(y)), x + y, FN(copysign)(angle, y));
}
/* (asin(s) - s) / s of s in [0, 1/2], from its square. */
TI_INLINE VF FN(arcsine_above)(VF z) {
  VF p = FN(set)(0.0376145057f);
  p = FN(fma)(p, z, FN(set)(0.0143656116f));
  p = FN(fma)(p, z, FN(set)(0.0318280458f));
  p = FN(fma)(p, z, FN(set)(0.0445143618f));
  p = FN(fma)(p, z, FN(set)(0.0750051886f));
  return FN(fma)(p, z, FN(set)(0.166666597f)) * z;
}
/* Beyond 1/2 both are of the half angle, whose sine is sqrt((1 - |x|) / 2). */
TI_INLINE VF FN(asin)(VF x) {
  const VF a = FN(abs)(x);
  const VM far = FN(lt)(FN(set)(0.5f), a);
  const VF z = FN(sel)(far, FN(fma)(a, FN(set)(-0.5f), FN(set)(0.5f)), a * a), s = FN(sel)(far, FN(sqrt)(z), a);
  const VF above = FN(arcsine_above)(z);
  const VF twice = s + s, hi = TI_HALF_PI - twice, lost = (TI_HALF_PI - hi) - twice;
  const VF beyond = hi - (FN(fma)(twice, above, FN(set)(-TI_HALF_PI_LO)) - lost);
  return FN(copysign)(FN(sel)(far, beyond, FN(fma)(above, s, s)), x);
}
TI_INLINE VF FN(acos)(VF x) {
  const VF a = FN(abs)(x);
  const VM far = FN(lt)(FN(set)(0.5f), a);
  const VF z = FN(sel)(far, FN(fma)(a, FN(set)(-0.5f), FN(set)(0.5f)), a * a), s = FN(sel)(far, FN(sqrt)(z), a);
  const VF r = FN(fma)(FN(arcsine_above)(z), s, s), twice = r + r;
  const VF near = TI_HALF_PI - (FN(copysign)(r, x) - TI_HALF_PI_LO);
  const VF left = 2.f * TI_HALF_PI - (twice - 2.f * TI_HALF_PI_LO);
  return FN(sel)(far, FN(sel)(FN(lt)(x, FN(set)(0.f)), left, twice), near);
}
TI_FUNCTION(tan, FN(tan)(A))
TI_FUNCTION(atan, FN(atan)(A))
TI_FUNCTION(atan2, FN(atan2)(A, B))
TI_FUNCTION(asin, FN(asin)(A))
TI_FUNCTION(acos, FN(acos)(A))

/* ------------------------------------------------------------------ powers of two, and the hyperbola */
TI_INLINE VF FN(exp2)(VF x) {
  const VF t = FN(min)(FN(set)(129.f), FN(max)(FN(set)(-150.f), x)), n = FN(nearest)(t), r = t - n;
  VF p = FN(set)(0.000153288769f);
  p = FN(fma)(p, r, FN(set)(0.00133909727f));
  p = FN(fma)(p, r, FN(set)(0.00961850025f));
  p = FN(fma)(p, r, FN(set)(0.0555035956f));
  p = FN(fma)(p, r, FN(set)(0.240226477f));
  p = FN(fma)(p, r, FN(set)(0.693147182f));
  return FN(ldexp)(FN(fma)(p, r, FN(set)(1.f)), n);
}
/* exp(a) / 2, which is finite wherever a hyperbolic sine is. */
TI_INLINE VF FN(half_exp)(VF a) {
  VF n, r, t = FN(min)(FN(set)(90.f), a), q = FN(exp_reduce)(t, &n, &r);
  return FN(ldexp)(FN(fma)(FN(fma)(q, r, FN(set)(1.f)), r, FN(set)(1.f)), n - 1.f);
}
TI_INLINE VF FN(sinh)(VF x) {
  const VF a = FN(abs)(x), s = x * x, half = FN(half_exp)(a);
  VF p = FN(set)(2.78221319e-06f);
  p = FN(fma)(p, s, FN(set)(0.000198428956f));
  p = FN(fma)(p, s, FN(set)(0.00833331048f));
  p = FN(fma)(p, s, FN(set)(0.166666672f));
  return FN(copysign)(FN(sel)(FN(lt)(a, FN(set)(1.f)), FN(fma)(p * s, a, a), half - 0.25f / half), x);
}
TI_INLINE VF FN(cosh)(VF x) {
  const VF half = FN(half_exp)(FN(abs)(x));
  return half + 0.25f / half;
}
/* log(2^doublings (hi + lo)) for a lo that is small against hi. */
TI_INLINE VF FN(log_of_sum)(VF hi, VF lo, VF doublings) {
  VF e, f, t = FN(log_reduce)(hi, &e, &f);
  e += doublings;
  t = FN(fma)(e, FN(set)(TI_LN2_LO), t) + lo / hi;
  return FN(log_edges)(hi, FN(fma)(e, FN(set)(TI_LN2_HI), t + f));
}
/* log(a + sqrt(a^2 + sign)); from 8192 on it is log(2 a). */
TI_INLINE VF FN(log_of_legs)(VF a, float sign) {
  const VF p = FN(fma)(a, a, FN(set)(0.f)), sum = p + sign, taken = sum - p;
  const VF lost = (p - (sum - taken)) + (sign - taken) + FN(fma)(a, a, -p);
  const VF root = FN(sqrt)(sum), hi = a + root, share = hi - a;
  const VF rest = FN(fma)(-root, root, sum) + lost;
  const VF lo = FN(sel)(FN(eq)(sum, FN(set)(0.f)), FN(set)(0.f), 0.5f * rest / root) + ((a - (hi - share)) + (root - share));
  const VM far = FN(lt)(FN(set)(8192.f), a);
  return FN(log_of_sum)(FN(sel)(far, a, hi), FN(sel)(far, FN(set)(0.f), lo), FN(sel)(far, FN(set)(1.f), FN(set)(0.f)));
}
TI_INLINE VF FN(asinh)(VF x) {
  const VF a = FN(abs)(x), s = a * a;
  VF p = FN(set)(0.00925668329f);
  p = FN(fma)(p, s, FN(set)(-0.0200496055f));
  p = FN(fma)(p, s, FN(set)(0.0300335716f));
  p = FN(fma)(p, s, FN(set)(-0.0446160957f));
  p = FN(fma)(p, s, FN(set)(0.0749990717f));
  p = FN(fma)(p, s, FN(set)(-0.166666657f));
  return FN(copysign)(FN(sel)(FN(lt)(a, FN(set)(0.5f)), FN(fma)(p * s, a, a), FN(log_of_legs)(a, 1.f)), x);
}
TI_INLINE VF FN(acosh)(VF x) { return FN(sel)(FN(lt)(x, FN(set)(1.f)), FN(set)(NAN), FN(log_of_legs)(x, -1.f)); }
/* Beyond 1/2 half the logarithm of (1 + a) / (1 - a), whose divisor is exact. */
TI_INLINE VF FN(atanh)(VF x) {
  const VF a = FN(abs)(x), s = a * a, top = 1.f + a, under = 1.f - a, hi = top / under;
  const VF rest = FN(fma)(-hi, under, top) + (a - (top - 1.f));
  VF p = FN(set)(0.185139805f);
  p = FN(fma)(p, s, FN(set)(0.0169596169f));
  p = FN(fma)(p, s, FN(set)(0.105244771f));
  p = FN(fma)(p, s, FN(set)(0.109294005f));
  p = FN(fma)(p, s, FN(set)(0.142978147f));
  p = FN(fma)(p, s, FN(set)(0.199996218f));
  p = FN(fma)(p, s, FN(set)(0.333333373f));
  const VF far = 0.5f * FN(log_of_sum)(hi, FN(sel)(FN(eq)(under, FN(set)(0.f)), FN(set)(0.f), rest / under), FN(set)(0.f));
  return FN(copysign)(FN(sel)(FN(lt)(a, FN(set)(0.5f)), FN(fma)(p * s, a, a), far), x);
}
TI_FUNCTION(exp2, FN(exp2)(A))
TI_FUNCTION(sinh, FN(sinh)(A))
TI_FUNCTION(cosh, FN(cosh)(A))
TI_FUNCTION(asinh, FN(asinh)(A))
TI_FUNCTION(acosh, FN(acosh)(A))
TI_FUNCTION(atanh, FN(atanh)(A))
#undef TI_HALF_PI
#undef TI_HALF_PI_LO
