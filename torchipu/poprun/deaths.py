"""When each instance ended, and which of those that did not end were stopped."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchipu import forks

STOPPED = "T"
STATES = {
    "R": "running", "S": "waiting", "D": "waiting for a disk or a network", "T": "stopped", "t": "held by a debugger",
    "Z": "ended",
}
"""What the letters of ``/proc/PID/stat`` mean."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of an instance.

    Attributes:
        rank: Its number.
        pid: Its process.
        seconds: How long after its start.
    """

    rank: int
    pid: int
    seconds: float


class Deaths:
    """Watches the instances of one attempt on this host.

    A thread waits for each process, since the agent looks at all of them only from time to time: who ended first is
    the cause, and the others may follow within a hundredth of a second.

    Args:
        pid_by_rank: Their processes.
    """

    def __init__(self, pid_by_rank: Mapping[int, int]) -> None:
        self.pid_by_rank = dict(pid_by_rank)
        self.began = time.monotonic()
        self._deaths: list[Death] = []
        self._stopped_since: dict[int, float] = {}
        self._lock = forks.lock()
        self._threads = [
            threading.Thread(target=self._wait, args=entry, daemon=True) for entry in self.pid_by_rank.items()
        ]
        for thread in self._threads:
            thread.start()

    def in_order(self) -> list[Death]:
        """Return those that have ended, the first one first."""
        with self._lock:
            return list(self._deaths)

    def settle(self) -> None:
        """Wait until the end of each process has been noted; all have ended."""
        for thread in self._threads:
            thread.join(timeout=1)

    def states(self) -> dict[int, str]:
        """Return the state of each instance that has not ended, as a letter of ``/proc``."""
        ended = {death.rank for death in self.in_order()}
        found = {}
        for rank, pid in self.pid_by_rank.items():
            if rank not in ended and (state := _state(pid)) not in ("", "Z"):
                found[rank] = state
        return found

    def stopped(self) -> dict[int, float]:
        """Return for how many seconds at least instances have been stopped, by their numbers."""
        now = time.monotonic()
        stopped = [rank for rank, state in self.states().items() if state == STOPPED]
        self._stopped_since = {rank: self._stopped_since.get(rank, now) for rank in stopped}
        return {rank: now - since for rank, since in self._stopped_since.items()}

    def _wait(self, rank: int, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):  # the agent has asked for its status before
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._deaths.append(Death(rank, pid, time.monotonic() - self.began))


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
