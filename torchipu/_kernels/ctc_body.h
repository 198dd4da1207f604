/* Connectionist temporal classification: the sums over all alignments of targets to time steps, in logarithms. An item
 * is a sample. */

#ifndef TORCHIPU_CTC
#define TORCHIPU_CTC
/* Positions of alpha: labels with blanks around them. */
static inline int64_t ti_ctc_width(const ctc_ints *s) { return 2 * s->labels + 1; }
/* log(exp(a) + exp(b)) */
static inline double ti_log_add(double a, double b) {
  if (a < b) { double c = a; a = b; b = c; }
  return a == -INFINITY ? a : a + log1p(exp(b - a));
}
/* Labels of a sample, or NULL when a length is out of range or a label is no class. */
static inline const int64_t *ti_ctc_labels(const ctc_ints *s, const int64_t *targets, const int64_t *input_lengths,
                                           const int64_t *target_lengths, int64_t sample) {
  const int64_t length = target_lengths[sample];
  if (input_lengths[sample] < 0 || input_lengths[sample] > s->time || length < 0 || length > s->labels) return NULL;
  targets += sample * s->labels;
  for (int64_t i = 0; i < length; i++)
    if ((uint64_t)targets[i] >= (uint64_t)s->classes) return NULL;
  return targets;
}
/* Class at position i of the extended target: labels with blanks around them. */
static inline int64_t ti_ctc_class(const ctc_ints *s, const int64_t *labels, int64_t i) {
  return i % 2 ? labels[i / 2] : s->blank;
}
/* Whether position i can be reached from i - 2: it holds a label that differs from the one before. */
static inline int ti_ctc_skips(const int64_t *labels, int64_t i) {
  return i % 2 && i > 1 && labels[i / 2] != labels[i / 2 - 1];
}
#endif

TI_KERNEL(ctc_loss) {
  const ctc_ints *const s = (const ctc_ints *)ints;
  const int64_t width = ti_ctc_width(s);
  (void)scalars; (void)scratch;
  for (int64_t b = begin; b < end; b++) {
    const int64_t *labels =
        ti_ctc_labels(s, (const int64_t *)args[3], (const int64_t *)args[4], (const int64_t *)args[5], b);
    if (!labels) return TI_TRAP_RANGE;
    const int64_t steps = ((const int64_t *)args[4])[b], positions = 2 * ((const int64_t *)args[5])[b] + 1;
    float *alpha = (float *)args[1] + b * s->time * width;
    for (int64_t i = 0; i < s->time * width; i++) alpha[i] = -INFINITY;
    double total = positions == 1 ? 0 : -INFINITY;  /* no steps: only an empty target fits */
    for (int64_t t = 0; t < steps; t++, alpha += width) {
      const float *p = (const float *)args[2] + (t * s->batch + b) * s->classes;
      for (int64_t i = 0; i < positions; i++) {
        double sum = -INFINITY;
        if (t == 0) sum = i < 2 ? 0 : sum;
        else {
          const float *before = alpha - width;
          sum = before[i];
          if (i > 0) sum = ti_log_add(sum, before[i - 1]);
          if (ti_ctc_skips(labels, i)) sum = ti_log_add(sum, before[i - 2]);
        }
        alpha[i] = (float)(sum + p[ti_ctc_class(s, labels, i)]);
      }
      if (t == steps - 1) total = positions == 1 ? alpha[0] : ti_log_add(alpha[positions - 1], alpha[positions - 2]);
    }
    ((float *)args[0])[b] = s->zero_infinity && total == -INFINITY ? 0.0f : (float)-total;
  }
  return TI_OK;
}

TI_KERNEL(ctc_loss_backward) {
  const ctc_ints *const s = (const ctc_ints *)ints;
  const int64_t width = ti_ctc_width(s);
  (void)scalars;
  for (int64_t b = begin; b < end; b++) {
    const int64_t *labels =
        ti_ctc_labels(s, (const int64_t *)args[5], (const int64_t *)args[6], (const int64_t *)args[7], b);
    if (!labels) return TI_TRAP_RANGE;
    const int64_t steps = ((const int64_t *)args[6])[b], positions = 2 * ((const int64_t *)args[7])[b] + 1;
    const double loss = ((const float *)args[2])[b], upstream = ((const float *)args[1])[b];
    const float *alpha = (const float *)args[3] + b * s->time * width;
    double *beta = (double *)scratch, *after = beta + width, *sums = after + width;
    double ends = -INFINITY;
    if (steps > 0) {
      const float *last = alpha + (steps - 1) * width;
      ends = positions == 1 ? last[0] : ti_log_add(last[positions - 1], last[positions - 2]);
    }
    const int impossible = s->zero_infinity && ends == -INFINITY && !(steps == 0 && positions == 1);
    for (int64_t t = s->time - 1; t >= 0; t--) {
      float *d = (float *)args[0] + (t * s->batch + b) * s->classes;
      const float *p = (const float *)args[4] + (t * s->batch + b) * s->classes;
      if (t >= steps || impossible) { memset(d, 0, sizeof(float) * (size_t)s->classes); continue; }
      for (int64_t i = 0; i < positions; i++) {
        double sum = -INFINITY;
        if (t == steps - 1) sum = i >= positions - 2 ? 0 : sum;
        else {
          sum = after[i];
          if (i + 1 < positions) sum = ti_log_add(sum, after[i + 1]);
          if (i + 2 < positions && ti_ctc_skips(labels, i + 2)) sum = ti_log_add(sum, after[i + 2]);
        }
        beta[i] = sum + p[ti_ctc_class(s, labels, i)];
      }
      for (int64_t c = 0; c < s->classes; c++) sums[c] = -INFINITY;
      for (int64_t i = 0; i < positions; i++) {
        const int64_t c = ti_ctc_class(s, labels, i);
        sums[c] = ti_log_add(sums[c], alpha[t * width + i] + beta[i]);
      }
      for (int64_t c = 0; c < s->classes; c++)
        d[c] = (float)((exp((double)p[c]) - exp(sums[c] + loss - p[c])) * upstream);
      double *swap = beta; beta = after; after = swap;
    }
  }
  return TI_OK;
}
