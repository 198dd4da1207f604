"""The name under which PopTorch keeps what its options are made of."""

from __future__ import annotations

from torchipu.poptorch.option_groups import (
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from torchipu.poptorch.option_values import OptionsDict
from torchipu.poptorch.strategies import _IExecutionStrategy

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
