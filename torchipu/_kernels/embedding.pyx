# cython: language_level=3
"""Kernels of look-ups, gathers and scatters."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "embedding.h" nogil:
    ti_kernel select_take_rows()
    ti_kernel select_bucket()
    ti_kernel select_sum_rows()
    ti_kernel select_put_rows()
    ti_kernel select_flatten_index()
    ti_kernel select_gather_lines()
    ti_kernel select_scatter_lines()
    ti_kernel select_copy_bytes()

TAKE_ROWS = make_kernel("take_rows", select_take_rows())
BUCKET = make_kernel("bucket", select_bucket())
SUM_ROWS = make_kernel("sum_rows", select_sum_rows())
PUT_ROWS = make_kernel("put_rows", select_put_rows())
FLATTEN_INDEX = make_kernel("flatten_index", select_flatten_index())
GATHER_LINES = make_kernel("gather_lines", select_gather_lines())
SCATTER_LINES = make_kernel("scatter_lines", select_scatter_lines())
COPY_BYTES = make_kernel("copy_bytes", select_copy_bytes())
