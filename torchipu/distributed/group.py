"""The process group of torch.distributed that instances train in: found, or formed."""

from __future__ import annotations

import atexit
import contextlib
import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup, Store  # type: ignore[attr-defined]

from torchipu import forks
from torchipu.distributed.file_store import FileMeeting
from torchipu.distributed.meeting import first_line, meet
from torchipu.distributed.timeouts import COLLECTIVE_TIMEOUT, INIT_TIMEOUT, seconds_of
from torchipu.errors import RendezvousError

_formed: ProcessGroup | None = None
_meeting: FileMeeting | None = None
_num_formed = 0
_lock = forks.lock()


def form(
    process_id: int, num_processes: int, *, store: Store | str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> ProcessGroup:
    """Return the group of all processes, which becomes torch.distributed's default group.

    A default group that is there already is taken, if its size and this process's rank in it are those expected.
    Otherwise all processes meet, at the first of these that is given: the store; the file of this name; ``MASTER_ADDR``
    and ``MASTER_PORT``; a file that the processes of one launcher on one host agree on. They then exchange over gloo.

    Args:
        process_id: Number of this process, from 0.
        num_processes: How many there are.
        store: A store of torch.distributed, or the name of a file that all processes see; None as above.
        timeout: Seconds to wait for the others; None for what ``TORCHIPU_INIT_TIMEOUT`` says, or 60.

    Raises:
        RendezvousError: There is no place to meet, somebody did not come, two have one number, or a default group is
            another one.
    """
    global _formed, _meeting, _num_formed
    _check_numbers(process_id, num_processes)
    with _lock:
        if dist.is_initialized():
            return _default_group(process_id, num_processes)
        seconds = seconds_of(INIT_TIMEOUT) if timeout is None else timeout
        exchange_seconds = seconds_of(COLLECTIVE_TIMEOUT)
        met, _meeting = meet(process_id, num_processes, store, seconds, _num_formed)
        _num_formed += 1
        try:
            dist.init_process_group(
                "gloo", store=met, rank=process_id, world_size=num_processes,
                timeout=timedelta(seconds=exchange_seconds),
            )
        except RuntimeError as error:
            raise RendezvousError(
                f"process {process_id} of {num_processes} could not be connected with the others: "
                f"{first_line(error)}",
                remedy="where a host has several networks, name the one to use in GLOO_SOCKET_IFNAME",
            ) from error
        _formed = dist.group.WORLD
        assert _formed is not None
        return _formed


def end() -> None:
    """Give back the group that `form` has made, if it has made one that is still there."""
    global _formed, _meeting
    with _lock:
        if _formed is not None and dist.is_initialized() and dist.group.WORLD is _formed:
            with contextlib.suppress(RuntimeError):  # a peer that has gone is no news at the end
                dist.destroy_process_group()
        _formed = None
        if _meeting is not None:
            _meeting.end()
            _meeting = None


atexit.register(end)


def _check_numbers(process_id: int, num_processes: int) -> None:
    if num_processes < 1 or not 0 <= process_id < num_processes:
        raise RendezvousError(
            f"process {process_id} of {num_processes} cannot be: processes are numbered from 0 to "
            f"{max(num_processes - 1, 0)}",
            remedy="configureProcessId takes the number of this process first, then how many there are",
        )


def _default_group(process_id: int, num_processes: int) -> ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    if (group.rank(), group.size()) != (process_id, num_processes):
        raise RendezvousError(
            f"torch.distributed's default group has this process as rank {group.rank()} of {group.size()}, and the "
            f"options say process {process_id} of {num_processes}",
            remedy="let the options follow the group: Distributed.configureProcessId(dist.get_rank(), "
                   "dist.get_world_size())",
        )
    return group
