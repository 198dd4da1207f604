from torchipu._kernels.abi import Kernel

COPY: Kernel
TRANSPOSE: Kernel
FILL: Kernel
ARANGE: Kernel
TRIANGLE: Kernel
LINSPACE: Kernel
