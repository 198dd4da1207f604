# cython: language_level=3
"""Kernels that move, fill and number elements; see copy_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "copy.h" nogil:
    ti_kernel select_copy()
    ti_kernel select_transpose()
    ti_kernel select_fill()
    ti_kernel select_arange()
    ti_kernel select_triangle()
    ti_kernel select_linspace()

COPY = make_kernel("copy", select_copy())
TRANSPOSE = make_kernel("transpose", select_transpose())
FILL = make_kernel("fill", select_fill())
ARANGE = make_kernel("arange", select_arange())
TRIANGLE = make_kernel("triangle", select_triangle())
LINSPACE = make_kernel("linspace", select_linspace())
