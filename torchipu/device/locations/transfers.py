"""Transfers between tiles and Streaming Memory, and which host streams overlap with compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchipu.device.locations.uses import is_read, sync_before, used_by, written_by
from torchipu.ir.program import (
    HostCopy,
    Program,
    Sequence,
    Sync,
    Variable,
)
from torchipu.ir.types import Role
from torchipu.options import TensorLocation

REMOTE = "remote."  # streams of Streaming Memory
OVERLAP_OF_LOADS = "device_iteration_loop"
"""What goes through IO tiles of itself: the next load runs while this function computes."""

HOST_SYNC = Sync("host")


def with_transfers(program: Program, locations: Mapping[Role, TensorLocation]) -> Program:
    """Load what is off chip before its first use in a function, and store it after the last if it was written."""
    if not isinstance(program, Sequence):
        return program
    first: dict[Variable, int] = {}
    last: dict[Variable, int] = {}
    for position, step in enumerate(program.body):
        for variable in used_by(step):
            if variable.off_chip:
                first.setdefault(variable, position)
                last[variable] = position
    if not first:
        return program
    written = set(written_by(program))
    read_first = {variable for variable, position in first.items() if is_read(program.body[position], variable)}
    body: list[Program] = []
    for position, step in enumerate(program.body):
        loads = [v for v, at in first.items() if at == position and (v in read_first or v.role.is_state)]
        if loads:
            sync = sync_before(body)
            body += [HOST_SYNC, *(transfer(v, locations, to_device=True) for v in loads), *sync]
        body.append(step)
        stores = [v for v, at in last.items() if at == position and v in written]
        if stores:
            body += [HOST_SYNC, *(transfer(v, locations, to_device=False) for v in stores)]
    return Sequence(tuple(body))


def transfer(variable: Variable, locations: Mapping[Role, TensorLocation], *, to_device: bool) -> HostCopy:
    """Return the copy of a variable from Streaming Memory, or to it."""
    place = locations[variable.role]
    uses_io_tiles = place.io_tiles_to_load if to_device else place.io_tiles_to_store
    overlap = OVERLAP_OF_LOADS if uses_io_tiles else "none"
    return HostCopy(f"{REMOTE}{variable.name}", variable, to_device, overlap)


def with_overlaps(program: Program, overlaps: Mapping[bool, str]) -> Program:
    """Let host streams overlap with compute as the options say."""
    if not isinstance(program, Sequence):
        return program
    return Sequence(tuple(
        replace(step, overlap=overlaps[step.to_device])
        if isinstance(step, HostCopy) and step.overlap == "none" and not step.stream.startswith(REMOTE) else step
        for step in program.body
    ))
