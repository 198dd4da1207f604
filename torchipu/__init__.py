"""An emulated Graphcore IPU for PyTorch; the public names, imported when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchipu import hooks
from torchipu.installation import check_kernels, check_torch, torch_version

if TYPE_CHECKING:
    from torchipu.capture.block import BeginBlock, Block, Partials
    from torchipu.capture.checkpoint import recomputation_checkpoint
    from torchipu.checking.comparison import Check
    from torchipu.checking.door import check
    from torchipu.distributed.metrics import reduce_metrics
    from torchipu.errors import (
        CaptureError,
        ConstraintError,
        ExecutionError,
        IpuError,
        OnnxError,
        OptionsError,
        OutOfTileMemoryError,
        PeerError,
        PeerMismatchError,
        PlacementError,
        RendezvousError,
        ScheduleError,
        UnsupportedOpError,
        VerifyError,
    )
    from torchipu.estimation.door import estimate, sweep
    from torchipu.estimation.figures import Estimate
    from torchipu.estimation.splits import Splits, best_split
    from torchipu.estimation.sweeps import Sweep
    from torchipu.explanation import Explanation, explain
    from torchipu.exported import compile
    from torchipu.host.counting import statistics
    from torchipu.host.statistics import LossScaleAdvice, TensorStatistics, advise_loss_scale, suggest_loss_scale
    from torchipu.onnx.conversion import from_onnx
    from torchipu.options import Options, Stage, TensorLocation
    from torchipu.partition.door import autopipeline
    from torchipu.partition.proposal import Proposal
    from torchipu.step import InferenceStep, TrainStep
    from torchipu.target import Target, lookup_target

__version__ = "0.1.0"

_MODULE_BY_NAME = {
    "BeginBlock": "capture.block",
    "Block": "capture.block",
    "CaptureError": "errors",
    "Check": "checking.comparison",
    "ConstraintError": "errors",
    "Estimate": "estimation.figures",
    "ExecutionError": "errors",
    "Explanation": "explanation",
    "InferenceStep": "step",
    "IpuError": "errors",
    "LossScaleAdvice": "host.statistics",
    "OnnxError": "errors",
    "Options": "options",
    "OptionsError": "errors",
    "OutOfTileMemoryError": "errors",
    "Partials": "capture.block",
    "PeerError": "errors",
    "PeerMismatchError": "errors",
    "PlacementError": "errors",
    "Proposal": "partition.proposal",
    "RendezvousError": "errors",
    "ScheduleError": "errors",
    "Splits": "estimation.splits",
    "Stage": "options",
    "Sweep": "estimation.sweeps",
    "Target": "target",
    "TensorLocation": "options",
    "TensorStatistics": "host.statistics",
    "TrainStep": "step",
    "UnsupportedOpError": "errors",
    "VerifyError": "errors",
    "advise_loss_scale": "host.statistics",
    "autopipeline": "partition.door",
    "best_split": "estimation.splits",
    "check": "checking.door",
    "compile": "exported",
    "estimate": "estimation.door",
    "explain": "explanation",
    "from_onnx": "onnx.conversion",
    "lookup_target": "target",
    "recomputation_checkpoint": "capture.checkpoint",
    "reduce_metrics": "distributed.metrics",
    "statistics": "host.counting",
    "suggest_loss_scale": "host.statistics",
    "sweep": "estimation.door",
}

__all__ = [
    "BeginBlock",
    "Block",
    "CaptureError",
    "Check",
    "ConstraintError",
    "Estimate",
    "ExecutionError",
    "Explanation",
    "InferenceStep",
    "IpuError",
    "LossScaleAdvice",
    "OnnxError",
    "Options",
    "OptionsError",
    "OutOfTileMemoryError",
    "Partials",
    "PeerError",
    "PeerMismatchError",
    "PlacementError",
    "Proposal",
    "RendezvousError",
    "ScheduleError",
    "Splits",
    "Stage",
    "Sweep",
    "Target",
    "TensorLocation",
    "TensorStatistics",
    "TrainStep",
    "UnsupportedOpError",
    "VerifyError",
    "__version__",
    "advise_loss_scale",
    "autopipeline",
    "best_split",
    "check",
    "compile",
    "estimate",
    "explain",
    "from_onnx",
    "lookup_target",
    "recomputation_checkpoint",
    "reduce_metrics",
    "statistics",
    "suggest_loss_scale",
    "sweep",
]

check_torch(torch_version())
check_kernels()
hooks.install()


def __getattr__(name: str) -> Any:
    """Import the module of a public name at its first use: importing torchipu alone loads neither torch nor kernels."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'torchipu' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"torchipu.{_MODULE_BY_NAME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted(__all__)
