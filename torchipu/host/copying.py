"""Copies of tensors at the edge of a call, on threads of the engine, which rest soon after."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.graph import increment_version

from torchipu._kernels.abi import copy_memory


def _is_plain(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a copy moves bytes as they lie, and torch keeps nothing else of the two."""
    return (
        type(target) is type(source) is torch.Tensor
        and target.layout is source.layout is torch.strided and target.device.type == source.device.type == "cpu"
        and target.dtype is source.dtype and target.shape == source.shape
        and target.is_contiguous() and source.is_contiguous()
        and not (target.is_neg() or source.is_neg() or target.is_conj() or source.is_conj())
    )


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], threads: int) -> None:
    """Copy tensors to others of the same shapes, like ``copy_`` under ``no_grad``.

    Torch's own copy of a large tensor wakes the threads of its pool, which then spin for a while beside whoever runs
    next. What is a plain copy of bytes is made in one call that no signal interrupts.

    Args:
        targets: Written; torch counts the write.
        sources: Read.
        threads: Threads that may take part.
    """
    pairs = list(zip(targets, sources, strict=True))
    plain = [pair for pair in pairs if _is_plain(*pair)]
    others = [pair for pair in pairs if not _is_plain(*pair)] if len(plain) < len(pairs) else []
    with torch.no_grad():
        if others:
            torch._foreach_copy_([target for target, _ in others], [source for _, source in others])
        copy_memory([
            (target.data_ptr(), source.data_ptr(), target.numel() * target.element_size()) for target, source in plain
        ], threads)
        counted = [target for target, _ in plain if not target.is_inference()]
        if counted:
            increment_version(counted)
