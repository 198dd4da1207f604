from torchipu._kernels.abi import Kernel

TAKE_ROWS: Kernel
BUCKET: Kernel
SUM_ROWS: Kernel
PUT_ROWS: Kernel
FLATTEN_INDEX: Kernel
COPY_BYTES: Kernel
BAG_ROWS: Kernel
BAG_OF: Kernel
BAG_ROWS_GRAD: Kernel
BAG_MAX_GRAD: Kernel
BAG_WEIGHTS_GRAD: Kernel
SCALE_BY_COUNT: Kernel
RENORM_ROWS: Kernel
