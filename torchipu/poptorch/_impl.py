"""Private names of PopTorch that programs are known to use."""

from __future__ import annotations

import importlib
from typing import Any

from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.poptorch_core import createPoptorchError

__all__ = ["createPoptorchError", "isRunningOnIpu"]

_MODULE_BY_NAME = {
    "ArgsParser": "_args_parser",
    "PoptorchBuffer": "instrumentation",
    "PoptorchParameter": "instrumentation",
    "internal_cast": "casting",
    "rewrapModelIfNecessary": "instrumentation",
    "unwrapModelIfNecessary": "instrumentation",
}


def __getattr__(name: str) -> Any:
    """Import what stands in modules that themselves need this one."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"torchipu.poptorch.{_MODULE_BY_NAME[name]}"), name)
