/* Reductions for both instruction sets. */
#ifndef TORCHIPU_REDUCE_H
#define TORCHIPU_REDUCE_H
#include "isa.h"
enum { TI_REDUCE_DIMS = 8, TI_REDUCE_HEADER = 8 };
#define TI_BODY "reduce_body.h"
#include "isa_build.h"
TI_SELECT(reduce_rows)
TI_SELECT(reduce_columns)
TI_SELECT(reduce_integers)
TI_SELECT(reduce_bools)
TI_SELECT(arg_rows)
TI_SELECT(moment_rows)
TI_SELECT(logsumexp_rows)
#endif
