from torchipu._kernels.abi import Kernel

TAKE_ROWS: Kernel
BUCKET: Kernel
SUM_ROWS: Kernel
PUT_ROWS: Kernel
FLATTEN_INDEX: Kernel
GATHER_LINES: Kernel
SCATTER_LINES: Kernel
COPY_BYTES: Kernel
