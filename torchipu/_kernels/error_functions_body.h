/* The complement of the error function, and the inverses of that and of the normal distribution; included by
 * elementwise_body.h, whose macros they use.
 *
 * Two functions are polynomials about the middles of intervals, a column of a table for each: exp(a^2) erfc(a), and
 * erfinv(x) / x as a function of sqrt(-log(1 - x^2)), which has no pole. Both tables end where what they are for is zero
 * or infinite as a float.
 */
#define TI_PIECES_END 9.3f
#define TI_PIECES_WIDTH (TI_PIECES_END / 15)
enum { FN(PIECE_DEGREE) = 7 };
static const float FN(erfcx_table)[FN(PIECE_DEGREE) + 2][16] __attribute__((aligned(64))) = {
  {1.0f, 0.558982849f, 0.369921863f, 0.271211118f, 0.212303355f, 0.173718408f, 0.146691456f, 0.126790598f, 0.111564465f, 0.0995581523f, 0.0898581073f, 0.0818637013f, 0.0751647279f, 0.0694719404f, 0.0645757616f, 0.0603207499f},
  {-1.12837911f, -0.435240418f, -0.210972935f, -0.119473755f, -0.0753545463f, -0.0513250344f, -0.0369947255f, -0.0278367344f, -0.0216596946f, -0.0173101891f, -0.0141386241f, -0.0117582735f, -0.00992800761f, -0.00849150214f, -0.00734398467f, -0.00641318969f},
  {0.999996066f, 0.289134651f, 0.108315498f, 0.0489899665f, 0.0254240744f, 0.0146108046f, 0.00907107815f, 0.00597917894f, 0.00413237838f, 0.00296730245f, 0.00219864002f, 0.00167227723f, 0.00130035193f, 0.00103042985f, 0.00082997157f, 0.000678078446f},
  {-0.752161026f, -0.170650885f, -0.0511081852f, -0.018901635f, -0.0082020415f, -0.00402097777f, -0.00216689915f, -0.00125800073f, -0.000775385357f, -0.000501684379f, -0.000338025944f, -0.000235556421f, -0.000168925908f, -0.000124182232f, -9.32282928e-05f, -7.15265996e-05f},
  {0.498961806f, 0.0916207805f, 0.0224659778f, 0.006915465f, 0.00254152971f, 0.00107277371f, 0.000505119679f, 0.000259583845f, 0.000143203724f, 8.37323314e-05f, 5.14004969e-05f, 3.28745846e-05f, 2.17683264e-05f, 1.48582849e-05f, 1.04080736e-05f, 5.36533298e-06f},
  {-0.294502586f, -0.0455292501f, -0.00929227192f, -0.00241465517f, -0.000756639405f, -0.000279137894f, -0.000114652052f, -5.38999993e-05f, -2.63135953e-05f, -1.53626879e-05f, -7.96856057e-06f, -4.65448329e-06f, -2.79261644e-06f, -1.27604187e-06f, -1.00358545e-06f, -1.09431467e-05f},
  {0.144404352f, 0.0218911357f, 0.0037363919f, 0.000824390037f, 0.000222205621f, 7.08977241e-05f, 2.59873086e-05f, 1.05525069e-05f, 4.66655638e-06f, 2.3197631e-06f, 1.18298624e-06f, 6.14753333e-07f, 3.65173804e-07f, 1.91722421e-07f, 1.18343607e-07f, -2.42006336e-05f},
  {-0.0432184823f, -0.00945362914f, -0.00141049281f, -0.000264379778f, -7.75392764e-05f, -1.1514293e-05f, -8.27150052e-06f, 5.70791372e-06f, 7.42060706e-07f, 8.78873834e-06f, 1.19268157e-06f, 5.55275506e-07f, 4.40350734e-09f, -2.89855893e-06f, -8.99132658e-07f, -2.26774828e-05f},
  {-7.1454731e-11f, 2.41183518e-08f, 1.80010484e-09f, 1.46401105e-08f, -4.74208539e-09f, 8.52471205e-10f, 7.3787576e-10f, 4.89624874e-09f, -1.89978433e-09f, -2.33505992e-11f, 1.05091891e-09f, 5.39928269e-10f, 5.93790628e-10f, -9.03058517e-10f, -2.20578356e-09f, 1.60322089e-09f},
};
static const float FN(erfinv_table)[FN(PIECE_DEGREE) + 2][16] __attribute__((aligned(64))) = {
  {0.886226952f, 0.976984501f, 1.26147854f, 1.73331046f, 2.31631422f, 2.93323159f, 3.55724573f, 4.18312693f, 4.80949402f, 5.4357996f, 6.06181479f, 6.68745565f, 7.31270313f, 7.93756819f, 8.56207561f, 9.18625259f},
  {-8.42089107e-11f, 0.297393858f, 0.621041f, 0.87754333f, 0.98082751f, 1.0033561f, 1.00855088f, 1.01009238f, 1.01031053f, 1.00997221f, 1.00941145f, 1.0087806f, 1.00814998f, 1.00755072f, 1.00699544f, 1.00648749f},
  {0.232013673f, 0.253318518f, 0.254388213f, 0.14377436f, 0.0371054001f, 0.007460061f, 0.00217328058f, 0.000558477594f, -0.000112169779f, -0.000391375914f, -0.000493823551f, -0.000514775689f, -0.000498541107f, -0.000466416066f, -0.000428759988f, -0.000392617192f},
  {-1.63184865e-07f, 0.0170555599f, -0.0283000357f, -0.0756365284f, -0.0326782577f, -0.00569516281f, -0.00135805912f, -0.000534726016f, -0.000229149358f, -8.6160886e-05f, -2.51326583e-05f, 4.55996678e-06f, 9.49689093e-06f, 1.60656564e-05f, 1.92261778e-05f, -2.17452216e-05f},
  {0.0115514901f, -0.00267647672f, -0.0305664707f, 0.00324846455f, 0.0192088038f, 0.00412292778f, 0.000585693168f, 0.000185819925f, 7.98464243e-05f, 3.68422807e-05f, 1.70603853e-05f, 7.91390812e-06f, 2.99109411e-06f, 9.67231699e-07f, 1.6342133e-08f, -0.000401309051f},
  {-1.54193749e-05f, -0.0092834793f, -0.00220665778f, 0.0164397694f, -0.00488953013f, -0.00274422695f, -0.000224054602f, -8.86405687e-05f, 1.26061186e-05f, -9.81732737e-05f, -5.54737053e-05f, -6.75781121e-05f, 9.72525959e-05f, 6.78390643e-05f, 2.97368624e-05f, -0.00194025133f},
  {-0.00227287388f, -0.00211213506f, 0.00732490281f, -0.00311156386f, -0.00248243427f, 0.00129149517f, 0.000195246874f, 1.49728239e-05f, 6.8377758e-06f, -2.7027927e-06f, -1.51139284e-06f, -2.10577218e-06f, 3.09729603e-06f, 1.58683883e-06f, 5.30720797e-07f, -0.00462032808f},
  {-0.000135037451f, 0.000710093242f, 0.00206130021f, -0.00413814979f, 0.00255221524f, -0.000104401064f, -0.000529331272f, 0.000193490472f, -0.000195674176f, 0.000519512338f, 0.000299729698f, 0.00038417941f, -0.000576764345f, -0.000401976838f, -0.000176623944f, -0.00430323277f},
  {-2.66229936e-08f, 1.35803013e-08f, 5.90658225e-08f, 4.92153092e-08f, 9.32448341e-09f, 8.01201878e-08f, 1.08969047e-08f, -1.14140335e-07f, 1.56266736e-07f, -8.67207035e-08f, 1.59244138e-07f, 1.45918548e-07f, 8.03307501e-08f, 1.42293274e-07f, -4.12245697e-07f, -1.26033569e-07f},
};
/* The value at a + lost of one of these tables, whose last row is what its middles have beyond a float: middle and rest. */
TI_INLINE VF FN(of_table)(const float (*table)[16], VF a, VF lost, VF *middle) {
  VF t, slope = FN(in_pieces)(table, FN(PIECE_DEGREE), TI_PIECES_WIDTH, a, &t, middle);
  const VF shifted = FN(fma)(a, FN(set)(1.f / TI_PIECES_WIDTH), FN(set)(0x1.8p23f));
  return FN(fma)(slope, t, FN(fma)(slope, lost, FN(look_up)(table[FN(PIECE_DEGREE) + 1], (VI)shifted)));
}
/* exp(-a^2) of the table's value, where nothing is rounded to a float that weighs as much as the result. */
TI_INLINE VF FN(erfc)(VF x) {
  const VF a = FN(min)(FN(set)(TI_PIECES_END), FN(abs)(x));
  const VF square = FN(fma)(a, a, FN(set)(0.f)), lost = FN(fma)(a, a, -square);
  VF n, r, q = FN(exp_reduce)(-square, &n, &r);
  const VF lost_of_r = (FN(fma)(n, FN(set)(-TI_LN2_HI), -square) - r) - FN(fma)(n, FN(set)(TI_LN2_LO), lost);
  VF middle, rest = FN(of_table)(FN(erfcx_table), a, FN(set)(0.f), &middle);
  const VF value = middle + rest, bent = q * (r * r), curve = FN(fma)(lost_of_r, r + bent, bent + lost_of_r);
  const VF result = FN(ldexp)(value + FN(fma)(r, value, FN(fma)(curve, value, rest - (value - middle))), n);
  return FN(sel)(FN(lt)(x, FN(set)(0.f)), 2.f - result, result);
}
/* erfinv(x) of an x whose square leaves so much of 1. */
TI_INLINE VF FN(erfinv_left)(VF x, VF left) {
  const VF w = -FN(log)(left), root = FN(min)(FN(set)(TI_PIECES_END), FN(sqrt)(w));
  const VF lost = FN(sel)(FN(lt)(FN(set)(0.f), root), FN(fma)(-root, root, w) / (root + root), FN(set)(0.f));
  VF middle, rest = FN(of_table)(FN(erfinv_table), root, lost, &middle);
  return FN(copysign)(FN(fma)(x, middle, x * rest), x);
}
TI_INLINE VF FN(erfinv)(VF x) {
  const VF result = FN(erfinv_left)(x, FN(fma)(-x, x, FN(set)(1.f)));
  return FN(sel)(FN(eq)(FN(abs)(x), FN(set)(1.f)), FN(copysign)(FN(set)(INFINITY), x), result);
}
/* sqrt(2) erfinv(2 p - 1) */
TI_INLINE VF FN(ndtri)(VF p) {
  const VF x = FN(fma)(p, FN(set)(2.f), FN(set)(-1.f));
  const VF result = 1.41421354f * FN(erfinv_left)(x, 4.f * p * (1.f - p));
  const VM ends = FN(mor)(FN(eq)(p, FN(set)(0.f)), FN(eq)(p, FN(set)(1.f)));
  return FN(sel)(ends, FN(copysign)(FN(set)(INFINITY), x), result);
}
TI_FUNCTION(erfc, FN(erfc)(A))
TI_FUNCTION(erfinv, FN(erfinv)(A))
TI_FUNCTION(ndtri, FN(ndtri)(A))
#undef TI_PIECES_END
#undef TI_PIECES_WIDTH
