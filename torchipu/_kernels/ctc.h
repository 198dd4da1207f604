/* Kernels of connectionist temporal classification; see ctc_body.h. */
#include "isa.h"
#define TI_BODY "ctc_body.h"
#include "isa_build.h"
TI_SELECT(ctc_loss)
TI_SELECT(ctc_loss_backward)
