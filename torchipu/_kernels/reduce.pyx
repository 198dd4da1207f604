# cython: language_level=3
"""Kernels that reduce; see reduce_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "reduce.h" nogil:
    ti_kernel select_reduce_rows()
    ti_kernel select_reduce_columns()
    ti_kernel select_reduce_integers()
    ti_kernel select_reduce_bools()
    ti_kernel select_arg_rows()
    ti_kernel select_moment_rows()
    ti_kernel select_logsumexp_rows()

REDUCE_ROWS = make_kernel("reduce_rows", select_reduce_rows())
REDUCE_COLUMNS = make_kernel("reduce_columns", select_reduce_columns())
REDUCE_INTEGERS = make_kernel("reduce_integers", select_reduce_integers())
REDUCE_BOOLS = make_kernel("reduce_bools", select_reduce_bools())
ARG_ROWS = make_kernel("arg_rows", select_arg_rows())
MOMENT_ROWS = make_kernel("moment_rows", select_moment_rows())
LOGSUMEXP_ROWS = make_kernel("logsumexp_rows", select_logsumexp_rows())
