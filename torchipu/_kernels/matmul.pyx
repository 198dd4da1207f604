"""Kernels of matrix products; their arguments are documented in matmul_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "matmul.h" nogil:
    ti_kernel select_matmul_pack()
    ti_kernel select_matmul_pack_rows()
    ti_kernel select_matmul()
    ti_kernel select_matmul_dots()

MATMUL_PACK = make_kernel("matmul_pack", select_matmul_pack())
MATMUL_PACK_ROWS = make_kernel("matmul_pack_rows", select_matmul_pack_rows())
MATMUL = make_kernel("matmul", select_matmul())
MATMUL_DOTS = make_kernel("matmul_dots", select_matmul_dots())
