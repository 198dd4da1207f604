/* Operands of chains that are not read in place come to a register, and go back, run by run; included by elementwise_body.h. */
#include "turns_body.h"
#define TI_LOAD_LOOP(type, expression) \
  if (stride == 0) { type x = *(const type *)src; for (long i = 0; i < n; i++) out[i] = (expression); } \
  else if (stride == 1) for (long i = 0; i < n; i++) { type x = ((const type *)src)[i]; out[i] = (expression); } \
  else if (stride == 2 && sizeof(type) == 4) for (long i = 0; i < n; i++) { type x = ((const type *)src)[2 * i]; out[i] = (expression); } \
  else for (long i = 0; i < n; i++) { type x = ((const type *)src)[i * stride]; out[i] = (expression); }
static void FN(load_run)(char *d, const char *src, int dtype, int64_t stride, long n) {
  if (dtype == TI_FLOAT) {
    float *out = (float *)d;
    if (stride == 1 && n >= 64) { memcpy(d, src, (size_t)n * 4); return; }
    TI_LOAD_LOOP(float, x)
  } else if (dtype == TI_HALF) {
    float *out = (float *)d;
    long i = 0;
    if (stride == 0) {  /* of a row's mean or norm */
      const VF one = FN(set)(_cvtsh_ss(*(const uint16_t *)src));
      for (; i < n; i += VL) FN(store_most)(out + i, one, n - i);
    }
    if (stride == 1) {
      for (; i + 32 <= n; i += 32) {
        /* what the next block reads: operands take turns, and the processor does not see a stream in any of them */
        _mm_prefetch(src + 2 * i + 2048, _MM_HINT_T0);
        for (long j = i; j < i + 32; j += VL) FN(store)(out + j, FN(from_half)((const uint16_t *)src + j));
      }
      for (; i + VL <= n; i += VL) FN(store)(out + i, FN(from_half)((const uint16_t *)src + i));
    }
    for (; i < n; i++) out[i] = _cvtsh_ss(((const uint16_t *)src)[i * stride]);
  } else if (dtype == TI_BFLOAT) {
    uint32_t *out = (uint32_t *)d;
    TI_LOAD_LOOP(uint16_t, (uint32_t)x << 16)
  } else if (dtype == TI_BOOL) {
    uint8_t *out = (uint8_t *)d;
    TI_LOAD_LOOP(uint8_t, x)
  } else if (dtype == TI_HALFWORD) {
    uint16_t *out = (uint16_t *)d;
    TI_LOAD_LOOP(uint16_t, x)
  } else {
    int64_t *out = (int64_t *)d;
    switch (dtype) {
      case TI_LONG: TI_LOAD_LOOP(int64_t, x) break;
      case TI_INT: TI_LOAD_LOOP(int32_t, x) break;
      case TI_SHORT: TI_LOAD_LOOP(int16_t, x) break;
      case TI_CHAR: TI_LOAD_LOOP(int8_t, x) break;
      default: TI_LOAD_LOOP(uint8_t, x) break;
    }
  }
}
#define TI_STORE_LOOP(type) \
  if (stride == 1) for (long i = 0; i < n; i++) ((type *)dst)[i] = (type)in[i]; \
  else for (long i = 0; i < n; i++) ((type *)dst)[i * stride] = (type)in[i];
