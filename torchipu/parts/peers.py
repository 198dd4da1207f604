"""The other processes of a pipeline: messages over torch.distributed, each with a word on how its sender is.

A process that fails in a call goes on with the transfers that are left of it, with empty values and its reason, so that
all others learn of it where they are, no one waits for ever, and the next call finds the group in order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from torchipu.errors import OptionsError, PeerError

HEADER_BYTES = 512
"""Before every value: a byte that says whether its sender has failed, and the reason."""
EXCHANGE_TAG, TAGS_OF_A_PROGRAM = 0x7150, 0x10000

_PEERS: WeakKeyDictionary[Any, Peers] = WeakKeyDictionary()


class Peers:
    """The processes of a group as message partners.

    Args:
        group: A group of torch.distributed; a gloo group of the same processes is made if it cannot carry what lies in
            the host's memory.
    """

    def __init__(self, group: Any) -> None:
        self.rank, self.size = int(group.rank()), int(group.size())
        if self.rank < 0:
            raise OptionsError(
                "this process is not in the group", option="pipeline_group", value=group,
                remedy="make steps only in processes of the group",
            )
        self._given = group
        self._group: Any = None
        self.lost: dict[int, str] = {}
        self._programs = 0

    @classmethod
    def of(cls, group: Any) -> Peers:
        """Return the processes of a group; the same for all programs that they run."""
        if group not in _PEERS:
            _PEERS[group] = cls(group)
        return _PEERS[group]

    def tags(self) -> int:
        """Return the first tag of the messages of another program; all processes make programs in the same order."""
        self._programs += 1
        return TAGS_OF_A_PROGRAM * self._programs

    @property
    def group(self) -> Any:
        """The group that carries the messages."""
        if self._group is None:
            self._group = self._given
            carried = {device.type for device in getattr(self._given, "_device_types", [torch.device("cpu")])}
            if "cpu" not in carried:
                ranks = dist.get_process_group_ranks(self._given)
                self._group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        return self._group

    @property
    def others(self) -> list[int]:
        """Ranks of the other processes."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def check(self) -> None:
        """Refuse to go on with a group that has lost a process.

        Raises:
            PeerError: A process was lost in an earlier call.
        """
        for rank, reason in self.lost.items():
            raise PeerError(
                f"process {rank} {reason}, in an earlier call", rank=rank,
                remedy="start all processes again, from the last checkpoint",
            )

    @property
    def _limit(self) -> timedelta:
        """How long a process may be silent."""
        limit: timedelta = self.group._get_backend(torch.device("cpu")).options._timeout
        return limit

    def send(self, message: torch.Tensor, rank: int, tag: int) -> dist.Work | None:
        """Begin to send; None where the process is lost."""
        if rank in self.lost:
            return None
        try:
            return dist.isend(message, group=self.group, group_dst=rank, tag=tag)
        except RuntimeError as error:
            self._lose(rank, error)
            return None

    def receive(self, message: torch.Tensor, rank: int, tag: int) -> dist.Work | None:
        """Begin to receive; None where the process is lost."""
        if rank in self.lost:
            return None
        try:
            return dist.irecv(message, group=self.group, group_src=rank, tag=tag)
        except RuntimeError as error:
            self._lose(rank, error)
            return None

    def wait(self, work: dist.Work | None, rank: int, awaited: str | Callable[[], str]) -> None:
        """Wait for a message.

        Args:
            work: Of `send` or `receive`.
            rank: The other process.
            awaited: What it is, for the error, or what says so.

        Raises:
            PeerError: The process is gone, or silent for as long as the group allows.
        """
        if work is not None:
            try:
                work.wait()
                return
            except RuntimeError as error:
                self._lose(rank, error)
        reason, what = self.lost[rank], awaited if isinstance(awaited, str) else awaited()
        raise PeerError(
            f"process {rank} {reason}, while process {self.rank} waited {what}", rank=rank,
            remedy=f"look at the output of process {rank}; then start all processes again, from the last checkpoint",
        )

    def _lose(self, rank: int, error: RuntimeError) -> None:
        text = str(error)
        if "imed out" in text or "imeout" in text:
            self.lost[rank] = f"was silent for {self._limit.total_seconds():g} s"
        else:
            self.lost[rank] = "is gone (its connection is closed)"

    # ------------------------------------------------------------------ all with all
    def exchange(self, mine: torch.Tensor, sizes: Sequence[int], awaited: str, failure: str = "") -> list[torch.Tensor]:
        """Give every process the same bytes and return those of all.

        Args:
            mine: The bytes, uint8.
            sizes: How many each process gives.
            awaited: What is waited for, for the error.
            failure: Why this process gives nothing.

        Raises:
            PeerError: Another process has failed, is gone or is silent. All others were given the bytes even so.
        """
        message = torch.empty(HEADER_BYTES + len(mine), dtype=torch.uint8)
        write_header(message, failure)
        message[HEADER_BYTES:] = mine
        works = [(rank, self.send(message, rank, EXCHANGE_TAG)) for rank in self.others]
        taken = [torch.empty(HEADER_BYTES + sizes[rank], dtype=torch.uint8) for rank in range(self.size)]
        coming = [(rank, self.receive(taken[rank], rank, EXCHANGE_TAG)) for rank in self.others]
        errors: list[PeerError] = []
        for what, pending in (("to be heard", works), (awaited, coming)):
            for rank, work in pending:
                try:
                    self.wait(work, rank, what)
                    if pending is coming:
                        raise_if_failed(taken[rank], rank)
                except PeerError as error:
                    errors.append(error)
        if errors and not failure:
            # What a process says of itself tells more than that another is gone.
            raise min(errors, key=lambda error: error.rank in self.lost)
        return [mine if rank == self.rank else taken[rank][HEADER_BYTES:] for rank in range(self.size)]

    def exchange_texts(self, text: str, awaited: str, failure: str = "") -> list[str]:
        """Give every process a text and return those of all; arguments and errors as for `exchange`."""
        mine = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        length = torch.tensor([len(mine)]).view(torch.uint8)
        # A process that fails ends with the lengths: the others do not come so far as to give their texts.
        heard = self.exchange(length, [8] * self.size, awaited, failure)
        if failure:
            return []
        lengths = [int(one.clone().view(torch.int64)) for one in heard]
        return [bytes(one.numpy()).decode().strip() for one in self.exchange(mine, lengths, awaited)]


def write_header(message: torch.Tensor, failure: str = "") -> None:
    """Say before a value whether its sender has failed, and why."""
    text = failure.encode()[: HEADER_BYTES - 2]
    ctypes.memset(message.data_ptr(), 0, HEADER_BYTES if text else 1)
    if text:
        ctypes.memmove(message.data_ptr(), b"\1" + text, 1 + len(text))


def raise_if_failed(message: torch.Tensor, rank: int) -> None:
    """Raise PeerError if the sender of a message has failed."""
    if message[0]:
        text = bytes(message[1:HEADER_BYTES].numpy()).split(b"\0")[0].decode(errors="ignore")
        raise PeerError(text, rank=rank, remedy="see there; weights and optimiser are as before the call")


def differences(fields: Sequence[Mapping[str, str]]) -> str:
    """Return a table of the fields in which processes differ, with the value of each; empty where there are none."""
    names = dict.fromkeys(name for one in fields for name in one)
    lines = []
    for name in names:
        values = [one.get(name, "(absent)") for one in fields]
        if len(set(values)) > 1:
            lines += [f"{name}: {value} on process {rank}" for rank, value in enumerate(values)]
    return "\n".join(lines)
