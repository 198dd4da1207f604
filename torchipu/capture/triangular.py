"""Systems of equations with triangular matrices, in the form that has a kernel: one batch, which nothing shares."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def solved(self: Tensor, given: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """Solve ``self @ X = given``, or ``X @ self = given``, as one batch.

    Args:
        self: Triangular matrices, `[*, n, n]`.
        given: `[*, n, k]`, or `[*, k, n]` where the matrices stand right; batches may broadcast.
        upper: Which triangle counts.
        left: Where the matrices stand.
        unitriangular: Whether the diagonal counts as ones.
    """
    batch = torch.broadcast_shapes(self.shape[:-2], given.shape[:-2])
    if len(batch) == 1 and self.shape[:-2] == given.shape[:-2]:
        return NotImplemented
    matrices, sides = (each.expand(*batch, *each.shape[-2:]) for each in (self, given))
    count = prod(batch)
    solutions = aten.linalg_solve_triangular(
        matrices.reshape(count, *self.shape[-2:]), sides.reshape(count, *given.shape[-2:]),
        upper=upper, left=left, unitriangular=unitriangular,
    )
    return solutions.view(sides.shape)  # whichever way a solution lies, its batch is outermost
