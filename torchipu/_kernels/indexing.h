/* Kernels of gathers, scatters and look-ups with reductions. */
#ifndef TORCHIPU_INDEXING_H
#define TORCHIPU_INDEXING_H
#include "isa.h"
#define TI_BODY "indexing_body.h"
#include "isa_build.h"
TI_SELECT(gather_block)
TI_SELECT(scatter_block)
TI_SELECT(take_strided)
TI_SELECT(reduce_rows)
TI_SELECT(divide_counts)
TI_SELECT(mask_count)
TI_SELECT(mask_scatter)
TI_SELECT(mask_compact)
TI_SELECT(nonzero)
#endif
