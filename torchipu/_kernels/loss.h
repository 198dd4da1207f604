/* Kernels of losses. */
#ifndef TORCHIPU_LOSS_H
#define TORCHIPU_LOSS_H
#include "isa.h"
#define TI_BODY "loss_body.h"
#include "isa_build.h"
TI_SELECT(nll)
TI_SELECT(nll_total)
TI_SELECT(nll_grad)
TI_SELECT(pair_loss)
TI_SELECT(pair_total)
TI_SELECT(pair_loss_grad)
#endif
