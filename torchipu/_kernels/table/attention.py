"""Kernels of attention."""

from .kernel import AnyKernel, Kernel

ATTENTION: AnyKernel = Kernel("attention")
ATTENTION_BACKWARD: AnyKernel = Kernel("attention_backward")
