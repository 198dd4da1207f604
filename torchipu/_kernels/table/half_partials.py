"""Kernels of products with half partials."""

from .kernel import AnyKernel, Kernel

HALF_PRODUCT: AnyKernel = Kernel("half_product")
