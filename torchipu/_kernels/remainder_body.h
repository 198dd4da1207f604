/* Remainders, quotients rounded down, lengths of two legs and neighbours; included by elementwise_body.h, whose macros they use. */

/* What is left of a after whole times b, with the sign of a; exact. */
static inline VF FN(fmod)(VF a, VF b) {
  const VF up = FN(abs)(a), divisor = FN(abs)(b), quotient = up / divisor;
  /* the rounded quotient may be one off: the rest is then below zero, or not below the divisor, and still exact */
  VF rest = FN(fma)(-FN(trunc)(quotient), divisor, up);
  rest = FN(sel)(FN(lt)(rest, FN(set)(0.f)), rest + divisor, rest);
  rest = FN(sel)(FN(le)(divisor, rest), rest - divisor, rest);
  rest = FN(sel)(FN(mand)(FN(eq)(divisor, FN(set)(INFINITY)), FN(lt)(up, FN(set)(INFINITY))), up, rest);
  rest = FN(copysign)(rest, a);
  /* rests of small divisors are subnormal on the way */
  const VM rare = FN(mor)(FN(le)(FN(set)(4194304.f), quotient), FN(lt)(divisor, FN(set)(0x1p-102f)));
  TI_RARE_LANES(rest, rare, fmodf(FN(flushed)(a)[j], FN(flushed)(b)[j]));
  return FN(flushed)(rest);
}
/* Lanes in which a rest is not zero and has another sign than the divisor. */
TI_INLINE VM FN(crosses_zero)(VF rest, VF divisor) {
  const VF sides = (VF)(((VI)rest ^ (VI)divisor) & FN(iset)((int32_t)0x80000000)), one = FN(copysign)(FN(set)(1.f), sides);
  return FN(mand)(FN(ne)(rest, FN(set)(0.f)), FN(lt)(one, FN(set)(0.f)));
}
static inline VF FN(remainder)(VF a, VF b) {
  const VF rest = FN(fmod)(a, b);
  return FN(sel)(FN(crosses_zero)(rest, b), rest + b, rest);
}
static inline VF FN(floor_div)(VF a, VF b) {
  const VF rest = FN(fmod)(a, b);
  VF quotient = (a - rest) / b;
  quotient = FN(sel)(FN(crosses_zero)(rest, b), quotient - 1.f, quotient);
  const VF down = FN(floor)(quotient);
  const VF whole = FN(sel)(FN(lt)(FN(set)(0.5f), quotient - down), down + 1.f, down);
  const VF result = FN(sel)(FN(eq)(quotient, FN(set)(0.f)), FN(copysign)(FN(set)(0.f), a / b), whole);
  return FN(sel)(FN(eq)(b, FN(set)(0.f)), a / b, result);
}
/* sqrt(a^2 + b^2), scaled by powers of two where squares have no room. */
TI_INLINE VF FN(hypot)(VF a, VF b) {
  const VF most = FN(max)(FN(abs)(a), FN(abs)(b));
  const VM large = FN(lt)(FN(set)(0x1p62f), most), small = FN(lt)(most, FN(set)(0x1p-48f));
  const VF scale = FN(sel)(large, FN(set)(0x1p-70f), FN(sel)(small, FN(set)(0x1p70f), FN(set)(1.f)));
  const VF back = FN(sel)(large, FN(set)(0x1p70f), FN(sel)(small, FN(set)(0x1p-70f), FN(set)(1.f)));
  const VF x = a * scale, y = b * scale, result = FN(sqrt)(FN(fma)(x, x, y * y)) * back;
  const VM infinite = FN(mor)(FN(eq)(FN(abs)(a), FN(set)(INFINITY)), FN(eq)(FN(abs)(b), FN(set)(INFINITY)));
  return FN(sel)(infinite, FN(set)(INFINITY), result);
}
/* The neighbour of `from` towards `to`: numbers of one sign follow one another as their bits do, subnormal ones too. */
TI_INLINE VF FN(nextafter)(VF from, VF to) {
  const VI a = (VI)from, b = (VI)to, sign = FN(iset)((int32_t)0x80000000), size = ~sign;
  const VI up = (a ^ ((a >> 31) & size)) < (b ^ ((b >> 31) & size)), away = up ^ (a >> 31);  /* -1 or 0 */
  const VI moved = (VI)((VU)a + (VU)(~(away + away))), least = (b & sign) | 1;
  const VI at_zero = (a & size) == 0, there = (a == b) | (((a | b) & size) == 0);
  const VI left = (at_zero & least) | (~at_zero & moved);
  return FN(sel)(FN(mor)(FN(isnan)(from), FN(isnan)(to)), from + to, (VF)((there & b) | (~there & left)));
}
TI_FUNCTION(fmod, FN(fmod)(A, B))
TI_FUNCTION(remainder, FN(remainder)(A, B))
TI_FUNCTION(floor_div, FN(floor_div)(A, B))
TI_FUNCTION(hypot, FN(hypot)(A, B))
TI_FUNCTION(nextafter, FN(nextafter)(A, B))
