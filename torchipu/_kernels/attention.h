/* Host kernels of attention; see attention_body.h. */
#include "isa.h"
#define TI_BODY "attention_body.h"
#include "isa_build.h"
TI_SELECT(attention)
TI_SELECT(attention_backward)
