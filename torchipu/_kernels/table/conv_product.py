"""Kernels of convolutions as matrix products."""

from .kernel import AnyKernel, Kernel

CONV_PRODUCT: AnyKernel = Kernel("conv_product")
CONV_PRODUCT_WEIGHT: AnyKernel = Kernel("conv_product_weight")
