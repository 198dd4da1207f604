"""``torch.ops.poptorch``: the names under which programs reach operators of PopTorch below its Python functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

REDUCTIONS = ("sum", "mean", "none")
"""Those of `identity_loss`, which go by their number here."""
TYPES = {"FLOAT": torch.float32, "FLOAT16": torch.float16}

_FUNCTIONS = {
    "identity_loss": ("loss", "identity_loss"),
    "internal_cast": ("casting", "internal_cast"),
    "ipu_print_tensor": ("hints", "ipu_print_tensor"),
    "nop": ("hints", "nop"),
    "recomputation_checkpoint": ("hints", "recomputationCheckpoint"),
    "set_available_memory": ("hints", "set_available_memory"),
}


def _function(name: str) -> Callable[..., Any]:
    """Return a function that imports the operator when it is called."""
    module, attribute = _FUNCTIONS[name]

    def call(tensor: torch.Tensor, *arguments: Any) -> Any:
        function = getattr(importlib.import_module(f"torchipu.poptorch.operators.{module}"), attribute)
        if name == "identity_loss":
            arguments = (REDUCTIONS[arguments[0]],)
        elif name == "internal_cast":
            arguments = (TYPES[arguments[0]],)
        return function(tensor, *arguments)

    call.__name__ = name
    return call


def register() -> None:
    """Give ``torch.ops.poptorch`` its operators."""
    for name in _FUNCTIONS:
        setattr(torch.ops.poptorch, name, _function(name))
