"""The buffers in the host's memory that inputs are streamed from: when the host has filled them, and what they take.

A stream has a ring of buffers. The host fills one by copying a micro-batch into it; the device then brings it to its
tiles, as `host_cycles` counts. Prefetching lets the host fill buffers before the device asks for them, as many as the
ring is deep; without it the device asks, and waits for the copy. With one buffer the host begins when the device has
read it, with several also while it reads. Results leave through buffers that the host empties in its own time.

Source: PopART's session options ``enablePrefetchDatastreams`` and ``defaultBufferingDepth``; ``ipu_hardware.md`` 1.5.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from torchipu.ir.program import Executable, HostCopy, Program, leaves_of
from torchipu.ir.types import Role
from torchipu.target import Target


class HostBuffers:
    """The ring of one function's inputs on one IPU.

    Args:
        fill_cycles: That the host takes to fill one buffer of each of its streams.
        load_cycles: That the device takes to read them.
        depth: Buffers that are filled ahead; 0 for no prefetching.
        lags: Cycles until each of these is full; at once where none are given.
    """

    def __init__(self, fill_cycles: int, load_cycles: int, depth: int, lags: Iterable[int] = ()) -> None:
        self.fill_cycles = fill_cycles
        self.load_cycles = load_cycles
        self.full = deque(lags or (0,) * depth)

    def wait(self, now: int) -> int:
        """Return how many cycles from now on the next buffer is full."""
        return max(0, self.full[0] - now) if self.full else self.fill_cycles

    def read(self, begin: int) -> None:
        """Let the device read the next buffer from a cycle on; the host then fills it again."""
        if self.full:
            last = self.full[-1]
            self.full.popleft()
            self.full.append(max(last, begin + self.load_cycles) + self.fill_cycles)

    def lags(self, now: int) -> tuple[int, ...]:
        """Return the cycles until each buffer is full."""
        return tuple(max(0, cycle - now) for cycle in self.full)

    @property
    def empty(self) -> tuple[int, ...]:
        """The lags of buffers that the host begins to fill."""
        return tuple(self.fill_cycles * (number + 1) for number in range(len(self.full)))


def ring_of(program: Program, target: Target, depth: int, load_cycles: int) -> HostBuffers | None:
    """Return the full buffers of a function; None where it streams no input.

    Args:
        program: Its body.
        target: The machine.
        depth: Buffers of each stream.
        load_cycles: That the device takes for its streams.
    """
    filled = streamed_bytes(program)
    if not filled:
        return None
    return HostBuffers(math.ceil(filled * target.clock_hz / target.host_fill_bytes_per_s), load_cycles, depth)


def streamed_bytes(program: Program) -> int:
    """Return the bytes of the inputs that one run of a function streams in."""
    return sum(
        leaf.variable.device_bytes for leaf in leaves_of(program)
        if isinstance(leaf, HostCopy) and leaf.to_device and leaf.variable.role is Role.INPUT
    )


def buffer_bytes(executable: Executable, depth: int) -> int:
    """Return the bytes of the host's memory that one replica's buffers of inputs take; there is one at least."""
    return max(1, depth) * sum(streamed_bytes(program) for program in executable.functions.values())


def lags_of(rings: Mapping[str, HostBuffers], now: int) -> dict[str, tuple[int, ...]]:
    """Return the lags of rings by function."""
    return {name: ring.lags(now) for name, ring in rings.items()}
