from torchipu._kernels.abi import Kernel

GROUPED_MATMUL: Kernel
GROUPED_OUTER: Kernel
INTEGER_MATMUL: Kernel
