/* Special functions of real arguments in double, for instructions too rare to deserve vectors.
 *
 * Errors stay far below a float's ulp. Poles, infinities and arguments outside a function's domain are treated as
 * torch.special does.
 */
#ifndef TORCHIPU_SPECIAL_FUNCTIONS_H
#define TORCHIPU_SPECIAL_FUNCTIONS_H
#include <float.h>
#include <math.h>
#include <stdint.h>

#define TI_PI 3.14159265358979323846
#define TI_SQRT2 1.41421356237309504880
#define TI_SQRT_PI 1.77245385090551602730
#define TI_EULER 0.57721566490153286061

/* ------------------------------------------------------------------ gamma and its family */
static double ti_lgamma(double x) {
  int sign;
  return lgamma_r(x, &sign); /* lgamma itself writes a global */
}

/* Bernoulli numbers B2, B4, ... */
static const double TI_BERNOULLI[] = {1. / 6, -1. / 30, 1. / 42, -1. / 30, 5. / 66, -691. / 2730, 7. / 6};

static double ti_digamma(double x) {
  if (x == 0) return copysign(INFINITY, -x);
  double reflected = 0;
  if (x < 0) {
    double whole, fraction = modf(x, &whole);
    if (fraction == 0) return NAN;
    reflected = -TI_PI / tan(TI_PI * fraction);
    x = 1 - x;
  }
  double sum = 0;
  for (; x < 12; x += 1) sum -= 1 / x;
  double square = 1 / (x * x), power = square, series = 0;
  for (int k = 0; k < 7; k++, power *= square) series -= TI_BERNOULLI[k] / (2 * k + 2) * power;
  return reflected + sum + log(x) - 0.5 / x + series;
}

static double ti_trigamma(double x) {
  double sum = 0, sign = 1;
  if (x < 0.5) {
    double s = sin(TI_PI * (x - 2 * nearbyint(0.5 * x)));
    if (x == nearbyint(x)) return isinf(x) ? NAN : INFINITY;
    sum = -TI_PI * TI_PI / (s * s);
    sign = -1;
    x = 1 - x;
  }
  for (; x < 12; x += 1) sum += 1 / (x * x);
  double square = 1 / (x * x), power = square / x, series = 0;
  for (int k = 0; k < 7; k++, power *= square) series += TI_BERNOULLI[k] * power;
  return sign * (sum + 1 / x + 0.5 * square + series);
}

/* Hurwitz zeta by the sum of Euler and Maclaurin. */
static double ti_zeta(double s, double q) {
  static const double factors[] = {
      12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10,
      -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17,
      -7.1661652561756670113e18}; /* (2k)! / B2k */
  if (s == 1) return INFINITY;
  if (s < 1) return NAN;
  if (q <= 0) {
    if (q == floor(q)) return INFINITY;
    if (s != floor(s)) return NAN;
  }
  double sum = pow(q, -s), a = q, b = 0;
  for (int i = 0; i < 9 || a <= 9; i++) {
    a += 1;
    b = pow(a, -s);
    sum += b;
    if (fabs(b) < DBL_EPSILON * fabs(sum)) return sum;
  }
  sum += b * a / (s - 1) - 0.5 * b;
  double factor = 1, k = 0;
  for (int i = 0; i < 12; i++) {
    factor *= s + k;
    b /= a;
    double term = factor * b / factors[i];
    sum += term;
    if (fabs(term) < DBL_EPSILON * fabs(sum)) return sum;
    factor *= s + k + 1;
    b /= a;
    k += 2;
  }
  return sum;
}

static double ti_polygamma(double n, double x) {
  if (n == 0) return ti_digamma(x);
  if (n == 1) return ti_trigamma(x);
  return (fmod(n, 2) == 0 ? -1 : 1) * exp(ti_lgamma(n + 1)) * ti_zeta(n + 1, x);
}

