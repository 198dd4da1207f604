/* Kernels of layer, group and batch normalisation. */
#ifndef TORCHIPU_NORM_H
#define TORCHIPU_NORM_H
#include "isa.h"
#define TI_BODY "norm_body.h"
#include "isa_build.h"
TI_SELECT(layer_norm)
TI_SELECT(layer_norm_grad)
TI_SELECT(sum_partials)
TI_SELECT(group_norm)
TI_SELECT(group_norm_grad)
TI_SELECT(batch_moments)
TI_SELECT(batch_statistics)
TI_SELECT(batch_apply)
TI_SELECT(batch_norm)
TI_SELECT(batch_columns)
TI_SELECT(batch_grad_sums)
TI_SELECT(batch_grad_statistics)
TI_SELECT(batch_grad_columns)
TI_SELECT(batch_grad_apply)
TI_SELECT(batch_norm_grad)
#endif
