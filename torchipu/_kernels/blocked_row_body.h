/* Rows of images laid out in blocks of channels, with the zeros of the padding. */
#include "transpose_body.h"

/* One row of one block of channels, with zeros beside the image: columns [left, left + columns) of it. */
static void FN(lay_row)(const float *x, int is_plain, int64_t plane, int64_t channels, int64_t width, int64_t left, int64_t columns, float *d) {
  const int64_t lo = ti_min(columns, ti_max(0, -left)), hi = ti_max(lo, ti_min(columns, width - left));
  memset(d, 0, sizeof(float) * (size_t)(lo * VL));
  memset(d + hi * VL, 0, sizeof(float) * (size_t)((columns - hi) * VL));
  if (!is_plain) { memcpy(d + lo * VL, x + (left + lo) * VL, sizeof(float) * (size_t)((hi - lo) * VL)); return; }
  for (int64_t i = 0; i < channels;) {
    int64_t c = lo;
    if (channels - i >= 8) {
      for (; c + 8 <= hi; c += 8) FN(transpose8)(d + c * VL + i, VL, x + i * plane + left + c, plane);
      for (; c < hi; c++)
        for (int64_t k = 0; k < 8; k++) d[c * VL + i + k] = x[(i + k) * plane + left + c];
      i += 8;
      continue;
    }
    for (; c < hi; c++) d[c * VL + i] = x[i * plane + left + c];
    i++;
  }
}
