"""Windows: what was read of a tensor at places that only the program knows, kept equal to it as a view is.

In eager PyTorch ``x[i : i + 2]`` is a view: it sees what is written into ``x``, and ``x`` what is written into it. A
program reads such places into memory of their own. So after each call a window that was written goes back into its
base, and before each call a window whose base was written since is read again. Torch counts the writes into each memory
while a model is captured, whoever makes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from torchipu.poptorch.capturing import BodyCheck
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.tracing.limits import STEPPED

Tensor = torch.Tensor
PART_OF_WRITTEN = (
    "A body of poptorch.for_loop or poptorch.cond writes into x, and uses x[i] or another part of x, at a place that "
    "only the program knows, which was read before the body: read it within the body."
)


@dataclass(slots=True)
class Window:
    """What was read of a tensor.

    Attributes:
        base: The tensor, which may be a view, or part of another window.
        dim: The dimension along which it was read.
        places: The indices there.
        part: What they gave.
        step: Every which element was taken; only of 1 may it be written.
        asked: The tensor and the index of the user's own words, with the writes into tensors of the index until then.
        has_gradient: Whether gradients were recorded as it was read.
        of_base: Writes into the memory of the base that the window has seen.
        own: Writes into its own memory that the base has seen.
    """

    base: Tensor
    dim: int
    places: Tensor
    part: Tensor
    step: int
    asked: tuple[Tensor, Any, list[int]]
    has_gradient: bool
    of_base: int
    own: int


class Windows:
    """The windows of one run of a model's forward.

    Args:
        forget: Called with each tensor that is written through a window.
    """

    def __init__(self, forget: Callable[[Tensor], None]) -> None:
        self._forget = forget
        self._windows: dict[int, Window] = {}

    def read(self, base: Tensor, dim: int, places: Tensor, step: int, asked: tuple[Tensor, Any]) -> Tensor:
        """Return a new window.

        Args:
            base: ``[..., N, ...]``.
            dim: The dimension of ``N``.
            places: The indices there, [size].
            step: How far they lie apart.
            asked: The tensor and the index of the user's own words.

        Returns:
            ``[..., size, ...]``, in memory ordered as that of the base: what is contiguous is so in a view too.
        """
        part = _in_order_of(base, base.index_select(dim, places))
        memory = memory_of(part)
        if memory is not None:
            self._windows[memory] = Window(
                base, dim, places, part, step, (*asked, _writes_into_index(asked[1])), torch.is_grad_enabled(),
                writes_into(base), writes_into(part),
            )
        return part

    def is_read_by(self, value: Any, tensor: Tensor, index: Any) -> bool:
        """Whether a value is what the same words would give: ``x[i] += 1`` reads, writes, and assigns the same."""
        window = self._of(value)
        if window is None:
            return False
        read, by, writes = window.asked
        return read is tensor and _is_same_index(by, index) and writes == _writes_into_index(index)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is a window, or a view of one."""
        return self._of(tensor) is not None

    def refresh(self, tensors: Iterable[Tensor]) -> None:
        """Let windows among tensors, and views of them, hold what their bases hold."""
        for tensor in tensors if self._windows else ():
            self._refresh(self._of(tensor))

    def _refresh(self, window: Window | None) -> None:
        if window is None:
            return
        self._refresh(self._of(window.base))
        if writes_into(window.base) != window.of_base:
            with torch.set_grad_enabled(window.has_gradient):
                window.part.copy_(window.base.index_select(window.dim, window.places))
            _note_equal(window)

    def push(self, tensors: Iterable[Tensor]) -> None:
        """Let writes into windows among tensors, and into views of them, reach their bases.

        Raises:
            Error: A window with a step other than 1 was written.
        """
        for tensor in tensors if self._windows else ():
            self._push(self._of(tensor))

    def _push(self, window: Window | None) -> None:
        if window is None or writes_into(window.part) == window.own:
            return
        if window.step != 1:
            raise createPoptorchError(STEPPED)
        window.base.copy_(window.base.index_copy(window.dim, window.places, window.part))
        self._forget(window.base)
        _note_equal(window)
        self._push(self._of(window.base))

    @contextlib.contextmanager
    def apart(self) -> Iterator[BodyCheck]:
        """Let a body of the program begin: it sees all windows as they are, and its own ones end with it.

        What it gives refuses a body that uses a window from around it and writes into the tensor of which it is part.
        """
        for window in list(self._windows.values()):
            self._refresh(window)
        before, self._windows = self._windows, {}

        def check(taken: Sequence[Tensor], written: Sequence[Tensor]) -> None:
            memories = {memory_of(tensor) for tensor in written}
            for tensor in taken:
                window = before.get(memory_of(tensor) or 0)
                while window is not None:
                    if memory_of(window.base) in memories:
                        raise createPoptorchError(PART_OF_WRITTEN)
                    window = before.get(memory_of(window.base) or 0)

        try:
            yield check
        finally:
            self._windows = before

    def _of(self, tensor: Any) -> Window | None:
        memory = memory_of(tensor) if isinstance(tensor, Tensor) else None
        return None if memory is None else self._windows.get(memory)


def memory_of(tensor: Tensor) -> int | None:
    """Return what tells a captured tensor and its views from others; None of a tensor that is not captured."""
    if not isinstance(tensor, FunctionalTensor):
        return None
    with torch._C.DisableTorchFunction():  # else a body that is captured around would take what is asked for
        return tensor.elem.untyped_storage()._cdata


def writes_into(tensor: Tensor) -> int:
    """Return how often the memory of a tensor was written, through whichever view."""
    if not isinstance(tensor, FunctionalTensor):
        return 0
    return int(torch._functionalize_mutation_counter(tensor.elem))


def _note_equal(window: Window) -> None:
    window.of_base, window.own = writes_into(window.base), writes_into(window.part)


def _in_order_of(base: Tensor, part: Tensor) -> Tensor:
    """Return a tensor in memory with the strides of another of the same dimensions, if elements have each their own."""
    strides = base.stride()
    if all(size == 1 or has == stride for size, has, stride in zip(part.shape, part.stride(), strides, strict=True)):
        return part
    if any(size > 1 and not stride for size, stride in zip(part.shape, strides, strict=True)):
        return part
    ordered = torch.empty_strided(part.shape, strides, dtype=part.dtype, device=part.device)
    return ordered.copy_(part)


def _leaves(index: Any) -> list[Any]:
    """Return what an index consists of."""
    if isinstance(index, (tuple, list)):
        return [leaf for one in index for leaf in _leaves(one)]
    return [index.start, index.stop, index.step] if isinstance(index, slice) else [index]


def _is_same_index(one: Any, other: Any) -> bool:
    ours, theirs = _leaves(one), _leaves(other)
    return len(ours) == len(theirs) and all(
        mine is yours or (not isinstance(mine, Tensor) and type(mine) is type(yours) and mine == yours)
        for mine, yours in zip(ours, theirs, strict=True)
    )


def _writes_into_index(index: Any) -> list[int]:
    return [writes_into(leaf) for leaf in _leaves(index) if isinstance(leaf, Tensor)]
