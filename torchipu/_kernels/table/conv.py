"""Kernels of convolutions."""

from .kernel import AnyKernel, Kernel

CONV_FORWARD: AnyKernel = Kernel("conv_forward")
CONV_INPUT: AnyKernel = Kernel("conv_input")
CONV_WEIGHT: AnyKernel = Kernel("conv_weight")
CONV_REDUCE: AnyKernel = Kernel("conv_reduce")
CONV_BIAS: AnyKernel = Kernel("conv_bias")
CONV_MAX_POOL: AnyKernel = Kernel("conv_max_pool")
