"""The kernel that ends others whose results are halves."""

from .kernel import AnyKernel, Kernel

ROUND_BLOCKS: AnyKernel = Kernel("round_blocks")
