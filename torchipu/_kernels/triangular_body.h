/* Systems of equations whose matrix is triangular; table/triangular.py says what the kernel takes. A panel of systems lies
 * with the unknowns in the order in which they are found, so that each depends on those before it alone.
 */
#include "table/triangular.h"

enum { FN(SOLVED_VECTORS) = TI_SOLVED_PANEL / VL, FN(SOLVED_ROWS) = 4 };

/* The matrix in the order of the panel: the steps from one equation, and from one unknown, to the next. */
typedef struct {
  const float *first;
  int64_t equation, unknown;
} FN(triangle);

TI_INLINE FN(triangle) FN(triangle_of)(const float *matrix, const solve_triangular_ints *p) {
  const int64_t way = p->is_upper == p->is_left ? -1 : 1;  /* whether the last unknown is found first */
  FN(triangle) t = {way < 0 ? matrix + p->size * p->size - 1 : matrix, way, way};
  if (p->is_left) t.equation *= p->size; else t.unknown *= p->size;
  return t;
}
/* Find the unknowns of a few equations, from first on, where those before are known. */
TI_INLINE void FN(solve_rows)(float *panel, FN(triangle) t, int64_t first, const int rows, const int is_unit) {
  VF left[FN(SOLVED_ROWS)][FN(SOLVED_VECTORS)];
  const float *equations = t.first + first * t.equation;
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < FN(SOLVED_VECTORS); v++) left[r][v] = FN(load)(panel + (first + r) * TI_SOLVED_PANEL + v * VL);
  for (int64_t k = 0; k < first; k++)
    for (int v = 0; v < FN(SOLVED_VECTORS); v++) {
      const VF known = FN(load)(panel + k * TI_SOLVED_PANEL + v * VL);
      for (int r = 0; r < rows; r++)
        left[r][v] = FN(fma)(FN(set)(-equations[r * t.equation + k * t.unknown]), known, left[r][v]);
    }
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < FN(SOLVED_VECTORS); v++) {
      for (int k = 0; k < r; k++)
        left[r][v] = FN(fma)(FN(set)(-equations[r * t.equation + (first + k) * t.unknown]), left[k][v], left[r][v]);
      if (!is_unit) left[r][v] /= FN(set)(equations[r * t.equation + (first + r) * t.unknown]);
      FN(store)(panel + (first + r) * TI_SOLVED_PANEL + v * VL, left[r][v]);
    }
}
TI_INLINE void FN(solve_panel)(float *panel, FN(triangle) t, int64_t size, const int is_unit) {
  int64_t i = 0;
  for (; i + FN(SOLVED_ROWS) <= size; i += FN(SOLVED_ROWS)) FN(solve_rows)(panel, t, i, FN(SOLVED_ROWS), is_unit);
  for (; i < size; i++) FN(solve_rows)(panel, t, i, 1, is_unit);
}
/* The place in the order of the panel of the unknown i, and back. */
TI_INLINE int64_t FN(found_at)(FN(triangle) t, int64_t size, int64_t i) {
  return t.equation < 0 ? size - 1 - i : i;
}

TI_KERNEL(solve_triangular) {
  const solve_triangular_ints *const p = (const solve_triangular_ints *)ints;
  const int64_t size = p->size, panels = (p->systems + TI_SOLVED_PANEL - 1) / TI_SOLVED_PANEL;
  float *const panel = (float *)scratch;
  for (int64_t item = begin; item < end; item++) {
    const int64_t batch = item / panels, first = item % panels * TI_SOLVED_PANEL;
    const long count = (long)ti_min(TI_SOLVED_PANEL, p->systems - first);
    const int64_t start = batch * size * p->systems + (p->is_left ? first : first * size);
    const float *given = (const float *)args[1] + start;
    float *out = (float *)args[0] + start;
    const FN(triangle) t = FN(triangle_of)((const float *)args[2] + batch * size * size, p);
    for (int64_t i = 0; i < size; i++) {
      float *const row = panel + FN(found_at)(t, size, i) * TI_SOLVED_PANEL;
      if (p->is_left)
        for (int v = 0; v < FN(SOLVED_VECTORS); v++)
          FN(store)(row + v * VL, count > v * VL ? FN(load_most)(given + i * p->systems + v * VL, count - v * VL) : FN(set)(0.f));
      else
        for (int j = 0; j < TI_SOLVED_PANEL; j++) row[j] = j < count ? given[j * size + i] : 0.f;
    }
    if (p->is_unit) FN(solve_panel)(panel, t, size, 1); else FN(solve_panel)(panel, t, size, 0);
    for (int64_t i = 0; i < size; i++) {
      const float *const row = panel + FN(found_at)(t, size, i) * TI_SOLVED_PANEL;
      if (p->is_left)
        for (int v = 0; v < FN(SOLVED_VECTORS) && v * VL < count; v++)
          FN(store_most)(out + i * p->systems + v * VL, FN(load)(row + v * VL), count - v * VL);
      else
        for (long j = 0; j < count; j++) out[j * size + i] = row[j];
    }
  }
  return TI_OK;
}
