"""Python's slices between integers that only the program knows: ``x[i : i + 5]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from torchipu.poptorch.operators.dynamic_slices import check_size, window_of
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.tracing.known_differences import KnownDifferences, is_index
from torchipu.poptorch.tracing.limits import STEPPED

Tensor = torch.Tensor
ITEMS: frozenset[Any] = frozenset({Tensor.__getitem__, Tensor.__setitem__})


class Slices:
    """Knows which integers of a run differ by constants, and takes slices between such."""

    def __init__(self) -> None:
        self._differences = KnownDifferences()
        self.note = self._differences.note

    def take(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return the result of an indexing call, or NotImplemented where torch does it.

        Raises:
            Error: The length of a slice is not known at capture.
        """
        if function not in ITEMS or not _is_dynamic(args[1]):
            return NotImplemented
        try:
            return function(*args)
        except DataDependentOutputException:
            pass  # bounds without values: they are those of a window
        tensor, index = args[0], args[1]
        place, dim, indices = _first_dynamic(tensor, index)
        start, size, step = self._bounds(indices[place])
        rest = (*indices[:place], slice(None), *indices[place + 1 :])
        check_size(size, tensor.shape[dim], step)
        window = window_of(tensor, dim, start, size, step)
        if function is Tensor.__getitem__:
            return self._again(function, tensor.index_select(dim, window), rest)
        if step != 1:
            raise createPoptorchError(STEPPED)
        part = tensor.index_select(dim, window)
        self._again(function, part, rest, args[2])
        tensor.copy_(tensor.index_copy(dim, window, part))
        return None

    def _again(self, function: Callable[..., Any], *args: Any) -> Any:
        """Index by what is left."""
        result = self.take(function, args)
        return function(*args) if result is NotImplemented else result

    def _bounds(self, window: slice) -> tuple[Tensor, int, int]:
        start, stop, step = window.start, window.stop, 1 if window.step is None else window.step
        if isinstance(step, Tensor):
            raise createPoptorchError("Slicing step must be a constant.")
        for bound in (start, stop):
            if isinstance(bound, Tensor) and not is_index(bound):
                raise createPoptorchError(
                    f"Slicing bounds must be integers, not {bound.dtype}: a float must not be added to them."
                )
        if not isinstance(start, Tensor) or not isinstance(stop, Tensor):
            raise createPoptorchError(
                "Slicing size must be a constant: where one bound is a tensor, the other must be the same tensor plus "
                "a constant."
            )
        size = self._differences.between(start, stop)
        if size is None:
            raise createPoptorchError(
                "Slicing size must be a constant: the bounds of a slice must be the same tensor plus constants."
            )
        return start, size, step


def _is_window(index: Any) -> bool:
    return isinstance(index, slice) and any(isinstance(b, Tensor) for b in (index.start, index.stop, index.step))


def _is_dynamic(index: Any) -> bool:
    return any(map(_is_window, index)) if isinstance(index, tuple) else _is_window(index)


def _first_dynamic(tensor: Tensor, index: Any) -> tuple[int, int, tuple[Any, ...]]:
    """Return the place of the first window among the indices, its dimension, and the indices."""
    indices = index if isinstance(index, tuple) else (index,)
    place = next(number for number, one in enumerate(indices) if _is_window(one))
    if any(one is Ellipsis for one in indices[:place]):
        return place, tensor.dim() - sum(map(_width, indices[place:])), indices
    return place, sum(map(_width, indices[:place])), indices


def _width(index: Any) -> int:
    """Return how many dimensions an index takes."""
    if index is None or isinstance(index, bool):
        return 0
    return index.dim() if isinstance(index, Tensor) and index.dtype == torch.bool else 1
