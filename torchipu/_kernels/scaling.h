/* Kernels of gradient clipping, loss scaling, running means and sums over replicas. */
#ifndef TORCHIPU_SCALING_H
#define TORCHIPU_SCALING_H
#include <unistd.h>
#include "philox.h"
#include "isa.h"
#define TI_BODY "scaling_body.h"
#include "isa_build.h"
TI_SELECT(block_squares)
TI_SELECT(add_doubles)
TI_SELECT(clip)
TI_SELECT(clip_values)
TI_SELECT(unscale)
TI_SELECT(block_counts)
TI_SELECT(add_counts)
TI_SELECT(join_counts)
TI_SELECT(adapt_scale)
TI_SELECT(accumulate_mean)
TI_SELECT(replica_mean)
TI_SELECT(add)
TI_SELECT(fold_replica)
TI_SELECT(signal)
#endif
