from torchipu._kernels.abi import Kernel

ROUND_BLOCKS: Kernel
