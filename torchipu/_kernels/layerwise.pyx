# cython: language_level=3
"""Kernels of LAMB and LARS; see layerwise_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "layerwise.h" nogil:
    ti_kernel select_lamb_direction()
    ti_kernel select_lars_norms()
    ti_kernel select_trust_ratio()
    ti_kernel select_lamb_apply()
    ti_kernel select_lars_apply()

LAMB_DIRECTION = make_kernel("lamb_direction", select_lamb_direction())
LARS_NORMS = make_kernel("lars_norms", select_lars_norms())
TRUST_RATIO = make_kernel("trust_ratio", select_trust_ratio())
LAMB_APPLY = make_kernel("lamb_apply", select_lamb_apply())
LARS_APPLY = make_kernel("lars_apply", select_lars_apply())
