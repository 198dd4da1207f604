"""Where options that were pickled before look for their groups."""

from __future__ import annotations

from torchipu.poptorch.options.distributed import _DistributedOptions
from torchipu.poptorch.options.jit import _JitOptions
from torchipu.poptorch.options.popart import _PopartOptions
from torchipu.poptorch.options.precision import _PrecisionOptions
from torchipu.poptorch.options.tensor_locations import TensorLocationSettings, _TensorLocationOptions
from torchipu.poptorch.options.training import _TrainingOptions

__all__ = [
    "TensorLocationSettings",
    "_DistributedOptions",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
]
