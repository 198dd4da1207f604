"""Kernels of interpolation and of overlapping windows."""

from .kernel import AnyKernel, Kernel

WEIGHTED_TAPS: AnyKernel = Kernel("weighted_taps")
ADD_STRIDED: AnyKernel = Kernel("add_strided")
