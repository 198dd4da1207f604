from torchipu._kernels.abi import Kernel

CONV_FORWARD: Kernel
CONV_INPUT: Kernel
CONV_WEIGHT: Kernel
CONV_REDUCE: Kernel
CONV_BIAS: Kernel
CONV_MAX_POOL: Kernel
