/* Counting, rows and draws of loops for both instruction sets. */
#ifndef TORCHIPU_CONTROL_H
#define TORCHIPU_CONTROL_H
#include "isa.h"
#define TI_BODY "control_body.h"
#include "isa_build.h"
TI_SELECT(count)
TI_SELECT(take_row)
TI_SELECT(put_row)
TI_SELECT(fork)
#endif
