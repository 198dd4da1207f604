"""How tensors of all processes are combined into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from torchipu.horovod.adasum import combined
from torchipu.horovod.failures import named_failures
from torchipu.horovod.processes import Members

Average, Sum, Adasum, Min, Max, Product = 0, 1, 2, 3, 4, 5
"""Horovod's numbers."""

_NAMES = {Average: "Average", Sum: "Sum", Adasum: "Adasum", Min: "Min", Max: "Max", Product: "Product"}
_OPS = {
    Average: dist.ReduceOp.SUM, Sum: dist.ReduceOp.SUM, Min: dist.ReduceOp.MIN, Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """How values are combined.

    Attributes:
        op: `Average`, `Sum`, `Adasum`, `Min`, `Max` or `Product`.
        prescale_factor: What values are multiplied by before.
        postscale_factor: And after.

    Raises:
        ValueError: There is no such ``op``.
    """

    op: int
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no ``op``."""
        if self.op not in _NAMES:
            raise ValueError(
                f"there is no op {self.op}: use hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max or hvd.Product"
            )

    def __str__(self) -> str:
        """Return it as the arguments of an exchange, but for factors of 1."""
        factors = {"prescale_factor": self.prescale_factor, "postscale_factor": self.postscale_factor}
        return ", ".join([
            f"op={_NAMES[self.op]}", *(f"{name}={factor}" for name, factor in factors.items() if factor != 1.0)
        ])

    @property
    def is_sum(self) -> bool:
        """Whether zeros change nothing of the sum of all values."""
        return self.op in (Average, Sum)


@named_failures
def reduce_all(
    tensors: Sequence[torch.Tensor], how: Reduction, where: Members, told: torch.Tensor | None = None
) -> None:
    """Combine each tensor with those of the other members, in place; they have to have agreed on it.

    Args:
        tensors: Of the same shapes and types in each member.
        how: The same in each.
        where: The members.
        told: What `flat_of` gives in each member, ``[members, elements]``, where that has gone round already.
    """
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        chosen = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in chosen]) if told is None else told
        is_whole = not (flat.is_floating_point() or flat.is_complex())
        if how.prescale_factor != 1.0:
            flat = (flat.double() if is_whole else flat) * how.prescale_factor
        if told is not None:
            flat = _combined(flat, how.op)
        elif how.op == Adasum:
            flat = _adasum(flat, [tensor.numel() for tensor in chosen], where)
        elif where.group is not None:
            dist.all_reduce(flat, _OPS[how.op], group=where.group)
        if how.op == Average:
            flat = flat.div(where.size, rounding_mode="trunc") if is_whole else flat / where.size
        if how.postscale_factor != 1.0:
            flat = (flat.double() if is_whole else flat) * how.postscale_factor
        for tensor, part in zip(chosen, flat.split([tensor.numel() for tensor in chosen]), strict=True):
            tensor.copy_(part.reshape(tensor.shape))


def flat_of(tensors: Sequence[torch.Tensor], how: Reduction) -> torch.Tensor | None:
    """Return all elements one after another, as they go round at once; None where they have to be exchanged otherwise.

    Args:
        tensors: Which are combined.
        how: How.
    """
    if how.op == Adasum or len({tensor.dtype for tensor in tensors}) != 1:
        return None
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _combined(rows: torch.Tensor, op: int) -> torch.Tensor:
    """Combine the rows of all members, ``[members, elements]``, in their order: to the same bits in each."""
    if op == Min:
        return rows.amin(0)
    if op == Max:
        return rows.amax(0)
    return rows.prod(0, dtype=rows.dtype) if op == Product else rows.sum(0, dtype=rows.dtype)


def _adasum(flat: torch.Tensor, sizes: list[int], where: Members) -> torch.Tensor:
    """Return the Adasum of each of the tensors that lie one after another, the same bits in all processes."""
    if not flat.is_floating_point():
        raise ValueError(f"Adasum combines floats, not {flat.dtype}: use hvd.Sum or hvd.Average")
    given = [flat]
    if where.group is not None:
        given = [torch.empty_like(flat) for _ in where.ranks]
        dist.all_gather(given, flat, group=where.group)
    ranks = [one.split(sizes) for one in given]
    return torch.cat([combined(parts) for parts in zip(*ranks, strict=True)])
