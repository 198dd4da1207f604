from collections.abc import Sequence

from torchipu._kernels.abi import Kernel

RANDOM_WORDS: Kernel
RANDOM_DROPOUT: Kernel
RANDOM_BERNOULLI: Kernel
RANDOM_UNIFORM: Kernel
RANDOM_NORMAL: Kernel
RANDOM_INTEGERS: Kernel
RANDOM_EXPONENTIAL: Kernel
RANDOM_PERMUTATION: Kernel
RANDOM_CHOICE: Kernel

def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]: ...
