/* Bfloats of n floats, rounded to nearest even. */
static void FN(narrow_row)(uint16_t *bfloats, const float *floats, int64_t n) {
  int64_t i = 0;
  for (; i + VL <= n; i += VL) FN(to_bfloats)(bfloats + i, FN(load)(floats + i));
  if (i == n) return;
  uint16_t lanes[VL];
  FN(to_bfloats)(lanes, FN(load_part)(floats + i, n - i));
  memcpy(bfloats + i, lanes, (size_t)(n - i) * sizeof *lanes);
}
