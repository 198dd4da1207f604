/* Host kernels of matrix products; see matmul_body.h. */
#include "isa.h"
#define TI_BODY "matmul_body.h"
#include "isa_build.h"
TI_SELECT(matmul_pack)
TI_SELECT(matmul_pack_rows)
TI_SELECT(matmul)
TI_SELECT(matmul_dots)
