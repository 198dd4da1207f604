/* Kernels of floats of 8 bits. */
#ifndef TORCHIPU_FP8_H
#define TORCHIPU_FP8_H
#include "philox.h"
#include "isa.h"
#define TI_BODY "fp8_body.h"
#include "isa_build.h"
TI_SELECT(fp8_encode)
TI_SELECT(fp8_decode)
#endif
