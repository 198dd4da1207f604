"""Kernels of pooling; their arguments are documented in pool_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "pool.h" nogil:
    ti_kernel select_max_pool()
    ti_kernel select_max_pool_backward()
    ti_kernel select_avg_pool()
    ti_kernel select_avg_pool_backward()
    ti_kernel select_adaptive_pool()
    ti_kernel select_adaptive_pool_backward()

MAX_POOL = make_kernel("max_pool", select_max_pool())
MAX_POOL_BACKWARD = make_kernel("max_pool_backward", select_max_pool_backward())
AVG_POOL = make_kernel("avg_pool", select_avg_pool())
AVG_POOL_BACKWARD = make_kernel("avg_pool_backward", select_avg_pool_backward())
ADAPTIVE_POOL = make_kernel("adaptive_pool", select_adaptive_pool())
ADAPTIVE_POOL_BACKWARD = make_kernel("adaptive_pool_backward", select_adaptive_pool_backward())
