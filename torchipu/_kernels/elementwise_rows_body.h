/* Chains of one instruction on two operands that lie in rows of one length, of which one value may be repeated along a
 * row, and rows may be repeated: outer products, one-hot rows and masks. Nothing goes through registers in memory, which
 * for short rows takes as long as all else. Included by elementwise_body.h.
 */
/* d[rows][n] = a op b, where neighbouring rows of an operand are so many elements apart; strides are 0 or 1, not both 0. */
typedef void (*FN(row_function))(char *d, const char *a, int64_t a_apart, int64_t a_stride, const char *b, int64_t b_apart,
                                 int64_t b_stride, int64_t rows, int64_t n);
#define TI_ROW_ARGS char *d, const char *a, int64_t a_apart, int64_t a_stride, const char *b, int64_t b_apart, int64_t b_stride, int64_t rows, int64_t n

/* ------------------------------------------------------------------ arithmetic of floats */
#define TI_ROW_OPS(X) \
  X(add, A + B) X(sub, A - B) X(mul, A *B) X(div, A / B) X(max, FN(maximum)(A, B)) X(min, FN(minimum)(A, B)) \
  X(prelu, FN(sel)(FN(lt)(ZERO, A), A, A *B))
/* Each copy knows which operand is one value for a row. */
#define TI_ROWS_AS(expression, a_repeats, b_repeats) \
  for (int64_t r = 0; r < rows; r++, to += n, one += a_apart, other += b_apart) { \
    const VF one_a = FN(set)(*one), one_b = FN(set)(*other); (void)one_a, (void)one_b; \
    int64_t i = 0; \
    for (; i + VL <= n; i += VL) { \
      const VF A = a_repeats ? one_a : FN(load)(one + i), B = b_repeats ? one_b : FN(load)(other + i); \
      FN(store)(to + i, expression); \
    } \
    if (i < n) { \
      const VF A = a_repeats ? one_a : FN(load_part)(one + i, n - i), B = b_repeats ? one_b : FN(load_part)(other + i, n - i); \
      FN(store_part)(to + i, expression, n - i); \
    } \
  }
#define X(name, expression) \
  static void FN(name##_rows)(TI_ROW_ARGS) { \
    float *to = (float *)d; \
    const float *one = (const float *)a, *other = (const float *)b; \
    if (!a_stride) TI_ROWS_AS(expression, 1, 0) \
    else if (!b_stride) TI_ROWS_AS(expression, 0, 1) \
    else TI_ROWS_AS(expression, 0, 0) \
  }
TI_ROW_OPS(X)
#undef X
#undef TI_ROWS_AS

/* ------------------------------------------------------------------ comparisons, and what they are converted to */
typedef uint8_t FN(row_bools) __attribute__((vector_size(VL), aligned(1), may_alias));
typedef int64_t FN(row_longs) __attribute__((vector_size(VL * 8), aligned(8), may_alias));
typedef int32_t FN(row_words) __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef float FN(row_floats) __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t FN(row_half) __attribute__((vector_size(VL * 2), aligned(4), may_alias));
#define TI_ROW_COMPARISONS(X) X(eq, ==) X(ne, !=) X(lt, <) X(le, <=)
/* Of T, LANES at a time in V, whose comparison is a vector M of 0 and -1; results O, as many in a vector R */
#define TI_COMPARED(name, sign, of, T, V, M, to, O, R, made, single) \
  static void FN(name##_##of##_rows_##to)(TI_ROW_ARGS) { \
    enum { LANES = sizeof(V) / sizeof(T) }; \
    O *out = (O *)d; \
    const T *one = (const T *)a, *other = (const T *)b; \
    for (int64_t r = 0; r < rows; r++, out += n, one += a_apart, other += b_apart) { \
      V line_a, line_b; \
      for (int j = 0; j < LANES; j++) ((T *)&line_a)[j] = *one, ((T *)&line_b)[j] = *other; \
      int64_t i = 0; \
      for (; i + LANES <= n; i += LANES) { \
        const V A = a_stride ? *(const V *)(one + i) : line_a, B = b_stride ? *(const V *)(other + i) : line_b; \
        const M mask = (M)(A sign B); \
        *(R *)(out + i) = (made); \
      } \
      for (; i < n; i++) { const int is_so = one[i * a_stride] sign other[i * b_stride]; out[i] = (O)(single); } \
    } \
  }
#define X(name, sign) \
  TI_COMPARED(name, sign, l, int64_t, L, L, l, int64_t, L, mask & 1, is_so) \
  TI_COMPARED(name, sign, l, int64_t, L, L, b, uint8_t, B8, __builtin_convertvector(mask & 1, B8), is_so) \
  TI_COMPARED(name, sign, l, int64_t, L, L, f, int32_t, FN(row_half), __builtin_convertvector(mask, FN(row_half)) & 0x3f800000, is_so ? 0x3f800000 : 0) \
  TI_COMPARED(name, sign, f, float, FN(row_floats), FN(row_words), l, int64_t, FN(row_longs), __builtin_convertvector(mask & 1, FN(row_longs)), is_so) \
  TI_COMPARED(name, sign, f, float, FN(row_floats), FN(row_words), b, uint8_t, FN(row_bools), __builtin_convertvector(mask & 1, FN(row_bools)), is_so) \
  TI_COMPARED(name, sign, f, float, FN(row_floats), FN(row_words), f, int32_t, FN(row_words), mask & 0x3f800000, is_so ? 0x3f800000 : 0)
TI_ROW_COMPARISONS(X)
#undef X
#undef TI_COMPARED
#undef TI_ROW_ARGS

