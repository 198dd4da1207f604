"""`set_overlap_for_input` and `set_overlap_for_output`: transfers that run beside the computation."""

from __future__ import annotations

from typing import Any

import torch

from torchipu.capture.overlap import overlap
from torchipu.poptorch.arguments import structure
from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.enums import OverlapMode
from torchipu.poptorch.poptorch_core import createPoptorchError

INPUT, OUTPUT = "set_overlap_for_input", "set_overlap_for_output"


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Receive inputs from the host while the device computes.

    Args:
        input_tensors: Inputs of the model, alone or in containers; nothing else may read them.
        mode: In which loop the transfers run ahead.

    Returns:
        The same tensors, to be used from here on.

    Raises:
        Error: There is something else than tensors. What is marked is checked at compilation.
    """
    return _marked(INPUT, input_tensors, mode)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Send results to the host while the device computes.

    Args:
        output_tensors: Results of the model, alone or in containers, to be returned next.
        mode: In which loop the transfers lag behind.

    Returns:
        The same tensors, to be returned.

    Raises:
        Error: There is something else than tensors. What is marked is checked at compilation.
    """
    return _marked(OUTPUT, output_tensors, mode)


def _marked(name: str, tensors: Any, mode: Any) -> Any:
    if not isinstance(mode, OverlapMode):
        raise AssertionError(f"poptorch.{name}: the mode must be a poptorch.OverlapMode, not {mode!r}")
    _check_leaves(name, tensors)
    if not isRunningOnIpu():
        return tensors
    transfer = "input" if name == INPUT else "output"
    marked = [overlap(tensor, transfer, mode.value) for tensor in structure.tensors_in(tensors)]
    return structure.with_tensors(tensors, iter(marked))


def _check_leaves(name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor) or structure.parser_of(value) is not None:
        return
    if not isinstance(value, (list, tuple, dict)):
        raise createPoptorchError(f"poptorch.{name} must be given tensors or containers of tensors, not {type(value)}")
    for member in value.values() if isinstance(value, dict) else value:
        _check_leaves(name, member)


# ---------------------------------------------------------------------- what is checked at compilation
