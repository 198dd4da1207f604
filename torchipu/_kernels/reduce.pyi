from torchipu._kernels.abi import Kernel

REDUCE_ROWS: Kernel
REDUCE_COLUMNS: Kernel
REDUCE_INTEGERS: Kernel
REDUCE_BOOLS: Kernel
ARG_ROWS: Kernel
MOMENT_ROWS: Kernel
LOGSUMEXP_ROWS: Kernel
