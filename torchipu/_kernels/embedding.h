/* Kernels of look-ups, gathers and scatters. */
#ifndef TORCHIPU_EMBEDDING_H
#define TORCHIPU_EMBEDDING_H
#include "isa.h"
#define TI_BODY "embedding_body.h"
#include "isa_build.h"
TI_SELECT(take_rows)
TI_SELECT(bucket)
TI_SELECT(sum_rows)
TI_SELECT(put_rows)
TI_SELECT(flatten_index)
TI_SELECT(copy_bytes)
TI_SELECT(bag_rows)
TI_SELECT(bag_of)
TI_SELECT(bag_rows_grad)
TI_SELECT(bag_max_grad)
TI_SELECT(bag_weights_grad)
TI_SELECT(scale_by_count)
TI_SELECT(renorm_rows)
#endif
