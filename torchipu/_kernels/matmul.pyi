from torchipu._kernels.abi import Kernel

MATMUL_PACK: Kernel
MATMUL: Kernel
