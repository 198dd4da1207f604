# cython: language_level=3
"""Kernels of interpolation and of overlapping windows; see resample_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "resample.h" nogil:
    ti_kernel select_weighted_taps()
    ti_kernel select_add_strided()

WEIGHTED_TAPS = make_kernel("weighted_taps", select_weighted_taps())
ADD_STRIDED = make_kernel("add_strided", select_add_strided())
