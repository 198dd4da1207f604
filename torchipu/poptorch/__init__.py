"""PopTorch 3.3 on torchipu: ``import poptorch`` gives this module.

Names of light modules are imported at once; `_MODULE_BY_NAME` holds those whose module loads the compiler, which is
imported at their first use.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from torchipu.poptorch import enums, options, poptorch_core
from torchipu.poptorch._logging import logger as logger
from torchipu.poptorch._logging import setLogLevel
from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.enums import (
    AnchorMode,
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from torchipu.poptorch.hardware import ipuHardwareIsAvailable, ipuHardwareVersion
from torchipu.poptorch.options import (
    ConfigFileError,
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)
from torchipu.poptorch.poptorch_core import Error, RecoverableError, UnrecoverableError
from torchipu.poptorch.process import prepare as _prepare_process
from torchipu.poptorch.torch_ops import register as _register_torch_ops

__version__ = "3.3.0"
"""The PopTorch whose behaviour this is."""

_MODULE_BY_NAME: dict[str, str] = {
    "BeginBlock": "blocks",
    "Block": "blocks",
    "BlockFunction": "blocks",
    "removeBlocks": "blocks",
    "cond": "control",
    "Attribute": "hints",
    "NameScope": "hints",
    "getIpuTensorId": "hints",
    "ipu_print_tensor": "hints",
    "nop": "hints",
    "recomputationCheckpoint": "hints",
    "set_available_memory": "hints",
    "CPU": "cpu",
    "custom_op": "custom_ops",
    "registerCustomOp": "custom_ops",
    "set_overlap_for_input": "overlap",
    "set_overlap_for_output": "overlap",
    "ctc_beam_search_decoder": "beam_search",
    "fps": "points",
    "nearest": "points",
    "serializedMatMul": "serialised_matmul",
    "dynamic_slice": "dynamic_slices",
    "dynamic_update": "dynamic_slices",
    "for_loop": "control",
    "MultiConv": "multi_conv",
    "ICustomArgParser": "structure",
    "PoplarExecutor": "_poplar_executor",
    "autocast": "autocasting",
    "identity_loss": "loss",
    "inferenceModel": "wrappers",
    "load": "wrappers",
    "registerCustomArgParser": "structure",
    "registerPostCompileHook": "compile_hooks",
    "registerPreCompileHook": "compile_hooks",
    "trainingModel": "wrappers",
    "AsynchronousDataAccessor": "data_accessor",
    "DataLoader": "data_loader",
}

__all__ = [
    "AnchorMode",
    "AsynchronousDataAccessor",
    "Attribute",
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "CPU",
    "CommGroupType",
    "ConfigFileError",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "Error",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConv",
    "MultiConvPlanType",
    "NameScope",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "VariableRetrievalMode",
    "__version__",
    "autocast",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "enums",
    "for_loop",
    "fps",
    "getIpuTensorId",
    "identity_loss",
    "inferenceModel",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "load",
    "nearest",
    "nop",
    "options",
    "poptorch_core",
    "profiling",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "registerCustomOp",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "removeBlocks",
    "serializedMatMul",
    "setLogLevel",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "trainingModel",
]


def __getattr__(name: str) -> Any:
    """Import what is used for the first time: the module of a name, or a submodule."""
    value: Any
    if name == "print":
        from torchipu.poptorch.blocks import poptorch_print

        value = poptorch_print
    elif name in _MODULE_BY_NAME:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULE_BY_NAME[name]}"), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module 'poptorch' has no attribute {name!r}")
    globals()[name] = value
    return value


_SUBMODULES = (
    "_args_parser", "_dataloader", "_impl", "_logging", "_options_impl", "_poplar_executor", "_utils", "autocasting",
    "ops", "optim", "profiling", "testing",
)
"""Modules that are attributes of this one without an import of their own."""


def _autocast_of_modules(module: torch.nn.Module, enabled: bool = True) -> torch.nn.Module:
    """Let the forward of a module be a region of `autocast`; a method of every module, as in PopTorch 2.1 to 3.0."""
    from torchipu.poptorch.autocasting import cast_module

    return cast_module(module, enabled)


torch.nn.Module.autocast = _autocast_of_modules  # type: ignore[attr-defined]
_prepare_process()
_register_torch_ops()


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*__all__, *_MODULE_BY_NAME})
