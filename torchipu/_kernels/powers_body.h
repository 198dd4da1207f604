/* Powers of floats; included by elementwise_body.h. */
/* x^y through doubles: x in halves of a vector, log2 and exp2 with errors far below a float's ulp. */
static inline FN(vh) FN(pow_half)(FN(vh) x, FN(vh) y) {
  typedef int32_t half_int __attribute__((vector_size(VL * 2)));
  half_int bits = (half_int)x - 0x3f3504f3;
  FN(vd) e = __builtin_convertvector(bits >> 23, FN(vd));
  FN(vd) m = __builtin_convertvector((FN(vh))((bits & 0x007fffff) + 0x3f3504f3), FN(vd));
  FN(vd) t = (m - 1.) / (m + 1.), s = t * t;
  FN(vd) q = 0.2433718575773796 * s + 0.26139800031564725;
  q = q * s + 0.3206181468810966;
  q = q * s + 0.4121983705556961;
  q = q * s + 0.5770780175157404;
  q = q * s + 0.961796693923407;
  q = q * s + 2.8853900817779277;
  FN(vd) z = (e + t * q) * __builtin_convertvector(y, FN(vd));
  FN(vd) lo = (FN(vd)){0} - 300., hi = (FN(vd)){0} + 300.;
  L below = z < lo, above = z > hi;
  z = (FN(vd))((below & (L)lo) | (~below & (L)z));
  z = (FN(vd))((above & (L)hi) | (~above & (L)z));
  FN(vd) shifted = z + 6755399441055744.;  /* 1.5 * 2^52: whole part in the low bits */
  L whole = (L)shifted - (L)((FN(vd)){0} + 6755399441055744.);
  FN(vd) f = z - (shifted - 6755399441055744.);
  FN(vd) p = 1.3255343771966522e-06 * f + 1.5310310968521557e-05;
  p = p * f + 0.00015403455470418886;
  p = p * f + 0.0013333449697745102;
  p = p * f + 0.00961812915969552;
  p = p * f + 0.05550410942114275;
  p = p * f + 0.2402265069581273;
  p = p * f + 0.6931471805457063;
  p = p * f + 1.;
  return __builtin_convertvector((FN(vd))((L)p + (whole << 52)), FN(vh));
}
/* What arithmetic of the kernels makes of subnormal numbers, which functions of C do not: zeros. */
TI_INLINE VF FN(flushed)(VF x) { return FN(sel)(FN(lt)(FN(abs)(x), FN(set)(1.17549435e-38f)), FN(copysign)(FN(set)(0.f), x), x); }
static inline VF FN(power)(VF x, VF y) {
  VF a = FN(abs)(x);
  VM rare = FN(mor)(FN(mor)(FN(lt)(a, FN(set)(1.17549435e-38f)), FN(mor)(FN(eq)(a, FN(set)(INFINITY)), FN(isnan)(x))),
                    FN(mor)(FN(le)(FN(set)(1e30f), FN(abs)(y)), FN(isnan)(y)));
  VF r;
  FN(vh) xs[2], ys[2], rs[2];
  memcpy(xs, &a, sizeof a); memcpy(ys, &y, sizeof y);
  rs[0] = FN(pow_half)(xs[0], ys[0]);
  rs[1] = FN(pow_half)(xs[1], ys[1]);
  memcpy(&r, rs, sizeof r);
  /* negative base: odd whole exponents change the sign, fractions have no real power */
  VF half = y * 0.5f;
  VF odd = FN(sel)(FN(ne)(half, FN(trunc)(half)), FN(set)(-1.f), FN(set)(1.f));
  VF negative = FN(sel)(FN(eq)(y, FN(trunc)(y)), r * odd, FN(set)(NAN));
  r = FN(sel)(FN(lt)(x, FN(set)(0.f)), negative, r);
  TI_RARE_LANES(r, rare, powf(FN(flushed)(x)[j], FN(flushed)(y)[j]));
  return r;
}
