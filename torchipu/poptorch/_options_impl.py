"""The name under which PopTorch keeps what its options are made of."""

from __future__ import annotations

from torchipu.poptorch.options.distributed import _DistributedOptions
from torchipu.poptorch.options.jit import _JitOptions
from torchipu.poptorch.options.popart import _PopartOptions
from torchipu.poptorch.options.precision import _PrecisionOptions
from torchipu.poptorch.options.strategies import _IExecutionStrategy
from torchipu.poptorch.options.tensor_locations import _TensorLocationOptions
from torchipu.poptorch.options.training import _TrainingOptions
from torchipu.poptorch.options.values import OptionsDict

__all__ = [
    "OptionsDict",
    "_DistributedOptions",
    "_IExecutionStrategy",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
]
