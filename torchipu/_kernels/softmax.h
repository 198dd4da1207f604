/* Kernels of softmax and log-softmax. */
#ifndef TORCHIPU_SOFTMAX_H
#define TORCHIPU_SOFTMAX_H
#include "isa.h"
#define TI_BODY "softmax_body.h"
#include "isa_build.h"
TI_SELECT(softmax_rows)
TI_SELECT(softmax_rows_grad)
TI_SELECT(softmax_columns)
TI_SELECT(softmax_columns_grad)
#endif
