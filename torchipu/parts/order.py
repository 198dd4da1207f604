"""In which order a process runs the segments of its micro-batches, so that no process waits while it could compute.

All processes work the same order out from the same facts: a list schedule of the whole pipeline, in which each process
begins whatever it can begin first, and of several the latest segment of the oldest micro-batch. With one segment for
the forwards and one for the backwards of a process, that is one forward, one backward in turn (1F1B).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchipu.errors import ScheduleError
from torchipu.parts.cut import Segment, Transfer

Run = tuple[int, int, int]
"""Segment, number of the run among those of all micro-batches and replicas, and lane."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """What each process runs, in order.

    Attributes:
        runs: Of each process its segments in their order.
        lanes: Runs that a process has in hand at a time, at most.
        room: For each transfer, by number: values that were sent and not yet taken, at most.
    """

    runs: tuple[tuple[Run, ...], ...]
    lanes: tuple[int, ...]
    room: dict[int, int]


def make_timetable(segments: Sequence[Sequence[Segment]], runs: int, limits: Sequence[int]) -> Timetable:
    """Return the order of all segments of an iteration.

    Args:
        segments: Of each process the segments of a body.
        runs: Times that every body runs: micro-batches x replicas.
        limits: Runs that each process may have in hand at a time.

    Raises:
        ScheduleError: Processes would wait for each other for ever.
    """
    hands = [_Hand(process, list(own), runs, limit) for process, (own, limit) in
             enumerate(zip(segments, limits, strict=True))]
    sent: dict[tuple[int, int], tuple[float, float]] = {}  # by transfer and run: when its segment begins and ends
    taken: dict[tuple[int, int], float] = {}
    for _ in range(runs * sum(len(hand.segments) for hand in hands)):
        # A process runs ahead of a slower one no further than it has runs in hand itself, unless all would wait.
        choices = [choice for hand in hands if (choice := hand.choice(sent, taken, max(limits))) is not None]
        choices = choices or [choice for hand in hands if (choice := hand.choice(sent, taken, runs)) is not None]
        if not choices:
            raise ScheduleError(
                "the processes of the pipeline would wait for each other for ever",
                remedy="put blocks that exchange values both ways on IPUs of one process",
            )
        begin, _, process, segment, run = min(choices)
        hands[process].take(begin, segment, run, sent, taken)
    transfers = {one for hand in hands for segment in hand.segments for one in segment.sends}
    room = {one.number: _room(one, runs, sent, taken) for one in transfers}
    return Timetable(tuple(tuple(hand.order) for hand in hands), tuple(hand.lanes for hand in hands), room)


class _Hand:
    """What one process has done so far.

    Args:
        process: Its number.
        segments: Of its body.
        runs: Times that the body runs.
        limit: Runs that it may have in hand.
    """

    def __init__(self, process: int, segments: list[Segment], runs: int, limit: int) -> None:
        self.process, self.segments, self.runs, self.limit = process, segments, runs, limit
        self.time = 0.0
        self.next_run = [0] * len(segments)
        self.order: list[Run] = []
        self.lane_of: dict[int, int] = {}
        self.lanes = 0

    def choice(
        self, sent: dict[tuple[int, int], tuple[float, float]], taken: dict[tuple[int, int], float], ahead: int,
    ) -> tuple[float, int, int, int, int] | None:
        """Return the segment that can begin first, the last of several: its begin, rank, process, segment and run.

        It does not begin before others have taken what it has sent them ``ahead`` runs ago.
        """
        found = None
        for segment in reversed(range(len(self.segments))):
            run = self.next_run[segment]
            if run == self.runs or (segment and self.next_run[segment - 1] <= run):
                continue
            if not segment and len(self.lane_of) >= self.limit:
                continue
            keys = [(one.number, run) for one in self.segments[segment].receives]
            due = [(one.number, run - ahead) for one in self.segments[segment].sends if run >= ahead]
            if any(key not in sent for key in keys) or any(key not in taken for key in due):
                continue
            begin = max([self.time, *(sent[key][1] for key in keys), *(taken[key] for key in due)])
            if found is None or begin < found[0]:
                found = (begin, -segment, self.process, segment, run)
        return found

    def take(
        self, begin: float, segment: int, run: int, sent: dict[tuple[int, int], tuple[float, float]],
        taken: dict[tuple[int, int], float],
    ) -> None:
        """Run a segment."""
        what = self.segments[segment]
        end = begin + max(1.0, what.weight)
        if not segment:
            lane = next(n for n in range(self.runs) if n not in self.lane_of.values())
            self.lane_of[run] = lane
            self.lanes = max(self.lanes, lane + 1)
        self.order.append((segment, run, self.lane_of[run]))
        for one in what.receives:
            taken[one.number, run] = begin
        for one in what.sends:
            sent[one.number, run] = begin, end
        self.next_run[segment] += 1
        self.time = end
        if segment == len(self.segments) - 1:
            del self.lane_of[run]


def _room(
    one: Transfer, runs: int, sent: dict[tuple[int, int], tuple[float, float]], taken: dict[tuple[int, int], float],
) -> int:
    """Return how many values of a transfer are under way at most, each counted until another process begins with it.

    A sender that waits for the one before so many others waits for nothing that needs what it does itself from then on.
    """
    most, gone = 1, 0
    for run in range(runs):
        begin = sent[one.number, run][0]
        while gone < run and taken[one.number, gone] <= begin:
            gone += 1
        most = max(most, run + 1 - gone)
    return most
