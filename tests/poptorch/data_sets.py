"""Data sets for the tests of loaders, in a module of their own so that spawned processes find them."""

from __future__ import annotations

import ctypes
import os
import random
import threading
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from torchipu.poptorch import ICustomArgParser

Pair = namedtuple("Pair", ["x", "y"])


class Counted:
    """Knows how many elements it has.

    Args:
        length: How many.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


class Numbers(Counted, Dataset[Any]):
    """Elements ``(full of n, n)``."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index >= self.length:
            raise IndexError(index)
        return torch.full((2, 3), float(index)), torch.tensor(index)


class Point:
    """An object of a class of the user's, with two tensors and a name."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, name: str) -> None:
        self.x, self.y, self.name = x, y, name


class PointParser(ICustomArgParser):
    """Knows the tensors of a `Point`."""

    def yieldTensors(self, struct: Point) -> Iterator[torch.Tensor]:
        yield struct.x
        yield struct.y

    def reconstruct(self, original_structure: Point, tensor_iterator: Iterator[torch.Tensor]) -> Point:
        return Point(next(tensor_iterator), next(tensor_iterator), original_structure.name)


class Types(Numbers):
    """Elements of many types, in a dict."""

    def __getitem__(self, index: int) -> Any:
        return {
            "half": torch.full((2,), index, dtype=torch.half), "bool": torch.tensor([index % 2 == 0]),
            "byte": torch.full((3,), index, dtype=torch.uint8), "bfloat16": torch.full((1,), index).bfloat16(),
            "double": torch.tensor(index / 3, dtype=torch.double), "empty": torch.empty(0, 4),
        }


class Broken(Numbers):
    """Raises from an element on.

    Args:
        length: How many elements it says to have.
        first: The element that raises.
    """

    def __init__(self, length: int, first: int) -> None:
        super().__init__(length)
        self.first = first

    def __getitem__(self, index: int) -> Any:
        if self.first <= index < self.length:
            raise LookupError(f"element {index} is broken")
        return super().__getitem__(index)


class Dying(Numbers):
    """Ends its process, as the system does when memory is short, at element 4."""

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            os.kill(os.getpid(), 9)
        return super().__getitem__(index)


class Held(Numbers):
    """Takes for ever with element 4."""

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            threading.Event().wait()
        return super().__getitem__(index)


class Gated(Numbers):
    """Gives element 4 when somebody opens a named pipe.

    Args:
        length: How many elements.
        gate: The pipe.
    """

    def __init__(self, length: int, gate: str) -> None:
        super().__init__(length)
        self.gate = gate

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            with open(self.gate, encoding="utf-8"):
                pass
        return super().__getitem__(index)


class Stream(Counted, IterableDataset[Any]):
    """Numbers one by one; each of several workers has its part of them."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(first, self.length, step):
            yield torch.tensor(number)


def keep_part(worker: int) -> None:
    """Stand for a ``worker_init_fn``: `Stream` asks for its part itself."""


class Shuffled:
    """Data in an order that a generator of its own draws."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(7)

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.randperm(20, generator=self.generator)


MARKS: dict[str, int] = {}
"""What a test has noted in its own process: a process that was forked from it knows it too."""


class Parents(Counted, Dataset[Any]):
    """Elements ``(process, its parent, the mark of this object)``; the mark is -1 where it is not known."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.length:
            raise IndexError(index)
        return torch.tensor([os.getpid(), os.getppid(), MARKS.get("mark", -1)])


class StuckInCompiledCode(Numbers):
    """Never comes back from element 4, and lets no other thread of the interpreter run."""

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            ctypes.PyDLL(None).sleep(1000)
        return super().__getitem__(index)


class Drawn(Counted, Dataset[Any]):
    """Random numbers of torch, Python and numpy."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.length:
            raise IndexError(index)
        return torch.tensor([torch.rand(()).item(), random.random(), float(np.random.rand())])
