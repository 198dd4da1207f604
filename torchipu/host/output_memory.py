"""Memory of results that the caller keeps: taken again once nobody holds it, so that calls touch no new pages.

The C library gives large blocks back to the system when they are freed, and the system hands pages out again one by
one, as they are written: for the results of an optimiser's step or of a large layer that takes longer than computing
them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import NamedTuple

import torch

from torchipu import forks
from torchipu.host.complex_pairs import COMPLEX, strides_of_complex
from torchipu.host.shared import Shared

LEAST_BYTES = 64 << 10
"""Smaller blocks the C library keeps by itself: it gives back those of 128 KiB and more."""
CALLS_KEPT = 2
"""Memory is kept for the results of so many calls, each as large as the largest: of a forward, and its backward."""


class Room(NamedTuple):
    """What a result takes: elements of a type, without gaps or overlaps.

    Attributes:
        shape: Sizes.
        strides: In elements, as torch counts them.
        dtype: Element type.
        num_bytes: Of all elements.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None) -> Room:
        """Return the room of a shape and element type, row-major unless strides are given."""
        if strides is None:
            strides = tuple(math.prod(max(1, size) for size in shape[place + 1 :]) for place in range(len(shape)))
        return cls(shape, strides, dtype, dtype.itemsize * math.prod(shape))

    def of_complex(self) -> Room:
        """Return the room of complex numbers in place of pairs, ``[..., 2]``, whose parts lie side by side."""
        return Room(self.shape[:-1], strides_of_complex(self.strides), COMPLEX[self.dtype], self.num_bytes)

    def is_of(self, dtype: torch.dtype, strides: tuple[int, ...] | None) -> bool:
        """Return whether tensors with room like this have these strides, None where torch calls them contiguous."""
        like = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")
        return self.dtype is dtype and strides == (None if like.is_contiguous() else self.strides)


def _empty_strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


# What Inductor's programs call: a fifth of the time of torch.empty, which a small model would spend most of a call in.
_fresh = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", _empty_strided)


def _strides_of_a_copy(value: torch.Tensor) -> tuple[int, ...] | None:
    """Return the strides that torch gives a copy; None for row-major."""
    return None if value.is_contiguous() else torch.empty_like(value, device="meta").stride()


class _Wanted(NamedTuple):
    """What a call makes, as often as it comes.

    Attributes:
        at_first: Shape, strides and element type of each tensor, a large one's without elements.
        large: Place and room of each large one.
        large_bytes: Of all these.
    """

    at_first: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    large: list[tuple[int, Room]]
    large_bytes: int

    @classmethod
    def of(cls, rooms: Sequence[Room]) -> _Wanted:
        """Return it for the rooms of a call's results."""
        large = [(place, room) for place, room in enumerate(rooms) if room.num_bytes >= LEAST_BYTES]
        at_first = [(room.shape, room.strides, room.dtype) for room in rooms]
        for place, room in large:
            at_first[place] = ((0,), (1,), room.dtype)
        return cls(at_first, large, sum(room.num_bytes for _, room in large))


class _Kept(NamedTuple):
    storage: torch.UntypedStorage
    address: int
    num_bytes: int

    def is_private(self) -> bool:
        """Whether it is what it was: neither resized, nor moved to where another process may read it."""
        return not self.storage.is_shared() and self.storage.data_ptr() == self.address

    def is_free(self) -> bool:
        """Whether no tensor has it, nor the caller the storage itself: torch makes one object of it for all."""
        return sys.getrefcount(self.storage) <= 2 and torch._C._storage_Use_Count(self.storage._cdata) == 1

    def is_idle(self) -> bool:
        """Whether it may be taken again."""
        return self.is_free() and self.is_private()


_NONE: Iterator[_Kept] = iter(())


