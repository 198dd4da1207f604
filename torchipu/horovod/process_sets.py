"""Sets of processes that exchange values among themselves."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from torchipu.distributed.timeouts import COLLECTIVE_TIMEOUT, seconds_of
from torchipu.horovod.agreement import Request, agree
from torchipu.horovod.processes import Members, Place, is_initialized, place


class ProcessSet:
    """Some of the processes; given to `init` or to `add_process_set`, they can exchange values.

    Args:
        ranks_or_comm: Their numbers.

    Attributes:
        ranks: Their numbers, in ascending order.
        process_set_id: Number of the set; None as long as it was given to neither.

    Raises:
        ValueError: These are no numbers of processes, or one comes twice.
    """

    ranks: list[int]
    process_set_id: int | None = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError(
                f"ProcessSet takes the numbers of its processes, such as [0, 2], got a {type(ranks_or_comm).__name__}; "
                "communicators of mpi4py are not among what processes exchange over here"
            )
        ranks = list(ranks_or_comm)
        if any(not isinstance(rank, int) for rank in ranks) or len(set(ranks)) < len(ranks):
            raise ValueError(f"ProcessSet takes the numbers of its processes, each once, got {ranks}")
        self.ranks = sorted(ranks)

    def size(self) -> int | None:
        """Return the number of its processes; None as long as the set was not added."""
        return len(self.ranks) if self.process_set_id is not None else None

    def rank(self) -> int | None:
        """Return the number of this process in the set; None if it is not in it, or the set was not added."""
        return self.ranks.index(place().rank) if self.process_set_id is not None and self.included() else None

    def included(self) -> bool:
        """Return whether this process is in the set.

        Raises:
            ValueError: `init` has not been called.
        """
        return place().rank in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _AllProcesses(ProcessSet):
    """The set of all processes, which nobody has to add."""

    process_set_id = 0

    def __init__(self) -> None:
        """Take no numbers: `init` knows them."""

    @property
    def ranks(self) -> list[int]:  # type: ignore[override]
        """The numbers of all processes; none before `init`."""
        return list(range(len(place().hosts))) if is_initialized() else []

    def __reduce__(self) -> str:
        """Copy and pickle as the one object that there is."""
        return "global_process_set"


global_process_set = _AllProcesses()
"""The set of all processes."""


_added: dict[int, tuple[ProcessSet, ProcessGroup | None]] = {}
_num_added = 0


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Let some processes exchange values among themselves; all processes call this alike.

    Args:
        process_set: The set, or numbers of its processes.

    Returns:
        The set.

    Raises:
        ValueError: `init` has not been called, a number is not that of a process, there is none, or there is such a set
            already.
        HorovodInternalError: Other processes add another set, or exchange something instead.
    """
    global _num_added
    whole = place()
    found = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    check_process_set(found, whole)
    for other, _ in _added.values():
        if other.ranks == found.ranks:
            raise ValueError(f"there is a process set of {found.ranks} already: {other}")
    agree(Request("add_process_set", arguments=(str(found.ranks),)), members(global_process_set))
    _num_added += 1
    group = None
    if whole.group is not None:
        # All processes make it, those that are not in it too; a set of one makes it for the sake of the order.
        group = dist.new_group(found.ranks, timeout=timedelta(seconds=seconds_of(COLLECTIVE_TIMEOUT)))
    found.process_set_id = _num_added
    _added[_num_added] = (found, group if found.included() and len(found.ranks) > 1 else None)
    return found


def check_process_set(process_set: ProcessSet, whole: Place) -> None:
    """Refuse a set that cannot be added.

    Args:
        process_set: The set.
        whole: This process among all.

    Raises:
        ValueError: It was added already, has no process, all processes, or one that is not there.
    """
    num_processes = len(whole.hosts)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set} was added already")
    if unknown := [rank for rank in process_set.ranks if not 0 <= rank < num_processes]:
        raise ValueError(f"there are no processes {unknown}: they are numbered from 0 to {num_processes - 1}")
    if not process_set.ranks:
        raise ValueError("a process set needs at least one process")
    if len(process_set.ranks) == num_processes:
        raise ValueError(f"there is a process set of {process_set.ranks} already: hvd.global_process_set, of all")


def remove_process_set(process_set: ProcessSet) -> bool:
    """Undo `add_process_set`; all processes call this alike.

    Args:
        process_set: The set, which may be added again afterwards.

    Returns:
        Whether it was there; the set of all processes stays.
    """
    place()
    if process_set is global_process_set or process_set.process_set_id not in _added:
        return False
    _, group = _added.pop(process_set.process_set_id)
    process_set.process_set_id = None
    if group is not None:
        dist.destroy_process_group(group)
    return True


def forget_process_sets() -> None:
    """Take back all sets, as `shutdown` does; their groups end with that of all processes."""
    for process_set, _ in _added.values():
        process_set.process_set_id = None
    _added.clear()


def check_is_process_set(process_set: Any) -> None:
    """Refuse what is no set of processes.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a hvd.ProcessSet, got a {type(process_set).__name__}")


def members(process_set: Any) -> Members:
    """Return the processes of an exchange.

    Args:
        process_set: Their set.

    Raises:
        ValueError: `init` has not been called, the set was not added, or this process is not in it.
    """
    whole = place()
    if process_set is global_process_set:
        return Members(whole.group, whole.rank, tuple(range(len(whole.hosts))))
    check_is_process_set(process_set)
    if process_set.process_set_id not in _added:
        raise ValueError(f"{process_set} was not added: give it to hvd.init or hvd.add_process_set, in all processes")
    if not process_set.included():
        raise ValueError(f"process {whole.rank} is not in {process_set}: only its processes call the exchange")
    return Members(_added[process_set.process_set_id][1], process_set.ranks.index(whole.rank), tuple(process_set.ranks))
