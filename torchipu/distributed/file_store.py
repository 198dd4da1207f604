"""Processes that find each other through a file, without a network address that all know.

A file that an earlier run has left behind must not be taken for that of this one. So process 0 makes a new store for
each run and writes its name into the file; the others say who they are in the store that is named there, and begin
when process 0 has answered each of them by the name that it drew for this run.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from torchipu.errors import RendezvousError

HEADER = "torchipu store: "
POLL_SECONDS = 0.02
GRACE_SECONDS = 1.0
STORE_SECONDS = 2.0

Card = list[Any]
"""What a process says of itself: the name that it drew, and how many processes it expects."""


class FileMeeting:
    """The meeting of some processes at a file.

    Args:
        path: The file; all processes see it, and its folder exists.
        rank: Number of this process.
        size: Number of processes.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        self.path = path
        self.rank = rank
        self.size = size
        self.name = uuid.uuid4().hex
        self.present: set[int] = {rank}
        self._store_name = ""
        self._card: Card = [self.name, size]

    def meet(self, seconds: float) -> Store | None:
        """Wait for all processes, and return the store that they share; None if some did not come in time.

        Args:
            seconds: How long to wait.
        """
        deadline = time.monotonic() + seconds
        if self.rank:
            return self._join(deadline)
        store = None
        try:
            store = self._host(deadline)
        finally:
            if store is None:
                time.sleep(GRACE_SECONDS)  # the others can still read who came
        return store

    def end(self) -> None:
        """Remove the file, if it is still that of this run, and the store that it names.

        Process 0 does so. A store that another process gives back at that moment makes its file anew: who finds that
        process 0 has ended removes it again.
        """
        if not self._store_name:
            return
        is_left = self.rank == 0
        with contextlib.suppress(OSError, RendezvousError):  # the file may be somebody else's by now
            is_under_way = self._named() == self._store_name
            if self.rank == 0 and is_under_way:
                self.path.unlink(missing_ok=True)
            is_left = self.rank == 0 or not is_under_way
        if is_left:
            with contextlib.suppress(OSError):
                Path(self._store_name).unlink(missing_ok=True)

    def _host(self, deadline: float) -> Store | None:
        self._store_name = f"{self.path}.{self.name}"
        store = self._open(self._store_name)
        self._named()
        _publish(self.path, HEADER + self._store_name)
        seen: dict[str, Card] = {}
        while time.monotonic() < deadline:
            if self._named() not in ("", self._store_name):
                raise self._twice()
            came = {str(r): json.loads(store.get(f"came/{r}")) for r in self._others() if store.check([f"came/{r}"])}
            if {"0": self._card, **came} != seen:
                seen = {"0": self._card, **came}
                store.set("seen", json.dumps(seen))
                self._note(seen)
            if len(self.present) == self.size:
                return store
            time.sleep(POLL_SECONDS)
        return None

    def _join(self, deadline: float) -> Store | None:
        store: Store | None = None
        while time.monotonic() < deadline:
            named = self._named()
            try:
                if named and named != self._store_name and Path(named).exists():
                    self._store_name, store = named, self._open(named)
                    store.set(f"came/{self.rank}", json.dumps(self._card))
                if store is not None and self._is_seen(store):
                    return store
            except RuntimeError as error:
                if isinstance(error, RendezvousError):
                    raise
                store = None  # process 0 has given up, and removed it
            time.sleep(POLL_SECONDS)
        return None

    def _is_seen(self, store: Store) -> bool:
        """Whether process 0 has seen this one, and all others."""
        if json.loads(store.get(f"came/{self.rank}")) != self._card:
            raise self._twice()
        seen = json.loads(store.get("seen")) if store.check(["seen"]) else {}
        if seen.get(str(self.rank)) != self._card:
            return False
        self._note(seen)
        return len(self.present) == self.size

    def _others(self) -> range:
        return range(1, self.size)

    def _note(self, seen: dict[str, Card]) -> None:
        """Note who is there, by what process 0 says."""
        self.present = {int(rank) for rank in seen}
        refuse_other_sizes({rank: seen[str(rank)][1] for rank in sorted(self.present)}, str(self.path))

    def _twice(self) -> RendezvousError:
        return RendezvousError(
            f"two processes at {self.path} say that they are number {self.rank} of {self.size}",
            remedy="give each process a number of its own, and each run that is under way a file of its own",
        )

    def _named(self) -> str:
        """Return the store that the file names; an empty text if there is no file."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError:
            text = "?"
        if not text.startswith(HEADER):
            raise RendezvousError(
                f"{self.path} holds something else than the name of a store of torchipu",
                remedy="name a file of its own for the processes to meet at",
            )
        return text.removeprefix(HEADER)

    def _open(self, name: str) -> Store:
        store = FileStore(name, self.size)
        store.set_timeout(timedelta(seconds=STORE_SECONDS))
        return store


def _publish(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_other_sizes(sizes: Mapping[int, int], place: str) -> None:
    """Refuse processes that expect different numbers of processes.

    Args:
        sizes: What each says, by its number.
        place: Where they meet.

    Raises:
        RendezvousError: They disagree.
    """
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"process {rank} says {size}" for rank, size in sizes.items())
        raise RendezvousError(f"the processes at {place} disagree on how many they are: {said}")
