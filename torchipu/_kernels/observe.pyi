from torchipu._kernels.abi import Kernel

CHECK: Kernel
TALLY: Kernel
