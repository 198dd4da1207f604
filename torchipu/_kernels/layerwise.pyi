from torchipu._kernels.abi import Kernel

LAMB_DIRECTION: Kernel
LARS_NORMS: Kernel
TRUST_RATIO: Kernel
LAMB_APPLY: Kernel
LARS_APPLY: Kernel
