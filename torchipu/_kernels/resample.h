/* Kernels of interpolation and of overlapping windows. */
#ifndef TORCHIPU_RESAMPLE_H
#define TORCHIPU_RESAMPLE_H
#include "isa.h"
#define TI_BODY "resample_body.h"
#include "isa_build.h"
TI_SELECT(weighted_taps)
TI_SELECT(add_strided)
#endif
