"""The memory of what lives within one call: programs of torch.compile that do not run at the same time share it."""

from __future__ import annotations

import mmap

import torch

from torchipu import forks
from torchipu._kernels.abi import CHECKED
from torchipu.host.shared import Shared

MAPPED_BYTES = 1 << 20
"""From which on memory comes from the system by itself; less comes from torch, which keeps what it has had."""
RESERVED = 4
"""How many times what a program needs is reserved where another one needed less before."""
_FRESH = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)


def aligned_bytes(num_bytes: int) -> torch.Tensor:
    """Return zeroed bytes, ``[num_bytes]`` uint8, on a cache-line boundary."""
    raw = _zeros(num_bytes + 128)
    skip = -raw.data_ptr() % 64
    return raw[skip : skip + num_bytes + 64]


def _zeros(num_bytes: int) -> torch.Tensor:
    """Return zeroed bytes; of much memory the system has zeroed each page, all in one call and not at a fault each."""
    if num_bytes >= MAPPED_BYTES and not CHECKED:  # what is closed there would stay so for who is given it next
        try:
            return torch.frombuffer(mmap.mmap(-1, num_bytes, flags=_FRESH), dtype=torch.uint8)
        except OSError:
            pass  # torch says how much it lacks
    return torch.zeros(num_bytes, dtype=torch.uint8)


def _reserved_bytes(num_bytes: int) -> torch.Tensor | None:
    """Return zeroed bytes on a cache-line boundary, whose pages come as they are written; None where there are none."""
    if num_bytes < MAPPED_BYTES or CHECKED:
        return None
    try:
        mapped = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # where the system promises no more than it has
        return None
    return torch.frombuffer(mapped, dtype=torch.uint8)


class Arena:
    """Memory as large as the largest program that shares it needs, for one of them at a time."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self.memory = aligned_bytes(0)
        """What programs have, one at a time: who runs one while no other engine runs may take it without asking."""
        self._lock = forks.lock()

    def grow(self, num_bytes: int) -> None:
        """Make room for a program; where there was less, for larger ones too.

        Programs for sizes that grow from call to call need more each time, and fresh memory costs a fault for a page:
        what is there for later ones has no pages yet, and keeps those that it gets.
        """
        with self._lock:
            if num_bytes <= self._num_bytes:
                return
            reserved = _reserved_bytes(RESERVED * num_bytes) if self._num_bytes else None
            if reserved is not None:
                self._num_bytes, self.memory = RESERVED * num_bytes, reserved
                return
            self._num_bytes = num_bytes + (num_bytes // 4 if self._num_bytes else 0)
            self.memory = aligned_bytes(self._num_bytes)

    def borrow(self, num_bytes: int) -> torch.Tensor:
        """Return memory of at least so many bytes, to be given back; where another thread has it, memory of its own."""
        return self.memory if self._lock.acquire(blocking=False) else aligned_bytes(num_bytes)

    def give_back(self, memory: torch.Tensor) -> None:
        """Let others have what was borrowed."""
        if memory is self.memory:
            self._lock.release()


_SHARED = Shared(Arena)


def shared_arena(num_bytes: int) -> Arena:
    """Return the arena of all programs, with room for one more; it goes when the last of them does."""
    arena = _SHARED.get()
    arena.grow(num_bytes)
    return arena
