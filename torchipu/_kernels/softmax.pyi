from torchipu._kernels.abi import Kernel

SOFTMAX_ROWS: Kernel
SOFTMAX_ROWS_GRAD: Kernel
SOFTMAX_COLUMNS: Kernel
SOFTMAX_COLUMNS_GRAD: Kernel
