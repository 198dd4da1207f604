"""Where options that were pickled before look for their groups."""

from __future__ import annotations

from torchipu.poptorch.options.groups import (
    TensorLocationSettings,
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)

__all__ = [
    "TensorLocationSettings",
    "_DistributedOptions",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
]
