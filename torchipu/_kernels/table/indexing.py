"""Kernels of gathers, scatters and look-ups with reductions."""

from .kernel import AnyKernel, Kernel

GATHER_BLOCK: AnyKernel = Kernel("gather_block")
SCATTER_BLOCK: AnyKernel = Kernel("scatter_block")
TAKE_STRIDED: AnyKernel = Kernel("take_strided")
REDUCE_INDEXED: AnyKernel = Kernel("reduce_indexed")
DIVIDE_COUNTS: AnyKernel = Kernel("divide_counts")
MASK_COUNT: AnyKernel = Kernel("mask_count")
MASK_SCATTER: AnyKernel = Kernel("mask_scatter")
MASK_COMPACT: AnyKernel = Kernel("mask_compact")
NONZERO: AnyKernel = Kernel("nonzero")
