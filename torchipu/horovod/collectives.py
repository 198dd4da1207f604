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

JOINED, LAST = "horovod/joined", "horovod/last"
"""Keys of the store: how often processes have come to `join`, and which came last."""

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
            raise HorovodInternalError(
                f"an exchange with the other processes failed: {error}{_told_of_join(error)}"
            ) from error

    return called


def _told_of_join(error: RuntimeError) -> str:
    # Where a process has died, that of the store may have, too: only one that waits is asked for.
    if "timed out" not in str(error).lower():
        return ""
    try:
        waiting = int(dist.distributed_c10d._get_default_store().add(JOINED, 0)) % dist.get_world_size()
    except (RuntimeError, ValueError):  # the store has gone
        return ""
    return (
        f"\nProcesses that wait in hvd.join: {waiting}. Exchanges of the others are not made up for with zeros there, "
        "so give all processes the same number of batches" if waiting else ""
    )


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


@_named_failures
def last_to_join(where: Members) -> int:
    """Wait until all members have come here, and return the number of the one that came last."""
    if where.group is None:
        return where.rank
    store = dist.distributed_c10d._get_default_store()
    order = int(store.add(JOINED, 1))
    if order % where.size == 0:
        store.set(LAST, str(where.rank))
    wait_for_all(where)
    last = int(store.get(LAST))
    wait_for_all(where)  # nobody begins another join before all have read
    return last
