/* Kernels of optimisers that scale the update of a whole tensor. */
#ifndef TORCHIPU_LAYERWISE_H
#define TORCHIPU_LAYERWISE_H
#include "philox.h"
#include "isa.h"
#define TI_BODY "layerwise_body.h"
#include "isa_build.h"
TI_SELECT(lamb_direction)
TI_SELECT(lars_norms)
TI_SELECT(trust_ratio)
TI_SELECT(lamb_apply)
TI_SELECT(lars_apply)
#endif
