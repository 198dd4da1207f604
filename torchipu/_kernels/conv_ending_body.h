/* What becomes of the sums of a convolution: a bias or a normalisation. */
/* Scale and shift of the results [m0, m0 + rows): the bias, or a normalisation by running statistics. */
static void FN(find_affine)(char *const *args, int flags, double eps, int64_t m0, int64_t rows, float *scale, float *shift) {
  const float *const bias = flags & TI_CONV_ENDING_HAS_BIAS ? (const float *)*args++ : NULL;
  for (int64_t i = 0; i < rows; i++) { scale[i] = 1; shift[i] = bias ? bias[m0 + i] : 0; }
  if (!(flags & TI_CONV_ENDING_HAS_NORM)) return;
  const float *mean = (const float *)args[0] + m0, *variance = (const float *)args[1] + m0;
  args += 2;
  const float *const weight = flags & TI_CONV_ENDING_HAS_NORM_WEIGHT ? (const float *)*args++ + m0 : NULL;
  const float *const beside = flags & TI_CONV_ENDING_HAS_NORM_BIAS ? (const float *)*args++ + m0 : NULL;
  for (int64_t i = 0; i < rows; i++) {
    const double r = 1.0 / sqrt(variance[i] + eps) * (weight ? weight[i] : 1.0f);
    shift[i] = (float)(((double)shift[i] - mean[i]) * r + (beside ? beside[i] : 0.0f));
    scale[i] = (float)r;
  }
}
