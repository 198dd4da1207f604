from torchipu._kernels.abi import Kernel

SCAN: Kernel
SCAN_EXTREMES: Kernel
