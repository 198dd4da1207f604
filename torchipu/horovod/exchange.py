"""Values of all processes put together, or those of one given to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torchipu.horovod.gradients import exchanged
from torchipu.horovod.processes import place, rank, size

Average, Sum, Min, Max, Product = 0, 1, 3, 4, 5
"""How `allreduce` combines values: Horovod's numbers."""

_OPS = {
    Average: dist.ReduceOp.SUM, Sum: dist.ReduceOp.SUM, Min: dist.ReduceOp.MIN, Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}
_pending: dict[int, Any] = {}
_next_handle = 0


class Compression:
    """How `allreduce` may send floats: as they are, or as halves."""

    class none:  # noqa: N801 - Horovod's name
        """As they are."""

    class fp16:  # noqa: N801 - Horovod's name
        """As halves."""


# --------------------------------------------------------------------------- all into one
def allreduce(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
    op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return the mean of a tensor over all processes, or what else ``op`` says.

    Gradients of a mean are averaged over the processes, and those of a sum are summed.

    Args:
        tensor: One of the same shape and type in each process.
        average: Older form of ``op``: True for Average, False for Sum.
        name: Taken and not needed: processes call in the same order.
        compression: How floats travel.
        op: Average, Sum, Min, Max or Product; None for Average.
        prescale_factor: What values are multiplied by before.
        postscale_factor: And after.

    Raises:
        ValueError: `init` has not been called, or there is no such ``op``.
    """
    return grouped_allreduce([tensor], average, name, compression, op, prescale_factor, postscale_factor)[0]


def allreduce_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, *, compression: Any = Compression.none,
) -> torch.Tensor:
    """Do what `allreduce` does, in place; return the tensor."""
    return grouped_allreduce_(
        [tensor], average, name, op, prescale_factor, postscale_factor, compression=compression
    )[0]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
    compression: Any = Compression.none, op: int | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Do what `allreduce` does with several tensors at once, which costs less than one after another."""
    def reduced(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        return grouped_allreduce_(
            [part.clone() for part in parts], average, name, op, prescale_factor, postscale_factor,
            compression=compression,
        )

    if _op(average, op) in (Average, Sum):
        return exchanged(reduced, reduced, tensors)
    return reduced([tensor.detach() for tensor in tensors])


@torch.no_grad()
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, *, compression: Any = Compression.none,
) -> list[torch.Tensor]:
    """Do what `grouped_allreduce` does, in place; return the tensors."""
    how = _op(average, op)
    group = place().group
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        chosen = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in chosen])
        if prescale_factor != 1.0:
            flat = flat * prescale_factor
        if group is not None:
            sent = flat.half() if compression is Compression.fp16 and dtype.is_floating_point else flat
            dist.all_reduce(sent, _OPS[how], group=group)
            flat = sent.to(flat.dtype)
        if how == Average:
            flat = flat / size() if flat.is_floating_point() else flat.div(size(), rounding_mode="trunc")
        if postscale_factor != 1.0:
            flat = flat * postscale_factor
        for tensor, part in zip(chosen, flat.split([tensor.numel() for tensor in chosen]), strict=True):
            tensor.copy_(part.reshape(tensor.shape))
    return list(tensors)


def _op(average: bool | None, op: int | None) -> int:
    if average is not None and op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    how = op if op is not None else Average if average in (None, True) else Sum
    if how not in _OPS:
        raise ValueError(f"there is no op {how}: use hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product")
    return how


