"""Kernels of softmax and log-softmax."""

from .kernel import AnyKernel, Kernel

SOFTMAX_ROWS: AnyKernel = Kernel("softmax_rows")
SOFTMAX_ROWS_GRAD: AnyKernel = Kernel("softmax_rows_grad")
SOFTMAX_COLUMNS: AnyKernel = Kernel("softmax_columns")
SOFTMAX_COLUMNS_GRAD: AnyKernel = Kernel("softmax_columns_grad")
