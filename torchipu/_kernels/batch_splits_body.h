/* How the channels of a batch normalisation are cut; table/norm.py says what of. */
#include "table/norm.h"

/* How the channels of [n, c, l] are cut into splits of `rows` samples and `piece` positions. */
typedef struct { int64_t n, c, l, rows, piece, pieces, splits; } FN(geometry);

TI_INLINE FN(geometry) FN(geometry_of)(const batch_ints *p) {
  FN(geometry) g = {p->samples, p->channels, p->positions, p->rows, p->piece, 0, 0};
  g.pieces = ti_ceil(g.l, g.piece);
  g.splits = ti_ceil(g.n, g.rows) * g.pieces;
  return g;
}
