from torchipu._kernels.abi import Kernel

NLL: Kernel
NLL_TOTAL: Kernel
NLL_GRAD: Kernel
PAIR_LOSS: Kernel
PAIR_TOTAL: Kernel
PAIR_LOSS_GRAD: Kernel
