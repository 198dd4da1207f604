/* Kernels that look at results: traps and statistics. */
#ifndef TORCHIPU_OBSERVE_H
#define TORCHIPU_OBSERVE_H
#include "philox.h"
#include "isa.h"
#define TI_BODY "observe_body.h"
#include "isa_build.h"
TI_SELECT(check)
TI_SELECT(tally)
#endif
