"""Gives variables their addresses, and refuses programs that the fullest tile cannot hold.

Kept by later passes: variables that share a tile and are live together do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchipu.device.memory.addresses import addresses_of
from torchipu.device.memory.always import EXECUTED, Always
from torchipu.device.memory.io_tiles import io_tile_memory
from torchipu.device.memory.liveness import Liveness
from torchipu.device.memory.off_chip import lacking_off_chip_bytes, off_chip_bytes
from torchipu.device.memory.peaks import TileMemory, peaks
from torchipu.device.memory.shares import Shares
from torchipu.errors import OutOfTileMemoryError, PlacementError
from torchipu.ir.program import Executable
from torchipu.target import Target

__all__ = [
    "TileMemory", "assign_memory", "lacking_bytes", "lacking_off_chip_bytes", "off_chip_bytes", "tile_memory",
]

REMEDIES = (
    "put the model on more IPUs (torchipu.Block), save memory with recomputation or off-chip optimiser state, "
    "or make the micro-batch or the available memory proportion smaller"
)
OFF_CHIP_REMEDY = (
    "spread the model over the IPUs of more machines, share states out among replicas, or keep less off chip"
)


def assign_memory(
    executable: Executable, target: Target, *, allow_overflow: bool, io_tiles: int = 0,
) -> Executable:
    """Place every variable in tile memory.

    Args:
        executable: From the lower pass.
        target: The machine.
        allow_overflow: Report programs that do not fit instead of raising.
        io_tiles: Tiles of each IPU that are set apart for transfers, and which the target lacks.

    Returns:
        The executable with addresses: the same bytes on all tiles that hold the variable.

    Raises:
        OutOfTileMemoryError: A tile needs more than it has, or more code than the region holds that can be executed.
        PlacementError: What is off chip is more than the Streaming Memory of a machine.
    """
    liveness, shares = Liveness(executable), Shares(target.num_tiles)
    always = Always(liveness, shares, target)
    if not allow_overflow:
        for ipu in range(executable.num_ipus):
            _check_code(always, ipu, target)
        filled = (*peaks(liveness, shares, always), *io_tile_memory(executable, target, io_tiles))
        fullest = max(filled, key=lambda memory: memory.total_bytes)
        if fullest.total_bytes > target.tile_memory_bytes:
            raise _out_of_memory(fullest, target, liveness)
        lacking = lacking_off_chip_bytes(executable, target)
        if lacking:
            raise PlacementError(
                f"IPUs of one machine keep {target.machine_streaming_bytes + lacking:,} B off chip, but a machine of "
                f"{target.title} has {target.machine_streaming_bytes:,} B of Streaming Memory", remedy=OFF_CHIP_REMEDY,
            )
    return replace(executable, addresses=addresses_of(liveness, shares, always))


def tile_memory(executable: Executable, target: Target, io_tiles: int = 0) -> tuple[TileMemory, ...]:
    """Return the memory of the fullest tile of each IPU, which may be one of its IO tiles.

    Args:
        executable: From the lower pass.
        target: The machine.
        io_tiles: Tiles of each IPU that are set apart for transfers, and which the target lacks.
    """
    liveness, shares = Liveness(executable), Shares(target.num_tiles)
    found = {memory.ipu: memory for memory in peaks(liveness, shares, Always(liveness, shares, target))}
    for memory in io_tile_memory(executable, target, io_tiles):
        found[memory.ipu] = max(found[memory.ipu], memory, key=lambda one: one.total_bytes)
    return tuple(found.values())


def lacking_bytes(memory: Iterable[TileMemory], target: Target) -> int:
    """Return the bytes that a tile, or its region for code, lacks at most; 0 where all fits.

    Args:
        memory: The fullest tile of each IPU.
        target: The machine.
    """
    return max((
        lack for tile in memory for lack in (
            tile.total_bytes - target.tile_memory_bytes,
            sum(tile.bytes_by_category.get(name, 0) for name in EXECUTED) - target.code_region_bytes, 0,
        )
    ), default=0)


def _check_code(always: Always, ipu: int, target: Target) -> None:
    """Refuse code that does not fit into the region that is executed from (``ipu_hardware.md`` 3.6)."""
    code = always.executed_by_tile(ipu)
    tile = int(code.argmax())
    if code[tile] <= target.code_region_bytes:
        return
    shares = {name: int(always.ordinary[ipu][name][tile]) for name in EXECUTED}
    raise OutOfTileMemoryError(
        f"tile {tile} of ipu {ipu} needs {code[tile]} B of code, but a tile of {target.title} executes from a region "
        f"of {target.code_region_bytes} B", ipu=ipu, tile=tile, needed_bytes=int(code[tile]),
        available_bytes=target.code_region_bytes,
        detail="\n".join(f"{name:<18} {count:>9} B" for name, count in shares.items() if count),
        remedy="put the model on more IPUs (torchipu.Block): each then has fewer ops, and less code",
    )


def _out_of_memory(memory: TileMemory, target: Target, liveness: Liveness) -> OutOfTileMemoryError:
    lines = [f"{name:<18} {count:>9} B" for name, count in memory.bytes_by_category.items() if count]
    lines += ["largest variables on this tile:"]
    lines += [f"%{name:<17} {count:>9} B  {liveness.source_of(name)}".rstrip() for name, count in memory.largest]
    where = f" during {memory.at}" if memory.at else ""
    return OutOfTileMemoryError(
        f"tile {memory.tile} of ipu {memory.ipu} needs {memory.total_bytes} B{where}, "
        f"but a tile of {target.title} has {target.tile_memory_bytes} B",
        ipu=memory.ipu, tile=memory.tile, needed_bytes=memory.total_bytes,
        available_bytes=target.tile_memory_bytes, detail="\n".join(lines), remedy=REMEDIES,
    )
