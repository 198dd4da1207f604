from torchipu._kernels.abi import Kernel

HALF_PRODUCT: Kernel
