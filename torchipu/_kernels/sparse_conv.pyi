from torchipu._kernels.abi import Kernel

SPARSE_CONV_BACKWARD: Kernel
SPARSE_CONV_PACK: Kernel
SPARSE_CONV_REDUCE: Kernel
