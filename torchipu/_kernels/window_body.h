/* Pooling whose windows are given as tables; table/window.py says what the kernels take. */

TI_KERNEL(window_max) {
  const window_ints s = *(const window_ints *)ints;
  const int64_t inputs = s.size[0] * s.size[1] * s.size[2], outputs = s.out[0] * s.out[1] * s.out[2];
  const int64_t *td = (const int64_t *)args[3], *th = (const int64_t *)args[4], *tw = (const int64_t *)args[5];
  (void)scalars; (void)scratch;
  for (int64_t volume = begin; volume < end; volume++) {
    const float *x = (const float *)args[2] + volume * inputs;
    float *y = (float *)args[0] + volume * outputs;
    int64_t *index = (int64_t *)args[1] + volume * outputs;
    for (int64_t od = 0; od < s.out[0]; od++)
      for (int64_t oh = 0; oh < s.out[1]; oh++)
        for (int64_t ow = 0; ow < s.out[2]; ow++, y++, index++) {
          float most = -INFINITY;
          int64_t at = (td[3 * od] * s.size[1] + th[3 * oh]) * s.size[2] + tw[3 * ow];
          for (int64_t d = td[3 * od]; d < td[3 * od + 1]; d += s.step[0])
            for (int64_t h = th[3 * oh]; h < th[3 * oh + 1]; h += s.step[1])
              for (int64_t w = tw[3 * ow]; w < tw[3 * ow + 1]; w += s.step[2]) {
                const int64_t here = (d * s.size[1] + h) * s.size[2] + w;
                if (x[here] > most || isnan(x[here])) { most = x[here]; at = here; }
              }
          *y = most;
          *index = at;
        }
  }
  return TI_OK;
}

TI_KERNEL(window_mean) {
  const window_ints s = *(const window_ints *)ints;
  const int64_t inputs = s.size[0] * s.size[1] * s.size[2], outputs = s.out[0] * s.out[1] * s.out[2];
  const int64_t *td = (const int64_t *)args[2], *th = (const int64_t *)args[3], *tw = (const int64_t *)args[4];
  (void)scalars; (void)scratch;
  for (int64_t volume = begin; volume < end; volume++) {
    const float *x = (const float *)args[1] + volume * inputs;
    float *y = (float *)args[0] + volume * outputs;
    for (int64_t od = 0; od < s.out[0]; od++)
      for (int64_t oh = 0; oh < s.out[1]; oh++)
        for (int64_t ow = 0; ow < s.out[2]; ow++) {
          double sum = 0;
          for (int64_t d = td[3 * od]; d < td[3 * od + 1]; d++)
            for (int64_t h = th[3 * oh]; h < th[3 * oh + 1]; h++)
              for (int64_t w = tw[3 * ow]; w < tw[3 * ow + 1]; w++) sum += x[(d * s.size[1] + h) * s.size[2] + w];
          *y++ = (float)(sum / (double)(td[3 * od + 2] * th[3 * oh + 2] * tw[3 * ow + 2]));
        }
  }
  return TI_OK;
}

TI_KERNEL(window_mean_backward) {
  const window_ints s = *(const window_ints *)ints;
  const int64_t inputs = s.size[0] * s.size[1] * s.size[2], outputs = s.out[0] * s.out[1] * s.out[2];
  const int64_t *td = (const int64_t *)args[2], *th = (const int64_t *)args[3], *tw = (const int64_t *)args[4];
  (void)scalars; (void)scratch;
  for (int64_t volume = begin; volume < end; volume++) {
    float *dx = (float *)args[0] + volume * inputs;
    const float *dy = (const float *)args[1] + volume * outputs;
    memset(dx, 0, sizeof(float) * (size_t)inputs);
    for (int64_t od = 0; od < s.out[0]; od++)
      for (int64_t oh = 0; oh < s.out[1]; oh++)
        for (int64_t ow = 0; ow < s.out[2]; ow++) {
          const float share = *dy++ / (float)(td[3 * od + 2] * th[3 * oh + 2] * tw[3 * ow + 2]);
          for (int64_t d = td[3 * od]; d < td[3 * od + 1]; d++)
            for (int64_t h = th[3 * oh]; h < th[3 * oh + 1]; h++)
              for (int64_t w = tw[3 * ow]; w < tw[3 * ow + 1]; w++) dx[(d * s.size[1] + h) * s.size[2] + w] += share;
        }
  }
  return TI_OK;
}

TI_KERNEL(window_place) {
  const placing_ints *const shape = (const placing_ints *)ints;
  const int64_t outputs = shape->outputs, inputs = shape->inputs;
  (void)scalars; (void)scratch;
  for (int64_t volume = begin; volume < end; volume++) {
    float *y = (float *)args[0] + volume * outputs;
    const float *x = (const float *)args[1] + volume * inputs;
    const int64_t *index = (const int64_t *)args[2] + volume * inputs;
    memset(y, 0, sizeof(float) * (size_t)outputs);
    for (int64_t i = 0; i < inputs; i++) {
      if ((uint64_t)index[i] >= (uint64_t)outputs) return TI_TRAP_INDEX;
      y[index[i]] = x[i];
    }
  }
  return TI_OK;
}
