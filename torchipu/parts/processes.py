"""The processes that run one pipeline together: they agree before each call, run it, and end it alike."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from torchipu.errors import PeerError
from torchipu.parts.order import Timetable
from torchipu.parts.peers import Peers, differences
from torchipu.parts.program import Piece
from torchipu.parts.signals import Waiting
from torchipu.parts.traffic import Traffic

T = TypeVar("T")
_MEETING = struct.Struct("<32s?q")  # digest of what the call is, whether something has to be compiled, key


class Processes:
    """What a step does together with other processes.

    Args:
        group: The processes, a group of torch.distributed.
    """

    def __init__(self, group: Any) -> None:
        self.peers = Peers.of(group)
        self._has_met = True
        self.signals = Waiting()

    @property
    def rank(self) -> int:
        """Which of the processes this one is."""
        return self.peers.rank

    @property
    def size(self) -> int:
        """How many there are."""
        return self.peers.size

    # ------------------------------------------------------------------ agreeing
    def meet(self, facts: Mapping[str, str], *, is_stale: bool = False, key: int = 0) -> tuple[bool, int]:
        """Begin something together.

        Args:
            facts: What this process is about to do.
            is_stale: Whether it has to compile first.
            key: Its key of random bits.

        Returns:
            Whether any process has to compile, and the key of the first.

        Raises:
            PeerError: Another process is about to do something else, or is gone or silent.
        """
        self.peers.check()
        text = json.dumps(facts, sort_keys=True)
        mine = _MEETING.pack(hashlib.sha256(text.encode()).digest(), is_stale, key)
        met = self._exchange(mine, f"for the call of {facts.get('call', 'it')}")
        heard = [_MEETING.unpack(one) for one in met]
        if len({what for what, _, _ in heard}) > 1:
            self._refuse([json.loads(one) for one in self.peers.exchange_texts(text, "for what it is called with")])
        return any(stale for _, stale, _ in heard), heard[0][2]

    def _exchange(self, mine: bytes, awaited: str) -> list[bytes]:
        taken = self.peers.exchange(
            torch.frombuffer(bytearray(mine), dtype=torch.uint8), [len(mine)] * self.size, awaited,
        )
        return [bytes(one.numpy()) for one in taken]

    def _refuse(self, told: Sequence[Mapping[str, str]]) -> None:
        """Raise PeerError if the processes tell different things."""
        calls = [{"call": one["call"]} for one in told if "call" in one]
        detail = differences(calls) or differences(told)
        if detail:
            names = list(dict.fromkeys(line.split(": ")[0] for line in detail.splitlines()))
            raise PeerError(
                f"the processes of the pipeline differ in {', '.join(names)}", detail=detail,
                remedy="start all of them with the same program, options and inputs",
            )

    def agree(self, make: Callable[[], T], facts: Callable[[T], Mapping[str, str]]) -> tuple[T, list[dict[str, str]]]:
        """Make something on every process, or on none.

        Args:
            make: Makes it here.
            facts: What has to be the same everywhere; names that begin with ``_`` may differ.

        Returns:
            What was made here, and the facts of every process.

        Raises:
            PeerError: It failed on another process, or the facts differ.
        """
        try:
            with self.signals.released():
                made = make()
            text = json.dumps(facts(made), sort_keys=True)
        except BaseException as error:
            with contextlib.suppress(PeerError):
                self.peers.exchange_texts("", "for the program", failure=self._reason(error))
            raise
        told: list[dict[str, str]] = [json.loads(one) for one in self.peers.exchange_texts(text, "for the program")]
        self._refuse([{name: value for name, value in one.items() if name[0] != "_"} for one in told])
        return made, told

    def _reason(self, error: BaseException) -> str:
        """Return what the other processes are told of an error."""
        if isinstance(error, PeerError):
            return error.message
        said = str(error).strip().split("\n")[0]
        return f"process {self.rank} has failed: {type(error).__name__}{': ' if said else ''}{said}"

    # ------------------------------------------------------------------ running
    def carry(self, piece: Piece, timetable: Timetable) -> Traffic:
        """Return what carries the values of a program."""
        return Traffic(
            self.peers, piece.part, timetable.runs[self.rank], timetable.room, self.peers.tags(),
            self.signals.handle,
        )

    @contextlib.contextmanager
    def call(self, traffic: Traffic, sizes: Sequence[int], iterations: int) -> Iterator[None]:
        """Run a call: where it fails here the others are told, and everything that was begun is brought to its end.

        Signals that wait are handled between transfers.

        Args:
            traffic: What carries its values.
            sizes: Bytes of the results of each process.
            iterations: How often the program runs.
        """
        self._has_met = False
        try:
            traffic.begin(iterations)
            yield
        except BaseException as error:
            reason = self._reason(error)
            traffic.abort(reason)
            if not self._has_met:
                nothing = torch.zeros(sizes[self.rank], dtype=torch.uint8)
                with contextlib.suppress(PeerError):
                    self.peers.exchange(nothing, sizes, "for the results", reason)
            traffic.settle()
            raise

    def end(self, traffic: Traffic, results: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """End a call that went well here, and return the results of all processes.

        From here to the end of ``call`` signals wait: all processes write their states back, or none does.

        Args:
            traffic: What carries its values.
            results: Those of this process, bytes.
            sizes: Bytes of the results of each process.

        Raises:
            PeerError: It did not go well on another process.
        """
        self.signals.handle()
        self._has_met = True
        taken = self.peers.exchange(results, sizes, "for the results")
        traffic.end()
        return taken
