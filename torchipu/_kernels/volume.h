/* Kernels of three-dimensional convolutions; see volume_body.h. */
#include "isa.h"
#define TI_BODY "volume_body.h"
#include "isa_build.h"
TI_SELECT(volume_forward)
TI_SELECT(volume_input)
TI_SELECT(volume_weight)
TI_SELECT(volume_bias)
