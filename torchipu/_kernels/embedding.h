/* Kernels of look-ups, gathers and scatters. */
#ifndef TORCHIPU_EMBEDDING_H
#define TORCHIPU_EMBEDDING_H
#include "rowmath.h"
#define TI_BODY "embedding_body.h"
#include "isa_build.h"
TI_SELECT(take_rows)
TI_SELECT(bucket)
TI_SELECT(sum_rows)
TI_SELECT(put_rows)
TI_SELECT(flatten_index)
TI_SELECT(gather_lines)
TI_SELECT(scatter_lines)
TI_SELECT(copy_bytes)
#endif
