/* What becomes of sums that lie in blocks of channels: a bias or a normalisation, an addend, a gate, an activation; with
 * half results each of these but the gate is rounded. */
#include "activation_body.h"
#include "blocked_rounding_body.h"

typedef struct {
  const float *first;          /* added to the sums before they are rounded; NULL for nothing */
  const float *added, *gate;   /* lie as the results do; NULL for none */
  const float *scale, *shift;  /* of each result of the blocks */
  int is_affine, activation;
  FN(blocked_rounding) rounding;
} FN(blocked_ending);

/* Whether an ending takes so few instructions that sums are ended in the registers that hold them. */
static inline int FN(is_short)(const FN(blocked_ending) *e) { return e->activation <= TI_ACTIVATION_HARDSIGMOID && !e->rounding.is_any; }

/* Ends `count` vectors, each `place(p)` floats on in what is read, and lets `round(op)` round after each op but the gate,
 * which leaves halves as they are; `begin`, `scale` and `shift` are those of their channels. */
#undef TI_EACH
#undef TI_END_ROUNDED
#define TI_EACH(count) _Pragma("GCC unroll 4") for (int p = 0; p < count; p++)
#define TI_END_ROUNDED(begins, begin, scale, shift, act, count, place, round) \
  do { \
    if (begins) TI_EACH(count) v[p] += begin; \
    round(0); \
    if (e->is_affine) { \
      TI_EACH(count) v[p] = FN(fma)(v[p], scale, shift); \
      round(1); \
    } \
    if (e->added) { \
      TI_EACH(count) v[p] += FN(load)(e->added + place(p)); \
      round(2); \
    } \
    if (e->gate) TI_EACH(count) v[p] = FN(gated)(v[p], FN(load)(e->gate + place(p))); \
    if (act != TI_ACTIVATION_NONE) { \
      TI_EACH(count) v[p] = FN(activated)(act, v[p]); \
      round(3); \
    } \
  } while (0)

/* Ends `count` pixels of one block, whose place in the results `at` tells, NULL of neighbours; ending_tiles_body.h defines it. */
extern TI_SHARED void FN(end_block)(const FN(blocked_ending) *e, float *y, const int32_t *at, int64_t count, int64_t block);

/* Goes on to results that lie `floats` further. */
TI_INLINE void FN(move_ending)(FN(blocked_ending) *e, ptrdiff_t floats) {
  if (e->added) e->added += floats;
  if (e->gate) e->gate += floats;
}

/* How many operands an ending reads. */
static inline int FN(ending_operands)(int64_t flags) {
  const int64_t once = TI_BLOCKED_ENDING_HAS_FIRST | TI_BLOCKED_ENDING_HAS_AFFINE | TI_BLOCKED_ENDING_HAS_ADDEND | TI_BLOCKED_ENDING_HAS_GATE;
  const int64_t random = ((1 << TI_ROUNDED_OPS) - 1) * TI_BLOCKED_ENDING_IS_RANDOM;
  return __builtin_popcountll((unsigned long long)(flags & (once | random)));
}

/* Reads scales and shifts, `lanes` of each, of which those from `first` on count here, what is added, and the gate. The
 * results of all images have so many channels and pixels. */
static FN(blocked_ending) FN(begin_ending)(char *const *args, int64_t flags, int64_t activation, int64_t lanes, int64_t first,
                                           const void *results, int64_t channels, int64_t pixels) {
  FN(blocked_ending) e = {.is_affine = flags & TI_BLOCKED_ENDING_HAS_AFFINE ? 1 : 0, .activation = (int)activation};
  if (flags & TI_BLOCKED_ENDING_HAS_FIRST) e.first = (const float *)*args++ + lanes + first;
  if (e.is_affine) {
    e.scale = (const float *)*args++ + first;
    e.shift = e.scale + lanes;
  }
  if (flags & TI_BLOCKED_ENDING_HAS_ADDEND) e.added = (const float *)*args++;
  if (flags & TI_BLOCKED_ENDING_HAS_GATE) e.gate = (const float *)*args++;
  e.rounding = FN(begin_rounding)(args, flags, (const float *)results, channels, pixels);
  return e;
}