/* The upper half of a float, rounded to nearest even; a NaN stays one. */
TI_INLINE uint16_t FN(to_bfloat)(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}
/* Every other element of a run, as of parts of complex numbers; what lies between stays as it is. */
static void FN(store_every_other)(float *dst, const float *in, long n) {
  long i = 0;
#if VL == 16
  const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (; i + VL <= n; i += VL) {
    const __m512 v = (__m512)FN(load)(in + i);
    _mm512_mask_storeu_ps(dst + 2 * i, (__mmask16)0x5555, _mm512_permutexvar_ps(low, v));
    _mm512_mask_storeu_ps(dst + 2 * i + VL, (__mmask16)0x5555, _mm512_permutexvar_ps(high, v));
  }
#endif
  for (; i < n; i++) dst[2 * i] = in[i];
}
static void FN(store_run)(char *dst, const char *s, int dtype, int64_t stride, long n) {
  if (dtype == TI_FLOAT) {
    const float *in = (const float *)s;
    if (stride == 2) { FN(store_every_other)((float *)dst, in, n); return; }
    TI_STORE_LOOP(float)
  } else if (dtype == TI_HALF) {
    const float *in = (const float *)s;
    long i = 0;
    if (stride == 1) for (; i + VL <= n; i += VL) FN(to_half)((uint16_t *)dst + i, FN(load)(in + i));
    for (; i < n; i++) ((uint16_t *)dst)[i * stride] = _cvtss_sh(in[i], 0);
  } else if (dtype == TI_BFLOAT) {
    const uint32_t *in = (const uint32_t *)s;
    if (stride == 1) for (long i = 0; i < n; i++) ((uint16_t *)dst)[i] = FN(to_bfloat)(in[i]);
    else for (long i = 0; i < n; i++) ((uint16_t *)dst)[i * stride] = FN(to_bfloat)(in[i]);
  } else if (dtype == TI_BOOL) {
    const uint8_t *in = (const uint8_t *)s;
    TI_STORE_LOOP(uint8_t)
  } else if (dtype == TI_HALFWORD) {
    const uint16_t *in = (const uint16_t *)s;
    TI_STORE_LOOP(uint16_t)
  } else {
    const int64_t *in = (const int64_t *)s;
    switch (dtype) {
      case TI_LONG: TI_STORE_LOOP(int64_t) break;
      case TI_INT: TI_STORE_LOOP(int32_t) break;
      case TI_SHORT: TI_STORE_LOOP(int16_t) break;
      case TI_CHAR: TI_STORE_LOOP(int8_t) break;
      default: TI_STORE_LOOP(uint8_t) break;
    }
  }
}
static inline int FN(host_bytes)(int dtype) {
  static const int bytes[] = {4, 2, 1, 8, 4, 2, 1, 1, 2, 2};
  return bytes[dtype];
}
static inline int FN(register_bytes)(int dtype) { return dtype <= TI_HALF || dtype == TI_BFLOAT ? 4 : dtype == TI_BOOL ? 1 : dtype == TI_HALFWORD ? 2 : 8; }

#ifndef TORCHIPU_SHORT_RUNS
#define TORCHIPU_SHORT_RUNS
enum { TI_SHORT_RUN = 512, TI_SHORT_RUN_OF_OTHERS = 24, TI_LEAST_STRETCH = 256 };
#endif
/* Loads short runs, all of the same length: to go to one by itself takes longer than what it holds. */
TI_INLINE void FN(load_short_as)(float *d, const float *s, int64_t apart, int64_t stride, long runs, const int64_t length) {
  for (long r = 0; r < runs; r++, d += length, s += apart)
    for (int64_t i = 0; i < length; i++) d[i] = s[i * stride];
}
static void FN(load_short)(float *d, const float *s, int64_t apart, int64_t stride, long runs, int64_t length) {
  switch (length) {
    case 1: FN(load_short_as)(d, s, apart, 0, runs, 1); break;
    case 2: FN(load_short_as)(d, s, apart, stride, runs, 2); break;
    case 3: FN(load_short_as)(d, s, apart, stride, runs, 3); break;
    case 4: FN(load_short_as)(d, s, apart, stride, runs, 4); break;
    default:
      if (stride != 0 && stride != 1) { FN(load_short_as)(d, s, apart, stride, runs, length); return; }
      if (length < VL) {
        for (long r = 0; r < runs; r++, d += length, s += apart)
          FN(store_part)(d, stride ? FN(load_part)(s, length) : FN(set)(*s), length);
        return;
      }
      for (long r = 0; r < runs; r++, d += length, s += apart) {
        /* the last vector ends where the run does */
        for (int64_t i = 0; i < length; i += VL) {
          const int64_t at = ti_min(i, length - VL);
          FN(store)(d + at, stride ? FN(load)(s + at) : FN(set)(*s));
        }
      }
  }
}
/* The same of another type; what is written with `x` is what its elements are in a register. */
#define TI_SHORT_RUNS_OF(type, expression, length) \
  for (long r = 0; r < runs; r++, out += (length), at += apart) { \
    if (stride == 0) { const type x = *at; for (int64_t i = 0; i < (length); i++) out[i] = (expression); } \
    else for (int64_t i = 0; i < (length); i++) { const type x = at[i * stride]; out[i] = (expression); } \
  } \
  break;
