"""Kernels of three-dimensional convolutions; their arguments are documented in volume_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "volume.h" nogil:
    ti_kernel select_volume_forward()
    ti_kernel select_volume_input()
    ti_kernel select_volume_weight()
    ti_kernel select_volume_bias()

VOLUME_FORWARD = make_kernel("volume_forward", select_volume_forward())
VOLUME_INPUT = make_kernel("volume_input", select_volume_input())
VOLUME_WEIGHT = make_kernel("volume_weight", select_volume_weight())
VOLUME_BIAS = make_kernel("volume_bias", select_volume_bias())
