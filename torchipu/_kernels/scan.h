/* Scans for both instruction sets. */
#ifndef TORCHIPU_SCAN_H
#define TORCHIPU_SCAN_H
#include "isa.h"
#define TI_BODY "scan_body.h"
#include "isa_build.h"
TI_SELECT(scan)
TI_SELECT(scan_extremes)
#endif
