# cython: language_level=3
"""Kernels of look-ups, gathers and scatters."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "embedding.h" nogil:
    ti_kernel select_take_rows()
    ti_kernel select_bucket()
    ti_kernel select_sum_rows()
    ti_kernel select_put_rows()
    ti_kernel select_flatten_index()
    ti_kernel select_copy_bytes()
    ti_kernel select_bag_rows()
    ti_kernel select_bag_of()
    ti_kernel select_bag_rows_grad()
    ti_kernel select_bag_max_grad()
    ti_kernel select_bag_weights_grad()
    ti_kernel select_scale_by_count()
    ti_kernel select_renorm_rows()

TAKE_ROWS = make_kernel("take_rows", select_take_rows())
BUCKET = make_kernel("bucket", select_bucket())
SUM_ROWS = make_kernel("sum_rows", select_sum_rows())
PUT_ROWS = make_kernel("put_rows", select_put_rows())
FLATTEN_INDEX = make_kernel("flatten_index", select_flatten_index())
COPY_BYTES = make_kernel("copy_bytes", select_copy_bytes())
BAG_ROWS = make_kernel("bag_rows", select_bag_rows())
BAG_OF = make_kernel("bag_of", select_bag_of())
BAG_ROWS_GRAD = make_kernel("bag_rows_grad", select_bag_rows_grad())
BAG_MAX_GRAD = make_kernel("bag_max_grad", select_bag_max_grad())
BAG_WEIGHTS_GRAD = make_kernel("bag_weights_grad", select_bag_weights_grad())
SCALE_BY_COUNT = make_kernel("scale_by_count", select_scale_by_count())
RENORM_ROWS = make_kernel("renorm_rows", select_renorm_rows())
