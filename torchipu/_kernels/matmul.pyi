from torchipu._kernels.abi import Kernel

MATMUL_PACK: Kernel
MATMUL_PACK_ROWS: Kernel
MATMUL: Kernel
MATMUL_DOTS: Kernel
