/* Kernels of products with half partials. */
#ifndef TORCHIPU_HALF_PARTIALS_H
#define TORCHIPU_HALF_PARTIALS_H
#include "philox.h"
#include "isa.h"
#define TI_BODY "half_partials_body.h"
#include "isa_build.h"
TI_SELECT(half_product)
#endif
