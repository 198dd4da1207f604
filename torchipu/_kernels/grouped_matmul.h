/* Products of groups of rows, and of integers, for both instruction sets. */
#ifndef TORCHIPU_GROUPED_MATMUL_H
#define TORCHIPU_GROUPED_MATMUL_H
#include "isa.h"
#define TI_BODY "grouped_matmul_body.h"
#include "isa_build.h"
TI_SELECT(grouped_matmul)
TI_SELECT(grouped_outer)
TI_SELECT(integer_matmul)
#endif
