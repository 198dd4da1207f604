from torchipu._kernels.abi import Kernel

MAX_POOL: Kernel
MAX_POOL_BACKWARD: Kernel
AVG_POOL: Kernel
AVG_POOL_BACKWARD: Kernel
ADAPTIVE_POOL: Kernel
ADAPTIVE_POOL_BACKWARD: Kernel
