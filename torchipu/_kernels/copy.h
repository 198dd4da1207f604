/* Copies, fills and ranges for both instruction sets. */
#ifndef TORCHIPU_COPY_H
#define TORCHIPU_COPY_H
#include "isa.h"
#define TI_BODY "copy_body.h"
#include "isa_build.h"
TI_SELECT(copy)
TI_SELECT(transpose)
TI_SELECT(fill)
TI_SELECT(arange)
TI_SELECT(triangle)
TI_SELECT(linspace)
#endif
