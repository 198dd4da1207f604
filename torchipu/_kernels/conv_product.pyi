from torchipu._kernels.abi import Kernel

CONV_PRODUCT: Kernel
CONV_PRODUCT_WEIGHT: Kernel