# --------------------------------------------------------------------------- all into shares of one
def reducescatter(
    tensor: torch.Tensor, name: str | None = None, compression: Any = Compression.none, op: int = Average,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this process's rows of the mean of a tensor over all processes, or of the sum.

    Where rows cannot be shared out evenly, the first processes get one more each. What flows back is the gradient of
    the losses of all processes together: what each has of its rows, divided by the number of processes for a mean.

    Args:
        tensor: ``[N, ...]``, of the same shape and type in each process.
        name: Taken and not needed: processes call in the same order.
        compression: How floats travel.
        op: Average or Sum.
        prescale_factor: What values are multiplied by before.
        postscale_factor: And after.

    Returns:
        ``[rows, ...]``, which may be none.

    Raises:
        ValueError: `init` has not been called, ``op`` is another one, or the tensor is a scalar.
    """
    return grouped_reducescatter([tensor], name, compression, op, prescale_factor, postscale_factor)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor], name: str | None = None, compression: Any = Compression.none, op: int = Average,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Do what `reducescatter` does with several tensors at once, which costs less than one after another."""
    place()
    if op not in (Average, Sum):
        raise ValueError(f"reducescatter has no op {op}: use hvd.Average or hvd.Sum")
    for tensor in tensors:
        if tensor.dim() == 0:
            raise ValueError("reducescatter takes a tensor with a first dimension, which it shares out; got a scalar")

    def shares(parts: list[torch.Tensor]) -> list[torch.Tensor]:
        whole = grouped_allreduce_(
            [part.clone() for part in parts], None, name, op, prescale_factor, postscale_factor,
            compression=compression,
        )
        return [_own_rows(one).clone() for one in whole]

    def back(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        factor = prescale_factor * postscale_factor / (size() if op == Average else 1)
        return [_gathered(gradient) * factor for gradient in gradients]

    return exchanged(shares, back, tensors)


def _own_rows(whole: torch.Tensor) -> torch.Tensor:
    each, more = divmod(whole.shape[0], size())
    return whole.narrow(0, rank() * each + min(rank(), more), each + (rank() < more))


# --------------------------------------------------------------------------- all to all, one to all
def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Return the tensors of all processes, one behind the other along dimension 0, in which they may differ.

    Of gradients a process gets its own rows of the mean over all.

    Args:
        tensor: ``[N, ...]``; a scalar counts as ``[1]``.
        name: Taken and not needed.
    """
    place()
    own = tensor.reshape(1) if tensor.dim() == 0 else tensor

    def back(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        before = sum(allgather_object(own.shape[0])[: rank()])
        return [allreduce(gradients[0]).narrow(0, before, own.shape[0])]

    return exchanged(lambda parts: [_gathered(parts[0])], back, [own])[0]


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None) -> list[torch.Tensor]:
    """Return what `allgather` returns of each of several tensors, gradients included.

    Args:
        tensors: Of each ``[N, ...]``; the number of tensors is the same in each process.
        name: Taken and not needed.
    """
    return [allgather(tensor, name) for tensor in tensors]


def _gathered(own: torch.Tensor) -> torch.Tensor:
    group = place().group
    if group is None:
        return own.clone()
    lengths: list[Any] = [0] * size()
    dist.all_gather_object(lengths, own.shape[0], group=group)
    padded = own.new_zeros((max(lengths), *own.shape[1:]))
    padded[: own.shape[0]] = own
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])


def alltoall(
    tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None = None, name: str | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Give each process its rows of a tensor, and return the rows that all of them have given this one.

    Args:
        tensor: ``[N, ...]``; all but N is the same in each process.
        splits: Rows for each process, ``[processes]``; None for as many for each.
        name: Taken and not needed.

    Returns:
        The rows, by the processes that gave them; with ``splits`` a pair of them and of how many each gave, int32
        ``[processes]``.

    Raises:
        ValueError: The rows cannot be shared out so.
    """
    given = _rows_for_each(tensor, splits)
    group, rows = place().group, given
    if group is not None:
        counts = torch.empty(size(), dtype=torch.int64)
        dist.all_to_all_single(counts, torch.tensor(given), group=group)
        rows = counts.tolist()
    received = exchanged(
        lambda parts: [_dealt(parts[0], rows, given)], lambda gradients: [_dealt(gradients[0], given, rows)], [tensor],
    )[0]
    return received if splits is None else (received, torch.tensor(rows, dtype=torch.int32))


def _dealt(own: torch.Tensor, received: list[int], given: list[int]) -> torch.Tensor:
    """Return rows that all processes have given this one, which gives its own ones to all."""
    group = place().group
    if group is None:
        return own.clone()
    result = own.new_empty((sum(received), *own.shape[1:]))
    dist.all_to_all_single(result, own.contiguous(), received, given, group=group)
    return result


def _rows_for_each(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None) -> list[int]:
    if tensor.dim() == 0:
        raise ValueError("alltoall takes a tensor with a first dimension, whose rows it shares out; got a scalar")
    rows, count = tensor.shape[0], size()
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


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return an object of each process, by their numbers; objects are pickled."""
    group = place().group
    found: list[Any] = [obj] * size()
    if group is not None:
        dist.all_gather_object(found, obj, group=group)
    return found


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Return the tensor of one process, in all; it gets the mean of their gradients, and the others get zeros.

    Args:
        tensor: One of the same shape and type in each.
        root_rank: Whose.
        name: Taken and not needed.
    """
    def back(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        mean = allreduce(gradients[0])
        return [mean if rank() == root_rank else torch.zeros_like(mean)]

    return exchanged(lambda parts: [broadcast_(parts[0].clone(), root_rank, name)], back, [tensor])[0]


@torch.no_grad()
def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Do what `broadcast` does, in place; return the tensor."""
    group = place().group
    _check_root(root_rank)
    if group is not None:
        sent = tensor.contiguous()
        dist.broadcast(sent, root_rank, group=group)
        if sent is not tensor:
            tensor.copy_(sent)
    return tensor


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the object of one process, in all; it is pickled."""
    group = place().group
    _check_root(root_rank)
    found = [obj]
    if group is not None:
        dist.broadcast_object_list(found, root_rank, group=group)
    return found[0]


def _check_root(root_rank: int) -> None:
    if not 0 <= root_rank < size():
        raise ValueError(f"root_rank {root_rank} is no process: they are numbered from 0 to {size() - 1}")


# --------------------------------------------------------------------------- waiting
def barrier() -> None:
    """Wait until all processes have come here."""
    group = place().group
    if group is not None:
        dist.barrier(group=group)


def join(device: int = -1) -> int:
    """Wait until all processes have come here, and return the one that came last.

    Processes with less data than the others must not end early: what they miss is not made up for with zeros.

    Args:
        device: Taken and not needed: tensors are the host's.
    """
    if place().group is None:
        return rank()
    store = dist.distributed_c10d._get_default_store()
    order = int(store.add("horovod/joined", 1))
    if order % size() == 0:
        store.set("horovod/last", str(rank()))
    barrier()
    last = int(store.get("horovod/last"))
    barrier()  # nobody begins another join before all have read
    return last


# --------------------------------------------------------------------------- asynchronous forms
def _later(value: Any) -> int:
    """Return a handle to the result of an exchange, which is done when it begins."""
    global _next_handle
    _next_handle += 1
    _pending[_next_handle] = value
    return _next_handle


def allreduce_async(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """Begin an `allreduce`; `synchronize` gives its result."""
    return _later(allreduce(tensor, *args, **kwargs))


def allreduce_async_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """Begin an `allreduce_`."""
    return _later(allreduce_(tensor, *args, **kwargs))


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> int:
    """Begin a `grouped_allreduce`."""
    return _later(grouped_allreduce(tensors, *args, **kwargs))


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> int:
    """Begin a `grouped_allreduce_`."""
    return _later(grouped_allreduce_(tensors, *args, **kwargs))


def reducescatter_async(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """Begin a `reducescatter`."""
    return _later(reducescatter(tensor, *args, **kwargs))


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> int:
    """Begin a `grouped_reducescatter`."""
    return _later(grouped_reducescatter(tensors, *args, **kwargs))


def allgather_async(tensor: torch.Tensor, name: str | None = None) -> int:
    """Begin an `allgather`."""
    return _later(allgather(tensor, name))


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: str | None = None) -> int:
    """Begin a `grouped_allgather`."""
    return _later(grouped_allgather(tensors, name))


def alltoall_async(
    tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None = None, name: str | None = None
) -> int:
    """Begin an `alltoall`."""
    return _later(alltoall(tensor, splits, name))


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> int:
    """Begin a `broadcast`."""
    return _later(broadcast(tensor, root_rank, name))


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> int:
    """Begin a `broadcast_`."""
    return _later(broadcast_(tensor, root_rank, name))


def poll(handle: int) -> bool:
    """Return whether an exchange is done.

    Raises:
        ValueError: There is no such exchange.
    """
    _check_handle(handle)
    return True


def synchronize(handle: int) -> Any:
    """Wait for an exchange, and return its result.

    Args:
        handle: What has begun it returned; used once.

    Raises:
        ValueError: There is no such exchange.
    """
    _check_handle(handle)
    return _pending.pop(handle)


def _check_handle(handle: int) -> None:
    if handle not in _pending:
        raise ValueError(f"there is no exchange with the handle {handle}, or its result has been taken")