class OutputMemory:
    """Storages of earlier results.

    A storage is taken again when no tensor, view, NumPy array or process shares it any longer. What is kept is bounded
    by what calls have asked for; what is in nobody's use goes first.
    """

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._kept: list[_Kept] = []
        self._by_size: dict[int, list[_Kept]] = {}
        self._largest_call = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of all storages that are kept, in use or not."""
        return sum(kept.num_bytes for kept in self._kept)

    def empty(self, wanted: Sequence[Room]) -> list[torch.Tensor]:
        """Return tensors whose elements are not set, all of one call.

        Args:
            wanted: What each takes.
        """
        return self._empty(_Wanted.of(wanted))

    def empty_of(self, wanted: Sequence[Room]) -> Callable[[], list[torch.Tensor]]:
        """Return what does for these as `empty` does, at call after call."""
        return partial(self._empty, _Wanted.of(wanted))

    def _empty(self, wanted: _Wanted) -> list[torch.Tensor]:
        made = list(starmap(_fresh, wanted.at_first))
        if not wanted.large:
            return made
        with self._lock:
            self._largest_call = max(self._largest_call, wanted.large_bytes)
            storages = self._taken_again(wanted.large) or self._made(wanted.large)
        for (place, room), storage in zip(wanted.large, storages, strict=True):
            made[place].set_(storage, 0, room.shape, room.strides)
        return made

    def copies(self, values: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        """Return copies of values, all of one call, whose dimensions lie in the order of the originals' where they can.

        Args:
            values: Any that are no views of complex numbers.
            dtypes: The element type of each copy; numbers are converted as `torch.Tensor.to` does.
        """
        rooms = [
            Room.of(tuple(value.shape), dtype, _strides_of_a_copy(value))
            for value, dtype in zip(values, dtypes, strict=True)
        ]
        made = self.empty(rooms)
        for target, value in zip(made, values, strict=True):
            target.copy_(value.detach())
        return made

    def _taken_again(self, large: Sequence[tuple[int, Room]]) -> list[torch.UntypedStorage] | None:
        """Return memory that is kept; None where there is not enough of it."""
        idle = {size: filter(_Kept.is_idle, kept) for size, kept in self._by_size.items()}  # each is looked at once
        found = [next(idle.get(room.num_bytes, _NONE), None) for _, room in large]
        return None if None in found else [kept.storage for kept in found if kept is not None]

    def _made(self, large: Sequence[tuple[int, Room]]) -> list[torch.UntypedStorage]:
        """Return memory, of what is kept as much as can be; forget what is kept in vain."""
        free = self._take_free()
        taken = []
        for _, room in large:
            fitting = free.get(room.num_bytes)
            if fitting:
                taken.append(fitting.pop())
                continue
            storage = _fresh((room.num_bytes,), (1,), torch.uint8).untyped_storage()
            taken.append(_Kept(storage, storage.data_ptr(), room.num_bytes))
        unused = [one for fitting in free.values() for one in fitting]
        self._kept = [*unused, *self._kept, *taken]
        self._forget_first()
        self._by_size = {}
        for one in self._kept:
            self._by_size.setdefault(one.num_bytes, []).append(one)
        return [one.storage for one in taken]

    def _take_free(self) -> dict[int, list[_Kept]]:
        """Take out and return what nobody else has, by bytes; forget what is no longer private."""
        free: dict[int, list[_Kept]] = {}
        held = []
        for kept in self._kept:
            if not kept.is_private():
                continue
            if kept.is_free():
                free.setdefault(kept.num_bytes, []).append(kept)
            else:
                held.append(kept)
        self._kept = held
        return free

    def _forget_first(self) -> None:
        over = self.kept_bytes - CALLS_KEPT * self._largest_call
        count = 0
        while over > 0:
            over -= self._kept[count].num_bytes
            count += 1
        del self._kept[:count]


SHARED = Shared(OutputMemory)
"""That of all programs, of torch.compile and of steps."""
BORDER = Shared(OutputMemory)
"""That of what lies in another way, or has another element type, on the caller's side: bounded by itself."""
