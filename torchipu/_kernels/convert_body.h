/* Floats to halves or bfloats, and back. */
#include "narrow_row_body.h"
#include "widen_row_body.h"

static void FN(halves_of)(uint16_t *halves, const float *floats, int64_t n) {
  int64_t i = 0;
  for (; i + VL <= n; i += VL) FN(to_half)(halves + i, FN(load)(floats + i));
  if (i == n) return;
  uint16_t lanes[VL];
  FN(to_half)(lanes, FN(load_part)(floats + i, n - i));
  memcpy(halves + i, lanes, (size_t)(n - i) * sizeof *lanes);
}

TI_KERNEL(convert) {
  const int64_t n = end - begin, conversion = ((const convert_ints *)ints)->conversion;
  (void)scalars, (void)scratch;
  if (conversion == TI_CONVERSION_FROM_HALF || conversion == TI_CONVERSION_FROM_BFLOAT) {
    const int64_t stored = conversion == TI_CONVERSION_FROM_HALF ? TI_STORED_HALVES : TI_STORED_BFLOATS;
    FN(widen_row)((float *)args[0] + begin, args[1] + 2 * begin, n, stored);
  } else {
    uint16_t *const to = (uint16_t *)args[0] + begin;
    const float *const from = (const float *)args[1] + begin;
    if (conversion == TI_CONVERSION_TO_HALF) FN(halves_of)(to, from, n);
    else FN(narrow_row)(to, from, n);
  }
  return TI_OK;
}
