/* What kernels that take rows of halves as they lie have of each before they compute with it. */
/* The floats of n halves. */
static void FN(widen_row)(float *out, const uint16_t *halves, int64_t n) {
  int64_t i = 0;
  for (; i + VL <= n; i += VL) FN(store)(out + i, FN(from_half)(halves + i));
  if (i == n) return;
  uint16_t lanes[16] = {0};
  memcpy(lanes, halves + i, (size_t)(n - i) * sizeof *lanes);
  FN(store_part)(out + i, FN(from_half)(lanes), n - i);
}
