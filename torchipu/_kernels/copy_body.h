/* Copies between strided layouts, fills and ranges; elements are opaque words of 1, 2, 4 or 8 bytes. */
#define TI_COPY_LOOP(type) do { \
    type *d = (type *)dst; const type *s = (const type *)src; \
    if (dst_stride == 1 && src_stride == 1) for (int64_t i = 0; i < n; i++) d[i] = s[i]; \
    else if (dst_stride == 1 && src_stride == 0) { const type x = *s; for (int64_t i = 0; i < n; i++) d[i] = x; } \
    else if (dst_stride == 1) for (int64_t i = 0; i < n; i++) d[i] = s[i * src_stride]; \
    else for (int64_t i = 0; i < n; i++) d[i * dst_stride] = s[i * src_stride]; \
  } while (0)
static inline void FN(copy_run)(char *dst, const char *src, int64_t dst_stride, int64_t src_stride, int64_t n, int size) {
  if (dst_stride == 1 && src_stride == 1 && n * size >= 128) { memcpy(dst, src, (size_t)(n * size)); return; }
  switch (size) {
    case 1: TI_COPY_LOOP(uint8_t); break;
    case 2: TI_COPY_LOOP(uint16_t); break;
    case 4: TI_COPY_LOOP(uint32_t); break;
    default: TI_COPY_LOOP(uint64_t); break;
  }
}
/* copy: args [dst, src].
 *
 *   ints   [ndim, element bytes, shape[ndim], dst strides[ndim], src strides[ndim]]; ndim from 1 to 12
 *   items  elements, counted with the last dimension fastest
 */
static int FN(copy)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  (void)scalars, (void)scratch;
  const int ndim = (int)ints[0], size = (int)ints[1], last = ndim - 1;
  const int64_t *shape = ints + 2, *ds = shape + ndim, *ss = ds + ndim;
  int64_t index[12], rest = begin, dst = 0, src = 0;
  for (int i = last; i >= 0; i--) {
    index[i] = rest % shape[i];
    rest /= shape[i];
    dst += index[i] * ds[i];
    src += index[i] * ss[i];
  }
  for (int64_t todo = end - begin; todo > 0;) {
    int64_t run = shape[last] - index[last] < todo ? shape[last] - index[last] : todo;
    FN(copy_run)(args[0] + dst * size, args[1] + src * size, ds[last], ss[last], run, size);
    todo -= run;
    dst -= index[last] * ds[last];
    src -= index[last] * ss[last];
    index[last] = 0;
    for (int i = last - 1; i >= 0; i--) {
      dst += ds[i];
      src += ss[i];
      if (++index[i] < shape[i]) break;
      dst -= shape[i] * ds[i];
      src -= shape[i] * ss[i];
      index[i] = 0;
    }
  }
  return TI_OK;
}

