/* What kernels that take rows of halves or bfloats as they lie have of each before they compute with it. */
#include "table/convert.h"
/* The floats of n numbers. */
static void FN(widen_row)(float *out, const void *row, int64_t n, int64_t stored) {
  const uint16_t *const from = (const uint16_t *)row;
  int64_t i = 0;
  if (stored == TI_STORED_BFLOATS) for (; i + VL <= n; i += VL) FN(store)(out + i, FN(from_bfloat)(from + i));
  else for (; i + VL <= n; i += VL) FN(store)(out + i, FN(from_half)(from + i));
  if (i == n) return;
  uint16_t lanes[16] = {0};
  memcpy(lanes, from + i, (size_t)(n - i) * sizeof *lanes);
  FN(store_part)(out + i, stored == TI_STORED_BFLOATS ? FN(from_bfloat)(lanes) : FN(from_half)(lanes), n - i);
}
/* Bytes of a number, and n of them from `first` on as floats, in scratch unless they lie as such. */
TI_INLINE int64_t FN(stored_bytes)(int64_t stored) { return stored == TI_STORED_FLOATS ? 4 : 2; }
TI_INLINE const float *FN(elements_at)(const char *base, int64_t first, int64_t n, int64_t stored, float *scratch) {
  const char *const from = base + first * FN(stored_bytes)(stored);
  if (stored == TI_STORED_FLOATS) return (const float *)from;
  FN(widen_row)(scratch, from, n, stored);
  return scratch;
}
TI_INLINE const float *FN(row_of)(const char *base, int64_t row, int64_t n, int64_t stored, float *scratch) {
  return FN(elements_at)(base, row * n, n, stored, scratch);
}
