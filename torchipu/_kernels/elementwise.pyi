from torchipu._kernels.abi import Kernel

CHAIN: Kernel
OPERATIONS: dict[str, int]
