"""A ring of batches in memory that two processes share: its layout, and who may touch which slot.

The memory is anonymous: it has no name that could be left behind, and goes with the last process that holds it.
Whoever waits looks at counters in shared memory first and takes a wake-up only as a hint to look again, so that an
interruption at any moment loses nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchipu.poptorch.arguments.structure import parser_of, with_tensors

ALIGNMENT = 64
"""Bytes; each tensor of a slot begins on a cache line."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of a batch and how they are held together.

    Attributes:
        kind: Type of the batch: torch.Tensor, or that of a tuple, list or dict of tensors; None for a user's class,
            which need not be one that can be pickled: its objects are.
        keys: Keys of a dict.
        shapes: Shape of each tensor; the first size is the most rows that a slot holds.
        dtypes: Type of each tensor.
        template: An object of a user's class, its tensors without memory, which the others are made like.
    """

    kind: type | None
    keys: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    template: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, batch: object, rows: int | None = None) -> Layout:
        """Return the layout of a batch.

        Args:
            batch: A tensor, a flat tuple, list or dict of tensors, or an object of a class that has a parser.
            rows: Rows of a slot; None for those of the batch.
        """
        tensors = flatten(batch)
        shapes = (tuple(tensor.shape) for tensor in tensors)
        kind = torch.Tensor if isinstance(batch, torch.Tensor) else type(batch) if parser_of(batch) is None else None
        return cls(
            kind,
            tuple(batch) if isinstance(batch, Mapping) else (),
            tuple(shape if rows is None else (rows, *shape[1:]) for shape in shapes),
            tuple(tensor.dtype for tensor in tensors),
            None if parser_of(batch) is None else with_tensors(batch, iter([t.to("meta") for t in tensors])),
        )

    def check(self, batch: object, tensors: Sequence[torch.Tensor]) -> None:
        """Refuse a batch that is made otherwise than the first one was.

        Args:
            batch: The batch.
            tensors: Its tensors.

        Raises:
            AssertionError: Its type, keys, or the number, sizes or types of its tensors differ. Fewer rows may be.
        """
        other = Layout.of(batch)
        ours, theirs = (
            (layout.kind, type(layout.template), layout.keys, layout.dtypes) for layout in (self, other)
        )
        if ours != theirs:
            raise AssertionError(
                f"Every element of the data must be made alike: the first was {self}, and this is {other}"
            )
        for tensor, shape in zip(tensors, self.shapes, strict=True):
            if tensor.dim() != len(shape) or tuple(tensor.shape[1:]) != shape[1:]:
                raise AssertionError(
                    f"Every element of the data must be of the same size: the first had {list(shape)}, and this has "
                    f"{list(tensor.shape)}"
                )

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return a batch with these tensors."""
        if self.template is not None:
            return with_tensors(self.template, iter(tensors))
        assert self.kind is not None
        if self.kind is torch.Tensor:
            return tensors[0]
        if issubclass(self.kind, Mapping):
            return self.kind(zip(self.keys, tensors, strict=True))  # type: ignore[call-arg]
        if hasattr(self.kind, "_fields"):
            return self.kind(*tensors)
        return self.kind(tensors)  # type: ignore[call-arg]


def flatten(batch: object) -> list[torch.Tensor]:
    """Return the tensors of a batch.

    Raises:
        AssertionError: It is no tensor, no flat tuple, list or dict of tensors, and of no class that has a parser.
    """
    if isinstance(batch, torch.Tensor):
        return [batch]
    if (parser := parser_of(batch)) is not None:
        return list(parser.yieldTensors(batch))
    if not isinstance(batch, (tuple, list, Mapping)):
        raise AssertionError(
            "Elements of the data must be tensors, flat tuples, lists or dicts of tensors, or objects of a class known "
            f"to poptorch.registerCustomArgParser, not {type(batch)}"
        )
    tensors = list(batch.values() if isinstance(batch, Mapping) else batch)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise AssertionError(
                f"Elements of the data must be flat: a {type(batch).__name__} holds a {type(tensor).__name__}, and "
                "not a tensor"
            )
    return tensors


