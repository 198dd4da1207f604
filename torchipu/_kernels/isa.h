/* Compiles one kernel body for AVX2 and for AVX-512; the engine picks one of the two when it is imported. Where neither can
 * be had (TI_PORTABLE), the body of the former is compiled as C for any machine: see portable.h.
 *
 * A family writes its arithmetic in <family>_body.h with FN(name) around every function name, TI_KERNEL(name) before the
 * block of every kernel of the table, VL floats a vector, GCC vector types, and the vocabulary of vector_math_body.h. The
 * build includes it through isa_build.h, behind <family>.h where there is one: that is read once, before any instruction
 * set is chosen.
 */
#ifndef TORCHIPU_ISA_H
#define TORCHIPU_ISA_H
#ifdef TI_PORTABLE
#include "portable.h"
#else
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "abi.h"
#ifdef __SANITIZE_ADDRESS__
#include "checked.h"
#endif

#define TI_PASTE2(a, b) a##b
#define TI_PASTE(a, b) TI_PASTE2(a, b)

#define TI_KERNEL(name) \
  static int FN(name)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end, void *scratch)

/* Vectors of VL floats, of as many whole numbers and words, and their masks; which ones, FN says. */
#define VF FN(vf)
#define VI FN(vi)
#define VU FN(vu)
#define VM FN(vm)
#define TI_INLINE static inline __attribute__((always_inline))
#define TI_SHARED __attribute__((visibility("hidden")))  /* what one file defines, and others see, but nothing else */

static inline int64_t ti_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ti_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ti_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Pieces of a count that differ by one at most, the longer ones first. A division for all of them: of 64 bits one may take as
 * long as what a piece is computed in. */
typedef struct { int32_t least, longer; } ti_pieces;
static inline ti_pieces ti_pieces_of(int64_t count, int64_t parts) {
  return (ti_pieces){(int32_t)count / (int32_t)parts, (int32_t)count % (int32_t)parts};
}
static inline int ti_piece(ti_pieces of, int64_t i) { return of.least + (i < of.longer); }
/* Masks of the first n of eight lanes begin at element 8 - n. */
static const int32_t TI_FIRST[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

#ifdef TI_PORTABLE
/* A kernel of the table: its name, the names of its numbers, and its function. */
typedef struct { const char *name, *ints, *scalars; ti_kernel portable; } ti_record;
#define TI_RECORD(name, ints, scalars) {#name, ints, scalars, name##_portable},
#define TI_RECORD_AVX2 TI_RECORD
#define TI_RECORD_BFLOATS(name, ints, scalars) {#name, ints, scalars, NULL},
static inline int ti_has_bfloats(void) { return 0; }
static inline ti_kernel ti_pick(const ti_record *entry) { return entry->portable; }
static inline int ti_lacks_avx512(void) { return 0; }
#else
/* TORCHIPU_ISA=avx2 in the environment forces the baseline, for tests and for comparisons. */
static inline int ti_has_avx512(void) {
  const char *forced = getenv("TORCHIPU_ISA");
  if (forced && strcmp(forced, "avx2") == 0) return 0;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/* A kernel of the table: its name, the names of its numbers, and its function for each instruction set. */
typedef struct { const char *name, *ints, *scalars; ti_kernel avx2, avx512; } ti_record;
/* Of a family whose kernels are compiled for AVX2 alone. */
#define TI_RECORD_AVX2(name, ints, scalars) {#name, ints, scalars, name##_avx2, NULL},
/* Of a family whose kernels multiply bfloat16: they are run where ti_has_bfloats says so, and are not there elsewhere. */
#if !defined TI_WITHOUT_AVX512 && (defined __clang__ || __GNUC__ >= 10)
#define TI_WITH_BFLOATS
#define TI_RECORD_BFLOATS(name, ints, scalars) {#name, ints, scalars, NULL, name##_bfloats},
static inline int ti_has_bfloats(void) { return ti_has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#else
#define TI_RECORD_BFLOATS(name, ints, scalars) {#name, ints, scalars, NULL, NULL},
static inline int ti_has_bfloats(void) { return 0; }
#endif
/* A build may leave one of the two out, to be made in less time: AVX-512 where it is made on a machine without, and the
 * checked flavour either. */
#if defined TI_WITHOUT_AVX512
#define TI_RECORD(name, ints, scalars) {#name, ints, scalars, name##_avx2, NULL},
#elif defined TI_WITHOUT_AVX2
#define TI_RECORD(name, ints, scalars) {#name, ints, scalars, NULL, name##_avx512},
#else
#define TI_RECORD(name, ints, scalars) {#name, ints, scalars, name##_avx2, name##_avx512},
#endif
static inline ti_kernel ti_pick(const ti_record *entry) {
  return entry->avx2 && !(entry->avx512 && ti_has_avx512()) ? entry->avx2 : entry->avx512;
}

/* Whether this machine would run kernels for AVX-512, and the build has none, though nobody asked for that. */
static inline int ti_lacks_avx512(void) {
#if defined TI_WITHOUT_AVX512 && !defined __SANITIZE_ADDRESS__
  return ti_has_avx512();
#else
  return 0;
#endif
}
#endif
#endif
