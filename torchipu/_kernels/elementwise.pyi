from torchipu._kernels.abi import Kernel

CHAIN: Kernel
OPERATIONS: dict[str, int]
SCALAR_OPERATIONS: frozenset[str]
