"""Kernels of pooling."""

from .kernel import AnyKernel, Kernel

MAX_POOL: AnyKernel = Kernel("max_pool")
MAX_POOL_BACKWARD: AnyKernel = Kernel("max_pool_backward")
AVG_POOL: AnyKernel = Kernel("avg_pool")
AVG_POOL_BACKWARD: AnyKernel = Kernel("avg_pool_backward")
ADAPTIVE_POOL: AnyKernel = Kernel("adaptive_pool")
ADAPTIVE_POOL_BACKWARD: AnyKernel = Kernel("adaptive_pool_backward")
