/* Chains of one instruction on two operands that lie in rows of one length, of which one value may be repeated along a
 * row, and rows may be repeated: outer products. Nothing goes through registers in memory, which for short rows takes as
 * long as all else. Included by elementwise_body.h.
 */
typedef struct {
  const float *base;
  int64_t stride;               /* within rows: 0 or 1 */
  int num_dims;                 /* of the rows */
  const int64_t *shape, *strides;
  int64_t index[TI_MAX_DIMS], from;
} FN(in_rows);
#define TI_ROW_OPS(X) X(add, A + B) X(sub, A - B) X(mul, A * B) X(div, A / B) X(max, FN(maximum)(A, B)) X(min, FN(minimum)(A, B))
enum {
  FN(row_none),
#define X(name, expression) FN(row_##name),
  TI_ROW_OPS(X)
#undef X
};
TI_INLINE VF FN(row_op)(VF A, VF B, const int op) {
  switch (op) {
#define X(name, expression) case FN(row_##name): return expression;
    TI_ROW_OPS(X)
#undef X
    default: return A;
  }
}
/* d[rows][n] = a op b, where neighbouring rows of an operand are so far apart */
TI_INLINE void FN(rows_as)(float *d, const float *a, int64_t a_apart, const float *b, int64_t b_apart, int64_t rows, int64_t n,
                           const int a_repeats, const int b_repeats, const int op) {
  for (int64_t r = 0; r < rows; r++, d += n, a += a_apart, b += b_apart) {
    const VF one_a = FN(set)(*a), one_b = FN(set)(*b);
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
      FN(store)(d + i, FN(row_op)(a_repeats ? one_a : FN(load)(a + i), b_repeats ? one_b : FN(load)(b + i), op));
    if (i < n)
      FN(store_part)(d + i, FN(row_op)(a_repeats ? one_a : FN(load_part)(a + i, n - i),
                                       b_repeats ? one_b : FN(load_part)(b + i, n - i), op), n - i);
  }
}
static void FN(rows)(int op, float *d, const float *a, int64_t a_apart, int64_t a_stride, const float *b, int64_t b_apart,
                     int64_t b_stride, int64_t rows, int64_t n) {
#define X(name, expression) \
  case FN(row_##name): \
    if (!a_stride) FN(rows_as)(d, a, a_apart, b, b_apart, rows, n, 1, 0, FN(row_##name)); \
    else if (!b_stride) FN(rows_as)(d, a, a_apart, b, b_apart, rows, n, 0, 1, FN(row_##name)); \
    else FN(rows_as)(d, a, a_apart, b, b_apart, rows, n, 0, 0, FN(row_##name)); \
    break;
  switch (op) { TI_ROW_OPS(X) }
#undef X
}
/* What reads an operand in rows; 0 where it does not lie so. */
static int FN(lies_in_rows)(FN(in_rows) *rows, const chain_slot *slots, const chain_instruction *program, int num_loads, char *const *args,
                            int64_t operand, int64_t *length) {
  static const int64_t one = 1, none = 0;
  const chain_slot *slot = slots + operand;
  if (slot->kind == TI_SLOT_KIND_DIRECT && slot->dtype == TI_FLOAT) {
    rows->base = (const float *)args[slot->argument], rows->stride = 1, rows->num_dims = -1;
    rows->shape = &one, rows->strides = &none;
    return 1;
  }
  for (int i = 0; i < num_loads; i++) {
    if (program[i].result != operand) continue;
    slot = slots + program[i].a;
    const int last = (int)slot->num_dims - 1;
    if (slot->dtype != TI_FLOAT || last < 1 || slot->strides[last] < 0 || slot->strides[last] > 1) return 0;
    if (*length && *length != slot->shape[last]) return 0;
    *length = slot->shape[last];
    rows->base = (const float *)args[slot->argument], rows->stride = slot->strides[last], rows->num_dims = last;
    rows->shape = slot->shape, rows->strides = slot->strides;
    return 1;
  }
  return 0;
}
/* The operation of a chain that is one on rows, and its operands; FN(row_none) for others. */
static int FN(op_on_rows)(const chain_ints *p, char *const *args, FN(in_rows) of[2], int64_t *length, float **result) {
  const chain_slot *const slots = (const chain_slot *)p->program;
  const chain_instruction *const program = (const chain_instruction *)(slots + p->num_slots), *q = program;
  int num_loads = 0, op = FN(row_none);
  if (p->num_instructions < 2 || p->num_instructions > 3) return op;
  for (; num_loads + 1 < p->num_instructions; num_loads++, q++)
    if (q->operation != TI_OP_x_load || slots[q->result].kind != TI_SLOT_KIND_REGISTER) return op;
  switch (q->operation) {
#define X(name, expression) case TI_OP_f_##name: op = FN(row_##name); break;
    TI_ROW_OPS(X)
#undef X
    default: return op;
  }
  *length = 0;
  if (q->a == q->b || slots[q->result].kind != TI_SLOT_KIND_DIRECT) return FN(row_none);
  if (!FN(lies_in_rows)(of, slots, program, num_loads, args, q->a, length)) return FN(row_none);
  if (!FN(lies_in_rows)(of + 1, slots, program, num_loads, args, q->b, length)) return FN(row_none);
  /* the length of one that lies row-major is that of the other; whole stretches are read where they lie anyway */
  if (!*length || *length >= TI_LEAST_STRETCH || !(of[0].stride | of[1].stride)) return FN(row_none);
  *result = (float *)args[slots[q->result].argument];
  return op;
}
/* Goes to a row, and returns how many follow it at one distance. */
TI_INLINE int64_t FN(go_to_row)(FN(in_rows) *in, int64_t row, int64_t length, int64_t *apart) {
  if (in->num_dims < 0) {
    in->from = row * length;
    *apart = length;
    return INT64_MAX;
  }
  in->from = 0;
  for (int i = in->num_dims - 1; i >= 0; i--) {
    in->index[i] = i ? row % in->shape[i] : row;
    if (i) row /= in->shape[i];
    in->from += in->index[i] * in->strides[i];
  }
  *apart = in->strides[in->num_dims - 1];
  return in->shape[in->num_dims - 1] - in->index[in->num_dims - 1];
}
static void FN(run_rows)(int op, FN(in_rows) of[2], float *d, int64_t length, int64_t start, int64_t stop) {
  while (start < stop) {
    const int64_t row = start / length, column = start % length;
    int64_t a_apart, b_apart;
    int64_t rows = ti_min(FN(go_to_row)(of, row, length, &a_apart), FN(go_to_row)(of + 1, row, length, &b_apart));
    int64_t n = ti_min(length - column, stop - start);
    if (n < length) rows = 1;  /* a part of one */
    else rows = ti_min(rows, (stop - start) / length);
    FN(rows)(op, d + start, of[0].base + of[0].from + column * of[0].stride, a_apart, of[0].stride,
             of[1].base + of[1].from + column * of[1].stride, b_apart, of[1].stride, rows, n);
    start += rows * n;
  }
}
#undef TI_ROW_OPS