/* One tile of a transpose: dst[i * dst_stride + j] = src[j * src_stride + i]. */
static inline void FN(transpose8)(float *d, int64_t ds, const float *s, int64_t ss) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(s + i * ss);
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int h = 0; h < 2; h++) {
    r[4 * h] = _mm256_shuffle_ps(t[4 * h], t[4 * h + 2], 0x44);
    r[4 * h + 1] = _mm256_shuffle_ps(t[4 * h], t[4 * h + 2], 0xee);
    r[4 * h + 2] = _mm256_shuffle_ps(t[4 * h + 1], t[4 * h + 3], 0x44);
    r[4 * h + 3] = _mm256_shuffle_ps(t[4 * h + 1], t[4 * h + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(d + i * ds, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(d + (i + 4) * ds, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
#define TI_TILE_LOOP(type) do { \
    type *d = (type *)dst; const type *s = (const type *)src; \
    for (int64_t i = 0; i < rows; i++) for (int64_t j = 0; j < columns; j++) d[i * ds + j] = s[j * ss + i]; \
  } while (0)
static void FN(transpose_tile)(char *dst, int64_t ds, const char *src, int64_t ss, int64_t rows, int64_t columns, int size) {
  if (size == 4 && rows == 16 && columns == 16) {
    for (int i = 0; i < 16; i += 8) for (int j = 0; j < 16; j += 8)
      FN(transpose8)((float *)dst + i * ds + j, ds, (const float *)src + j * ss + i, ss);
    return;
  }
  switch (size) {
    case 1: TI_TILE_LOOP(uint8_t); break;
    case 2: TI_TILE_LOOP(uint16_t); break;
    case 4: TI_TILE_LOOP(uint32_t); break;
    default: TI_TILE_LOOP(uint64_t); break;
  }
}
/* transpose: args [dst, src]; copies where the last dimension is dense in dst and the one before it dense in src.
 *
 *   ints   as copy, with dst strides[ndim - 1] = 1 and src strides[ndim - 2] = 1
 *   items  outer indices x panels of 16 rows (of dimension ndim - 2)
 */
static int FN(transpose)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  (void)scalars, (void)scratch;
  const int ndim = (int)ints[0], size = (int)ints[1];
  const int64_t *shape = ints + 2, *ds = shape + ndim, *ss = ds + ndim;
  const int64_t rows = shape[ndim - 2], columns = shape[ndim - 1], panels = (rows + 15) / 16;
  for (int64_t item = begin; item < end; item++) {
    int64_t rest = item / panels, i = item % panels * 16, dst = 0, src = 0;
    for (int k = ndim - 3; k >= 0; k--) {
      dst += rest % shape[k] * ds[k];
      src += rest % shape[k] * ss[k];
      rest /= shape[k];
    }
    const int64_t height = rows - i < 16 ? rows - i : 16;
    for (int64_t j = 0; j < columns; j += 16)
      FN(transpose_tile)(args[0] + (dst + i * ds[ndim - 2] + j) * size, ds[ndim - 2],
                         args[1] + (src + j * ss[ndim - 1] + i) * size, ss[ndim - 1], height,
                         columns - j < 16 ? columns - j : 16, size);
  }
  return TI_OK;
}

/* fill: args [dst], row-major.   ints [element bytes, bit pattern]   items  elements */
static int FN(fill)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  (void)scalars, (void)scratch;
  const int size = (int)ints[0];
  FN(copy_run)(args[0] + begin * size, (const char *)&ints[1], 1, 0, end - begin, size);
  return TI_OK;
}

/* arange: args [dst], row-major float (ints[0] = 0) or long (1).
 *
 *   ints [is long, first, step]   scalars [first, step]   items  elements
 */
static int FN(arange)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  (void)scratch;
  if (ints[0]) for (int64_t i = begin; i < end; i++) ((int64_t *)args[0])[i] = ints[1] + ints[2] * i;
  else for (int64_t i = begin; i < end; i++) ((float *)args[0])[i] = (float)(scalars[0] + scalars[1] * (double)i);
  return TI_OK;
}

/* linspace: args [dst], row-major float (ints[0] = 0) or long (1), which rounds towards zero.
 *
 *   ints [is long, steps]   scalars [first, last, step]   items  elements; the second half counts back from the last
 */
static int FN(linspace)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  (void)scratch;
  for (int64_t i = begin; i < end; i++) {
    const double value = i < ints[1] / 2 ? scalars[0] + scalars[2] * (double)i
                                         : scalars[1] - scalars[2] * (double)(ints[1] - i - 1);
    if (ints[0]) ((int64_t *)args[0])[i] = (int64_t)value;
    else ((float *)args[0])[i] = (float)value;
  }
  return TI_OK;
}

/* triangle: args [dst, src], row-major [..., rows, columns].
 *
 *   ints   [element bytes, rows, columns, diagonal, upper]: keeps columns from row + diagonal on, or up to it
 *   items  rows of all matrices
 */
static int FN(triangle)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch) {
  (void)scalars, (void)scratch;
  const int64_t size = ints[0], columns = ints[2];
  for (int64_t row = begin; row < end; row++) {
    int64_t cut = row % ints[1] + ints[3] + (ints[4] ? 0 : 1);
    cut = cut < 0 ? 0 : cut > columns ? columns : cut;
    char *dst = args[0] + row * columns * size;
    const char *src = args[1] + row * columns * size;
    const int64_t kept = ints[4] ? cut : 0, length = ints[4] ? columns - cut : cut;
    memset(dst, 0, (size_t)(columns * size));
    memcpy(dst + kept * size, src + kept * size, (size_t)(length * size));
  }
  return TI_OK;
}
#undef TI_COPY_LOOP
#undef TI_TILE_LOOP
