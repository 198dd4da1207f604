/* Products of complex numbers whose parts lie side by side; included by elementwise_body.h. */
/* n products of numbers that lie side by side, those of the second factor, or of none, one and the same; a sign of -1
 * conjugates a factor. The real part is a difference of two rounded products, the imaginary one a sum: what z and its
 * conjugate make is real. */
static void FN(multiply_pairs)(float *d, const float *a, const float *b, long n, const float sign_a, const float sign_b) {
  VI first, second, other, of_real, of_imaginary;
  for (int j = 0; j < VL; j++) {
    first[j] = j & ~1, second[j] = j | 1, other[j] = j ^ 1;
    /* signs of the products with the second factor's real part, and with its imaginary part */
    of_real[j] = j & 1 && sign_a < 0 ? INT32_MIN : 0;
    of_imaginary[j] = (j & 1 ? sign_b < 0 : sign_a * sign_b > 0) ? INT32_MIN : 0;
  }
  for (long i = 0; i < 2 * n; i += VL) {
    _mm_prefetch((const char *)(a + i) + TI_AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)(b + i) + TI_AHEAD, _MM_HINT_T0);
    const VF x = FN(load_most)(a + i, 2 * n - i), y = FN(load_most)(b + i, 2 * n - i);
    /* signs keep the compiler from joining a product with the sum: that would be rounded once, the other product twice */
    const VI r = (VI)(x * __builtin_shuffle(y, first)) ^ of_real, s = (VI)(__builtin_shuffle(x, other) * __builtin_shuffle(y, second)) ^ of_imaginary;
    FN(store_most)(d + i, (VF)r + (VF)s, 2 * n - i);
  }
}
/* Elements [start, start + n) of a product, each run as long as what all three have side by side. */
static void FN(multiply_walked)(float *d, const float *a, const float *b, const chain_slot *const slots[3], int64_t start, long n,
                                const double *signs) {
  FN(walked) at[] = {{.start = -1}, {.start = -1}, {.start = -1}};
  for (long done = 0; done < n;) {
    int64_t from[3], run = n - done;
    for (int i = 0; i < 3; i++) run = ti_min(run, FN(stretch)(slots[i], at + i, start + done, from + i));
    FN(multiply_pairs)(d + from[0], a + from[1], b + from[2], (long)run, (float)signs[0], (float)signs[1]);
    done += run;
  }
}
