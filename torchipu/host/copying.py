"""Copies of tensors at the edge of a call, on threads of the engine, which rest soon after."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from torchipu._kernels.abi import copy_memory
from torchipu.host.laid import Laid

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_plain(target: Tensor, source: Tensor) -> bool:
    """Whether a copy moves bytes as they lie, and torch keeps nothing else of the two."""
    return (
        type(target) in _PLAIN and type(source) in _PLAIN
        and target.layout is source.layout is torch.strided and target.device.type == source.device.type == "cpu"
        and target.dtype is source.dtype and target.shape == source.shape
        and target.is_contiguous() and source.is_contiguous()
        and not (target.is_neg() or source.is_neg() or target.is_conj() or source.is_conj())
    )


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor], threads: int) -> None:
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
            torch._foreach_copy_([target.detach() for target, _ in others], [source for _, source in others])
        copy_memory([(target.data_ptr(), source.data_ptr(), target.nbytes) for target, source in plain], threads)
        count_writes([target for target, _ in plain])


def count_writes(targets: Sequence[Tensor]) -> None:
    """Let torch know that tensors were written."""
    if any(map(Tensor.is_inference, targets)):
        targets = [target for target in targets if not target.is_inference()]
    if targets:
        increment_version(targets)


class RepeatedCopy:
    """The same copies at every call: what each tensor is, which takes longer than a small copy, is asked once.

    Args:
        targets: Written; asked again once one of them lies elsewhere or in another way.
        sources: Read, of the same shapes; they stay where they are and as they are.
        is_private: Whether targets stay as they are too, nobody else asks whether they were written, and a run of the
            same threads follows each copy.
    """

    def __init__(self, targets: Sequence[Tensor], sources: Sequence[Tensor], *, is_private: bool = False) -> None:
        self.targets, self.sources = targets, sources
        self._is_private = is_private
        self._found: Laid | None = None
        self._moved: list[tuple[int, int, int]] | None = None

    def copy(self, threads: int) -> None:
        """Do as `copy_all` does."""
        if self._is_private and self._moved is not None:
            copy_memory(self._moved, threads, before_run=True)
            return
        targets = self.targets
        if self._found is None or not self._found.holds(targets):
            is_plain = all(map(_is_plain, targets, self.sources))
            self._moved = [
                (target.data_ptr(), source.data_ptr(), target.nbytes)
                for target, source in zip(targets, self.sources, strict=True)
            ] if is_plain else None
            self._found = Laid(targets)
        if self._moved is None:
            copy_all(targets, self.sources, threads)
            return
        copy_memory(self._moved, threads)
        count_writes(targets)
