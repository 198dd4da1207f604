# cython: language_level=3
"""Products of groups of rows, and of integers; see grouped_matmul_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "grouped_matmul.h" nogil:
    ti_kernel select_grouped_matmul()
    ti_kernel select_grouped_outer()
    ti_kernel select_integer_matmul()

GROUPED_MATMUL = make_kernel("grouped_matmul", select_grouped_matmul())
GROUPED_OUTER = make_kernel("grouped_outer", select_grouped_outer())
INTEGER_MATMUL = make_kernel("integer_matmul", select_integer_matmul())
