"""Kernels of recurrent layers; their arguments are documented in recurrent_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "recurrent.h" nogil:
    ti_kernel select_recurrence()
    ti_kernel select_recurrence_backward()

RECURRENCE = make_kernel("recurrence", select_recurrence())
RECURRENCE_BACKWARD = make_kernel("recurrence_backward", select_recurrence_backward())
