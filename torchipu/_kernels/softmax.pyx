# cython: language_level=3
"""Kernels of softmax and log-softmax."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "softmax.h" nogil:
    ti_kernel select_softmax_rows()
    ti_kernel select_softmax_rows_grad()
    ti_kernel select_softmax_columns()
    ti_kernel select_softmax_columns_grad()

SOFTMAX_ROWS = make_kernel("softmax_rows", select_softmax_rows())
SOFTMAX_ROWS_GRAD = make_kernel("softmax_rows_grad", select_softmax_rows_grad())
SOFTMAX_COLUMNS = make_kernel("softmax_columns", select_softmax_columns())
SOFTMAX_COLUMNS_GRAD = make_kernel("softmax_columns_grad", select_softmax_columns_grad())
