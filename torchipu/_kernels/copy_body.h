/* Copies between strided layouts, fills and ranges; elements are opaque words of 1, 2, 4 or 8 bytes. */
#include "copy_bytes_body.h"
#include "turns_body.h"
static const int32_t FN(backwards)[16] = {15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
/* Copies elements of which each lies before the one that is read first: words of a vector change places, then what is in them. */
TI_INLINE void FN(copy_back)(char *d, const char *s, int64_t n, const int64_t size) {
  const int64_t bytes = VL * 4, each = bytes / size;
  const VI places = *(const VI *)(FN(backwards) + 16 - VL);
  if (size <= 4) for (s -= (n - 1) * size; n >= each; n -= each, s += bytes) {
    VU v;
    memcpy(&v, s, (size_t)bytes);
    v = __builtin_shuffle(v, (VU)places);
    if (size <= 2) v = (v << 16) | (v >> 16);
    if (size == 1) v = ((v >> 8) & 0x00ff00ff) | ((v & 0x00ff00ff) << 8);
    memcpy(d + (n - each) * size, &v, (size_t)bytes);
  }
  else s -= (n - 1) * size;
  for (; n > 0; n--, s += size) memcpy(d + (n - 1) * size, s, (size_t)size);
}
#define TI_COPY_LOOP(type) do { \
    type *d = (type *)dst; const type *s = (const type *)src; \
    if (dst_stride == 1 && src_stride == 1) for (int64_t i = 0; i < n; i++) d[i] = s[i]; \
    else if (dst_stride == 1 && src_stride == -1) FN(copy_back)(dst, src, n, (int64_t)sizeof(type)); \
    else if (dst_stride == 1 && src_stride == 0) { const type x = *s; for (int64_t i = 0; i < n; i++) d[i] = x; } \
    else if (dst_stride == 1) for (int64_t i = 0; i < n; i++) d[i] = s[i * src_stride]; \
    else for (int64_t i = 0; i < n; i++) d[i * dst_stride] = s[i * src_stride]; \
  } while (0)
static __attribute__((noinline)) void FN(copy_run)(char *dst, const char *src, int64_t dst_stride, int64_t src_stride, int64_t n, int size) {
  if (dst_stride == 1 && src_stride == 1 && n * size >= 128) { FN(copy_bytes)(dst, src, n * size); return; }
  switch (size) {
    case 1: TI_COPY_LOOP(uint8_t); break;
    case 2: TI_COPY_LOOP(uint16_t); break;
    case 4: TI_COPY_LOOP(uint32_t); break;
    default: TI_COPY_LOOP(uint64_t); break;
  }
}
#ifndef TORCHIPU_COPY
#define TORCHIPU_COPY
enum { TI_SHORT_COPY = 8, TI_COPY_ROWS = 256, TI_LONG_ROW = 1024 };
#endif
/* Rows of at least 8 bytes without gaps within, `dp` and `sp` bytes apart: a call for each takes longer than a short one. The
 * last piece ends where the row does, and may copy again what lies in the one before. */
#define TI_EACH_ROW(...) for (int64_t r = 0; r < rows; r++, dst += dp, src += sp) { __VA_ARGS__ } break
#define TI_ROW_BY(piece) \
  TI_EACH_ROW(for (int64_t i = 0; i + piece <= bytes; i += piece) memcpy(dst + i, src + i, piece); \
              if (bytes % piece) memcpy(dst + bytes - piece, src + bytes - piece, piece);)
