# cython: language_level=3
"""Kernels of layer, group and batch normalisation."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "norm.h" nogil:
    ti_kernel select_layer_norm()
    ti_kernel select_layer_norm_grad()
    ti_kernel select_sum_partials()
    ti_kernel select_group_norm()
    ti_kernel select_group_norm_grad()
    ti_kernel select_batch_moments()
    ti_kernel select_batch_statistics()
    ti_kernel select_batch_apply()
    ti_kernel select_batch_norm()
    ti_kernel select_batch_columns()
    ti_kernel select_batch_grad_sums()
    ti_kernel select_batch_grad_statistics()
    ti_kernel select_batch_grad_columns()
    ti_kernel select_batch_grad_apply()
    ti_kernel select_batch_norm_grad()

LAYER_NORM = make_kernel("layer_norm", select_layer_norm())
LAYER_NORM_GRAD = make_kernel("layer_norm_grad", select_layer_norm_grad())
SUM_PARTIALS = make_kernel("sum_partials", select_sum_partials())
GROUP_NORM = make_kernel("group_norm", select_group_norm())
GROUP_NORM_GRAD = make_kernel("group_norm_grad", select_group_norm_grad())
BATCH_MOMENTS = make_kernel("batch_moments", select_batch_moments())
BATCH_STATISTICS = make_kernel("batch_statistics", select_batch_statistics())
BATCH_APPLY = make_kernel("batch_apply", select_batch_apply())
BATCH_NORM = make_kernel("batch_norm", select_batch_norm())
BATCH_COLUMNS = make_kernel("batch_columns", select_batch_columns())
BATCH_GRAD_SUMS = make_kernel("batch_grad_sums", select_batch_grad_sums())
BATCH_GRAD_STATISTICS = make_kernel("batch_grad_statistics", select_batch_grad_statistics())
BATCH_GRAD_COLUMNS = make_kernel("batch_grad_columns", select_batch_grad_columns())
BATCH_GRAD_APPLY = make_kernel("batch_grad_apply", select_batch_grad_apply())
BATCH_NORM_GRAD = make_kernel("batch_norm_grad", select_batch_norm_grad())
