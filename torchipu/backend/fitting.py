"""For which sizes the device program of a graph is known to fit, without being compiled for each."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchipu.compiler import Compiled
from torchipu.device.memory import lacking_bytes, lacking_off_chip_bytes, tile_memory

ROOM = 0.8
"""Part of a tile up to which a larger program may come unchecked, by an estimate that does not see roundings."""
AHEAD = (256, 16)
"""Growth of a tensor with all sizes of a graph, up to which one looks ahead whether it would fit, largest first."""

_LOG = logging.getLogger("torchipu.sizes")


@dataclass(frozen=True, slots=True)
class Checked:
    """A set of sizes for which a device program was compiled, and fits.

    Attributes:
        num_bytes: Of each tensor of the graph, its inputs among them: what is only summed up may grow alone.
        share: Of the memory of the fullest tile that is in use.
        lasting: Of a tile, what all of them hold at least of weights and of the program, which do not grow.
    """

    num_bytes: Sequence[int]
    share: float
    lasting: float

    @classmethod
    def of(cls, compiled: Compiled, num_bytes: Sequence[int]) -> Checked | None:
        """Return what a program of these tensors needs; None where it does not fit."""
        target, executable = compiled.target, compiled.executable
        held = tile_memory(executable, target, compiled.options.io_tiles)
        if lacking_bytes(held, target) or lacking_off_chip_bytes(executable, target):
            return None
        fullest = max(held, key=lambda memory: memory.occupied_bytes)
        lasting = min(memory.lasting_bytes for memory in held)
        return cls(
            num_bytes, fullest.occupied_bytes / target.tile_memory_bytes, lasting / target.tile_memory_bytes,
        )

    def covers(self, num_bytes: Sequence[int]) -> bool:
        """Whether a program with tensors of other sizes can be taken to fit without being compiled."""
        if len(num_bytes) != len(self.num_bytes):
            return False
        growth = max((new / old for new, old in zip(num_bytes, self.num_bytes, strict=True) if old), default=1.0)
        # No tile has more that may grow than the fullest one has beyond the least that lasts. What a product takes
        # for the time being follows from its operands and its result, which are among the tensors.
        return growth <= 1 or self.lasting + (self.share - self.lasting) * growth <= ROOM


def larger(given: Sequence[Any], most: Sequence[float], growth: int) -> list[Any]:
    """Return larger sizes, for which a program is compiled ahead.

    Args:
        given: Those of a call; real numbers stay as they are.
        most: The largest that each can be.
        growth: Of a tensor that has them all.
    """
    growing = sum(isinstance(size, int) and size < limit for size, limit in zip(given, most, strict=True))
    factor = growth ** (1 / max(1, growing))
    return [
        int(min(math.ceil(size * factor), limit)) if isinstance(size, int) else size
        for size, limit in zip(given, most, strict=True)
    ]


def looked_ahead(compiled: Callable[[], Compiled], num_bytes: Sequence[int]) -> Checked | None:
    """Return what larger sizes need; None where that does not fit, or a graph is not to be compiled for them.

    Args:
        compiled: Compiles, and does not mind what does not fit.
        num_bytes: Of each tensor of the graph.
    """
    try:
        return Checked.of(compiled(), num_bytes)
    except Exception as error:  # nobody has called with these sizes: what is wrong with them is nobody's business
        _LOG.debug("a larger size is not looked at ahead", exc_info=error)
        return None
