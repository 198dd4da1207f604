/* Weights laid out for vectors of neighbouring results; transpose_body.h comes before it. */

enum { FN(TAPS_AHEAD) = 6 };  /* channels whose weights are fetched ahead where these lie too far apart for the processor to foresee them */

TI_INLINE void FN(fetch_taps)(const float *w, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(w + i);
}

/* d[tap][lane] = w[lane * row + tap]; 0 in the lanes from `lanes` on. */
TI_INLINE void FN(lay_taps)(const float *w, int64_t row, int64_t lanes, int64_t taps, float *d) {
  int64_t t = 0;
  if (lanes == VL)
    for (; t + 8 <= taps; t += 8)
      for (int64_t l = 0; l < VL; l += 8) FN(transpose8)(d + t * VL + l, VL, w + l * row + t, row);
  for (; t < taps; t++)
    for (int64_t l = 0; l < VL; l++) d[t * VL + l] = l < lanes ? w[l * row + t] : 0;
}
