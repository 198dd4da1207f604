"""Kernels that reduce."""

from .kernel import AnyKernel, Kernel

REDUCE_ROWS: AnyKernel = Kernel("reduce_rows")
REDUCE_COLUMNS: AnyKernel = Kernel("reduce_columns")
REDUCE_INTEGERS: AnyKernel = Kernel("reduce_integers")
REDUCE_BOOLS: AnyKernel = Kernel("reduce_bools")
ARG_ROWS: AnyKernel = Kernel("arg_rows")
MOMENT_ROWS: AnyKernel = Kernel("moment_rows")
LOGSUMEXP_ROWS: AnyKernel = Kernel("logsumexp_rows")
