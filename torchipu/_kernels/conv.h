/* Host kernels of convolutions; see conv_body.h. */
#include "isa.h"
#define TI_BODY "conv_body.h"
#include "isa_build.h"
TI_SELECT(conv_forward)
TI_SELECT(conv_input)
TI_SELECT(conv_weight)
TI_SELECT(conv_reduce)
TI_SELECT(conv_bias)
TI_SELECT(conv_max_pool)
