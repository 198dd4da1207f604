# cython: language_level=3
"""Kernels that look at results: traps and statistics; see observe_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "observe.h" nogil:
    ti_kernel select_check()
    ti_kernel select_tally()

CHECK = make_kernel("check", select_check())
TALLY = make_kernel("tally", select_tally())