static __attribute__((noinline)) void FN(copy_rows)(char *dst, const char *src, int64_t dp, int64_t sp, int64_t rows, int64_t bytes) {
  switch (bytes) {
    case 16: TI_EACH_ROW(memcpy(dst, src, 16););
    case 32: TI_EACH_ROW(memcpy(dst, src, 32););
    case 64: TI_EACH_ROW(memcpy(dst, src, 64););
    case 128: TI_EACH_ROW(memcpy(dst, src, 128););
    default: switch (bytes >> 3) {
      case 1: TI_ROW_BY(8);
      case 2: case 3: TI_ROW_BY(16);
      case 4: case 5: case 6: case 7: TI_ROW_BY(32);
      default: TI_ROW_BY(64);
    }
  }
}
#undef TI_EACH_ROW
#undef TI_ROW_BY
TI_KERNEL(copy) {
  (void)scalars, (void)scratch;
  const copy_ints *const p = (const copy_ints *)ints;
  const int ndim = (int)p->num_dims, size = (int)p->element_bytes, last = ndim - 1;
  const int64_t *shape = p->layout, *ds = shape + ndim, *ss = ds + ndim;
  int64_t index[TI_MAX_COPY_DIMS], rest = begin, dst = 0, src = 0;
  for (int i = last; i >= 0; i--) {
    index[i] = rest % shape[i];
    rest /= shape[i];
    dst += index[i] * ds[i];
    src += index[i] * ss[i];
  }
  for (int64_t todo = end - begin; todo > 0;) {
    int64_t run = shape[last] - index[last] < todo ? shape[last] - index[last] : todo;
    if (run == shape[last] && ndim > 1 && ds[last] == 1 && ss[last] == 1 && run * size >= 8 && run * size < TI_LONG_ROW) {
      const int64_t rows = ti_min(shape[last - 1] - index[last - 1], todo / run);
      FN(copy_rows)(args[0] + dst * size, args[1] + src * size, ds[last - 1] * size, ss[last - 1] * size, rows, run * size);
      todo -= (rows - 1) * run;
      dst += (rows - 1) * ds[last - 1];
      src += (rows - 1) * ss[last - 1];
      index[last - 1] += rows - 1;
    } else if (run <= TI_SHORT_COPY && run == shape[last] && ndim > 1) {
      /* whole short runs by their columns: to go to one takes longer than what it holds; few enough to stay in a cache */
      const int64_t rows = ti_min(ti_min(shape[last - 1] - index[last - 1], todo / run), TI_COPY_ROWS);
      for (int64_t j = 0; j < run; j++)
        FN(copy_run)(args[0] + (dst + j * ds[last]) * size, args[1] + (src + j * ss[last]) * size, ds[last - 1], ss[last - 1], rows, size);
      todo -= (rows - 1) * run;
      dst += (rows - 1) * ds[last - 1];
      src += (rows - 1) * ss[last - 1];
      index[last - 1] += rows - 1;
    } else FN(copy_run)(args[0] + dst * size, args[1] + src * size, ds[last], ss[last], run, size);
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

/* What rows have of a piece: rows of a few bytes by their columns, as to go to one takes longer than what it holds. */
static void FN(copy_piece)(char *dst, const char *src, int64_t dp, int64_t sp, int64_t rows, int64_t elements, int size) {
  const int64_t bytes = elements * size;
  if (bytes >= TI_LONG_ROW) for (int64_t r = 0; r < rows; r++) FN(copy_bytes)(dst + r * dp * size, src + r * sp * size, bytes);
  else if (elements > 1 && bytes >= 8) FN(copy_rows)(dst, src, dp * size, sp * size, rows, bytes);
  else for (int64_t j = 0; j < elements; j++) FN(copy_run)(dst + j * size, src + j * size, dp, sp, rows, size);
}
/* Whether two dense columns of words become the rows: parts of complex numbers. */
static int FN(are_turns)(const concatenate_rows_ints *p) {
  const piece_of_row *const pieces = (const piece_of_row *)p->pieces;
  return p->num_pieces == 2 && p->row_elements == 2 && p->element_bytes == 4 && pieces[0].first == 0 && pieces[0].elements == 1 &&
         pieces[1].elements == 1 && pieces[0].apart == 1 && pieces[1].apart == 1;
}
/* Some rows of all pieces, then the next ones: each line of the result is written while it is near. */
TI_KERNEL(concatenate_rows) {
  (void)scalars, (void)scratch;
  const concatenate_rows_ints *const p = (const concatenate_rows_ints *)ints;
  const int64_t size = p->element_bytes, at_once = ti_max(TI_PIECE_BLOCK / (p->row_elements * size), 1);
  if (FN(are_turns)(p)) {
    FN(store_turns)((float *)args[0] + 2 * begin, (const float *)args[1] + begin, (const float *)args[2] + begin, end - begin);
    return TI_OK;
  }
  for (int64_t row = begin, rows; row < end; row += rows) {
    rows = ti_min(at_once, end - row);
    for (int64_t k = 0; k < p->num_pieces; k++) {
      const piece_of_row *const piece = (const piece_of_row *)p->pieces + k;
      FN(copy_piece)(args[0] + (row * p->row_elements + piece->first) * size, args[1 + k] + row * piece->apart * size,
                     p->row_elements, piece->apart, rows, piece->elements, (int)size);
    }
  }
  return TI_OK;
}

/* The copy of a row is that of its runs: paddings take whole rows, and turn or repeat a few elements at their ends. */
#define TI_PAD_ROW(type) do { \
    type *d = (type *)dst; \
    for (const int64_t *run = runs; run < end_of_runs; run += 3) { \
      const type *s = (const type *)src + run[1]; \
      const int64_t n = run[0], step = run[2]; \
      if (step == 1 && n > 4) FN(copy_bytes)((char *)d, (const char *)s, n * (int64_t)sizeof(type)); \
      else if (n == 1) *d = *s; \
      else for (int64_t i = 0; i < n; i++) d[i] = s[i * step]; \
      d += n; \
    } \
  } while (0)
TI_KERNEL(pad_rows) {
  (void)scalars, (void)scratch;
  const pad_rows_ints *const p = (const pad_rows_ints *)ints;
  const int64_t ndim = p->num_dims, size = p->element_bytes, row = p->columns * size, *tables[TI_MAX_COPY_DIMS];
  const int64_t *runs = (const int64_t *)args[2];
  for (int64_t i = 0; i < ndim; runs += p->sizes[i++]) tables[i] = runs;
  const int64_t *const end_of_runs = runs + 3 * p->runs;
  int64_t index[TI_MAX_COPY_DIMS], rest = begin, from = 0;
  for (int64_t i = ndim - 1; i >= 0; rest /= p->sizes[i--]) from += tables[i][index[i] = rest % p->sizes[i]];
  char *dst = args[0] + begin * row;
  for (int64_t item = begin; item < end; item++, dst += row) {
    const char *const src = args[1] + from * size;
    switch (size) {
      case 1: TI_PAD_ROW(uint8_t); break;
      case 2: TI_PAD_ROW(uint16_t); break;
      case 4: TI_PAD_ROW(uint32_t); break;
      default: TI_PAD_ROW(uint64_t); break;
    }
    for (int64_t i = ndim - 1; i >= 0; i--) {
      from -= tables[i][index[i]];
      index[i] = index[i] + 1 < p->sizes[i] ? index[i] + 1 : 0;
      from += tables[i][index[i]];
      if (index[i]) break;
    }
  }
  return TI_OK;
}
#undef TI_PAD_ROW

#include "transpose_body.h"
#include "transpose_any_body.h"
#include "transpose_narrow_body.h"
static void FN(transpose_tile)(char *dst, int64_t ds, const char *src, int64_t ss, int64_t rows, int64_t columns, int size) {
  switch (size) {
    case 1: FN(turn_all_1)(dst, ds, src, ss, rows, columns); break;
    case 2: FN(turn_all_2)(dst, ds, src, ss, rows, columns); break;
    case 4: FN(transpose_any)((float *)dst, ds, (const float *)src, ss, rows, columns); break;
    default: FN(turn_all_8)(dst, ds, src, ss, rows, columns); break;
  }
}
/* Tiles are as wide and as high as a panel, whose rows fill whole lines of a cache with narrow elements too. */
TI_KERNEL(transpose) {
  (void)scalars, (void)scratch;
  const copy_ints *const p = (const copy_ints *)ints;
  const int ndim = (int)p->num_dims, size = (int)p->element_bytes;
  const int64_t *shape = p->layout, *ds = shape + ndim, *ss = ds + ndim;
  const int64_t panel = ti_max(TI_PANEL_BYTES / size, TI_LEAST_PANEL);
  const int64_t rows = shape[ndim - 2], columns = shape[ndim - 1], panels = ti_ceil(rows, panel);
  for (int64_t item = begin; item < end; item++) {
    int64_t rest = item / panels, i = item % panels * panel, dst = 0, src = 0;
    for (int k = ndim - 3; k >= 0; k--) {
      dst += rest % shape[k] * ds[k];
      src += rest % shape[k] * ss[k];
      rest /= shape[k];
    }
    const int64_t height = ti_min(rows - i, panel);
    /* where rows go back in the source, a tile is read from its last, and written there */
    const int is_back = ss[ndim - 2] < 0;
    const int64_t to = (is_back ? i + height - 1 : i) * ds[ndim - 2], from = is_back ? -(i + height - 1) : i;
    for (int64_t j = 0; j < columns; j += panel)
      FN(transpose_tile)(args[0] + (dst + to + j) * size, is_back ? -ds[ndim - 2] : ds[ndim - 2],
                         args[1] + (src + j * ss[ndim - 1] + from) * size, ss[ndim - 1], height,
                         ti_min(columns - j, panel), size);
  }
  return TI_OK;
}

TI_KERNEL(fill) {
  (void)scalars, (void)scratch;
  const fill_ints *const p = (const fill_ints *)ints;
  const int size = (int)p->element_bytes;
  FN(copy_run)(args[0] + begin * size, (const char *)&p->bits, 1, 0, end - begin, size);
  return TI_OK;
}

TI_KERNEL(arange) {
  (void)scratch;
  const arange_ints *const p = (const arange_ints *)ints;
  const arange_scalars *const q = (const arange_scalars *)scalars;
  if (p->is_long) for (int64_t i = begin; i < end; i++) ((int64_t *)args[0])[i] = p->first + p->step * i;
  else for (int64_t i = begin; i < end; i++) ((float *)args[0])[i] = (float)(q->first + q->step * (double)i);
  return TI_OK;
}

TI_KERNEL(linspace) {
  (void)scratch;
  const linspace_ints *const p = (const linspace_ints *)ints;
  const linspace_scalars *const q = (const linspace_scalars *)scalars;
  for (int64_t i = begin; i < end; i++) {
    const double value = i < p->steps / 2 ? q->first + q->step * (double)i : q->last - q->step * (double)(p->steps - i - 1);
    if (p->is_long) ((int64_t *)args[0])[i] = (int64_t)value;
    else ((float *)args[0])[i] = (float)value;
  }
  return TI_OK;
}

TI_KERNEL(triangle) {
  (void)scalars, (void)scratch;
  const triangle_ints *const p = (const triangle_ints *)ints;
  const int64_t size = p->element_bytes, columns = p->columns;
  for (int64_t row = begin; row < end; row++) {
    int64_t cut = row % p->rows + p->diagonal + (p->upper ? 0 : 1);
    cut = cut < 0 ? 0 : cut > columns ? columns : cut;
    char *dst = args[0] + row * columns * size;
    const char *src = args[1] + row * columns * size;
    const int64_t kept = p->upper ? cut : 0, length = p->upper ? columns - cut : cut;
    memset(dst, 0, (size_t)(columns * size));
    FN(copy_bytes)(dst + kept * size, src + kept * size, length * size);
  }
  return TI_OK;
}
#undef TI_COPY_LOOP
