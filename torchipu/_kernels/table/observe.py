"""Kernels that look at results: traps and statistics."""

from .kernel import AnyKernel, Kernel

CHECK: AnyKernel = Kernel("check")
TALLY: AnyKernel = Kernel("tally")
