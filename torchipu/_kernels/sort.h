/* Sorting, selection and search for both instruction sets. */
#ifndef TORCHIPU_SORT_H
#define TORCHIPU_SORT_H
#include "isa.h"
#define TI_BODY "sort_body.h"
#include "isa_build.h"
TI_SELECT(sort)
TI_SELECT(select)
TI_SELECT(search)
TI_SELECT(histogram)
#endif
