/* Runs of floats that lie apart, taken side by side; for volume_body.h and volume_depthwise_body.h. */
/* Every other one of 2 VL - 1 floats, of which the vectors a and b hold the first VL and the last. */
TI_INLINE VF FN(every_other)(VF a, VF b) {
#if VL == 16
  const VI places = {0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31};
#else
  const VI places = {0, 2, 4, 6, 9, 11, 13, 15};
#endif
  return __builtin_shuffle(a, b, places);
}

/* n floats that lie `step` apart, one behind the other; none behind the last is read. */
TI_INLINE void FN(take_run)(const float *p, ptrdiff_t step, int64_t n, float *d) {
  if (step == 1) for (int64_t i = 0; i < n; i += VL) FN(store_most)(d + i, FN(load_most)(p + i, n - i), n - i);
  else if (step == 2) for (int64_t i = 0; i < n; i += VL) {
    const int64_t read = 2 * (n - i) - 1;
    const VF a = FN(load_most)(p + 2 * i, read), b = read >= VL ? FN(load_most)(p + 2 * i + VL - 1, read - VL + 1) : a;
    FN(store_most)(d + i, FN(every_other)(a, b), n - i);
  }
  else for (int64_t i = 0; i < n; i++) d[i] = p[i * step];
}
