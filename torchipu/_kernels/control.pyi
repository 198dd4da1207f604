from torchipu._kernels.abi import Kernel

COUNT: Kernel
TAKE_ROW: Kernel
PUT_ROW: Kernel
FORK: Kernel
