from torchipu._kernels.abi import Kernel

VOLUME_FORWARD: Kernel
VOLUME_INPUT: Kernel
VOLUME_WEIGHT: Kernel
VOLUME_BIAS: Kernel
