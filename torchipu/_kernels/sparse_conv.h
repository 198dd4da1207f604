/* Host kernels of convolution gradients behind a max-pool; see sparse_conv_body.h. */
#include "isa.h"
#define TI_BODY "sparse_conv_body.h"
#include "isa_build.h"
TI_SELECT(sparse_conv_backward)
TI_SELECT(sparse_conv_pack)
TI_SELECT(sparse_conv_reduce)
