"""Kernels of losses."""

from .kernel import AnyKernel, Kernel

NLL: AnyKernel = Kernel("nll")
NLL_TOTAL: AnyKernel = Kernel("nll_total")
NLL_GRAD: AnyKernel = Kernel("nll_grad")
PAIR_LOSS: AnyKernel = Kernel("pair_loss")
PAIR_TOTAL: AnyKernel = Kernel("pair_total")
PAIR_LOSS_GRAD: AnyKernel = Kernel("pair_loss_grad")
