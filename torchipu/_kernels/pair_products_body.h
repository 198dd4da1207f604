/* Products of complex numbers whose parts lie side by side; included by elementwise_body.h. */
/* n products of numbers that lie side by side, those of the second factor, or of none, one and the same; a sign of -1
 * conjugates a factor. The real part is a difference of two rounded products, the imaginary one a sum: what z and its
 * conjugate make is real. */
static void FN(multiply_pairs)(float *d, const float *a, const float *b, long n, const float sign_a, const float sign_b) {
  long i = 0;
#if VL == 16
  /* signs of the products with the second factor's real part, and with its imaginary part */
  const __m512i none = _mm512_setzero_si512(), minus = _mm512_set1_epi32((int)0x80000000);
  const __m512i of_real = _mm512_mask_mov_epi32(none, sign_a < 0 ? 0xaaaa : 0, minus);
  const __m512i of_imaginary = _mm512_mask_mov_epi32(none, (__mmask16)((sign_a * sign_b > 0 ? 0x5555 : 0) | (sign_b < 0 ? 0xaaaa : 0)), minus);
  for (; i < n; i += 8) {
    const __mmask16 there = (__mmask16)(n - i >= 8 ? 0xffff : (1 << 2 * (n - i)) - 1);
    _mm_prefetch((const char *)(a + 2 * i) + TI_AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)(b + 2 * i) + TI_AHEAD, _MM_HINT_T0);
    const __m512 x = _mm512_maskz_loadu_ps(there, a + 2 * i), y = _mm512_maskz_loadu_ps(there, b + 2 * i);
    const __m512i r = _mm512_castps_si512(_mm512_mul_ps(x, _mm512_moveldup_ps(y)));
    const __m512i s = _mm512_castps_si512(_mm512_mul_ps(_mm512_permute_ps(x, 0xb1), _mm512_movehdup_ps(y)));
    const __m512 z = _mm512_add_ps(_mm512_castsi512_ps(_mm512_xor_si512(r, of_real)), _mm512_castsi512_ps(_mm512_xor_si512(s, of_imaginary)));
    _mm512_mask_storeu_ps(d + 2 * i, there, z);
  }
#endif
  for (; i < n; i++) {
    const float ar = a[2 * i], ai = sign_a * a[2 * i + 1], br = b[2 * i], bi = sign_b * b[2 * i + 1];
    const float products[] = {ar * br, ai * bi, ar * bi, ai * br};
    d[2 * i] = products[0] - products[1], d[2 * i + 1] = products[2] + products[3];
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
