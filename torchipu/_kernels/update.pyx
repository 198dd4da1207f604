# cython: language_level=3
"""Kernels of optimisers and gradient accumulation."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "update.h" nogil:
    ti_kernel select_accumulate()
    ti_kernel select_fill_zero()
    ti_kernel select_increment()
    ti_kernel select_sgd()
    ti_kernel select_adam()
    ti_kernel select_rmsprop()

ACCUMULATE = make_kernel("accumulate", select_accumulate())
FILL_ZERO = make_kernel("fill_zero", select_fill_zero())
INCREMENT = make_kernel("increment", select_increment())
SGD = make_kernel("sgd", select_sgd())
ADAM = make_kernel("adam", select_adam())
RMSPROP = make_kernel("rmsprop", select_rmsprop())

# Place of each hyperparameter among the 16 doubles that an optimiser reads; booleans are 0 or 1. Gradients are
# multiplied by grad_scale first: one over the accumulation factor, or over the loss scale.
HYPER = {
    "lr": 0, "beta1": 1, "beta2": 2, "eps": 3, "weight_decay": 4, "momentum": 5, "dampening": 6, "alpha": 7,
    "grad_scale": 8, "maximize": 9, "nesterov": 10, "amsgrad": 11, "centered": 12,
    "bias_correction": 13, "max_weight_norm": 14, "trust_coefficient": 15,
}
HYPER_WORDS = 16
