from torchipu._kernels.abi import Kernel

GATHER_BLOCK: Kernel
SCATTER_BLOCK: Kernel
TAKE_STRIDED: Kernel
REDUCE_ROWS: Kernel
DIVIDE_COUNTS: Kernel
MASK_COUNT: Kernel
MASK_SCATTER: Kernel
MASK_COMPACT: Kernel
NONZERO: Kernel
