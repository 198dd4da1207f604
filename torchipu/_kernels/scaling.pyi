from torchipu._kernels.abi import Kernel

BLOCK_SQUARES: Kernel
ADD_DOUBLES: Kernel
CLIP: Kernel
CLIP_VALUES: Kernel
UNSCALE: Kernel
BLOCK_COUNTS: Kernel
ADD_COUNTS: Kernel
JOIN_COUNTS: Kernel
ADAPT_SCALE: Kernel
ACCUMULATE_MEAN: Kernel
REPLICA_MEAN: Kernel
ADD: Kernel
FOLD_REPLICA: Kernel
SIGNAL: Kernel
