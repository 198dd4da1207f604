"""Values of all processes put together, or those of one given to all.

Gradients flow back as in Horovod: through `allreduce` by the same ``op``; through `reducescatter` so that it and
`allgather` after it have the gradients of `allreduce`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchipu.horovod.agreement import JOIN, Request, agree
from torchipu.horovod.collectives import (
    come_to_join,
    count_received,
    deal_rows,
    gather_agreed_rows,
    gather_objects,
    gather_rows,
    last_to_join,
    reduce_tensors,
    send_object_to_all,
    send_to_all,
    wait_for_all,
)
from torchipu.horovod.compression import Compression
from torchipu.horovod.gradients import exchanged
from torchipu.horovod.graphs import outside_of_graphs
from torchipu.horovod.process_sets import global_process_set, members
from torchipu.horovod.processes import Members, rank, size
from torchipu.horovod.reductions import Adasum, Average, Max, Min, Reduction, Sum, reduce_all


# --------------------------------------------------------------------------- all into one
@outside_of_graphs
def allreduce(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
    op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> torch.Tensor:
    """Return the mean of a tensor over all processes, or what else ``op`` says.

    Gradients are put together as the values are, by the same ``op`` and factors: those of a mean are averaged over the
    processes, those of a sum are summed. For Min, Max and Product that is Horovod's rule and no derivative.

    Args:
        tensor: One of the same shape and type in each process.
        average: Older form of ``op``: True for Average, False for Sum.
        name: Taken and not needed: processes call in the same order.
        compression: How values travel: `Compression.none`, `Compression.fp16` or a `Compressor`.
        op: Average, Sum, Adasum, Min, Max or Product; None for Average.
        prescale_factor: What values are multiplied by before.
        postscale_factor: And after.
        process_set: The processes that take part; all of them for Adasum.

    Raises:
        ValueError: `init` has not been called, there is no such ``op``, the tensor is sparse, or this process is not in
            the set; Adasum of whole numbers, or of as many processes as are no power of two.
        NotImplementedError: Adasum of a set that is not the global one.
        HorovodInternalError: The exchange failed.
    """
    return grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )[0]


@outside_of_graphs
def allreduce_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Any = global_process_set,
) -> torch.Tensor:
    """Do what `allreduce` does, in place; return the tensor."""
    return grouped_allreduce_([tensor], average, name, op, prescale_factor, postscale_factor, process_set)[0]


@outside_of_graphs
def grouped_allreduce(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
    compression: Any = Compression.none, op: int | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: Any = global_process_set,
) -> list[torch.Tensor]:
    """Do what `allreduce` does with several tensors at once, which costs less than one after another."""
    def reduced(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        return grouped_allreduce_(
            [part.clone() for part in parts], average, name, op, prescale_factor, postscale_factor, process_set
        )

    return _compressed(lambda sent: exchanged(reduced, reduced, sent), tensors, compression)


@outside_of_graphs
@torch.no_grad()
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Any = global_process_set,
) -> list[torch.Tensor]:
    """Do what `grouped_allreduce` does, in place; return the tensors."""
    how = Reduction(_op(average, op), prescale_factor, postscale_factor)
    if how.op == Adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets: leave process_set away")
    return _reduced("allreduce", tensors, how, members(process_set))


def _reduced(
    name: str, tensors: Sequence[torch.Tensor], how: Reduction, where: Members
) -> list[torch.Tensor]:
    """Combine tensors with those of all members, which agree on it, in place; return them."""
    if any(tensor.layout != torch.strided for tensor in tensors):
        raise ValueError("allreduce takes dense tensors: use hvd.sparse_allreduce_async, or tensor.to_dense()")
    if how.op not in (Min, Max) and any(tensor.dtype == torch.bool for tensor in tensors):
        raise TypeError(f"{name} has no sums and products of bools: give tensor.int(), or use hvd.Min or hvd.Max")
    reduce_tensors(name, tensors, how, where)
    return list(tensors)


def _compressed(
    exchange: Callable[[list[torch.Tensor]], list[torch.Tensor]], tensors: Sequence[torch.Tensor], compression: Any
) -> list[torch.Tensor]:
    """Exchange tensors in the form that a compressor gives them."""
    sent = [compression.compress(tensor) for tensor in tensors]
    found = exchange([tensor for tensor, _ in sent])
    return [compression.decompress(tensor, note) for tensor, (_, note) in zip(found, sent, strict=True)]


def _op(average: bool | None, op: int | None) -> int:
    if average is not None and op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    return op if op is not None else Average if average in (None, True) else Sum


@outside_of_graphs
@torch.no_grad()
def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None = None, op: int = Average, process_set: Any = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to add up sparse tensors of all processes; what is returned has to be called for the result.

    Args:
        tensor: In the layout `torch.sparse_coo`, of the same shape and type and with as many sparse dimensions in each
            process.
        name: Taken and not needed.
        op: Average or Sum.
        process_set: The processes that take part.

    Raises:
        ValueError: `init` has not been called, the tensor is not sparse, or ``op`` is another one.
        HorovodInternalError: The exchange failed.
    """
    where = members(process_set)
    if op not in (Average, Sum):
        raise ValueError(f"sparse_allreduce_async has no op {op}: use hvd.Average or hvd.Sum")
    if tensor.layout != torch.sparse_coo:
        raise ValueError(
            "sparse_allreduce_async takes tensors in the layout torch.sparse_coo: use hvd.allreduce for dense ones"
        )
    own = tensor.detach().coalesce()
    indices = gather_rows(own.indices().t().contiguous(), where)[0].t()
    values, _ = gather_rows(own.values(), where)
    combined = values / where.size if op == Average else values
    # Checked, since another process may have given a tensor of another shape.
    result = torch.sparse_coo_tensor(indices, combined, own.shape, check_invariants=True).coalesce()
    return lambda: result


