from torchipu._kernels.abi import Kernel

ACCUMULATE: Kernel
FILL_ZERO: Kernel
INCREMENT: Kernel
SGD: Kernel
ADAM: Kernel
RMSPROP: Kernel
HYPER: dict[str, int]
HYPER_WORDS: int
