"""Kernels of convolutions as matrix products; their arguments are documented in conv_product_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "conv_product.h" nogil:
    ti_kernel select_conv_product()
    ti_kernel select_conv_product_weight()

CONV_PRODUCT = make_kernel("conv_product", select_conv_product())
CONV_PRODUCT_WEIGHT = make_kernel("conv_product_weight", select_conv_product_weight())
