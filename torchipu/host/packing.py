"""Results of a call that lie in one block, where each as a tensor of its own would take longer than computing it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from torchipu.host.output_memory import Room
from torchipu.host.storage import aligned

LARGEST_BYTES = 1 << 20
"""Larger results are tensors of their own: computing them takes far longer than making these."""
LEAST_PACKED = 8
"""So many at least have to be for a block."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Where the results of a call lie.

    Attributes:
        rooms: Of all results.
        offsets: By result in bytes from the begin of the block; -1 for one that is a tensor of its own.
        num_bytes: Of the block.
    """

    rooms: tuple[Room, ...]
    offsets: tuple[int, ...]
    num_bytes: int

    @classmethod
    def of(cls, rooms: Sequence[Room], numbers: Collection[int]) -> Packing | None:
        """Return one with results of these numbers in a block, as far as they are small; None for too few of them."""
        offsets, end = [-1] * len(rooms), 0
        for number in sorted(numbers):
            if rooms[number].num_bytes <= LARGEST_BYTES:
                offsets[number] = end
                end = aligned(end + rooms[number].num_bytes)
        is_worth_it = sum(offset >= 0 for offset in offsets) >= LEAST_PACKED
        return cls(tuple(rooms), tuple(offsets), end) if is_worth_it and end else None

    @property
    def made(self) -> list[Room]:
        """Rooms of the tensors that a call makes: of results that are such, and of the block."""
        apart = [room for room, offset in zip(self.rooms, self.offsets, strict=True) if offset < 0]
        return [*apart, Room.of((self.num_bytes,), torch.uint8)]

    def place(self, number: int) -> int:
        """Return the place of a result that is a tensor among those that a call makes."""
        return sum(offset < 0 for offset in self.offsets[:number])


@dataclass(frozen=True, slots=True)
class Block:
    """An argument that holds what a graph reads as several.

    Attributes:
        place: Among the arguments of a call.
        num_bytes: Its own.
        rooms: By number of what the graph reads, the bytes from its begin to where that lies, and how.
    """

    place: int
    num_bytes: int
    rooms: Mapping[int, tuple[int, Room]]
