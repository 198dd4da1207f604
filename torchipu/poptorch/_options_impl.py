"""The name under which PopTorch keeps what its options are made of."""

from __future__ import annotations

from torchipu.poptorch.options.groups import (
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from torchipu.poptorch.options.strategies import _IExecutionStrategy
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
