"""Where processes meet before they form a group, and who came: a port, a file, or a store that was made already."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from torchipu.distributed.file_store import FileMeeting, refuse_other_sizes
from torchipu.distributed.launcher import launched
from torchipu.distributed.timeouts import INIT_TIMEOUT
from torchipu.errors import RendezvousError

DEFAULT_PORT = 29500
"""Port where ``MASTER_PORT`` is not set: torch's own choice."""
POLL_SECONDS = 0.02
_stores: dict[str, Store] = {}
"""Those in use, by address: processes that meet again find the store of process 0 still there."""
GRACE_SECONDS = 1.0
"""How long process 0 keeps the store after the time is up, so that the others can still read who came."""


def meet(
    rank: int, size: int, store: Store | str | os.PathLike[str] | None, seconds: float, number: int,
) -> tuple[Store, FileMeeting | None]:
    """Return a store that all processes have come to, and the meeting at a file, which is to be ended.

    Args:
        rank: Number of this process.
        size: How many there are.
        store: Where to meet: a store or the name of a file; None to find a place.
        seconds: How long to wait for the others.
        number: How often these processes have met before: a store may still hold who came then.

    Raises:
        RendezvousError: There is no place to meet, or not everybody came.
    """
    deadline = time.monotonic() + seconds
    if isinstance(store, Store):
        return _gather(_part(store, number), rank, size, "the store that was given", seconds, deadline), None
    if store is not None:
        return _meet_at_file(Path(store), rank, size, seconds)
    if os.environ.get("MASTER_ADDR"):
        return _meet_at_address(rank, size, seconds, deadline, number), None
    file = _file_of_launcher(size)
    if file is not None:
        return _meet_at_file(file, rank, size, seconds)
    raise RendezvousError(
        f"process {rank} of {size} does not know where to meet the others: MASTER_ADDR is not set",
        remedy="set MASTER_ADDR and MASTER_PORT to a host and a free port of process 0, name a file with "
               "Distributed.setFileStore, or start the processes with poprun or torchrun",
    )


def _meet_at_file(path: Path, rank: int, size: int, seconds: float) -> tuple[Store, FileMeeting]:
    meeting = FileMeeting(path, rank, size)
    try:
        store = meeting.meet(seconds)
    except OSError as error:
        raise RendezvousError(
            f"the file store {path} cannot be used: {error}",
            remedy="name a file in a folder that all processes can write to",
        ) from error
    except RendezvousError:
        meeting.end()
        raise
    if store is None:
        meeting.end()
        raise _absence(f"the file store {path}", rank, size, meeting.present, seconds)
    return PrefixStore("torchipu", store), meeting


def _meet_at_address(rank: int, size: int, seconds: float, deadline: float, number: int) -> Store:
    host, port = os.environ["MASTER_ADDR"], os.environ.get("MASTER_PORT", str(DEFAULT_PORT))
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise RendezvousError(f"MASTER_PORT must be a port from 1 to {(1 << 16) - 1}, got {port!r}")
    address = f"{host}:{port}"
    if address not in _stores:
        _stores[address] = _store_at(host, int(port), rank, size, seconds, deadline)
    return _gather(_part(_stores[address], number), rank, size, address, seconds, deadline)


def _store_at(host: str, port: int, rank: int, size: int, seconds: float, deadline: float) -> Store:
    """Return the store that process 0 keeps at an address; process 0 begins it."""
    # torchrun's agent has a store at that address, where nobody else needs to begin one.
    listens = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    _check_reachable(host, port, rank, size, seconds, deadline, listens=listens)
    try:
        return TCPStore(
            host, port, size, is_master=listens, timeout=timedelta(seconds=max(deadline - time.monotonic(), 0.1)),
            wait_for_workers=False, multi_tenant=True,
        )
    except (RuntimeError, ValueError) as error:
        raise RendezvousError(
            f"process {rank} of {size} cannot use {host}:{port}: {first_line(error)}",
            remedy="the port may be in use by another program: choose a free one for MASTER_PORT",
        ) from error


