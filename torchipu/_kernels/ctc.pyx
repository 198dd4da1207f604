"""Kernels of connectionist temporal classification; their arguments are documented in ctc_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "ctc.h" nogil:
    ti_kernel select_ctc_loss()
    ti_kernel select_ctc_loss_backward()

CTC_LOSS = make_kernel("ctc_loss", select_ctc_loss())
CTC_LOSS_BACKWARD = make_kernel("ctc_loss_backward", select_ctc_loss_backward())
