"""Kernels of layer, group and batch normalisation."""

from .kernel import AnyKernel, Kernel

LAYER_NORM: AnyKernel = Kernel("layer_norm")
LAYER_NORM_GRAD: AnyKernel = Kernel("layer_norm_grad")
SUM_PARTIALS: AnyKernel = Kernel("sum_partials")
GROUP_NORM: AnyKernel = Kernel("group_norm")
GROUP_NORM_GRAD: AnyKernel = Kernel("group_norm_grad")
BATCH_MOMENTS: AnyKernel = Kernel("batch_moments")
BATCH_STATISTICS: AnyKernel = Kernel("batch_statistics")
BATCH_APPLY: AnyKernel = Kernel("batch_apply")
BATCH_NORM: AnyKernel = Kernel("batch_norm")
BATCH_COLUMNS: AnyKernel = Kernel("batch_columns")
BATCH_GRAD_SUMS: AnyKernel = Kernel("batch_grad_sums")
BATCH_GRAD_STATISTICS: AnyKernel = Kernel("batch_grad_statistics")
BATCH_GRAD_COLUMNS: AnyKernel = Kernel("batch_grad_columns")
BATCH_GRAD_APPLY: AnyKernel = Kernel("batch_grad_apply")
BATCH_NORM_GRAD: AnyKernel = Kernel("batch_norm_grad")
