# cython: language_level=3
"""Kernels of losses."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "loss.h" nogil:
    ti_kernel select_nll()
    ti_kernel select_nll_total()
    ti_kernel select_nll_grad()
    ti_kernel select_pair_loss()
    ti_kernel select_pair_total()
    ti_kernel select_pair_loss_grad()

NLL = make_kernel("nll", select_nll())
NLL_TOTAL = make_kernel("nll_total", select_nll_total())
NLL_GRAD = make_kernel("nll_grad", select_nll_grad())
PAIR_LOSS = make_kernel("pair_loss", select_pair_loss())
PAIR_TOTAL = make_kernel("pair_total", select_pair_total())
PAIR_LOSS_GRAD = make_kernel("pair_loss_grad", select_pair_loss_grad())
