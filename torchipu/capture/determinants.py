"""Determinants, taken apart at capture into a factorisation and what is read off its diagonal.

Eager's kernels factor the transpose of a matrix whose rows lie one after another, and the formula of the gradient asks
again how the matrix lies. A program keeps values where it likes: a kernel within it would answer differently.
Here the question is asked once, while the formula asks it too.
"""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


def determinant(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the determinants of matrices `[*, N, N]`, `[*]`, their factors and pivots, as `aten._linalg_det`."""
    if matrix.is_complex():  # never transposed
        return NotImplemented
    factors, pivots = _factored(matrix)
    return _sign_of_pivots(pivots, matrix.dtype) * _diagonal(factors).prod(-1), factors, pivots


def log_determinant(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return signs and logarithms of determinants, factors and pivots, as `aten._linalg_slogdet`."""
    if matrix.is_complex():
        return NotImplemented
    factors, pivots = _factored(matrix)
    diagonal = _diagonal(factors)
    sign = _sign_of_pivots(pivots, matrix.dtype) * diagonal.sgn().prod(-1)
    return sign, diagonal.abs().log().sum(-1), factors, pivots


def _factored(matrix: Tensor) -> tuple[Tensor, Tensor]:
    factors, pivots, _ = aten.linalg_lu_factor_ex(matrix.mT if matrix.is_contiguous() else matrix)
    return factors, pivots


def _diagonal(factors: Tensor) -> Tensor:
    return aten.diagonal(factors, 0, -2, -1)


def _sign_of_pivots(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    """Return -1 where an odd number of rows has changed places, and 1 elsewhere."""
    own = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    odd = (pivots != own).sum(-1) % 2
    return 1 - 2 * odd.to(dtype)
