"""Kernels of optimisers and gradient accumulation."""

from .kernel import AnyKernel, Kernel

ACCUMULATE: AnyKernel = Kernel("accumulate")
FILL_ZERO: AnyKernel = Kernel("fill_zero")
INCREMENT: AnyKernel = Kernel("increment")
SGD: AnyKernel = Kernel("sgd")
ADAM: AnyKernel = Kernel("adam")
RMSPROP: AnyKernel = Kernel("rmsprop")

HYPER = {
    "lr": 0, "beta1": 1, "beta2": 2, "eps": 3, "weight_decay": 4, "momentum": 5, "dampening": 6, "alpha": 7,
    "grad_scale": 8, "maximize": 9, "nesterov": 10, "amsgrad": 11, "centered": 12,
    "bias_correction": 13, "max_weight_norm": 14, "trust_coefficient": 15,
}
"""Place of each hyperparameter among the 16 doubles that an optimiser reads; booleans are 0 or 1. Gradients are
multiplied by grad_scale first: one over the accumulation factor, or over the loss scale."""
HYPER_WORDS = 16
