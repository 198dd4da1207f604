"""Kernels of pooling over windows in tables; their arguments are documented in window_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "window.h" nogil:
    ti_kernel select_window_max()
    ti_kernel select_window_mean()
    ti_kernel select_window_mean_backward()
    ti_kernel select_window_place()

WINDOW_MAX = make_kernel("window_max", select_window_max())
WINDOW_MEAN = make_kernel("window_mean", select_window_mean())
WINDOW_MEAN_BACKWARD = make_kernel("window_mean_backward", select_window_mean_backward())
WINDOW_PLACE = make_kernel("window_place", select_window_place())
