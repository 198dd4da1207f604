"""Memory of the tiles that are set apart for transfers: what they bring and take while the others compute."""

from __future__ import annotations

from torchipu.device.memory.always import CATEGORIES, GAP
from torchipu.device.memory.peaks import LARGEST, TileMemory
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.program import Executable, HostCopy, Variable, leaves_of
from torchipu.target import Target

COPIES = 2
"""Of a value in transfer: that of the micro-batch whose turn it is, and that of the next one.

PopART's overlap keeps both on the IO tiles, since a loop copies what its body has loaded to what it carries over.
"""


def io_tile_memory(executable: Executable, target: Target, io_tiles: int) -> tuple[TileMemory, ...]:
    """Return the memory of the fullest IO tile of each IPU that has any.

    Args:
        executable: The program.
        target: The machine, less these tiles: theirs are the numbers after its last one.
        io_tiles: How many there are on each IPU.
    """
    if not io_tiles:
        return ()
    moved: dict[int, dict[Variable, None]] = {}
    for function in executable.functions.values():
        for part in leaves_of(function):
            if isinstance(part, HostCopy) and part.overlap != "none" and not part.variable.off_chip:
                moved.setdefault(part.variable.ipu, {})[part.variable] = None
    return tuple(_of(ipu, list(variables), target, io_tiles) for ipu, variables in sorted(moved.items()))


def _of(ipu: int, variables: list[Variable], target: Target, io_tiles: int) -> TileMemory:
    sizes = [(variable.name, COPIES * ceil_div(variable.device_bytes, io_tiles)) for variable in variables]
    categories = dict.fromkeys(CATEGORIES, 0)
    categories["streams and links"] = sum(size for _, size in sizes)
    categories["stacks"] = target.stack_bytes
    total = sum(categories.values()) - categories[GAP]
    largest = tuple(sorted(sizes, key=lambda pair: -pair[1])[:LARGEST])
    return TileMemory(ipu, target.num_tiles, total, categories, total, "transfers of its IO tiles", largest, 0)
