/* Names that rowmath_body.h and the row-wise families use; the types follow the instruction set of isa_build.h. */
#ifndef TORCHIPU_ROWMATH_H
#define TORCHIPU_ROWMATH_H
#include "isa.h"
#define VF FN(vf)
#define VI FN(vi)
#define TI_INLINE static inline __attribute__((always_inline))
#define TI_MIN(a, b) ((a) < (b) ? (a) : (b))
#endif
