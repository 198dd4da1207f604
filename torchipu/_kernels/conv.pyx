"""Kernels of convolutions; their arguments are documented in conv_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "conv.h" nogil:
    ti_kernel select_conv_forward()
    ti_kernel select_conv_input()
    ti_kernel select_conv_weight()
    ti_kernel select_conv_reduce()
    ti_kernel select_conv_bias()
    ti_kernel select_conv_max_pool()

CONV_FORWARD = make_kernel("conv_forward", select_conv_forward())
CONV_INPUT = make_kernel("conv_input", select_conv_input())
CONV_WEIGHT = make_kernel("conv_weight", select_conv_weight())
CONV_REDUCE = make_kernel("conv_reduce", select_conv_reduce())
CONV_BIAS = make_kernel("conv_bias", select_conv_bias())
CONV_MAX_POOL = make_kernel("conv_max_pool", select_conv_max_pool())
