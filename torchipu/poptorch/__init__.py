"""PopTorch 3.3 on torchipu: ``import poptorch`` gives this module.

Names of light modules are imported at once; `_MODULE_BY_NAME` holds those whose module loads the compiler, which is
imported at their first use.
"""

from __future__ import annotations

import importlib
from typing import Any

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
from torchipu.poptorch.operators.torch_ops import register as _register_torch_ops
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

__version__ = "3.3.0"
"""The PopTorch whose behaviour this is."""

_MODULE_BY_NAME: dict[str, str] = {
    "BeginBlock": "operators.blocks",
    "Block": "operators.blocks",
    "BlockFunction": "operators.blocks",
    "removeBlocks": "operators.blocks",
    "cond": "operators.control",
    "Attribute": "operators.hints",
    "NameScope": "operators.hints",
    "getIpuTensorId": "operators.hints",
    "ipu_print_tensor": "operators.hints",
    "nop": "operators.hints",
    "recomputationCheckpoint": "operators.hints",
    "set_available_memory": "operators.hints",
    "CPU": "operators.cpu",
    "custom_op": "operators.custom_ops",
    "registerCustomOp": "operators.custom_ops",
    "set_overlap_for_input": "operators.overlap",
    "set_overlap_for_output": "operators.overlap",
    "ctc_beam_search_decoder": "operators.beam_search",
    "fps": "operators.points",
    "nearest": "operators.points",
    "serializedMatMul": "operators.serialised_matmul",
    "dynamic_slice": "operators.dynamic_slices",
    "dynamic_update": "operators.dynamic_slices",
    "for_loop": "operators.control",
    "MultiConv": "operators.multi_conv",
    "ICustomArgParser": "arguments.structure",
    "PoplarExecutor": "executor.poplar_executor",
    "autocast": "operators.autocasting",
    "identity_loss": "operators.loss",
    "inferenceModel": "executor.wrappers",
    "load": "executor.wrappers",
    "registerCustomArgParser": "arguments.structure",
    "registerPostCompileHook": "executor.compile_hooks",
    "registerPreCompileHook": "executor.compile_hooks",
    "trainingModel": "executor.wrappers",
    "AsynchronousDataAccessor": "data.accessor",
    "DataLoader": "data.loader",
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
    if name in ("autocast", "autocasting"):
        _prepare_process()
    if name == "print":
        from torchipu.poptorch.operators.blocks import poptorch_print

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


_register_torch_ops()


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*__all__, *_MODULE_BY_NAME})
