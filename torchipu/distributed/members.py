"""The processes that train together, as one of them sees them."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from torchipu.errors import OptionsError, PeerError, PeerMismatchError

ALONE = "alone"
SECONDS_BETWEEN_LOOKS = 0.5
"""How often a process that waits looks whether another has left."""
SHORTEST_SLEEP, LONGEST_SLEEP = 50e-6, 10e-3
"""Seconds between two polls of a collective."""
SHARE_OF_WAIT = 0.01
"""By how much of what it has waited already a process may come late: one that waits for long hardly computes."""
_CALLS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""By group how often its processes have begun to talk: what one has said of an earlier call does not count."""
SECONDS_FOR_SILENCE = 1.0
"""How long processes that see a connection end are given to say that they are there."""


def all_gather(every: torch.Tensor, own: torch.Tensor, group: Any = None) -> Any:
    """Begin to gather tensors of one size from all processes; return the work that is done when they are there.

    Older releases of torch have the function under another name alone, which newer ones warn of.
    """
    begin = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return begin(every, own, group=group, async_op=True)


class Members:
    """A group of processes, each of which runs replicas of its own.

    Attributes:
        group: The process group.
        rank: Number of this process in it.
        size: How many there are.
        is_talking: Whether this call has begun to exchange something, so that it can be left only by all.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self.is_talking = False
        self._store = _store_of(group)
        self._is_broken = ""
        self._calls = 0

    # ------------------------------------------------------------------ messages
    def send(self, message: torch.Tensor, rank: int, tag: int) -> dist.Work | None:
        """Begin to send a contiguous tensor to another process; return what to wait for."""
        return dist.isend(message, group=self.group, group_dst=rank, tag=tag)

    def receive(self, message: torch.Tensor, rank: int, tag: int) -> dist.Work | None:
        """Begin to receive a contiguous tensor from another process; return what to wait for."""
        return dist.irecv(message, group=self.group, group_src=rank, tag=tag)

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        """Return the bytes of all processes, ``[processes, bytes]``.

        Args:
            own: Bytes of this process, equally many in each.

        Raises:
            PeerError: Another process has gone, has left the call, or does not answer.
        """
        every = torch.empty(self.size * len(own), dtype=torch.uint8)
        self.finished(all_gather(every, own, self.group))
        return every.view(self.size, -1)

    # ------------------------------------------------------------------ a call
    def begin(self) -> None:
        """Begin another call in which the processes talk.

        Raises:
            PeerError: An earlier one was left halfway.
        """
        if self._is_broken:
            raise PeerError(
                f"the processes are out of step: {self._is_broken}", remedy="end all processes and start them again"
            )
        self._calls = _CALLS[self.group] = _CALLS.get(self.group, 0) + 1
        self.is_talking = False

    def fail(self, error: BaseException, *, tells_of_peers: bool = False) -> None:
        """Tell the others, who may be waiting, that this process leaves the call with an error.

        Args:
            error: The error.
            tells_of_peers: Whether also where it is another process's: one of a group that they are not in.
        """
        if self.is_talking:
            self._is_broken = f"rank {self.rank} has left a call halfway: {_first_line(error)}"
        is_known = isinstance(error, PeerMismatchError) or (isinstance(error, PeerError) and not tells_of_peers)
        if self._store is None or is_known:
            return
        # The store may have gone with the process that kept it: the others see that by themselves.
        with contextlib.suppress(RuntimeError, OSError):
            self._store.set(self._key(), json.dumps([self.rank, type(error).__name__, _first_line(error)]))

    def check(self) -> None:
        """Look whether another process has left this call with an error.

        Raises:
            PeerError: One has; the message names it and its reason.
        """
        try:
            if self._store is None or not self._store.check([self._key()]):
                return
            rank, kind, text = json.loads(self._store.get(self._key()))
        except (RuntimeError, OSError):
            return  # what keeps the store has gone: the connections to it will say so
        if rank != self.rank:
            raise PeerError(
                f"rank {rank} has left the call that rank {self.rank} waits in: {kind}: {text}",
                remedy=f"see the output of rank {rank}; weights and optimiser are as before the call",
            )

    def silent(self) -> list[int]:
        """Return which of the others do not answer within a second either, where the store can tell."""
        if self._store is None:
            return []
        keys = [f"torchipu/here/{self._calls}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], "")
            end = time.monotonic() + SECONDS_FOR_SILENCE
            while not self._store.check(keys) and time.monotonic() < end:
                time.sleep(0.02)
            return [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        except (RuntimeError, OSError):
            return []

    def _key(self) -> str:
        return f"torchipu/failure/{self._calls}"

    def finished(self, work: Any) -> None:
        """Wait for a collective that was begun, as long as all others are there.

        Raises:
            PeerError: Another process has gone, has left the call, or does not answer.
        """
        begun = looked = time.monotonic()
        while not work.is_completed():
            now = time.monotonic()
            if now - looked > SECONDS_BETWEEN_LOOKS:
                self.check()
                looked = now
            time.sleep(min(max((now - begun) * SHARE_OF_WAIT, SHORTEST_SLEEP), LONGEST_SLEEP))
        try:
            work.wait()
        except RuntimeError as error:
            raise explained(error, self) from error


def explained(error: Exception, members: Members, rank: int | None = None) -> PeerError:
    """Return torch's error of a connection in our words, or why another process has left, if it has said so.

    Args:
        error: What torch raised.
        members: The processes.
        rank: The one at the other end of the connection, if it is known.
    """
    try:
        members.check()
    except PeerError as announced:
        return announced
    text = str(error).strip()
    first = re.sub(r"^\[[^\]]*\]\s*", "", text.splitlines()[0]) if text else type(error).__name__
    ranks = members.silent() or ([] if rank is None else [rank])
    who = f"rank {', '.join(map(str, ranks))}" if ranks else f"one of the {members.size} processes"
    what = "has not answered in time" if re.search(r"tim(ed|e) ?out", text, re.IGNORECASE) else "has gone"
    return PeerError(
        f"{who} {what}, and rank {members.rank} waits for it: {first}",
        remedy=f"see the output of {who}, then start all of them again; weights and optimiser are as before the call",
    )


def members_of(option: object) -> Members | None:
    """Return the processes that an option names.

    Args:
        option: ``Options.process_group``.

    Returns:
        The processes; None for one that is by itself.

    Raises:
        OptionsError: This process is not in the group.
    """
    if option == ALONE or not dist.is_available() or (option is None and not dist.is_initialized()):
        return None
    group: Any = dist.group.WORLD if option is None else option
    if dist.get_rank(group) < 0:
        raise OptionsError(
            "this process is not in the process group that the options name", option="process_group", value=option,
            remedy="make steps with a group only in its processes, or set process_group='alone'",
        )
    return Members(group) if dist.get_world_size(group) > 1 else None


def _store_of(group: Any) -> Any:
    """Return the key-value store through which the group was formed, or None."""
    from torch.distributed import distributed_c10d

    try:
        return distributed_c10d._get_process_group_store(group)
    except (AttributeError, RuntimeError, ValueError, KeyError):
        return None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


