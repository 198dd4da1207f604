"""Exchanges of torch.distributed among the members of a set of processes, without gradients.

A member on its own has nobody to exchange with, and gets what it gave.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from torchipu.horovod.process_sets import Members

P = ParamSpec("P")
T = TypeVar("T")


class HorovodInternalError(RuntimeError):
    """An exchange failed: another process has ended, gave another shape, or did not come in time."""


def _named_failures(exchange: Callable[P, T]) -> Callable[P, T]:
    """Let what torch.distributed raises be a `HorovodInternalError`, which programs for Horovod expect."""

    @functools.wraps(exchange)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return exchange(*args, **kwargs)
        except RuntimeError as error:
            raise HorovodInternalError(f"an exchange with the other processes failed: {error}") from error

    return called


@_named_failures
def reduce_all(tensor: torch.Tensor, op: Any, where: Members) -> None:
    """Combine a contiguous tensor of all members, in place."""
    if where.group is not None:
        dist.all_reduce(tensor, op, group=where.group)


@_named_failures
def gather_objects(obj: Any, where: Members) -> list[Any]:
    """Return an object of each member; objects are pickled."""
    found: list[Any] = [obj] * where.size
    if where.group is not None:
        dist.all_gather_object(found, obj, group=where.group)
    return found


@_named_failures
def gather_rows(own: torch.Tensor, where: Members) -> torch.Tensor:
    """Return the rows of all members, ``[N, ...]`` of each, in which N may differ."""
    if where.group is None:
        return own.clone()
    lengths = gather_objects(own.shape[0], where)
    padded = own.new_zeros((max(lengths), *own.shape[1:]))
    padded[: own.shape[0]] = own
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=where.group)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


@_named_failures
def count_received(given: list[int], where: Members) -> list[int]:
    """Return how many rows each member gives this one, which gives so many to each."""
    if where.group is None:
        return given
    counts = torch.empty(where.size, dtype=torch.int64)
    dist.all_to_all_single(counts, torch.tensor(given), group=where.group)
    return [int(count) for count in counts]


@_named_failures
def deal_rows(own: torch.Tensor, received: list[int], given: list[int], where: Members) -> torch.Tensor:
    """Return the rows that all members have given this one, which gives its own ones to all."""
    if where.group is None:
        return own.clone()
    result = own.new_empty((sum(received), *own.shape[1:]))
    dist.all_to_all_single(result, own.contiguous(), received, given, group=where.group)
    return result


@_named_failures
def send_to_all(tensor: torch.Tensor, root_rank: int, where: Members) -> None:
    """Give all members the tensor of one, in place."""
    if where.group is not None:
        sent = tensor.contiguous()
        dist.broadcast(sent, root_rank, group=where.group)
        if sent is not tensor:
            tensor.copy_(sent)


@_named_failures
def send_object_to_all(obj: Any, root_rank: int, where: Members) -> Any:
    """Return the object of one member; it is pickled."""
    found = [obj]
    if where.group is not None:
        dist.broadcast_object_list(found, root_rank, group=where.group)
    return found[0]


@_named_failures
def wait_for_all(where: Members) -> None:
    """Wait until all members have come here."""
    if where.group is not None:
        dist.barrier(group=where.group)