class Ring:
    """The slots of a ring; each holds one batch.

    Args:
        layout: Of a batch.
        num_slots: How many.
        file: Descriptor of the memory; None to make it anew.
    """

    def __init__(self, layout: Layout, num_slots: int, file: int | None = None) -> None:
        self.layout = layout
        offsets, slot_bytes = _offsets(layout)
        num_bytes = max(slot_bytes * num_slots, 1)
        if file is None:
            file = os.memfd_create("torchipu-batches", os.MFD_CLOEXEC)
            os.ftruncate(file, num_bytes)
        self.file = file
        memory = mmap.mmap(file, num_bytes)
        self.slots = [
            [
                _tensor_in(memory, slot * slot_bytes + offset, shape, dtype)
                for offset, shape, dtype in zip(offsets, layout.shapes, layout.dtypes, strict=True)
            ]
            for slot in range(num_slots)
        ]

    def close_file(self) -> None:
        """Give the descriptor back; the memory stays as long as a tensor lies in it."""
        os.close(self.file)

    def write(self, slot: int, begin: int, tensors: Sequence[torch.Tensor]) -> None:
        """Copy rows into a slot.

        Args:
            slot: Which.
            begin: First row that is written.
            tensors: The rows.
        """
        for target, tensor in zip(self.slots[slot], tensors, strict=True):
            if tensor.dim() == 0:
                target.copy_(tensor)
            else:
                target[begin:begin + tensor.shape[0]].copy_(tensor)

    def read(self, slot: int, num_rows: int) -> Any:
        """Return the batch in a slot, as views.

        Args:
            slot: Which.
            num_rows: How many rows it holds; -1 for all.
        """
        tensors = self.slots[slot]
        if num_rows >= 0:
            tensors = [tensor[:num_rows] if tensor.dim() else tensor for tensor in tensors]
        return self.layout.rebuild(tensors)


def _offsets(layout: Layout) -> tuple[list[int], int]:
    """Return where each tensor lies in a slot, and the bytes of a slot."""
    offsets, end = [], 0
    for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True):
        offsets.append(end)
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


def _tensor_in(memory: mmap.mmap, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


class Counters:
    """What the two processes tell each other, each number written by one of them.

    Args:
        array: Shared integers: `HEAD` of them, and `PER_SLOT` for each slot.
        num_slots: How many slots the ring has.
    """

    PRODUCED, RELEASED, WANTED_EPOCH, GOING, STOPPED = range(5)
    HEAD = 5
    PER_SLOT = 3

    def __init__(self, array: ctypes.Array[ctypes.c_int64], num_slots: int) -> None:
        self._array = array
        self.num_slots = num_slots

    @property
    def produced(self) -> int:
        """How many entries the worker has made; the number of one gives its slot."""
        return self._array[self.PRODUCED]

    @property
    def released(self) -> int:
        """How many of them the reader is done with."""
        return self._array[self.RELEASED]

    @released.setter
    def released(self, count: int) -> None:
        self._array[self.RELEASED] = count

    @property
    def wanted_epoch(self) -> int:
        """Epoch that the reader reads, or waits for; the worker leaves an earlier one where it is."""
        return self._array[self.WANTED_EPOCH]

    @wanted_epoch.setter
    def wanted_epoch(self, epoch: int) -> None:
        self._array[self.WANTED_EPOCH] = epoch

    @property
    def is_going(self) -> bool:
        """Whether the reader has asked for data."""
        return bool(self._array[self.GOING])

    @is_going.setter
    def is_going(self, going: bool) -> None:
        self._array[self.GOING] = going

    @property
    def is_stopped(self) -> bool:
        """Whether the reader wants no more."""
        return bool(self._array[self.STOPPED])

    @is_stopped.setter
    def is_stopped(self, stopped: bool) -> None:
        self._array[self.STOPPED] = stopped

    @classmethod
    def size(cls, num_slots: int) -> int:
        """Return how many integers there are."""
        return cls.HEAD + cls.PER_SLOT * num_slots

    def produce(self, epoch: int, num_rows: int, is_end: bool) -> None:
        """Add an entry, in the slot after the last one's.

        Args:
            epoch: Whose batch it is.
            num_rows: Its rows; -1 for a full slot.
            is_end: Whether it is no batch but the end of the epoch.
        """
        place = self.HEAD + self.PER_SLOT * (self.produced % self.num_slots)
        self._array[place:place + self.PER_SLOT] = [epoch, num_rows, is_end]
        self._array[self.PRODUCED] = self.produced + 1

    def entry(self, index: int) -> tuple[int, int, bool]:
        """Return epoch, rows and whether it is the end, of an entry."""
        place = self.HEAD + self.PER_SLOT * (index % self.num_slots)
        epoch, num_rows, is_end = self._array[place:place + self.PER_SLOT]
        return epoch, num_rows, bool(is_end)