/* The regularised incomplete gamma functions for finite a, x > 0: lower with upper = 0, upper with upper = 1. */
static double ti_incomplete_gamma(double a, double x, int upper) {
  if (a > 1e6) { /* first terms of Temme's uniform expansion */
    double mu = (x - a) / a, half_square = mu - log1p(mu), eta = copysign(sqrt(2 * half_square), mu);
    double rest = exp(-a * half_square) / sqrt(2 * TI_PI * a) * (fabs(eta) < 1e-4 ? -1. / 3 : 1 / mu - 1 / eta);
    return 0.5 * erfc((upper ? eta : -eta) * sqrt(a / 2)) + (upper ? rest : -rest);
  }
  double front = exp(a * log(x) - x - ti_lgamma(a));
  if (x <= 1 || x < a) {
    double term = 1 / a, sum = term;
    for (double k = a + 1; term > DBL_EPSILON * sum; k += 1) sum += term *= x / k;
    return upper ? 1 - front * sum : front * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, fraction = d; /* Lentz's continued fraction */
  for (int i = 1; i < 20000; i++) {
    double step = -i * (i - a);
    b += 2;
    d = step * d + b;
    c = b + step / c;
    d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
    if (fabs(c) < 1e-300) c = 1e-300;
    fraction *= d * c;
    if (fabs(d * c - 1) < 4 * DBL_EPSILON) break;
  }
  return upper ? front * fraction : 1 - front * fraction;
}

static double ti_igamma(double a, double x, int upper) {
  if (x < 0 || a < 0) return NAN;
  if (a == 0) return x > 0 ? !upper : NAN;
  if (x == 0) return upper;
  if (isinf(a)) return isinf(x) ? NAN : upper;
  if (isinf(x)) return !upper;
  if (isnan(a) || isnan(x)) return NAN;
  return ti_incomplete_gamma(a, x, upper);
}

/* ------------------------------------------------------------------ error function and normal distribution */
static double ti_erfcx(double x) {
  if (x < 25) return exp(x * x) * erfc(x);
  double s = 1 / (x * x);
  return (1 - s * (0.5 - s * (0.75 - s * 1.875))) / (x * TI_SQRT_PI);
}

static double ti_log_ndtr(double x) {
  return x < -1 ? log(0.5 * ti_erfcx(-x / TI_SQRT2)) - 0.5 * x * x : log1p(-0.5 * erfc(x / TI_SQRT2));
}

/* ------------------------------------------------------------------ Bessel functions */
/* exp(-|x|) I_n(x) for n = 0, 1: the power series has positive terms; far out the asymptotic one. */
static double ti_bessel_i_scaled(double x, int n) {
  double a = fabs(x), sum = 1, term = 1;
  if (a <= 20) {
    double q = 0.25 * a * a;
    for (int k = 1; term > DBL_EPSILON * sum; k++) sum += term *= q / ((double)k * (k + n));
    sum *= exp(-a) * (n ? 0.5 * a : 1);
  } else {
    double mu = 4. * n * n;
    for (int k = 1; k < 30 && fabs(term) > DBL_EPSILON; k++)
      sum += term *= -(mu - (2. * k - 1) * (2. * k - 1)) / (8 * k * a);
    sum = isinf(a) ? 0 : sum / sqrt(2 * TI_PI * a);
  }
  return n && x < 0 ? -sum : sum;
}
static double ti_bessel_i(double x, int n) {
  if (isinf(x)) return NAN;
  return ti_bessel_i_scaled(x, n) * exp(fabs(x));
}

/* exp(x) K_nu(x) for x > 0 not small: the integral of exp(x - x cosh t) cosh(nu t), where the trapezium rule converges
 * at once; far out the asymptotic series. */
static double ti_bessel_k_integral(double x, double nu) {
  if (isinf(x)) return 0;
  if (x > 20) {
    double sum = 1, term = 1, mu = 4 * nu * nu;
    for (int k = 1; k < 30 && fabs(term) > DBL_EPSILON; k++)
      sum += term *= (mu - (2. * k - 1) * (2. * k - 1)) / (8 * k * x);
    return sum * sqrt(TI_PI / (2 * x));
  }
  double sum = 0.5;
  for (int i = 1; i < 200; i++) {
    double t = 0.1 * i, s = sinh(0.5 * t), exponent = 2 * x * s * s;
    if (exponent > 45) break;
    sum += exp(-exponent) * cosh(nu * t);
  }
  return 0.1 * sum;
}
/* exp(x) K_n(x), or K_n(x) itself. */
static double ti_bessel_k(double x, int n, int scaled) {
  if (x == 0) return INFINITY;
  if (!(x > 0)) return NAN;
  if (x > 2) return ti_bessel_k_integral(x, n) * (scaled ? 1 : exp(-x));
  double q = 0.25 * x * x, log_half = log(0.5 * x), result;
  if (n == 0) {
    double term = 1, harmonic = -TI_EULER, sum = harmonic - log_half;
    for (int k = 1; k < 20; k++) {
      term *= q / ((double)k * k);
      harmonic += 1. / k;
      sum += term * (harmonic - log_half);
    }
    result = sum;
  } else {
    double term = 1, psi = 1 - 2 * TI_EULER, sum = 0; /* psi(k + 1) + psi(k + 2) */
    for (int k = 0; k < 20; k++) {
      sum += term * (log_half - 0.5 * psi);
      term *= q / ((k + 1.) * (k + 2));
      psi += 1. / (k + 1) + 1. / (k + 2);
    }
    result = 1 / x + 0.5 * x * sum;
  }
  return scaled ? result * exp(x) : result;
}

static double ti_bessel_j(double x, int n) { return isinf(x) ? NAN : n ? j1(x) : j0(x); }
static double ti_bessel_y(double x, int n) {
  if (x == 0) return -INFINITY;
  if (!(x > 0) || isinf(x)) return NAN;
  return n ? y1(x) : y0(x);
}

static double ti_spherical_j0(double x) {
  if (isinf(x)) return 0;
  double s = x * x;
  return fabs(x) < 0.01 ? 1 - s / 6 * (1 - s / 20) : sin(x) / x;
}

/* Ai(x): the Maclaurin series in the middle, K_1/3 to the right, the asymptotic series to the left. */
static double ti_airy(double x) {
  if (isnan(x)) return x;
  if (isinf(x)) return NAN;
  double zeta = 2. / 3 * fabs(x) * sqrt(fabs(x));
  if (x > 4) return sqrt(x / 3) / TI_PI * ti_bessel_k_integral(zeta, 1. / 3) * exp(-zeta);
  if (x >= -8) {
    double cube = x * x * x, f = 1, g = x, sum_f = 1, sum_g = x;
    for (int k = 1; k < 60; k++) {
      f *= cube / ((3. * k - 1) * (3. * k));
      g *= cube / ((3. * k) * (3. * k + 1));
      sum_f += f;
      sum_g += g;
    }
    return 0.355028053887817239 * sum_f - 0.258819403792806798 * sum_g;
  }
  double even = 1, odd = 0, term = 1;
  for (int k = 1; k < 16; k++) {
    term *= (6. * k - 5) * (6. * k - 3) * (6. * k - 1) / (216. * k * (2. * k - 1)) / zeta;
    if (k % 2) odd += k % 4 == 1 ? term : -term;
    else even += k % 4 == 0 ? term : -term;
  }
  double angle = zeta - TI_PI / 4;
  return (cos(angle) * even + sin(angle) * odd) / (TI_SQRT_PI * sqrt(sqrt(-x)));
}

/* ------------------------------------------------------------------ orthogonal polynomials of degree n */
enum { TI_CHEBYSHEV_T, TI_CHEBYSHEV_U, TI_CHEBYSHEV_V, TI_CHEBYSHEV_W };
static double ti_chebyshev_end(double x, int64_t n, int kind) { /* |x| = 1 */
  int even = n % 2 == 0;
  double sign = x > 0 || even ? 1 : -1;
  switch (kind) {
    case TI_CHEBYSHEV_T: return sign;
    case TI_CHEBYSHEV_U: return sign * (n + 1);
    case TI_CHEBYSHEV_V: return x > 0 ? 1 : sign * (2 * n + 1);
    default: return x > 0 ? 2 * n + 1 : sign;
  }
}
static double ti_chebyshev(double x, double degree, int kind) {
  int64_t n = (int64_t)degree;
  if (n < 0) return 0;
  if (fabs(x) == 1) return ti_chebyshev_end(x, n, kind);
  if (n > 8 && fabs(x) < 1) {
    double angle = acos(x);
    switch (kind) {
      case TI_CHEBYSHEV_T: return cos(n * angle);
      case TI_CHEBYSHEV_U: return sin((n + 1) * angle) / sin(angle);
      case TI_CHEBYSHEV_V: return cos((n + 0.5) * angle) / cos(0.5 * angle);
      default: return sin((n + 0.5) * angle) / sin(0.5 * angle);
    }
  }
  double before = 1, value = kind == TI_CHEBYSHEV_T ? x : kind == TI_CHEBYSHEV_U ? x + x
                           : kind == TI_CHEBYSHEV_V ? x + x - 1 : x + x + 1;
  if (n == 0) return before;
  for (int64_t k = 1; k < n && !isnan(value); k++) {
    double next = (x + x) * value - before;
    before = value;
    value = next;
  }
  return value;
}
/* Physicists' with scale 2, probabilists' with 1. */
static double ti_hermite(double x, double degree, double scale) {
  int64_t n = (int64_t)degree;
  if (n < 0) return 0;
  if (n > 128) return NAN; /* torch's limit for floats */
  double before = 1, value = scale * x;
  if (n == 0) return before;
  for (int64_t k = 1; k < n; k++) {
    double next = scale * (x * value - k * before);
    before = value;
    value = next;
  }
  return value;
}
static double ti_laguerre(double x, double degree) {
  int64_t n = (int64_t)degree;
  if (n < 0) return 0;
  double before = 1, value = 1 - x;
  if (n == 0 || x == 0) return before;
  for (int64_t k = 1; k < n && !isnan(value); k++) {
    double next = ((2 * k + 1 - x) * value - k * before) / (k + 1);
    before = value;
    value = next;
  }
  return value;
}
static double ti_legendre(double x, double degree) {
  int64_t n = (int64_t)degree;
  if (n < 0) return 0;
  if (fabs(x) == 1) return x > 0 || n % 2 == 0 ? 1 : -1;
  double before = 1, value = x;
  if (n == 0) return before;
  for (int64_t k = 1; k < n && !isnan(value); k++) {
    double next = ((2 * k + 1) * x * value - k * before) / (k + 1);
    before = value;
    value = next;
  }
  return value;
}

/* ------------------------------------------------------------------ integers */
static int64_t ti_gcd(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = b == -1 ? 0 : a % b;
    a = b;
    b = rest;
  }
  return a < 0 ? (int64_t)(0 - (uint64_t)a) : a;
}
static int64_t ti_lcm(int64_t a, int64_t b) {
  int64_t divisor = ti_gcd(a, b);
  if (divisor == 0) return 0;
  uint64_t product = (uint64_t)(a / divisor) * (uint64_t)b;
  return (int64_t)product < 0 ? (int64_t)(0 - product) : (int64_t)product;
}
#endif
