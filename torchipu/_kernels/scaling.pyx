# cython: language_level=3
"""Kernels of gradient clipping, loss scaling, running means and sums over replicas; see scaling_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "scaling.h" nogil:
    ti_kernel select_block_squares()
    ti_kernel select_add_doubles()
    ti_kernel select_clip()
    ti_kernel select_clip_values()
    ti_kernel select_unscale()
    ti_kernel select_block_counts()
    ti_kernel select_add_counts()
    ti_kernel select_join_counts()
    ti_kernel select_adapt_scale()
    ti_kernel select_accumulate_mean()
    ti_kernel select_replica_mean()
    ti_kernel select_add()
    ti_kernel select_fold_replica()
    ti_kernel select_signal()

BLOCK_SQUARES = make_kernel("block_squares", select_block_squares())
ADD_DOUBLES = make_kernel("add_doubles", select_add_doubles())
CLIP = make_kernel("clip", select_clip())
CLIP_VALUES = make_kernel("clip_values", select_clip_values())
UNSCALE = make_kernel("unscale", select_unscale())
BLOCK_COUNTS = make_kernel("block_counts", select_block_counts())
ADD_COUNTS = make_kernel("add_counts", select_add_counts())
JOIN_COUNTS = make_kernel("join_counts", select_join_counts())
ADAPT_SCALE = make_kernel("adapt_scale", select_adapt_scale())
ACCUMULATE_MEAN = make_kernel("accumulate_mean", select_accumulate_mean())
REPLICA_MEAN = make_kernel("replica_mean", select_replica_mean())
ADD = make_kernel("add", select_add())
FOLD_REPLICA = make_kernel("fold_replica", select_fold_replica())
SIGNAL = make_kernel("signal", select_signal())
