"""Kernels of attention; their arguments are documented in attention_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "attention.h" nogil:
    ti_kernel select_attention()
    ti_kernel select_attention_backward()

ATTENTION = make_kernel("attention", select_attention())
ATTENTION_BACKWARD = make_kernel("attention_backward", select_attention_backward())
