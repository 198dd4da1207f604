"""How many micro-batches of a value are held at once between the function that makes it and those that read it."""

from __future__ import annotations

from torchipu.ir.schedule import Schedule


class Depths:
    """Micro-batches in flight between functions, read off the schedule.

    Args:
        schedule: The schedule.
        micro_batches: Its micro-batches.
    """

    def __init__(self, schedule: Schedule, micro_batches: int) -> None:
        self.micro_batches = micro_batches
        self.times: dict[str, dict[int, int]] = {}
        for time, step in enumerate(schedule.steps):
            for cell in step:
                for action in cell:
                    if action.micro_batch is not None:
                        name = f"{action.stage}{action.leg.value}"
                        self.times.setdefault(name, {})[action.micro_batch] = time
        self.found: dict[tuple[str, tuple[str, ...], bool], int] = {}

    def of(self, maker: str, uses: tuple[str, ...], *, arrives_later: bool) -> int:
        """Return how many values exist at once that ``maker`` makes and ``uses`` read.

        Args:
            maker: Function that makes the value.
            uses: Functions that read it; reads of the update do not count.
            arrives_later: The value crosses to another IPU and is there in the next cycle.
        """
        key = (maker, uses, arrives_later)
        if key not in self.found:
            self.found[key] = self._in_flight(*key)
        return self.found[key]

    def _in_flight(self, maker: str, uses: tuple[str, ...], arrives_later: bool) -> int:
        made = self.times.get(maker, {})
        readers = [self.times[name] for name in uses if name in self.times]
        changes: dict[int, int] = {}
        for micro_batch, time in made.items():
            begin = time + arrives_later
            end = max([begin, *(reader[micro_batch] for reader in readers if micro_batch in reader)])
            changes[begin] = changes.get(begin, 0) + 1
            changes[end + 1] = changes.get(end + 1, 0) - 1
        most = held = 0
        for time in sorted(changes):
            held += changes[time]
            most = max(most, held)
        return max(1, most)
