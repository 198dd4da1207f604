"""Kernels of pooling over windows in tables."""

from .kernel import AnyKernel, Kernel

WINDOW_MAX: AnyKernel = Kernel("window_max")
WINDOW_MEAN: AnyKernel = Kernel("window_mean")
WINDOW_MEAN_BACKWARD: AnyKernel = Kernel("window_mean_backward")
WINDOW_PLACE: AnyKernel = Kernel("window_place")
