from torchipu._kernels.abi import Kernel

WEIGHTED_TAPS: Kernel
ADD_STRIDED: Kernel
