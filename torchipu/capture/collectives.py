"""Collectives over processes as captured: their group, and calls that write into their operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from torchipu.capture.fx_source import source_of
from torchipu.errors import CaptureError
from torchipu.optable.collective import PROCESSES


def group_of(node: Node, attrs: Mapping[str, object]) -> dict[str, object]:
    """Return the name of a collective's group, and how many processes it has.

    Args:
        node: The call.
        attrs: Its arguments.

    Raises:
        CaptureError: This process has no such group.
    """
    given: Any = attrs["group_name"]
    try:
        group: Any = given if hasattr(given, "group_name") else torch._C._distributed_c10d._resolve_process_group(given)
    except RuntimeError as error:
        raise CaptureError(
            f"{node.target}: this process has no process group {given!r}", op=node.format_node(),
            source=source_of(node),
            remedy="call torch.distributed.init_process_group, or new_group, before the model is compiled",
        ) from error
    return {"group_name": str(group.group_name), PROCESSES: group.size()}


def in_place_calls() -> dict[Any, Callable[..., Any]]:
    """Return what stands in for the functional operators that write into a tensor, which AOT autograd cannot rewrite.

    Empty where torch is built without torch.distributed.
    """
    if not torch.distributed.is_available():
        return {}
    calls = torch.ops._c10d_functional
    pairs = {
        calls.all_reduce_: _into_operand(calls.all_reduce), calls.broadcast_: _into_operand(calls.broadcast),
        calls.all_reduce_coalesced_: _into_operands(calls.all_reduce_coalesced),
        calls.all_gather_into_tensor_out: _into_out(calls.all_gather_into_tensor),
        calls.reduce_scatter_tensor_out: _into_out(calls.reduce_scatter_tensor),
    }
    return {**pairs, **{packet.default: stand_in for packet, stand_in in pairs.items()}}


def _into_operand(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def write(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return input.copy_(_waited(call(input, *args, **kwargs)))

    return write


def _into_operands(call: Callable[..., list[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
    def write(inputs: list[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        made = [_waited(result) for result in call(inputs, *args, **kwargs)]
        return [operand.copy_(result) for operand, result in zip(inputs, made, strict=True)]

    return write


def _into_out(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def write(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return out.copy_(_waited(call(*args, **kwargs)))

    return write


def _waited(value: torch.Tensor) -> torch.Tensor:
    waited: torch.Tensor = torch.ops._c10d_functional.wait_tensor(value)
    return waited
