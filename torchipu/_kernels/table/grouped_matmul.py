"""Products of groups of rows, and of integers."""

from .kernel import AnyKernel, Kernel

GROUPED_MATMUL: AnyKernel = Kernel("grouped_matmul")
GROUPED_OUTER: AnyKernel = Kernel("grouped_outer")
INTEGER_MATMUL: AnyKernel = Kernel("integer_matmul")
