"""Sums over the replicas of several processes, made bucket by bucket while the backward leg still runs.

Each process owns a part of every bucket. It is sent that part by all others, adds it up in the order of
`torchipu.distributed.order` and sends the sum back to all: what a ring moves, and in an order of additions that neither
the number of processes nor the speed of a link has an effect on. All receives are posted before anything is sent, so
that no bucket waits for another. A small bucket goes to all others whole, and each of them adds it up by itself in that
order: one message on the way instead of two.

Source: between two processes on one machine this takes 0.55 times as long as the reduction of
DistributedDataParallel; ``benchmarks/bench_distributed.py`` measures it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchipu._kernels.abi import call_kernel
from torchipu._kernels.table.scaling import ADD, AddInts, Summed
from torchipu._kernels.table.update import SPAN
from torchipu.distributed.members import SECONDS_BETWEEN_LOOKS, Members, explained
from torchipu.distributed.order import Replicas, additions, pushes
from torchipu.errors import PeerError

SMALL_BYTES = 1 << 20
"""What of a bucket a process may send to all others together for it to count as small. A guess from two processes on
one machine, where the demo's 364 kB are quicker so."""
FIRST_TAG = 1 << 16
"""Tags below are left to the user's own messages."""
THREAD_NAME = "torchipu exchange"
"""Of the thread, which waits on nothing of the program's between two calls: a forked child does without it."""
SUMMED = {torch.float32: Summed.FLOATS, torch.float16: Summed.HALVES, torch.int64: Summed.WORDS}


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring sums of one type, in a memory of slots.

    Attributes:
        begin_bytes: Where it begins within a slot.
        num_bytes: How long it is.
        dtype: Type of its elements.
        slot_bytes: From one slot to the next.
    """

    begin_bytes: int
    num_bytes: int
    dtype: torch.dtype
    slot_bytes: int

    def of_slot(self, memory: torch.Tensor, slot: int) -> torch.Tensor:
        """Return the elements in a slot."""
        begin = slot * self.slot_bytes + self.begin_bytes
        return memory[begin : begin + self.num_bytes].view(self.dtype)


@dataclass(frozen=True, slots=True)
class _Part:
    """What travels for a bucket.

    Attributes:
        outgoing: For each other process, what this one has of the part that the other adds up.
        incoming: For each other process, room for what it has of the part that this one adds up.
        own: That part, in slot 0.
        others: For each other process, the part in slot 0 whose sum it sends back; none where each adds up all.
        adds: Additions (out, left, right) that make the sum in ``own``.
    """

    outgoing: tuple[tuple[int, int, torch.Tensor], ...]
    incoming: tuple[tuple[int, int, torch.Tensor], ...]
    own: torch.Tensor
    others: tuple[tuple[int, torch.Tensor], ...]
    adds: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], ...]


class Exchange:
    """Makes sums of buckets whole, on a thread of its own, as a program says that they are complete.

    Args:
        members: The processes.
        replicas: Those of this process.
        memory: Bytes of the slots that hold the sums of this process; they hold those of all in the end, in slot 0.
        buckets: What is exchanged, in the order in which it is complete.
    """

    def __init__(self, members: Members, replicas: Replicas, memory: torch.Tensor, buckets: Sequence[Bucket]) -> None:
        self.members = members
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._parts = [_part(members, replicas, memory, bucket) for bucket in buckets]
        # A tag for each sum that a process sends of a bucket, and one for the whole.
        self._tags = 1 + max(sum(1 for _ in _nodes(replicas, rank)) for rank in range(members.size))
        self._done = [threading.Event() for _ in buckets]
        self._error: BaseException | None = None
        self._is_left = False
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_idle = threading.Event()
        self._is_idle.set()
        threading.Thread(target=_work, args=(self._jobs,), name=THREAD_NAME, daemon=True).start()
        weakref.finalize(self, _close, self._jobs, self.descriptor)

    # ------------------------------------------------------------------ for the thread of the program
    @contextlib.contextmanager
    def running(self, iterations: int) -> Iterator[None]:
        """Exchange what a program completes while it runs.

        Args:
            iterations: How often it completes all buckets.

        Raises:
            PeerError: Another process has gone, or does not answer.
        """
        for done in self._done:
            done.clear()
        self._is_idle.clear()
        self._is_left = False
        self._jobs.put(lambda: self._run(iterations))
        try:
            yield
            self._await(self._is_idle)
        except BaseException:
            self._is_left = True
            os.eventfd_write(self.descriptor, len(self._parts))
            raise

    def wait(self, bucket: int) -> None:
        """Wait until a bucket holds the sums of all processes.

        Raises:
            PeerError: Another process has gone, or does not answer.
        """
        self._await(self._done[bucket])
        self._done[bucket].clear()

    def _await(self, event: threading.Event) -> None:
        while not event.wait(SECONDS_BETWEEN_LOOKS):
            self.members.check()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # ------------------------------------------------------------------ for the thread of the exchange
    def _run(self, iterations: int) -> None:
        try:
            for _ in range(iterations):
                if not self._exchange():
                    break
        except Exception as error:
            self._error = error if isinstance(error, PeerError) else explained(error, self.members)
            for done in self._done:
                done.set()
        finally:
            self._is_idle.set()

    def _exchange(self) -> bool:
        """Exchange all buckets once; return whether the program has completed them."""
        partial = [self._receive(number, part.incoming) for number, part in enumerate(self._parts)]
        whole = [
            [(rank, self.members.receive(t, rank, self._tag(number, self._tags - 1)))
             for rank, t in part.others if t.numel()]
            for number, part in enumerate(self._parts)
        ]
        sent: list[list[tuple[int, Any]]] = [[] for _ in self._parts]
        added = 0
        for number, part in enumerate(self._parts):
            # What is complete goes out first: the others wait for it.
            while added < number and not select.select([self.descriptor], [], [], 0)[0]:
                self._add_up(added, partial[added], sent[added])
                added += 1
            os.eventfd_read(self.descriptor)
            if self._is_left:
                return False
            sent[number] += [
                (rank, self.members.send(t, rank, self._tag(number, slot)))
                for rank, slot, t in part.outgoing if t.numel()
            ]
        for number in range(added, len(self._parts)):
            self._add_up(number, partial[number], sent[number])
        for number, done in enumerate(self._done):
            self._finish((*whole[number], *sent[number]))
            done.set()
        return True

    def _finish(self, works: Sequence[tuple[int, Any]]) -> None:
        """Wait for messages to and from other processes."""
        for rank, work in works:
            try:
                work.wait()
            except RuntimeError as error:
                raise explained(error, self.members, rank) from error

    def _receive(self, number: int, incoming: Sequence[tuple[int, int, torch.Tensor]]) -> list[tuple[int, Any]]:
        return [
            (rank, self.members.receive(t, rank, self._tag(number, slot)))
            for rank, slot, t in incoming if t.numel()
        ]

    def _add_up(
        self, number: int, received: Sequence[tuple[int, Any]], sent: list[tuple[int, Any]],
    ) -> None:
        """Make the sum of the part that this process owns, and send it to all others."""
        part = self._parts[number]
        self._finish(received)
        if not part.others:
            self._finish(sent)  # the sum takes the place of what was sent
            sent.clear()  # gloo would wait for another message the second time
        count = part.own.numel()
        for out, left, right in part.adds if count else ():
            addresses = [out.data_ptr(), left.data_ptr(), right.data_ptr()]
            call_kernel(ADD, addresses, AddInts(count, SUMMED[out.dtype]), items=-(-count // SPAN))
        tag = self._tag(number, self._tags - 1)
        sent += [
            (rank, self.members.send(part.own, rank, tag))
            for rank, _ in part.others if count
        ]

    def _tag(self, bucket: int, which: int) -> int:
        return FIRST_TAG + bucket * self._tags + which


def _nodes(replicas: Replicas, rank: int) -> Iterator[Any]:
    """Yield the nodes of which a process has sums; all processes run equally many replicas."""
    of_rank = Replicas(replicas.count, rank * replicas.count, replicas.total)
    yield from pushes(of_rank.leaves)[1]


def _part(members: Members, replicas: Replicas, memory: torch.Tensor, bucket: Bucket) -> _Part:
    """Lay out what travels for a bucket."""
    here, ranks = members.rank, range(members.size)
    others = [rank for rank in ranks if rank != here]
    is_small = bucket.num_bytes * len(others) <= SMALL_BYTES
    slices = [
        [whole] * members.size if is_small else whole.tensor_split(members.size)
        for whole in (bucket.of_slot(memory, slot) for slot, _ in enumerate(_nodes(replicas, here)))
    ]
    own = slices[0][here]
    outgoing = tuple((rank, slot, pieces[rank]) for rank in others for slot, pieces in enumerate(slices))
    incoming = tuple(
        (rank, slot, torch.empty_like(own)) for rank in others for slot, _ in enumerate(_nodes(replicas, rank))
    )
    room = {(rank, slot): t for rank, slot, t in incoming}
    room |= {(here, slot): pieces[here] for slot, pieces in enumerate(slices)}
    terms = [room[rank, slot] for rank in ranks for slot, _ in enumerate(_nodes(replicas, rank))]
    pairs = additions([node for rank in ranks for node in _nodes(replicas, rank)])
    adds = [(terms[to], terms[to], terms[term]) for to, term in pairs]
    # The last one leaves the sum where it belongs.
    adds[-1] = (own, *adds[-1][1:])
    sent_back = () if is_small else tuple((rank, slices[0][rank]) for rank in others)
    return _Part(outgoing, incoming, own, sent_back, tuple(adds))


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job


def _close(jobs: queue.SimpleQueue[Callable[[], None] | None], descriptor: int) -> None:
    jobs.put(None)
    os.close(descriptor)
