/* Kernels of optimisers and gradient accumulation. */
#ifndef TORCHIPU_UPDATE_H
#define TORCHIPU_UPDATE_H
#include "philox.h"
#include "isa.h"
#define TI_BODY "update_body.h"
#include "isa_build.h"
TI_SELECT(accumulate)
TI_SELECT(fill_zero)
TI_SELECT(increment)
TI_SELECT(sgd)
TI_SELECT(adam)
TI_SELECT(rmsprop)
#endif
