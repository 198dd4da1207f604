"""Several processes under one Trainer: torch.distributed carries weights, metrics and decisions."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT_S = 1800


def join(world_size: int, rank: int, environment: Any) -> None:
    """Form the group of all processes, unless there is one."""
    if world_size == 1 or dist.is_initialized():
        return
    if environment is not None:
        os.environ.setdefault("MASTER_ADDR", str(environment.main_address))
        os.environ.setdefault("MASTER_PORT", str(environment.main_port))
    dist.init_process_group(
        "gloo", rank=rank, world_size=world_size, timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )


def alone() -> dict[str, Any]:
    """Return that programs of evaluation run for themselves: metrics are reduced by Lightning."""
    return {"process_group": "alone"}


def options(world_size: int, group: Any) -> dict[str, Any]:
    """Return which processes the programs sum gradients over."""
    if group is not None:
        return {"process_group": group}
    return {"process_group": dist.group.WORLD} if world_size > 1 else {"process_group": "alone"}


def broadcast_module(module: torch.nn.Module, world_size: int) -> None:
    """Give all processes the parameters and buffers of the first."""
    if world_size == 1:
        return
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)


def reduce(tensor: Any, world_size: int, group: Any, operation: Any) -> Any:
    """Return a tensor reduced over the processes; see the strategy."""
    if world_size == 1 or not isinstance(tensor, torch.Tensor):
        return tensor
    group = group or dist.group.WORLD
    is_mean = operation in (None, "mean", "avg") or operation == dist.ReduceOp.AVG
    if isinstance(operation, str):
        operation = getattr(dist.ReduceOp, operation.upper(), None) if not is_mean else None
    reduced = tensor.detach().clone()
    if is_mean and not reduced.is_floating_point():
        reduced = reduced.float()
    dist.all_reduce(reduced, dist.ReduceOp.SUM if is_mean or operation is None else operation, group=group)
    return reduced / dist.get_world_size(group) if is_mean else reduced


def barrier(world_size: int) -> None:
    """Wait for all processes."""
    if world_size > 1 and dist.is_initialized():
        dist.barrier()


def broadcast(value: Any, world_size: int, source: int) -> Any:
    """Return what one process has."""
    if world_size == 1 or not dist.is_initialized():
        return value
    held = [value]
    dist.broadcast_object_list(held, source)
    return held[0]
