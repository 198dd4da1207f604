# cython: language_level=3
"""Kernels of products with half partials; see half_partials_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "half_partials.h" nogil:
    ti_kernel select_half_product()

HALF_PRODUCT = make_kernel("half_product", select_half_product())
