# cython: language_level=3
"""Kernels of gathers, scatters and look-ups with reductions; see indexing_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "indexing.h" nogil:
    ti_kernel select_gather_block()
    ti_kernel select_scatter_block()
    ti_kernel select_take_strided()
    ti_kernel select_reduce_rows()
    ti_kernel select_divide_counts()
    ti_kernel select_mask_count()
    ti_kernel select_mask_scatter()
    ti_kernel select_mask_compact()
    ti_kernel select_nonzero()

GATHER_BLOCK = make_kernel("gather_block", select_gather_block())
SCATTER_BLOCK = make_kernel("scatter_block", select_scatter_block())
TAKE_STRIDED = make_kernel("take_strided", select_take_strided())
REDUCE_ROWS = make_kernel("reduce_rows", select_reduce_rows())
DIVIDE_COUNTS = make_kernel("divide_counts", select_divide_counts())
MASK_COUNT = make_kernel("mask_count", select_mask_count())
MASK_SCATTER = make_kernel("mask_scatter", select_mask_scatter())
MASK_COMPACT = make_kernel("mask_compact", select_mask_compact())
NONZERO = make_kernel("nonzero", select_nonzero())
