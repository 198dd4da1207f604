from torchipu._kernels.abi import Kernel

ATTENTION: Kernel
ATTENTION_BACKWARD: Kernel
