/* Host kernels of convolutions as matrix products; see conv_product_body.h. */
#include "isa.h"
#define TI_BODY "conv_product_body.h"
#include "isa_build.h"
TI_SELECT(conv_product)
TI_SELECT(conv_product_weight)
