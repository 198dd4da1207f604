"""`torch.linalg.lstsq` by the pseudo-inverse: torch's own has results whose sizes the rank decides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

RANKED = ("gelsy", "gelsd", "gelss")
"""Drivers that tell the rank; `gels` takes it to be full."""
DECOMPOSED = ("gelsd", "gelss")
"""Drivers that tell the singular values."""


def lstsq(
    A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None,  # noqa: N803 - torch's names
) -> Any:
    """Solve ``min |A X - B|``; of several solutions the one of least norm.

    Residuals are there wherever there are more equations than unknowns, also of a matrix that lacks rank, for which
    torch leaves them out.

    Args:
        A: Matrices `[*, M, N]`.
        B: Right sides `[*, M, K]`, or one for each matrix, `[*, M]`.
        rcond: Singular values up to this share of the largest count as 0.
        driver: One of LAPACK's, which says what else is told.

    Returns:
        `torch.return_types.linalg_lstsq`: solution `[*, N, K]`, residuals `[*, K]`, rank `[*]`, singular values.

    Raises:
        RuntimeError: The driver is unknown, or the sizes do not match; in torch's words.
    """
    if driver is None:
        driver = "gelsy"
    if driver != "gels" and driver not in RANKED:
        raise RuntimeError("torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)")
    if A.dim() < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    rows, columns = A.shape[-2:]
    is_vector = A.shape[:-1] == B.shape
    right = B.unsqueeze(-1) if is_vector else B
    if right.dim() < 2 or right.shape[-2] != rows:
        raise RuntimeError("torch.linalg.lstsq: input.size(-2) should match other.size(-2)")
    threshold = torch.finfo(A.dtype).eps * max(rows, columns) if rcond is None else rcond
    found = torch.linalg.pinv(A, rtol=threshold) @ right
    residuals = A.new_empty(0)
    if rows > columns and driver != "gelsy":
        residuals = (A @ found - right).abs().square().sum(-2)
    values = torch.linalg.svdvals(A.detach()) if driver in RANKED else A.new_empty(0)
    rank = torch.empty(0, dtype=torch.int64, device=A.device)
    if driver in RANKED:
        rank = (values > threshold * values[..., :1]).sum(-1)
    told = values if driver in DECOMPOSED else A.new_empty(0)
    solution = found.squeeze(-1) if is_vector else found
    return torch.return_types.linalg_lstsq((solution, residuals, rank, told))  # type: ignore[attr-defined]
