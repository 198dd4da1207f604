"""Kernels of recurrent layers."""

from .kernel import AnyKernel, Kernel

RECURRENCE: AnyKernel = Kernel("recurrence")
RECURRENCE_BACKWARD: AnyKernel = Kernel("recurrence_backward")
