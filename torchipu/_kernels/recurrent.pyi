from torchipu._kernels.abi import Kernel

RECURRENCE: Kernel
RECURRENCE_BACKWARD: Kernel
