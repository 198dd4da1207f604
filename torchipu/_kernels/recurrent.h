/* Kernels of recurrent layers; see recurrent_body.h. */
#include "isa.h"
#define TI_BODY "recurrent_body.h"
#include "isa_build.h"
TI_SELECT(recurrence)
TI_SELECT(recurrence_backward)
