"""The beginning and the end of Horovod in a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchipu.horovod.process_sets import ProcessSet, add_process_set, check_process_set, forget_process_sets
from torchipu.horovod.processes import enter, leave, place

DYNAMIC = "dynamic"
"""What Horovod takes for sets that come later: here they may come in any case."""


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Find the other processes: those of torch.distributed's group where there is one, or of the launcher.

    Args:
        comm: Numbers of processes: all of them, or None. Of a communicator of mpi4py, that of all processes.
        process_sets: Sets of processes to add, the same in each process; ``"dynamic"`` for none as yet.

    Raises:
        ValueError: Only some processes are asked for, or a set cannot be.
        RendezvousError: They do not come together.
    """
    if isinstance(process_sets, str) and process_sets != DYNAMIC:
        raise ValueError(f"process_sets must be a list of hvd.ProcessSet or {DYNAMIC!r}, got {process_sets!r}")
    enter(comm)
    sets = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    for process_set in sets:  # before the first is made, so that a mistake makes none
        check_process_set(process_set, place())
    for process_set in sets:
        add_process_set(process_set)


def shutdown() -> None:
    """Undo `init`; a group that the program itself has made stays."""
    forget_process_sets()
    leave()
