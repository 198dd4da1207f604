/* Includes TI_BODY, and the vocabulary before it, once for each instruction set; see isa.h. Where TI_AVX2_ALONE
 * is defined, only for AVX2, also in a build that leaves that out elsewhere; where TI_BFLOATS_ALONE is, only for AVX-512
 * with products of bfloat16, if it has kernels for that. No include guard, on purpose. */
#ifdef TI_BFLOATS_ALONE
#ifdef TI_WITH_BFLOATS
#pragma GCC push_options
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,prefer-vector-width=512")
#define VL 16
#define FN(name) TI_PASTE(name, _bfloats)
typedef float FN(vf) __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t FN(vi) __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t FN(vu) __attribute__((vector_size(64), aligned(4), may_alias));
#include "vector_math_body.h"
#include TI_BODY
#undef VL
#undef FN
#pragma GCC pop_options
#endif
#elif defined TI_PORTABLE
#define VL 8
#define FN(name) TI_PASTE(name, _portable)
typedef float FN(vf) __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t FN(vi) __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t FN(vu) __attribute__((vector_size(32), aligned(4), may_alias));
#include "vector_math_body.h"
#include TI_BODY
#undef VL
#undef FN
#else
#if !defined TI_WITHOUT_AVX2 || defined TI_AVX2_ALONE
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2")
#define VL 8
#define FN(name) TI_PASTE(name, _avx2)
typedef float FN(vf) __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t FN(vi) __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t FN(vu) __attribute__((vector_size(32), aligned(4), may_alias));
#include "vector_math_body.h"
#include TI_BODY
#undef VL
#undef FN
#pragma GCC pop_options
#endif
#if !defined TI_WITHOUT_AVX512 && !defined TI_AVX2_ALONE
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,prefer-vector-width=512")
#define VL 16
#define FN(name) TI_PASTE(name, _avx512)
typedef float FN(vf) __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t FN(vi) __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t FN(vu) __attribute__((vector_size(64), aligned(4), may_alias));
#include "vector_math_body.h"
#include TI_BODY
#undef VL
#undef FN
#pragma GCC pop_options
#endif
#endif
#undef TI_BODY
