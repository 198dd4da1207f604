"""Carries the values of a program between processes: receives are begun ahead, sends end behind."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, repeat

import torch
import torch.distributed as dist

from torchipu.errors import PeerError
from torchipu.ir.graph import Op
from torchipu.optable.transfer import NUMBER, SEND, Moment
from torchipu.parts.cut import Part, Transfer
from torchipu.parts.order import Run
from torchipu.parts.peers import HEADER_BYTES, Peers, raise_if_failed, write_header

AHEAD_BYTES, AHEAD_MESSAGES = 64 << 20, 32
"""What is received before it is needed, at most; one message even where it is larger."""

Flight = tuple[dist.Work | None, torch.Tensor]


class Traffic:
    """The transfers of one process, call after call.

    A call that fails ends with a word of it on every way that a message may take: whoever waits for a value learns of
    it there. On each way messages are taken until that word, so that the next call finds all of them empty.

    Args:
        peers: The processes.
        part: What this process has.
        runs: In which order it runs the segments of a body.
        room: How many values of a transfer may be under way.
        first_tag: Tags of messages are numbered from here.
        pause: Called where the call may be left by an exception: before each transfer.
    """

    def __init__(
        self, peers: Peers, part: Part, runs: Sequence[Run], room: dict[int, int], first_tag: int,
        pause: Callable[[], None],
    ) -> None:
        self.peers, self.room, self.first_tag, self.pause = peers, room, first_tag, pause
        body = [(*part.segments[segment].receives, *part.segments[segment].sends) for segment, _, _ in runs]
        events = [*part.transfers[Moment.PROLOGUE], *chain.from_iterable(body), *part.transfers[Moment.UPDATE]]
        self.transfers = {one.number: one for some in part.transfers.values() for one in some}
        self.messages: dict[int, list[Transfer]] = {}
        for one in self.transfers.values():
            self.messages.setdefault(one.message, []).append(one)
        self.offsets: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        for message, members in self.messages.items():
            self.sizes[message] = HEADER_BYTES
            for one in members:
                self.offsets[one.number] = self.sizes[message]
                self.sizes[message] += one.num_bytes
        self.taken = [one.message for one in events if one.target == peers.rank and self._is_first(one)]
        self.free: dict[int, list[torch.Tensor]] = {}
        self.coming: dict[int, deque[Flight]] = {message: deque() for message in self.messages}
        self.going: dict[int, deque[Flight]] = {message: deque() for message in self.messages}
        self.filling: torch.Tensor | None = None  # the message whose values are being put together
        self.emptying: torch.Tensor | None = None
        self.told: set[int] = set()  # messages by which another process has told that it has failed
        self.ahead: Counter[int] = Counter()  # messages of a kind that are due and have been begun
        self.to_begin: Iterator[int] = iter(())
        self.following: int | None = None
        self.ahead_bytes = self.ahead_messages = 0
        self.drains: list[threading.Thread] = []

    def _is_first(self, one: Transfer) -> bool:
        return self.messages[one.message][0] is one

    def _is_last(self, one: Transfer) -> bool:
        return self.messages[one.message][-1] is one

    def _partner(self, message: int) -> int:
        """Return the other process that a message comes from or goes to."""
        one = self.messages[message][0]
        return one.source if one.target == self.peers.rank else one.target

    def _words(self, message: int) -> str:
        """Return what an error calls a message."""
        one = self.messages[message][0]
        more = f" and {len(self.messages[message]) - 1} more" if len(self.messages[message]) > 1 else ""
        return f"{one.tensor.name} {one.tensor.dtype.text}{list(one.tensor.shape)}{more}"

    def carrier(self, op: Op) -> Callable[[int], None]:
        """Return what carries out the transfer of an op."""
        one = self.transfers[int(str(op.attrs[NUMBER]))]
        carry = self._send if op.kind == SEND else self._receive

        def carry_out(address: int) -> None:
            self.pause()
            carry(one, address)

        return carry_out

    # ------------------------------------------------------------------ a call
    def begin(self, iterations: int) -> None:
        """Begin a call."""
        self.filling = self.emptying = None
        self.told.clear()
        self.ahead.clear()
        self.to_begin = chain.from_iterable(repeat(self.taken, iterations))
        self.following = next(self.to_begin, None)
        self.ahead_bytes = self.ahead_messages = 0
        self._look_ahead()

    def end(self) -> None:
        """Let all that was sent arrive, after a call that has gone well everywhere."""
        for message in self.going:
            with suppress(PeerError):  # that a process is gone since then is told in the next call
                while self.going[message]:
                    self._land(message)

    def abort(self, reason: str) -> None:
        """Tell the others on all ways that the call has failed, and begin to take what they have under way."""
        for message in self.messages:
            if self.messages[message][0].source == self.peers.rank:
                last = self._buffer(message)
                write_header(last, reason or "the call has failed")
                self.going[message].append((self.peers.send(last, self._partner(message), self._tag(message)), last))
            elif message not in self.told:
                # One for each: what another process hands over on one way may keep it from what it does on others.
                self.drains.append(threading.Thread(target=self._drain, args=(message,), daemon=True))
                self.drains[-1].start()

    def settle(self) -> None:
        """End a call that has failed, once all processes know of it."""
        for drain in self.drains:
            drain.join()
        self.drains.clear()
        self.end()

    def _drain(self, message: int) -> None:
        """Take messages until that which tells of the failure."""
        while True:
            if not self.coming[message]:
                self._begin_to_receive(message)
            work, taken = self.coming[message].popleft()
            try:
                self.peers.wait(work, self._partner(message), "for the end of a call")
            except PeerError:
                return
            if taken[0]:
                return

    # ------------------------------------------------------------------ messages
    def _send(self, one: Transfer, address: int) -> None:
        if self._is_first(one):
            self.filling = self._buffer(one.message)
        assert self.filling is not None
        ctypes.memmove(self.filling.data_ptr() + self.offsets[one.number], address, one.num_bytes)
        if not self._is_last(one):
            return
        ready, self.filling = self.filling, None
        write_header(ready)
        if len(self.going[one.message]) >= self.room.get(one.number, 1):
            self._land(one.message)
        self.going[one.message].append((self.peers.send(ready, one.target, self._tag(one.message)), ready))

    def _land(self, message: int) -> None:
        """Wait until the oldest of a kind of messages has arrived."""
        work, landed = self.going[message].popleft()
        self.peers.wait(work, self._partner(message), lambda: f"to hand over {self._words(message)}")
        self.free.setdefault(message, []).append(landed)

    def _receive(self, one: Transfer, address: int) -> None:
        if self._is_first(one):
            self._look_ahead(one.message)
            work, taken = self.coming[one.message].popleft()
            self.ahead[one.message] -= 1
            self.ahead_bytes -= self.sizes[one.message]
            self.ahead_messages -= 1
            self.peers.wait(work, one.source, lambda: f"for {self._words(one.message)}")
            if taken[0]:
                self.told.add(one.message)
            raise_if_failed(taken, one.source)
            self.emptying = taken
        assert self.emptying is not None
        ctypes.memmove(address, self.emptying.data_ptr() + self.offsets[one.number], one.num_bytes)
        if self._is_last(one):
            self.free.setdefault(one.message, []).append(self.emptying)
            self.emptying = None
            self._look_ahead()

    def _look_ahead(self, until: int | None = None) -> None:
        """Begin to receive what comes next, as much as there is room for, and ``until`` in any case."""
        while self.following is not None:
            message, size = self.following, self.sizes[self.following]
            is_due = until is not None and not self.ahead[until]
            has_room = self.ahead_messages < AHEAD_MESSAGES and self.ahead_bytes + size <= AHEAD_BYTES
            if not (is_due or has_room):
                break
            self.ahead[message] += 1
            self.ahead_bytes += size
            self.ahead_messages += 1
            if len(self.coming[message]) < self.ahead[message]:  # an earlier call may have begun it, and then failed
                self._begin_to_receive(message)
            self.following = next(self.to_begin, None)

    def _begin_to_receive(self, message: int) -> None:
        fresh = self._buffer(message)
        work = self.peers.receive(fresh, self._partner(message), self._tag(message))
        self.coming[message].append((work, fresh))

    def _tag(self, message: int) -> int:
        return self.first_tag + message

    def _buffer(self, message: int) -> torch.Tensor:
        free = self.free.get(message)
        return free.pop() if free else torch.empty(self.sizes[message], dtype=torch.uint8)
