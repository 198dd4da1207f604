# cython: language_level=3
"""Kernels of floats of 8 bits; see fp8_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "fp8.h" nogil:
    ti_kernel select_fp8_encode()
    ti_kernel select_fp8_decode()

FP8_ENCODE = make_kernel("fp8_encode", select_fp8_encode())
FP8_DECODE = make_kernel("fp8_decode", select_fp8_decode())
