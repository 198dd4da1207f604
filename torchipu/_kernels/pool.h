/* Host kernels of pooling; see pool_body.h. */
#include "isa.h"
#define TI_BODY "pool_body.h"
#include "isa_build.h"
TI_SELECT(max_pool)
TI_SELECT(max_pool_backward)
TI_SELECT(avg_pool)
TI_SELECT(avg_pool_backward)
TI_SELECT(adaptive_pool)
TI_SELECT(adaptive_pool_backward)
