from torchipu._kernels.abi import Kernel

FP8_ENCODE: Kernel
FP8_DECODE: Kernel
