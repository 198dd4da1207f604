# cython: language_level=3
"""The kernel that ends others whose results are halves; see round_blocks_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "rounding.h" nogil:
    ti_kernel select_round_blocks()

ROUND_BLOCKS = make_kernel("round_blocks", select_round_blocks())
