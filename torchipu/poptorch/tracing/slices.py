"""Places of a tensor that only the program knows: ``x[i : i + 5]``, ``x[i]``, ``x.narrow(0, i, 5)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from torchipu.poptorch.operators.dynamic_slices import check_size, window_of
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.tracing.known_differences import KnownDifferences, is_index
from torchipu.poptorch.tracing.limits import STEPPED
from torchipu.poptorch.tracing.windows import Windows

Tensor = torch.Tensor
ITEMS: frozenset[Any] = frozenset({Tensor.__getitem__, Tensor.__setitem__})
NARROWS: frozenset[Any] = frozenset({torch.narrow, Tensor.narrow})
SELECTS: frozenset[Any] = frozenset({torch.select, Tensor.select})


@dataclass(frozen=True, slots=True)
class _Run:
    """The index of `size` places from `start` on."""

    start: Tensor
    size: int


class Slices:
    """Knows which integers of a run differ by constants, and takes slices between such.

    Args:
        value_of: Gives the value of a tensor that is known at capture, else None.
    """

    def __init__(self, value_of: Callable[[Tensor], Tensor | None]) -> None:
        self._differences = KnownDifferences()
        self._value_of = value_of
        self.windows = Windows()
        self.note = self._differences.note

    def take(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a call that reads or writes a place, or NotImplemented where torch does it.

        Raises:
            Error: The length of a slice is not known at capture.
        """
        if function is Tensor.__setitem__ and self._is_condition(args[1]):
            tensor, condition, value = args
            return tensor.copy_(torch.where(condition, value, tensor))
        call = _as_item(function, args, kwargs)
        if call is None or not any(map(self._is_dynamic, _members(call[1]))):
            return NotImplemented
        try:
            return function(*args, **kwargs)
        except DataDependentOutputException:
            pass  # places without values: they are those of a window
        tensor, index, *value = call
        if value and self.windows.is_read_by(value[0], tensor, index):
            return None  # what was written into it has come through
        written = Tensor.__setitem__ if function is Tensor.__setitem__ else Tensor.__getitem__
        return self._take(written, tensor, index, value, (tensor, index))

    def _take(
        self, function: Callable[..., Any], tensor: Tensor, index: Any, value: list[Any], asked: tuple[Tensor, Any],
    ) -> Any:
        indices = tuple(map(_mask_of_bytes, _members(index)))
        place = next((number for number, one in enumerate(indices) if self._is_dynamic(one)), None)
        if place is None:
            return function(tensor, indices if isinstance(index, tuple) else indices[0], *value)
        dim, chosen, left = _dimension(tensor, indices, place), indices[place], slice(None)
        start, size, step = self._bounds(chosen)
        if isinstance(chosen, slice):
            check_size(size, tensor.shape[dim], step)
        if value and step != 1:
            raise createPoptorchError(STEPPED)
        part = self.windows.read(tensor, dim, window_of(tensor, dim, start, size, step), step, asked)
        rest = (*indices[:place], 0 if isinstance(chosen, Tensor) else left, *indices[place + 1 :])
        result = self._take(function, part, rest, value, asked)
        if value:
            self.windows.push([part])
        return result

    def _is_condition(self, index: Any) -> bool:
        """Whether an index is one truth value that is not known at capture: by it all is written, or nothing."""
        is_truth = isinstance(index, Tensor) and index.dtype == torch.bool and not index.dim()
        return is_truth and self._value_of(index) is None

    def _is_dynamic(self, index: Any) -> bool:
        """Whether an index is a window, or a number that is not known at capture."""
        if isinstance(index, _Run):
            return self._is_dynamic(index.start)
        if isinstance(index, Tensor):
            return index.dim() == 0 and is_index(index) and self._value_of(index) is None
        return isinstance(index, slice) and any(isinstance(b, Tensor) for b in (index.start, index.stop, index.step))

    def _bounds(self, window: slice | Tensor | _Run) -> tuple[Tensor, int, int]:
        """Return start, size and step."""
        if isinstance(window, Tensor):
            return window, 1, 1
        if isinstance(window, _Run):
            return window.start, window.size, 1
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


def _as_item(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return a call as tensor, index and, of one that writes, value; None of any other call."""
    if function in ITEMS:
        return args
    if function not in NARROWS and function not in SELECTS:
        return None
    given = dict(zip(("input", "dim", "start", "length"), args, strict=False))
    given |= {{"index": "start"}.get(name, name): value for name, value in kwargs.items()}
    tensor, dim, start = given.get("input"), given.get("dim"), given.get("start")
    if not isinstance(tensor, Tensor) or not isinstance(dim, int) or not isinstance(start, Tensor):
        return None
    start = start.long() if start.dtype == torch.uint8 else start  # a number here, and no mask
    chosen = start if function in SELECTS else _Run(start, given["length"])
    return tensor, (*(slice(None),) * (dim % max(tensor.dim(), 1)), chosen)


def _members(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _mask_of_bytes(index: Any) -> Any:
    """Return the mask that bytes in brackets are, any other index as it is."""
    return index.bool() if isinstance(index, Tensor) and index.dtype == torch.uint8 else index


def _dimension(tensor: Tensor, indices: tuple[Any, ...], place: int) -> int:
    """Return the dimension of which an index speaks."""
    if any(one is Ellipsis for one in indices[:place]):
        return tensor.dim() - sum(map(_width, indices[place:]))
    return sum(map(_width, indices[:place]))


def _width(index: Any) -> int:
    """Return how many dimensions an index takes."""
    if index is None or isinstance(index, bool):
        return 0
    return index.dim() if isinstance(index, Tensor) and index.dtype == torch.bool else 1