#define TI_LOAD_SHORT(register_type, type, expression) { \
  register_type *out = (register_type *)d; \
  const type *at = (const type *)s; \
  switch (length) { \
    case 1: TI_SHORT_RUNS_OF(type, expression, 1) \
    case 2: TI_SHORT_RUNS_OF(type, expression, 2) \
    case 3: TI_SHORT_RUNS_OF(type, expression, 3) \
    case 4: TI_SHORT_RUNS_OF(type, expression, 4) \
    default: TI_SHORT_RUNS_OF(type, expression, length) \
  } \
  break; }
static void FN(load_short_runs)(char *d, const char *s, int dtype, int64_t apart, int64_t stride, long runs, int64_t length) {
  switch (dtype) {
    case TI_FLOAT: FN(load_short)((float *)d, (const float *)s, apart, stride, runs, length); break;
    case TI_HALF: TI_LOAD_SHORT(float, uint16_t, _cvtsh_ss(x))
    case TI_BFLOAT: TI_LOAD_SHORT(uint32_t, uint16_t, (uint32_t)x << 16)
    case TI_BOOL: TI_LOAD_SHORT(uint8_t, uint8_t, x)
    case TI_HALFWORD: TI_LOAD_SHORT(uint16_t, uint16_t, x)
    case TI_LONG: TI_LOAD_SHORT(int64_t, int64_t, x)
    case TI_INT: TI_LOAD_SHORT(int64_t, int32_t, x)
    case TI_SHORT: TI_LOAD_SHORT(int64_t, int16_t, x)
    case TI_CHAR: TI_LOAD_SHORT(int64_t, int8_t, x)
    default: TI_LOAD_SHORT(int64_t, uint8_t, x)
  }
}
/* Whether elements of an operand are in a register what they are in memory. */
TI_INLINE int FN(is_as_stored)(int dtype) { return dtype != TI_HALF && FN(host_bytes)(dtype) == FN(register_bytes)(dtype); }
/* How far a walk through an operand is: the number of the element, and its place. Pieces follow one another, and to divide
 * for each takes longer than what a short one holds. */
