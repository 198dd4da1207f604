"""Kernels of floats of 8 bits."""

from .kernel import AnyKernel, Kernel

FP8_ENCODE: AnyKernel = Kernel("fp8_encode")
FP8_DECODE: AnyKernel = Kernel("fp8_decode")
