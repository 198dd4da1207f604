from torchipu._kernels.abi import Kernel

SORT: Kernel
SELECT: Kernel
SEARCH: Kernel
HISTOGRAM: Kernel
