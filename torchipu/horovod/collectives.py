"""Exchanges of torch.distributed among the members of a set of processes, which agree on each first; no gradients.

A member on its own has nobody to exchange with, and gets what it gave. What is small goes round while they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torchipu.horovod.agreement import Request, agree, agree_along, are_few, described
from torchipu.horovod.failures import named_failures
from torchipu.horovod.processes import Members
from torchipu.horovod.reductions import Reduction, flat_of, reduce_all

JOINED = "horovod/joined"
"""Key of the store: how often processes have come to `join`."""


@named_failures
def gather_objects(obj: Any, where: Members) -> list[Any]:
    """Return an object of each member; objects are pickled."""
    agree(Request("allgather_object"), where)
    return _gathered(obj, where)


def reduce_tensors(what: str, tensors: Sequence[torch.Tensor], how: Reduction, where: Members) -> None:
    """Combine each tensor with those of the other members, in place.

    Args:
        what: Name of the exchange.
        tensors: Dense ones.
        how: How.
        where: The members.

    Raises:
        HorovodInternalError: They ask for different things, or the exchange failed.
    """
    request = Request(what, described(tensors), how)
    own = flat_of(tensors, how) if are_few(tensors) else None
    if own is None:
        agree(request, where)
        reduce_all(tensors, how, where)
    else:
        reduce_all(tensors, how, where, agree_along(request, own, where))


@named_failures
def gather_rows(own: torch.Tensor, where: Members) -> tuple[torch.Tensor, list[int]]:
    """Return the rows of all members, ``[N, ...]`` of each, in which N may differ, and how many each has."""
    told = agree_along(Request("allgather", described([own], first=1)), torch.tensor([own.shape[0]]), where)
    return gather_agreed_rows(own, where, None if told is None else told[:, 0].tolist())


@named_failures
def gather_agreed_rows(
    own: torch.Tensor, where: Members, lengths: list[int] | None = None
) -> tuple[torch.Tensor, list[int]]:
    """Do what `gather_rows` does among members that have agreed on it, and may know how many rows each has."""
    if where.group is None:
        return own.clone(), [own.shape[0]]
    lengths = lengths or _gathered(own.shape[0], where)
    padded = own.new_zeros((max(lengths), *own.shape[1:]))
    padded[: own.shape[0]] = own
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=where.group)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)]), lengths


def _gathered(obj: Any, where: Members) -> list[Any]:
    found: list[Any] = [obj] * where.size
    if where.group is not None:
        dist.all_gather_object(found, obj, group=where.group)
    return found


@named_failures
def count_received(given: list[int], rows: torch.Tensor, where: Members) -> list[int]:
    """Return how many rows each member gives this one, which gives so many of these to each."""
    told = agree_along(Request("alltoall", described([rows], first=1)), torch.tensor(given), where)
    if where.group is None:
        return given
    if told is not None:
        return [int(count) for count in told[:, where.rank]]
    counts = torch.empty(where.size, dtype=torch.int64)
    dist.all_to_all_single(counts, torch.tensor(given), group=where.group)
    return [int(count) for count in counts]


@named_failures
def deal_rows(own: torch.Tensor, received: list[int], given: list[int], where: Members) -> torch.Tensor:
    """Return the rows that all members have given this one, which gives its own ones to all."""
    agree(Request("rows of alltoall", described([own], first=1)), where)
    if where.group is None:
        return own.clone()
    result = own.new_empty((sum(received), *own.shape[1:]))
    dist.all_to_all_single(result, own.contiguous(), received, given, group=where.group)
    return result


@named_failures
def send_to_all(tensor: torch.Tensor, root_rank: int, where: Members) -> None:
    """Give all members the tensor of one, in place."""
    told = agree_along(Request("broadcast", described([tensor]), arguments=(f"root_rank={root_rank}",)), tensor, where)
    if told is not None:
        tensor.copy_(told[where.ranks.index(root_rank)].reshape(tensor.shape))
    elif where.group is not None:
        sent = tensor.contiguous()
        dist.broadcast(sent, root_rank, group=where.group)
        if sent is not tensor:
            tensor.copy_(sent)


@named_failures
def send_object_to_all(obj: Any, root_rank: int, where: Members) -> Any:
    """Return the object of one member; it is pickled."""
    agree(Request("broadcast_object", arguments=(f"root_rank={root_rank}",)), where)
    found = [obj]
    if where.group is not None:
        dist.broadcast_object_list(found, root_rank, group=where.group)
    return found[0]


def wait_for_all(where: Members) -> None:
    """Wait until all members have come here."""
    agree(Request("barrier"), where)


@named_failures
def come_to_join(where: Members) -> int:
    """Return how many have come to `join` since the beginning, this member the last."""
    return 1 if where.group is None else int(dist.distributed_c10d._get_default_store().add(JOINED, 1))


@named_failures
def last_to_join(come: int, where: Members) -> int:
    """Return the number of the member that came last, once all have come; each gives what `come_to_join` returned."""
    order = _gathered(come, where)
    return where.ranks[order.index(max(order))]
