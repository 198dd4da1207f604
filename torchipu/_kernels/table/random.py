"""Kernels that draw random values."""

from .kernel import AnyKernel, Kernel

RANDOM_WORDS: AnyKernel = Kernel("random_words")
RANDOM_DROPOUT: AnyKernel = Kernel("random_dropout")
RANDOM_BERNOULLI: AnyKernel = Kernel("random_bernoulli")
RANDOM_UNIFORM: AnyKernel = Kernel("random_uniform")
RANDOM_NORMAL: AnyKernel = Kernel("random_normal")
RANDOM_INTEGERS: AnyKernel = Kernel("random_integers")
RANDOM_EXPONENTIAL: AnyKernel = Kernel("random_exponential")
RANDOM_PERMUTATION: AnyKernel = Kernel("random_permutation")
RANDOM_CHOICE: AnyKernel = Kernel("random_choice")
