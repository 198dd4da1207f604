/* Sums and moments of rows, in a fixed order. */

/* s[0..3] += x[0..n) */
TI_INLINE void FN(add_sum)(const float *x, int64_t n, VF *s) {
  VF a = s[0], b = s[1], c = s[2], d = s[3];
  int64_t i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL) {
    a += FN(load)(x + i);
    b += FN(load)(x + i + VL);
    c += FN(load)(x + i + 2 * VL);
    d += FN(load)(x + i + 3 * VL);
  }
  for (; i + VL <= n; i += VL) a += FN(load)(x + i);
  if (i < n) b += FN(load_part)(x + i, n - i);
  s[0] = a, s[1] = b, s[2] = c, s[3] = d;
}

/* s[0..1] += x - centre, s[2..3] += (x - centre)^2 */
TI_INLINE void FN(add_squares)(const float *x, int64_t n, VF centre, VF *s) {
  VF a = s[0], b = s[1], c = s[2], d = s[3];
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    const VF p = FN(load)(x + i) - centre, q = FN(load)(x + i + VL) - centre;
    a += p, b += q;
    c = FN(fma)(p, p, c), d = FN(fma)(q, q, d);
  }
  for (; i + VL <= n; i += VL) {
    const VF p = FN(load)(x + i) - centre;
    a += p, c = FN(fma)(p, p, c);
  }
  if (i < n) {
    const VF p = FN(load_filled)(x + i, n - i, centre) - centre;
    b += p, d = FN(fma)(p, p, d);
  }
  s[0] = a, s[1] = b, s[2] = c, s[3] = d;
}

/* s[0..1] += g, s[2..3] += g (x - centre) */
TI_INLINE void FN(add_products)(const float *g, const float *x, int64_t n, VF centre, VF *s) {
  VF a = s[0], b = s[1], c = s[2], d = s[3];
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    const VF p = FN(load)(g + i), q = FN(load)(g + i + VL);
    a += p, b += q;
    c = FN(fma)(p, FN(load)(x + i) - centre, c), d = FN(fma)(q, FN(load)(x + i + VL) - centre, d);
  }
  for (; i + VL <= n; i += VL) {
    const VF p = FN(load)(g + i);
    a += p, c = FN(fma)(p, FN(load)(x + i) - centre, c);
  }
  if (i < n) {
    const VF p = FN(load_part)(g + i, n - i);
    b += p, d = FN(fma)(p, FN(load_filled)(x + i, n - i, centre) - centre, d);
  }
  s[0] = a, s[1] = b, s[2] = c, s[3] = d;
}

/* Mean, and sum of squared distances from it, of `rows` rows of n elements `stride` apart. Two passes: the first
 * mean only centres the data, and the second pass corrects it, so that neither loses digits to a large mean. */
TI_INLINE void FN(moments)(const float *x, int64_t rows, int64_t stride, int64_t n, float *mean, float *squares) {
  const double count = (double)rows * (double)n;
  VF s[4] = {{0}, {0}, {0}, {0}};
  for (int64_t r = 0; r < rows; r++) FN(add_sum)(x + r * stride, n, s);
  const float centre = (float)(FN(sum_lanes)((s[0] + s[1]) + (s[2] + s[3])) / count);
  VF t[4] = {{0}, {0}, {0}, {0}};
  for (int64_t r = 0; r < rows; r++) FN(add_squares)(x + r * stride, n, FN(set)(centre), t);
  const double rest = FN(sum_lanes)(t[0] + t[1]);
  const double around = FN(sum_lanes)(t[2] + t[3]) - rest * rest / count;
  *mean = (float)(centre + rest / count);
  *squares = around < 0 ? 0.0f : (float)around;
}
