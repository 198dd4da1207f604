/* Compiles one kernel body for AVX2 and for AVX-512 and picks one when the module is imported.
 *
 * A family writes its arithmetic in <family>_body.h with FN(name) around every function name, VL floats a
 * vector, GCC vector types, and the vocabulary of vector_math_body.h; its <family>.h then holds
 *
 *     #include "isa.h"
 *     #define TI_BODY "<family>_body.h"
 *     #include "isa_build.h"
 *     TI_SELECT(my_kernel)      // defines: static ti_kernel select_my_kernel(void)
 */
#ifndef TORCHIPU_ISA_H
#define TORCHIPU_ISA_H
#include <immintrin.h>
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

/* Vectors of VL floats, of as many whole numbers and words, and their masks; which ones, FN says. */
#define VF FN(vf)
#define VI FN(vi)
#define VU FN(vu)
#define VM FN(vm)
#define TI_INLINE static inline __attribute__((always_inline))

static inline int64_t ti_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ti_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ti_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* Masks of the first n of eight lanes begin at element 8 - n. */
static const int32_t TI_FIRST[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

/* TORCHIPU_ISA=avx2 in the environment forces the baseline, for tests and for comparisons. */
static inline int ti_has_avx512(void) {
  const char *forced = getenv("TORCHIPU_ISA");
  if (forced && strcmp(forced, "avx2") == 0) return 0;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
/* A build may leave one of the two out: the checked flavour does, to be built in less time. */
#if defined TI_WITHOUT_AVX512
#define TI_PICK(name) name##_avx2
#elif defined TI_WITHOUT_AVX2
#define TI_PICK(name) name##_avx512
#else
#define TI_PICK(name) (ti_has_avx512() ? name##_avx512 : name##_avx2)
#endif
#define TI_SELECT(name) \
  static inline ti_kernel select_##name(void) { return TI_PICK(name); }
#endif