typedef struct {
  int64_t start, column, row, index[TI_MAX_DIMS];  /* start: -1 before the first */
} FN(walked);
/* How many elements from number start on lie side by side, or are one and the same; *from is where. */
TI_INLINE int64_t FN(stretch)(const chain_slot *slot, FN(walked) *at, int64_t start, int64_t *from) {
  const int last = (int)slot->num_dims - 1;
  const int64_t length = slot->shape[last], ahead = start - at->start;
  if (at->start >= 0 && ahead >= 0 && ahead <= 8 * length) {
    for (at->column += ahead; at->column >= length; at->column -= length)
      for (int i = last - 1; i >= 0; i--) {
        at->row += slot->strides[i];
        if (++at->index[i] < slot->shape[i]) break;
        at->row -= slot->shape[i] * slot->strides[i];
        at->index[i] = 0;
      }
  } else {
    int64_t rest = start / length;
    at->column = start % length;
    at->row = 0;
    for (int i = last - 1; i >= 0; i--) {
      at->index[i] = rest % slot->shape[i];
      at->row += at->index[i] * slot->strides[i];
      rest /= slot->shape[i];
    }
  }
  at->start = start;
  *from = at->row + at->column * slot->strides[last];
  return length - at->column;
}
/* Whether each block of so many elements holds the same of an operand. */
TI_INLINE int FN(repeats_in)(const chain_slot *slot, int64_t block) {
  int64_t period = 1;
  for (int i = 1; i < slot->num_dims; i++) period *= slot->shape[i];
  return slot->strides[0] == 0 && period <= block && block % period == 0;
}
/* Whether an operand has stretches that instructions may read where they lie. */
TI_INLINE int FN(has_stretches)(const chain_slot *slot) {
  const int last = (int)slot->num_dims - 1, dtype = (int)slot->dtype;
  if (last < 0 || slot->shape[last] < TI_LEAST_STRETCH) return 0;
  return slot->strides[last] == 0 ? dtype != TI_BOOL : slot->strides[last] == 1 && FN(is_as_stored)(dtype);
}
/* Moves elements [start, start + n) of a strided operand to a register (or back), run by run. */
static void FN(walk)(char *reg, char *base, const chain_slot *slot, int64_t start, long n, int storing) {
  const int dtype = (int)slot->dtype, ndim = (int)slot->num_dims, size = FN(host_bytes)(dtype), reg_size = FN(register_bytes)(dtype);
  const int64_t *shape = slot->shape, *strides = slot->strides;
  int64_t index[TI_MAX_DIMS], rest = start, offset = 0, period = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    index[i] = rest % shape[i];
    rest /= shape[i];
    offset += index[i] * strides[i];
    if (i > 0) period *= shape[i];
  }
  /* what repeats is loaded once and doubled in the register */
  long todo = !storing && ndim > 1 && strides[0] == 0 && period < n ? (long)period : n, done = 0;
  const int last = ndim - 1, short_run = dtype == TI_FLOAT ? TI_SHORT_RUN : TI_SHORT_RUN_OF_OTHERS;
  const int are_short = !storing && ndim > 1 && shape[last] <= short_run;
  while (done < todo) {
    long run = (long)(shape[last] - index[last]);
    if (run > todo - done) run = todo - done;
    if (are_short && !index[last] && run == shape[last]) {
      /* whole ones, to the end of the dimension before; the last of them goes on below */
      const long runs = (long)ti_min((todo - done) / run, shape[last - 1] - index[last - 1]);
      FN(load_short_runs)(reg + done * reg_size, base + offset * size, dtype, strides[last - 1], strides[last], runs, run);
      done += (runs - 1) * run;
      offset += (runs - 1) * strides[last - 1];
      index[last - 1] += runs - 1;
    } else if (storing) FN(store_run)(base + offset * size, reg + done * reg_size, dtype, strides[last], run);
    else FN(load_run)(reg + done * reg_size, base + offset * size, dtype, strides[last], run);
    done += run;
    offset -= index[last] * strides[last];
    index[last] = 0;
    for (int i = last - 1; i >= 0; i--) {
      offset += strides[i];
      if (++index[i] < shape[i]) break;
      offset -= shape[i] * strides[i];
      index[i] = 0;
    }
  }
  for (; done < n;) {
    long run = done < n - done ? done : n - done;
    memcpy(reg + done * reg_size, reg, (size_t)run * reg_size);
    done += run;
  }
}

/* Moves elements [start, start + n) of two operands that take turns in memory; the slot is that of the first. */
static void FN(walk_pair)(float *first, float *second, float *base, const chain_slot *slot, int64_t start, long n, int storing) {
  FN(walked) at = {.start = -1};
  for (long done = 0; done < n;) {
    int64_t from;
    const long run = (long)ti_min(FN(stretch)(slot, &at, start + done, &from), n - done);
    if (storing) FN(store_turns)(base + from, first + done, second + done, run);
    else FN(load_turns)(first + done, second + done, base + from, run);
    done += run;
  }
}
