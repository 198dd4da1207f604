/* Tiles of four by four pixels of a plane, and the sums that Winograd's F(2x2, 3x3) makes of them. */
enum { FN(POINTS) = 16, FN(APART) = 16 };  /* floats between the sums of two points: else all sixteen fall on one set of the cache */

/* Four sums of a row or a column of four: those of the input. */
TI_INLINE void FN(transform4)(VF a, VF b, VF c, VF d, VF *y, int64_t step) {
  y[0] = a - c;
  y[step] = b + c;
  y[2 * step] = c - b;
  y[3 * step] = b - d;
}

TI_INLINE void FN(transform_tile)(const VF *d, float *y, int64_t point) {
  VF t[16], u[16];
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) FN(transform4)(d[j], d[4 + j], d[8 + j], d[12 + j], t + j, 4);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) FN(transform4)(t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3], u + 4 * i, 1);
#pragma GCC unroll 16
  for (int k = 0; k < 16; k++) FN(store)(y + k * point, u[k]);
}

/* Where a tile lies: its image, and among the tiles of that. */
typedef struct { int64_t n, row, column; } FN(tile_place);

static inline FN(tile_place) FN(place_of)(int64_t tile, int64_t down, int64_t across) {
  return (FN(tile_place)){tile / (down * across), tile / across % down, tile % across};
}

TI_INLINE void FN(next_place)(int64_t down, int64_t across, FN(tile_place) *at) {
  if (++at->column < across) return;
  at->column = 0;
  if (++at->row < down) return;
  at->row = 0;
  at->n++;
}

/* Reads four by four pixels of a plane; zeros stand around it. */
TI_INLINE void FN(read_tile)(const float *plane, const blocked_window *s, int64_t top, int64_t left, VF *d) {
  if (top >= 0 && left >= 0 && top + 4 <= s->h && left + 4 <= s->w) {
    const float *const from = plane + (top * s->w + left) * VL;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) d[i] = FN(load)(from + (i / 4 * s->w + i % 4) * VL);
    return;
  }
  for (int i = 0; i < 16; i++) {
    const int64_t row = top + i / 4, column = left + i % 4;
    const int is_in = row >= 0 && row < s->h && column >= 0 && column < s->w;
    d[i] = is_in ? FN(load)(plane + (row * s->w + column) * VL) : FN(set)(0.f);
  }
}
