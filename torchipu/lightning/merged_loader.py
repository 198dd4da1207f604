"""Joins the batches of several replicas into one of Lightning's, as DistributedDataParallel counts them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree


class MergedLoader:
    """A loader whose batches are several of another loader's.

    Args:
        loader: The user's; its other attributes are passed on, also when they are set.
        count: Batches that are joined; the last one may have fewer.
    """

    def __init__(self, loader: Any, count: int) -> None:
        self.__dict__.update(_loader=loader, _count=count)

    def __iter__(self) -> Iterator[Any]:
        parts: list[Any] = []
        for part in self._loader:
            parts.append(part)
            if len(parts) == self._count:
                yield merge(parts)
                parts = []
        if parts:
            yield merge(parts)

    def __len__(self) -> int:
        return math.ceil(len(self._loader) / self._count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)


def pieces_of(batch: Any, count: int) -> int:
    """Return into how many micro-batches a batch is cut: as many as there should be, or one where rows are left over.

    Args:
        batch: The batch.
        count: Micro-batches of a full one.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    return count if all(tensor.dim() and len(tensor) and len(tensor) % count == 0 for tensor in tensors) else 1


def merge(parts: list[Any]) -> Any:
    """Return one batch with the rows of several; lists that are no tensors are put behind each other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(parts) if first.dim() else torch.stack(parts)
    if isinstance(first, dict):
        return type(first)((key, merge([part[key] for part in parts])) for key in first)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(merge(list(column)) for column in zip(*parts, strict=True)))
    if isinstance(first, (list, tuple)):
        if all(isinstance(item, (str, bytes)) for item in first):
            return type(first)(item for part in parts for item in part)
        return type(first)(merge(list(column)) for column in zip(*parts, strict=True))
    return first
