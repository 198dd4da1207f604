/* The chain interpreter for both instruction sets. */
#ifndef TORCHIPU_ELEMENTWISE_H
#define TORCHIPU_ELEMENTWISE_H
#include "isa.h"
#include "elementwise_ops.h"
#include "philox.h"
#include "special_functions.h"
#define TI_BODY "elementwise_body.h"
#include "isa_build.h"
TI_SELECT(chain)
#endif
