"""Memory of results that the caller keeps: taken again once nobody holds it, so that calls touch no new pages.

The C library gives large blocks back to the system when they are freed, and the system hands pages out again one by
one, as they are written: for the results of an optimiser's step or of a large layer that takes longer than computing
them.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import NamedTuple

import torch

from torchipu import forks
from torchipu.host.complex_pairs import COMPLEX, strides_of_complex
from torchipu.host.shared import Shared

LEAST_BYTES = 64 << 10
"""Smaller blocks the C library keeps by itself: it gives back those of 128 KiB and more."""
CALLS_KEPT = 2
"""Memory is kept for the results of so many calls, each as large as the largest: of a forward, and its backward."""
ROOMY = 2
"""How many times what it is for at first memory is large that other sizes may take: pages that are never written cost
nothing, and a larger size then writes few that are new."""
MOST_ROOMY = 2
"""How many times what it is taken for such memory may be large: a small result does not take that of a large one."""


Kind = tuple[int, bool]
"""Bytes, and whether the memory may be larger: what the user has lies in memory of its own size, saved as such."""


class Room(NamedTuple):
    """What a result takes: elements of a type, without gaps or overlaps.

    Attributes:
        shape: Sizes.
        strides: In elements, as torch counts them.
        dtype: Element type.
        num_bytes: Of all elements.
        is_roomy: Whether the memory may be larger, so that other sizes take it too.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int
    is_roomy: bool = False

    @property
    def kind(self) -> Kind:
        """Which memory it takes without a look at other."""
        return self.num_bytes, self.is_roomy

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None) -> Room:
        """Return the room of a shape and element type, row-major unless strides are given."""
        if strides is None:
            strides = tuple(math.prod(max(1, size) for size in shape[place + 1 :]) for place in range(len(shape)))
        return cls(shape, strides, dtype, dtype.itemsize * math.prod(shape))

    def of_complex(self) -> Room:
        """Return the room of complex numbers in place of pairs, ``[..., 2]``, whose parts lie side by side."""
        return self._replace(
            shape=self.shape[:-1], strides=strides_of_complex(self.strides), dtype=COMPLEX[self.dtype],
        )

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


@dataclass(slots=True)
class _Kept:
    """Memory that is kept.

    Attributes:
        storage: Its storage.
        address: Where it lies.
        capacity: Bytes of it.
        num_bytes: What it was taken for last.
        written: The most that it was taken for.
        is_roomy: Whether it is for several sizes.
        turn: When it was taken last.
    """

    storage: torch.UntypedStorage
    address: int
    capacity: int
    num_bytes: int
    written: int
    is_roomy: bool
    turn: int = 0

    @property
    def kind(self) -> Kind:
        """Which results take it without a look at others."""
        return self.num_bytes, self.is_roomy

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
_WRITTEN, _TURN = attrgetter("written"), attrgetter("turn")


def _roomy_for(room: Room, roomy: list[_Kept]) -> _Kept | None:
    """Take out, of memory for several sizes by how much was written, what a result fits in; None where none will do.

    That is the smallest that has all pages, or else the one with most of them.
    """
    if not room.is_roomy:
        return None
    place = bisect_left(roomy, room.num_bytes, key=_WRITTEN)
    if place < len(roomy) and roomy[place].written <= MOST_ROOMY * room.num_bytes:
        return roomy.pop(place)
    if place and roomy[place - 1].capacity >= room.num_bytes:
        return roomy.pop(place - 1)
    return None


def _fresh_for(room: Room) -> _Kept:
    capacity = room.num_bytes * (ROOMY if room.is_roomy else 1)
    storage = _fresh((capacity,), (1,), torch.uint8).untyped_storage()
    return _Kept(storage, storage.data_ptr(), capacity, room.num_bytes, room.num_bytes, room.is_roomy)


class OutputMemory:
    """Storages of earlier results.

    A storage is taken again when no tensor, view, NumPy array or process shares it any longer. What is kept is bounded
    by what calls have asked for; what is in nobody's use goes first, and of that what was not taken for longest.
    """

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._kept: list[_Kept] = []
        self._by_kind: dict[Kind, list[_Kept]] = {}
        self._largest_call = 0
        self._turn = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of all storages that are kept, in use or not, as far as anything was ever written there."""
        return sum(kept.written for kept in self._kept)

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
            self._turn += 1
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
        idle = {kind: filter(_Kept.is_idle, kept) for kind, kept in self._by_kind.items()}  # each is looked at once
        found = [next(idle.get(room.kind, _NONE), None) for _, room in large]
        if None in found:
            return None
        taken = [kept for kept in found if kept is not None]
        for kept in taken:
            kept.turn = self._turn
        return [kept.storage for kept in taken]

    def _made(self, large: Sequence[tuple[int, Room]]) -> list[torch.UntypedStorage]:
        """Return memory, of what is kept as much as can be; forget what is kept in vain."""
        free = self._take_free()
        taken = {place: fitting.pop() for place, room in large if (fitting := free.get(room.kind))}
        left = [one for fitting in free.values() for one in fitting]
        roomy = sorted((one for one in left if one.is_roomy), key=_WRITTEN)
        # The largest first, which have least to choose from: where all are a little larger, each finds its own.
        for place, room in sorted(large, key=lambda one: -one[1].num_bytes):
            if place not in taken:
                taken[place] = _roomy_for(room, roomy) or _fresh_for(room)
        for place, room in large:
            kept = taken[place]
            kept.num_bytes, kept.written = room.num_bytes, max(room.num_bytes, kept.written)
            kept.turn = self._turn
        unused = [*(one for one in left if not one.is_roomy), *roomy]
        self._kept = [*sorted(unused, key=_TURN), *self._kept, *taken.values()]
        self._forget_first()
        self._by_kind = {}
        for one in self._kept:
            self._by_kind.setdefault(one.kind, []).append(one)
        return [taken[place].storage for place, _ in large]

    def _take_free(self) -> dict[Kind, list[_Kept]]:
        """Take out and return what nobody else has, by kind; forget what is no longer private."""
        free: dict[Kind, list[_Kept]] = {}
        held = []
        for kept in self._kept:
            if not kept.is_private():
                continue
            if kept.is_free():
                free.setdefault(kept.kind, []).append(kept)
            else:
                held.append(kept)
        self._kept = held
        return free

    def _forget_first(self) -> None:
        over = self.kept_bytes - CALLS_KEPT * self._largest_call
        count = 0
        while over > 0:
            over -= self._kept[count].written
            count += 1
        del self._kept[:count]


SHARED = Shared(OutputMemory)
"""That of all programs, of torch.compile and of steps."""
BORDER = Shared(OutputMemory)
"""That of what lies in another way, or has another element type, on the caller's side: bounded by itself."""
