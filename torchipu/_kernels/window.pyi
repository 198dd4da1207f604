from torchipu._kernels.abi import Kernel

WINDOW_MAX: Kernel
WINDOW_MEAN: Kernel
WINDOW_MEAN_BACKWARD: Kernel
WINDOW_PLACE: Kernel
