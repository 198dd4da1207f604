from torchipu._kernels.abi import Kernel

CTC_LOSS: Kernel
CTC_LOSS_BACKWARD: Kernel
