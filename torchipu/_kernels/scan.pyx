# cython: language_level=3
"""Scans; see scan_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "scan.h" nogil:
    ti_kernel select_scan()
    ti_kernel select_scan_extremes()

SCAN = make_kernel("scan", select_scan())
SCAN_EXTREMES = make_kernel("scan_extremes", select_scan_extremes())
