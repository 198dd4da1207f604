"""An operator that calls a Python function on the host in the middle of the program.

The program holds the name of the function alone: a process that loads it must have registered the function too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import library

from torchipu.errors import ExecutionError

HostFunction = Callable[[Sequence[torch.Tensor], Mapping[str, Any]], Sequence[torch.Tensor]]
"""From inputs and attributes to outputs."""

_FUNCTIONS: dict[str, HostFunction] = {}

library.define("torchipu::call_host", "(Tensor[] inputs, str function, str attributes, str outputs) -> Tensor[]")


def register_host_function(name: str, function: HostFunction) -> None:
    """Let a program call a function by a name; a later one replaces an earlier one."""
    _FUNCTIONS[name] = function


def call_host(
    name: str, inputs: Sequence[torch.Tensor], attributes: Mapping[str, Any], like: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Call a function on the host when the program runs.

    Args:
        name: That of the function.
        inputs: What it is given.
        attributes: Numbers, texts and lists of them.
        like: Tensors with the shapes and types of its results.
    """
    outputs = json.dumps([[list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for tensor in like])
    return list(torch.ops.torchipu.call_host(list(inputs), name, json.dumps(dict(attributes)), outputs))


@library.impl("torchipu::call_host", "CompositeExplicitAutograd")
def _call(inputs: Sequence[torch.Tensor], function: str, attributes: str, outputs: str) -> list[torch.Tensor]:
    if function not in _FUNCTIONS:
        raise RuntimeError(f"no function {function!r} is registered in this process; register it before the program")
    results = list(_FUNCTIONS[function]([value.clone() for value in inputs], json.loads(attributes)))
    expected = _like(inputs, function, attributes, outputs)
    if [tuple(result.shape) for result in results] != [tuple(like.shape) for like in expected]:
        raise ExecutionError(
            f"the host function {function!r} returned {[list(result.shape) for result in results]} where the program "
            f"expects {[list(like.shape) for like in expected]}",
            remedy="return tensors of the shapes of the example outputs",
        )
    return [result.detach().to(like.dtype).clone() for result, like in zip(results, expected, strict=True)]


@library.register_fake("torchipu::call_host")  # type: ignore[untyped-decorator]
def _like(inputs: Sequence[torch.Tensor], function: str, attributes: str, outputs: str) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in json.loads(outputs)]
