"""Which of how many processes this one is, and the group that they exchange in."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from torchipu.distributed.group import end, form
from torchipu.distributed.launcher import launched


@dataclass(frozen=True, slots=True)
class Place:
    """This process among all.

    Attributes:
        group: None for one process.
        rank: Its number.
        hosts: The host of each process.
    """

    group: ProcessGroup | None
    rank: int
    hosts: tuple[str, ...]

    def neighbours(self) -> list[int]:
        """Return the processes of this host."""
        return [rank for rank, host in enumerate(self.hosts) if host == self.hosts[self.rank]]

    def across(self) -> list[int]:
        """Return the processes with the same number on their hosts, one a host."""
        local = self.neighbours().index(self.rank)
        found = []
        for host in dict.fromkeys(self.hosts):
            ranks = [rank for rank, name in enumerate(self.hosts) if name == host]
            found += ranks[local : local + 1]
        return found


@dataclass(frozen=True, slots=True)
class Members:
    """The processes of an exchange.

    Attributes:
        group: torch.distributed's; None where this process is the only one.
        rank: Number of this process among them.
        ranks: Their numbers among all processes.
    """

    group: ProcessGroup | None
    rank: int
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.ranks)


_place: Place | None = None


def enter(comm: Any = None) -> None:
    """Find the other processes, which `init` does.

    Args:
        comm: As `init` has it.

    Raises:
        ValueError: Only some processes are asked for.
        RendezvousError: They do not come together.
    """
    global _place
    started = launched()
    count = dist.get_world_size() if dist.is_initialized() else started.size if started is not None else 1
    asked = comm.Get_size() if hasattr(comm, "Get_size") else len(comm or range(count))
    if asked != count:
        raise ValueError(
            f"hvd.init: {asked} of {count} processes cannot go without the others. Call it in all of them, and "
            "exchange in a part of them by hvd.init(process_sets=[hvd.ProcessSet(ranks)])"
        )
    if _place is not None:
        return
    if dist.is_initialized():
        group = dist.group.WORLD
    else:
        group = form(started.rank, started.size) if started is not None and started.size > 1 else None
    name = socket.gethostname()
    if group is None:
        _place = Place(None, 0, (name,))
        return
    hosts: list[str] = [""] * group.size()
    dist.all_gather_object(hosts, name, group=group)
    _place = Place(group, group.rank(), tuple(hosts))


def leave() -> None:
    """Undo `enter`; a group that the program itself has made stays."""
    global _place
    _place = None
    end()


def is_initialized() -> bool:
    """Return whether `init` was called."""
    return _place is not None


def place() -> Place:
    """Return this process among all.

    Raises:
        ValueError: `init` has not been called.
    """
    if _place is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _place


def rank() -> int:
    """Return the number of this process."""
    return place().rank


def size() -> int:
    """Return the number of processes."""
    return len(place().hosts)


def local_rank() -> int:
    """Return the number of this process on its host."""
    return place().neighbours().index(rank())


def local_size() -> int:
    """Return the number of processes of this host."""
    return len(place().neighbours())


def cross_rank() -> int:
    """Return the number of this host, among those that have a process with the same local number."""
    return place().across().index(rank())


def cross_size() -> int:
    """Return the number of hosts that have a process with the same local number."""
    return len(place().across())


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of processes."""
    hosts = place().hosts
    return len({hosts.count(host) for host in hosts}) == 1
