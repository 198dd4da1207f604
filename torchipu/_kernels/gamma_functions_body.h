/* The logarithm of the gamma function and its slope, through doubles in halves of a vector; included by elementwise_body.h.
 *
 * Both are worked out for |x|, and a negative x is reflected. Between 1 and 2 the logarithm is (x - 1) (x - 2) times a
 * polynomial, so that its zeros are exact; what lies below 8 is brought there, and beyond it is Stirling's series.
 */
TI_INLINE FN(vd) FN(wide)(double value) { return value - (FN(vd)){0}; }
TI_INLINE FN(vd) FN(choose)(L mask, FN(vd) a, FN(vd) b) { return (FN(vd))((mask & (L)a) | (~mask & (L)b)); }
TI_INLINE int FN(any_wide)(L mask) {
  int64_t all = 0;
  for (int i = 0; i < HALF_VL; i++) all |= mask[i];
  return all != 0;
}
/* Of positive, finite numbers. */
TI_INLINE FN(vd) FN(log_wide)(FN(vd) x) {
  typedef uint64_t words __attribute__((vector_size(VL * 4)));
  const words bits = (words)x - 0x3fe6a09e667f3bcdull;  /* of the root of a half: what is left lies about 1 */
  const words exponent = ((bits + (1024ull << 52)) >> 52) | 0x4330000000000000ull;  /* of 2^52, which holds it as whole number */
  const FN(vd) e = (FN(vd))exponent - (4503599627370496. + 1024.);
  const FN(vd) m = (FN(vd))((bits & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull);
  const FN(vd) t = (m - 1.) / (m + 1.), s = t * t;
  FN(vd) q = 2. / 21 * s + 2. / 19;
  q = q * s + 2. / 17;
  q = q * s + 2. / 15;
  q = q * s + 2. / 13;
  q = q * s + 2. / 11;
  q = q * s + 2. / 9;
  q = q * s + 2. / 7;
  q = q * s + 2. / 5;
  q = q * s + 2. / 3;
  return e * 0.69314718055994530942 + (t * 2. + t * s * q);
}
/* What |x| has beyond the nearest whole number; nothing where a float has no places behind the point. */
TI_INLINE FN(vd) FN(beyond_whole)(FN(vd) a) {
  const FN(vd) shift = FN(wide)(6755399441055744.);  /* 1.5 * 2^52 */
  return FN(choose)(a < 8388608., a - ((a + shift) - shift), FN(wide)(0.));
}
/* sin(pi f) / f and cos(pi f) for |f| <= 1/2, with s = (pi f)^2 */
TI_INLINE FN(vd) FN(sine_wide)(FN(vd) s) {
  FN(vd) p = 2.8114572543455206e-15 * s - 7.6471637318198165e-13;
  p = p * s + 1.6059043836821613e-10;
  p = p * s - 2.5052108385441720e-08;
  p = p * s + 2.7557319223985893e-06;
  p = p * s - 1.9841269841269841e-04;
  p = p * s + 8.3333333333333333e-03;
  p = p * s - 1.6666666666666667e-01;
  return (p * s + 1.) * 3.14159265358979323846;
}
TI_INLINE FN(vd) FN(cosine_wide)(FN(vd) s) {
  FN(vd) p = -1.5619206968586226e-16 * s + 4.7794773323873853e-14;
  p = p * s - 1.1470745597729725e-11;
  p = p * s + 2.0876756987868099e-09;
  p = p * s - 2.7557319223985891e-07;
  p = p * s + 2.4801587301587302e-05;
  p = p * s - 1.3888888888888889e-03;
  p = p * s + 4.1666666666666667e-02;
  p = p * s - 0.5;
  return p * s + 1.;
}
TI_INLINE FN(vd) FN(lgamma_positive)(FN(vd) a) {
  const L far = a >= 8., near = a < 1.;
  FN(vd) z = FN(choose)(near, a + 1., FN(choose)(far, FN(wide)(1.), a)), product = FN(wide)(1.);
  for (int i = 0; i < 6; i++) {
    const L above = z > 2.;
    z = FN(choose)(above, z - 1., z);
    product = FN(choose)(above, product * z, product);
  }
  const FN(vd) log = FN(log_wide)(FN(choose)(near | far, a, product));
  const FN(vd) y = z - 1.5;
  FN(vd) p = -0.00010314400831771432 * y + 0.00015964232389142877;
  p = p * y - 0.00015136404037029171;
  p = p * y + 0.00024750606401236804;
  p = p * y - 0.00044223930802360617;
  p = p * y + 0.0007167552910460148;
  p = p * y - 0.001163838922359858;
  p = p * y + 0.001922287950876601;
  p = p * y - 0.0032121179856296482;
  p = p * y + 0.005446498471832801;
  p = p * y - 0.009425620680570013;
  p = p * y + 0.016797097346736307;
  p = p * y - 0.03130848753287405;
  p = p * y + 0.06291140108999074;
  p = p * y - 0.14595989591413894;
  p = p * y + 0.48312895054095056;
  const FN(vd) between = (z - 1.) * (z - 2.) * p, one = 1. / a, square = one * one;
  FN(vd) series = -1. / 1680 * square + 1. / 1260;
  series = series * square - 1. / 360;
  series = (series * square + 1. / 12) * one;
  const FN(vd) stirling = (a - 0.5) * log - a + 0.91893853320467274178 + series;
  return FN(choose)(far, stirling, between + FN(choose)(near, -log, log));
}
TI_INLINE FN(vh) FN(lgamma_half)(FN(vh) x) {
  const FN(vd) wide = __builtin_convertvector(x, FN(vd));
  const L negative = wide < 0.;
  const FN(vd) a = FN(choose)(negative, -wide, wide), infinite = FN(wide)(INFINITY);
  FN(vd) result = FN(lgamma_positive)(a);
  if (FN(any_wide)(negative)) {
    const FN(vd) f = FN(beyond_whole)(a), turned = f * 3.14159265358979323846, sine = f * FN(sine_wide)(turned * turned);
    const FN(vd) size = FN(choose)(sine < 0., -sine, sine) * a;
    const FN(vd) reflected = FN(log_wide)(3.14159265358979323846 / FN(choose)(size > 0., size, FN(wide)(1.))) - result;
    result = FN(choose)(negative, FN(choose)(f == 0., infinite, reflected), result);
  }
  return __builtin_convertvector(FN(choose)((a == 0.) | (a == infinite), infinite, result), FN(vh));
}
TI_INLINE FN(vd) FN(digamma_positive)(FN(vd) a) {
  FN(vd) z = a, above = FN(wide)(0.), below = FN(wide)(1.);  /* the sum of 1 / (a + k) as a fraction */
  for (int i = 0; i < 12; i++) {
    const L low = z < 12.;
    above = FN(choose)(low, above * z + below, above);
    below = FN(choose)(low, below * z, below);
    z = FN(choose)(low, z + 1., z);
  }
  const FN(vd) one = 1. / z, square = one * one;
  FN(vd) series = 1. / 12 * square - 691. / 32760;
  series = series * square + 1. / 132;
  series = series * square - 1. / 240;
  series = series * square + 1. / 252;
  series = series * square - 1. / 120;
  series = series * square + 1. / 12;
  return FN(log_wide)(z) - 0.5 * one - series * square - above / below;
}
TI_INLINE FN(vh) FN(digamma_half)(FN(vh) x) {
  const FN(vd) wide = __builtin_convertvector(x, FN(vd));
  const L negative = wide < 0.;
  const FN(vd) a = FN(choose)(negative, -wide, wide), infinite = FN(wide)(INFINITY);
  FN(vd) result = FN(digamma_positive)(a);
  if (FN(any_wide)(negative)) {
    const FN(vd) f = FN(beyond_whole)(a), turned = f * 3.14159265358979323846, square = turned * turned;
    const FN(vd) slope = 3.14159265358979323846 * FN(cosine_wide)(square) / (f * FN(sine_wide)(square));
    result = FN(choose)(negative, FN(choose)(f == 0., FN(wide)(NAN), result + 1. / a + slope), result);
  }
  const L sign = (L)wide & INT64_MIN;
  result = FN(choose)(wide == 0., (FN(vd))((L)infinite | (sign ^ INT64_MIN)), result);
  return __builtin_convertvector(FN(choose)(wide == infinite, infinite, result), FN(vh));
}
/* A function of halves of a vector, of a whole one. */
#define TI_OF_HALVES(name) \
  TI_INLINE VF FN(name)(VF x) { \
    VF result; \
    FN(vh) parts[2]; \
    memcpy(parts, &x, sizeof x); \
    for (int i = 0; i < 2; i++) parts[i] = FN(name##_half)(parts[i]); \
    memcpy(&result, parts, sizeof x); \
    return result; \
  }
TI_OF_HALVES(lgamma)
TI_OF_HALVES(digamma)
TI_FUNCTION(lgamma, FN(lgamma)(A))
TI_FUNCTION(digamma, FN(digamma)(A))
#undef TI_OF_HALVES
