"""Kernels of convolution gradients behind a max-pool."""

from .kernel import AnyKernel, Kernel

SPARSE_CONV_BACKWARD: AnyKernel = Kernel("sparse_conv_backward")
SPARSE_CONV_PACK: AnyKernel = Kernel("sparse_conv_pack")
SPARSE_CONV_REDUCE: AnyKernel = Kernel("sparse_conv_reduce")
