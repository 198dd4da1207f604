# cython: language_level=3
"""Kernels that a loop of the plan needs around its steps; see control_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "control.h" nogil:
    ti_kernel select_count()
    ti_kernel select_take_row()
    ti_kernel select_put_row()
    ti_kernel select_fork()

COUNT = make_kernel("count", select_count())
TAKE_ROW = make_kernel("take_row", select_take_row())
PUT_ROW = make_kernel("put_row", select_put_row())
FORK = make_kernel("fork", select_fork())
