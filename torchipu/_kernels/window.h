/* Kernels of pooling over windows in tables; see window_body.h. */
#include "isa.h"
#define TI_BODY "window_body.h"
#include "isa_build.h"
TI_SELECT(window_max)
TI_SELECT(window_mean)
TI_SELECT(window_mean_backward)
TI_SELECT(window_place)