def _part(store: Store, number: int) -> Store:
    """Return the part of a store for one attempt of the agent, and one meeting in it."""
    return PrefixStore(f"torchipu/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{number}", store)


def _check_reachable(
    host: str, port: int, rank: int, size: int, seconds: float, deadline: float, *, listens: bool
) -> None:
    """Fail with words of our own where a store would log each of its attempts and fail with words of libuv's."""
    address = f"{host}:{port}"
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise RendezvousError(
            f"the address {address} that process {rank} of {size} is to meet the others at has no host: {error}",
            remedy="set MASTER_ADDR to the name or the number of the host of process 0",
        ) from error
    if listens:
        return
    reason = why_nobody_answers(host, port, deadline)
    if reason is None:
        return
    raise RendezvousError(
        f"process {rank} of {size} found nobody at {address} within {seconds:g} s ({reason})",
        detail=f"present {rank}\nabsent  0, which listens at {address}, and maybe others",
        remedy="look whether process 0 has begun and why it ended; is MASTER_ADDR its host, and the port not blocked? "
               f"{INIT_TIMEOUT} gives them more time",
    )


def why_nobody_answers(host: str, port: int, deadline: float) -> OSError | None:
    """Wait until somebody listens at an address; return None then, or why nobody does when the time is up.

    Args:
        host: Its name or number.
        port: Its port.
        deadline: By `time.monotonic`.
    """
    while True:
        try:
            socket.create_connection((host, port), timeout=max(deadline - time.monotonic(), 0.01)).close()
            return None
        except OSError as error:
            if time.monotonic() > deadline:
                return error
            time.sleep(POLL_SECONDS)


def _file_of_launcher(size: int) -> Path | None:
    """Return a file that the processes of one launcher name alike, where all of them are on this host."""
    place = launched()
    if place is None or place.size != size or place.local_size != size:
        return None
    folder = Path(tempfile.gettempdir()) / f"torchipu-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    if about.st_uid != os.getuid() or about.st_mode & 0o077:
        return None  # somebody else could read and write there
    job = hashlib.sha256(f"{place.launcher} {place.job or os.getppid()}".encode()).hexdigest()[:16]
    return folder / job


# --------------------------------------------------------------------------- who came
def _gather(store: Store, rank: int, size: int, place: str, seconds: float, deadline: float) -> Store:
    """Wait in a store until all have said that they are there."""
    present = {rank}
    try:
        if store.add(f"came/{rank}", 1) > 1:
            raise RendezvousError(
                f"two processes at {place} say that they are number {rank} of {size}",
                remedy="give each process a number of its own",
            )
        store.set(f"size/{rank}", str(size))
        while True:
            present |= {other for other in range(size) if other not in present and store.check([f"size/{other}"])}
            _check_sizes(store, present, place)
            if len(present) == size:
                return store
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        if rank == 0:
            time.sleep(GRACE_SECONDS)
    except RendezvousError:
        if rank == 0:
            time.sleep(GRACE_SECONDS)
        raise
    except RuntimeError as error:  # of the store: the process that kept it has gone
        raise _absence(place, rank, size, present, seconds) from error
    with contextlib.suppress(RuntimeError):
        store.delete_key(f"came/{rank}")  # who tries again is no second process
    raise _absence(place, rank, size, present, seconds)


def _check_sizes(store: Store, present: set[int], place: str) -> None:
    sizes = {rank: int(store.get(f"size/{rank}")) for rank in sorted(present) if store.check([f"size/{rank}"])}
    refuse_other_sizes(sizes, place)


def _absence(place: str, rank: int, size: int, present: set[int], seconds: float) -> RendezvousError:
    absent = sorted(set(range(size)) - present)
    return RendezvousError(
        f"{len(present)} of {size} processes came to {place} within {seconds:g} s, seen from process {rank}",
        detail=f"present {', '.join(map(str, sorted(present)))}\nabsent  {', '.join(map(str, absent))}",
        remedy=f"look whether the absent ones have begun and why they ended; {INIT_TIMEOUT} gives them more time",
    )


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says; those of torch.distributed go on with a trace of C++."""
    return str(error).partition("\n")[0].strip()