# --------------------------------------------------------------------------- all into shares of one
@outside_of_graphs
def reducescatter(
    tensor: torch.Tensor, name: str | None = None, compression: Any = Compression.none, op: int = Average,
    process_set: Any = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this process's rows of the mean of a tensor over all processes, or of the sum.

    Where rows cannot be shared out evenly, the first processes get one more each. What flows back are the gradients of
    all rows, put together by `allgather`; for a sum they are multiplied by the number of processes.

    Args:
        tensor: ``[N, ...]``, of the same shape and type in each process.
        name: Taken and not needed: processes call in the same order.
        compression: How values travel, as in `allreduce`.
        op: Average or Sum.
        process_set: The processes that take part.
        prescale_factor: What values are multiplied by before.
        postscale_factor: And after.

    Returns:
        ``[rows, ...]``, which may be none.

    Raises:
        ValueError: `init` has not been called, ``op`` is another one, the tensor is a scalar, or this process is not in
            the set.
        HorovodInternalError: The exchange failed.
    """
    return grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)[0]


@outside_of_graphs
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor], name: str | None = None, compression: Any = Compression.none, op: int = Average,
    process_set: Any = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Do what `reducescatter` does with several tensors at once, which costs less than one after another."""
    where = members(process_set)
    if op not in (Average, Sum):
        raise ValueError(f"reducescatter has no op {op}: use hvd.Average or hvd.Sum")
    for tensor in tensors:
        if tensor.dim() == 0:
            raise ValueError("reducescatter takes a tensor with a first dimension, which it shares out; got a scalar")

    def shares(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        how = Reduction(op, prescale_factor, postscale_factor)
        whole = _reduced("reducescatter", [part.clone() for part in parts], how, where)
        return [_own_rows(one, where).clone() for one in whole]

    def back(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        factor = prescale_factor * postscale_factor * (where.size if op == Sum else 1)
        return [gather_rows(gradient, where)[0] * factor for gradient in gradients]

    return _compressed(lambda sent: exchanged(shares, back, sent), tensors, compression)


def _own_rows(whole: torch.Tensor, where: Members) -> torch.Tensor:
    each, more = divmod(whole.shape[0], where.size)
    return whole.narrow(0, where.rank * each + min(where.rank, more), each + (where.rank < more))


# --------------------------------------------------------------------------- all to all, one to all
@outside_of_graphs
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set
) -> torch.Tensor:
    """Return the tensors of all processes, one behind the other along dimension 0, in which they may differ.

    Of gradients a process gets its own rows of the mean over all.

    Args:
        tensor: ``[N, ...]``; a scalar counts as ``[1]``.
        name: Taken and not needed.
        process_set: The processes that take part.

    Raises:
        ValueError: `init` has not been called, or this process is not in the set.
        HorovodInternalError: The exchange failed.
    """
    where = members(process_set)
    own = tensor.reshape(1) if tensor.dim() == 0 else tensor
    lengths = list[int]()

    def there(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        rows, lengths[:] = gather_rows(parts[0], where)
        return [rows]

    def back(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        mean = allreduce(gradients[0], process_set=process_set)
        return [mean.narrow(0, sum(lengths[: where.rank]), own.shape[0])]

    return exchanged(there, back, [own])[0]


@outside_of_graphs
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: Any = global_process_set
) -> list[torch.Tensor]:
    """Return what `allgather` returns of each of several tensors, gradients included.

    Args:
        tensors: Of each ``[N, ...]``; the number of tensors is the same in each process.
        name: Taken and not needed.
        process_set: The processes that take part.
    """
    return [allgather(tensor, name, process_set) for tensor in tensors]


@outside_of_graphs
def alltoall(
    tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None = None, name: str | None = None,
    process_set: Any = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Give each process its rows of a tensor, and return the rows that all of them have given this one.

    Args:
        tensor: ``[N, ...]``; all but N is the same in each process.
        splits: Rows for each process, ``[processes]``; None for as many for each.
        name: Taken and not needed.
        process_set: The processes that take part.

    Returns:
        The rows, by the processes that gave them; with ``splits`` a pair of them and of how many each gave, int32
        ``[processes]``.

    Raises:
        ValueError: The rows cannot be shared out so, `init` has not been called, or this process is not in the set.
        HorovodInternalError: The exchange failed.
    """
    where = members(process_set)
    given = _rows_for_each(tensor, splits, where.size)
    rows = count_received(given, tensor, where)
    received = exchanged(
        lambda parts: [deal_rows(parts[0], rows, given, where)],
        lambda gradients: [deal_rows(gradients[0], given, rows, where)], [tensor],
    )[0]
    return received if splits is None else (received, torch.tensor(rows, dtype=torch.int32))


def _rows_for_each(
    tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None, count: int
) -> list[int]:
    if tensor.dim() == 0:
        raise ValueError("alltoall takes a tensor with a first dimension, whose rows it shares out; got a scalar")
    rows = tensor.shape[0]
    if splits is None:
        if rows % count:
            raise ValueError(f"alltoall: {rows} rows cannot be shared out evenly to {count} processes; give splits")
        return [rows // count] * count
    given = [int(number) for number in splits]
    if len(given) != count or min(given) < 0 or sum(given) != rows:
        raise ValueError(
            f"alltoall: splits {given} must have a number for each of {count} processes, which sum to {rows} rows"
        )
    return given


@outside_of_graphs
def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return an object of each process, by their numbers; objects are pickled."""
    return gather_objects(obj, members(global_process_set))


@outside_of_graphs
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> torch.Tensor:
    """Return the tensor of one process, in all; it gets the mean of their gradients, and the others get zeros.

    Args:
        tensor: One of the same shape and type in each.
        root_rank: Whose: its number among all processes, also in a set of some.
        name: Taken and not needed.
        process_set: The processes that take part.

    Raises:
        ValueError: `init` has not been called, or this process or that one is not in the set.
        HorovodInternalError: The exchange failed.
    """
    def back(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        mean = allreduce(gradients[0], process_set=process_set)
        return [mean if rank() == root_rank else torch.zeros_like(mean)]

    return exchanged(lambda parts: [broadcast_(parts[0].clone(), root_rank, name, process_set)], back, [tensor])[0]


@outside_of_graphs
@torch.no_grad()
def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> torch.Tensor:
    """Do what `broadcast` does, in place; return the tensor."""
    where = _members_with(root_rank, process_set)
    send_to_all(tensor, root_rank, where)
    return tensor


@outside_of_graphs
def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Return the object of one process, in all; it is pickled."""
    return send_object_to_all(obj, root_rank, _members_with(root_rank, process_set))


def _members_with(root_rank: int, process_set: Any) -> Members:
    where = members(process_set)
    if not 0 <= root_rank < size():
        raise ValueError(f"root_rank {root_rank} is no process: they are numbered from 0 to {size() - 1}")
    if root_rank not in where.ranks:
        raise ValueError(f"root_rank {root_rank} is not in {process_set}: it is a number among all processes")
    return where


# --------------------------------------------------------------------------- waiting
@outside_of_graphs
def barrier(process_set: Any = global_process_set) -> None:
    """Wait until all processes of a set have come here."""
    wait_for_all(members(process_set))


@outside_of_graphs
def join(device: int = -1) -> int:
    """Wait until all processes have come here, and return the one that came last.

    Meanwhile this one gives zeros to the sums and means of the others, by which their means become smaller, and no rows
    to what they gather: so do optimisers of theirs. Other exchanges need all processes, and fail, as do those of a set
    of processes that this one is in.

    Args:
        device: Taken and not needed: tensors are the host's.

    Raises:
        ValueError: `init` has not been called.
        HorovodInternalError: Another process exchanges what this one cannot make up for.
    """
    where = members(global_process_set)
    come = come_to_join(where)
    while (asked := agree(JOIN, where)) != JOIN:
        _make_up_for(asked, where)
    return last_to_join(come, where)


def _make_up_for(asked: Request, where: Members) -> None:
    """Take part in an exchange of the others without values of this process's own."""
    if asked.how is None:
        (dtype, shape), = asked.tensors
        gather_agreed_rows(torch.zeros((0, *shape), dtype=getattr(torch, dtype)), where)
    else:
        zeros = [torch.zeros(shape, dtype=getattr(torch, dtype)) for dtype, shape in asked.tensors]
        reduce_all(zeros, asked.how, where)
