"""Kernels of convolution gradients behind a max-pool; their arguments are documented in sparse_conv_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "sparse_conv.h" nogil:
    ti_kernel select_sparse_conv_backward()
    ti_kernel select_sparse_conv_pack()
    ti_kernel select_sparse_conv_reduce()

SPARSE_CONV_BACKWARD = make_kernel("sparse_conv_backward", select_sparse_conv_backward())
SPARSE_CONV_PACK = make_kernel("sparse_conv_pack", select_sparse_conv_pack())
SPARSE_CONV_REDUCE = make_kernel("sparse_conv_reduce", select_sparse_conv_reduce())
