/* Kernels that round results to halves where another kernel has just written them as floats. */
#ifndef TORCHIPU_ROUNDING_H
#define TORCHIPU_ROUNDING_H
#include "isa.h"
#define TI_BODY "round_blocks_body.h"
#include "isa_build.h"
TI_SELECT(round_blocks)
#endif