/* ------------------------------------------------------------------ which chains */
typedef struct {
  const char *base;
  int64_t stride;               /* within rows: 0 or 1 */
  int num_dims;                 /* of the rows; -1 where all lie one behind the other */
  const int64_t *shape, *strides;
  int64_t index[TI_MAX_DIMS], from;
} FN(in_rows);
typedef struct {
  FN(in_rows) of[2];
  FN(row_function) function;    /* NULL for a chain that is none on rows */
  int64_t length, bytes, result_bytes;
  char *result;
} FN(on_rows);
static int FN(lies_in_rows)(FN(on_rows) *on, int which, const chain_slot *slots, const chain_instruction *program, int num_loads,
                            char *const *args, int64_t operand, int dtype) {
  FN(in_rows) *const rows = on->of + which;
  const chain_slot *slot = slots + operand;
  if (slot->kind == TI_SLOT_KIND_DIRECT && slot->dtype == dtype) {
    rows->base = args[slot->argument], rows->stride = 1, rows->num_dims = -1;
    return 1;
  }
  for (int i = 0; i < num_loads; i++) {
    if (program[i].result != operand) continue;
    slot = slots + program[i].a;
    const int last = (int)slot->num_dims - 1;
    if (slot->dtype != dtype || last < 1 || slot->strides[last] < 0 || slot->strides[last] > 1) return 0;
    if (on->length && on->length != slot->shape[last]) return 0;
    on->length = slot->shape[last];
    rows->base = args[slot->argument], rows->stride = slot->strides[last], rows->num_dims = last;
    rows->shape = slot->shape, rows->strides = slot->strides;
    return 1;
  }
  return 0;
}
/* What a comparison is converted to by the instructions behind it, each of which takes what the one before it gives. */
static char FN(converted_to)(const chain_instruction *q, const chain_instruction *end) {
  char kind = 'b';
  for (; q + 1 < end; q++) {
    if (q[1].a != q->result) return 0;
    if (q[1].operation == TI_OP_l_from_b && kind == 'b') kind = 'l';
    else if (q[1].operation == TI_OP_f_from_b && kind == 'b') kind = 'f';
    else if (q[1].operation == TI_OP_f_from_l && kind == 'l') kind = 'f';
    else return 0;
  }
  return kind;
}
TI_INLINE FN(row_function) FN(one_of)(char kind, FN(row_function) b, FN(row_function) l, FN(row_function) f) {
  return kind == 'b' ? b : kind == 'l' ? l : kind == 'f' ? f : NULL;
}
static void FN(find_rows)(const chain_ints *p, char *const *args, FN(on_rows) *on) {
  const chain_slot *const slots = (const chain_slot *)p->program;
  const chain_instruction *const program = (const chain_instruction *)(slots + p->num_slots), *q = program;
  const chain_instruction *const end = program + p->num_instructions;
  on->function = NULL, on->length = 0;
  if (p->num_instructions < 2 || p->num_instructions > 5) return;
  while (q + 1 < end && q->operation == TI_OP_x_load && slots[q->result].kind == TI_SLOT_KIND_REGISTER) q++;
  const int num_loads = (int)(q - program);
  int dtype = TI_FLOAT;
  char kind = end - q == 1 ? 'f' : 0;
  switch (q->operation) {
#define X(name, expression) case TI_OP_f_##name: on->function = kind ? FN(name##_rows) : NULL; break;
    TI_ROW_OPS(X)
#undef X
#define X(name, sign) \
    case TI_OP_b_##name##_l: \
      dtype = TI_LONG, kind = FN(converted_to)(q, end); \
      on->function = FN(one_of)(kind, FN(name##_l_rows_b), FN(name##_l_rows_l), FN(name##_l_rows_f)); \
      break; \
    case TI_OP_b_##name##_f: \
      kind = FN(converted_to)(q, end); \
      on->function = FN(one_of)(kind, FN(name##_f_rows_b), FN(name##_f_rows_l), FN(name##_f_rows_f)); \
      break;
    TI_ROW_COMPARISONS(X)
#undef X
    default: return;
  }
  const chain_slot *const result = slots + end[-1].result;
  on->bytes = FN(host_bytes)(dtype), on->result_bytes = kind == 'b' ? 1 : kind == 'l' ? 8 : 4;
  if (q->a == q->b || result->kind != TI_SLOT_KIND_DIRECT || !FN(lies_in_rows)(on, 0, slots, program, num_loads, args, q->a, dtype) ||
      !FN(lies_in_rows)(on, 1, slots, program, num_loads, args, q->b, dtype) || !on->length || !(on->of[0].stride | on->of[1].stride)) {
    on->function = NULL;
    return;
  }
  on->result = args[result->argument];
}
/* Goes to a row, and returns how many from it on are at one distance. */
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
static void FN(run_rows)(FN(on_rows) *on, int64_t start, int64_t stop) {
  FN(in_rows) *const one = on->of, *const other = on->of + 1;
  while (start < stop) {
    const int64_t length = on->length, row = start / length, column = start % length;
    int64_t a_apart, b_apart;
    int64_t rows = ti_min(FN(go_to_row)(one, row, length, &a_apart), FN(go_to_row)(other, row, length, &b_apart));
    const int64_t n = ti_min(length - column, stop - start);
    rows = n < length ? 1 : ti_min(rows, (stop - start) / length);  /* of one the part that is left */
    on->function(on->result + start * on->result_bytes, one->base + (one->from + column * one->stride) * on->bytes, a_apart, one->stride,
                 other->base + (other->from + column * other->stride) * on->bytes, b_apart, other->stride, rows, n);
    start += rows * n;
  }
}
#undef TI_ROW_OPS
#undef TI_ROW_COMPARISONS
