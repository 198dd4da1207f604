"""What runs when in one iteration of a report's program."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Self

from torchipu.pva.contents import Contents
from torchipu.pva.lazy import Lazy
from torchipu.pva.programs import ComputeSet, Program
from torchipu.report.facts import rows


class TotalCycles(NamedTuple):
    """Cycles of an iteration.

    Attributes:
        total: From its begin to its end.
    """

    total: int


class Range(NamedTuple):
    """The first and the last of the tiles of an IPU.

    Attributes:
        min: Cycle of the first.
        max: Cycle of the last.
    """

    min: int
    max: int


class ActiveCycles(int):
    """A number of cycles in which any tile is at work, and when tiles are.

    Attributes:
        cyclesFrom: When tiles begin.
        cyclesTo: When tiles end.
    """

    cyclesFrom: Range
    cyclesTo: Range

    def __new__(cls, cycles: int, begin: Range, end: Range) -> Self:
        """Return the number."""
        made = super().__new__(cls, cycles)
        made.cyclesFrom, made.cyclesTo = begin, end
        return made

    def __reduce__(self) -> tuple[type[ActiveCycles], tuple[int, Range, Range]]:
        return ActiveCycles, (int(self), self.cyclesFrom, self.cyclesTo)


class Microseconds(NamedTuple):
    """When something was, from the begin of the iteration.

    Attributes:
        start: Its begin.
        end: Its end.
    """

    start: float
    end: float


class StepOnIpu:
    """What a step is to an IPU.

    Args:
        step: The step.
        ipu: The IPU; all is 0 but where the step runs.
    """

    def __init__(self, step: ExecutionStep, ipu: int) -> None:
        self._step = step
        self._row = step._row
        self._runs_here = ipu == step._run.ipu

    @property
    def cycles(self) -> int:
        """Of all its runs."""
        return self._row.cycles * self._row.runs if self._runs_here else 0

    @property
    def activeCycles(self) -> ActiveCycles:
        """Cycles in which any tile is at work: all of them; its ``cyclesFrom`` and ``cyclesTo`` say when."""
        return ActiveCycles(self.cycles, self.cyclesFrom, self.cyclesTo)

    @property
    def cyclesFrom(self) -> Range:
        """When tiles begin: all at the same time."""
        return Range(self._step.begin, self._step.begin)

    @property
    def cyclesTo(self) -> Range:
        """When tiles end."""
        if not self._runs_here or self._row.cycles_by_tile < 0:
            return Range(self._step.begin + self.cycles, self._step.begin + self.cycles)
        least = int(self._step._contents.patterns.on_ipu(self._row.cycles_by_tile).min()) * self._row.runs
        return Range(self._step.begin + least, self._step.begin + self.cycles)

    @property
    def tileBalance(self) -> float:
        """Mean of the cycles of all tiles over those of the slowest, 0 to 1; 0 where the step does not run."""
        return self._row.tile_balance if self._runs_here else 0.0

    @property
    def activeTileBalance(self) -> float:
        """The same, of the tiles that run vertices."""
        if not self._runs_here or self._row.cycles_by_tile < 0:
            return self.tileBalance
        cycles = self._step._contents.patterns.on_ipu(self._row.cycles_by_tile)
        return float(cycles[cycles > 0].mean() / cycles.max()) if cycles.max() else self.tileBalance

    @property
    def dataIn(self) -> int:
        """Bytes that come to its tiles, from others, from the host or from Streaming Memory."""
        return 0 if self._leaves_only() else self._moved

    @property
    def dataOut(self) -> int:
        """Bytes that leave its tiles."""
        return 0 if self._row.category == "host" and not self._leaves_only() else self._moved

    @property
    def _moved(self) -> int:
        return self._row.exchanged_bytes * self._row.runs if self._runs_here else 0

    def _leaves_only(self) -> bool:
        return self._row.category == "host" and not self._step._contents.programs[self._row.program].to_device

    def __repr__(self) -> str:
        return f"StepOnIpu({self.cycles} cycles)"


class ExecutionStep:
    """A step of an iteration, such as a compute set or an exchange; one that a loop repeats is one, with all its runs.

    Copies between the IPUs of a pipeline belong to no function, and are no steps.
    """

    def __init__(self, contents: Contents, run: rows.Run, row: rows.Step) -> None:
        self._contents = contents
        self._run = run
        self._row = row

    @property
    def begin(self) -> int:
        """Cycle of the iteration at which it begins."""
        return self._run.begin + self._row.begin

    @property
    def program(self) -> Program:
        """What runs."""
        return Program(self._contents, self._contents.programs[self._row.program])

    @property
    def ipus(self) -> Sequence[StepOnIpu]:
        """What it is to each IPU of the replica; all but one have no part in it."""
        return Lazy(self._contents.patterns.num_ipus, lambda place: StepOnIpu(self, place))

    @property
    def cycles(self) -> int:
        """Of all its runs."""
        return self._row.cycles * self._row.runs

    @property
    def cyclesByTile(self) -> list[int]:
        """Cycles of all its runs on each tile of all IPUs; for what is no compute set, those of the whole IPU."""
        ipu, runs = self._run.ipu, self._row.runs
        if self._row.cycles_by_tile >= 0:
            return self._contents.patterns.on_all(ipu, self._row.cycles_by_tile, runs)
        tiles, ipus = self._contents.patterns.num_tiles, self._contents.patterns.num_ipus
        return [self.cycles if one == ipu else 0 for one in range(ipus) for _ in range(tiles)]

    @property
    def computeSets(self) -> list[ComputeSet]:
        """The compute set that it runs, if it runs one."""
        found = self.program.computeset
        return [] if found is None else [found]

    def __repr__(self) -> str:
        return f"ExecutionStep({self._row.name!r}, {self.cycles} cycles)"


class Run(NamedTuple):
    """A run of the program: one weight update, or one batch of inference.

    Attributes:
        name: ``main``.
        steps: In order of runs of functions, within each in order of time.
        microseconds: When it was.
    """

    name: str
    steps: Sequence[ExecutionStep]
    microseconds: Microseconds


class Execution:
    """One iteration, as the model of the machine has it.

    Args:
        contents: Of the report.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    @property
    def totalCycles(self) -> TotalCycles:
        """From the begin of the iteration to its end."""
        return TotalCycles(int(self._contents.tables.number("cycles_per_update")))

    @property
    def runs(self) -> Sequence[Run]:
        """The one iteration that is modelled."""
        end = float(self._contents.tables.number("microseconds_per_update"))
        return [Run("main", self.steps, Microseconds(0.0, end))]

    @cached_property
    def _steps(self) -> dict[str, list[rows.Step]]:
        found: dict[str, list[rows.Step]] = {}
        for row in self._contents.tables.rows("steps"):
            found.setdefault(row.function, []).append(row)
        return found

    @cached_property
    def steps(self) -> Sequence[ExecutionStep]:
        """Every step as often as its function runs, as the view ``execution`` of the file has them."""
        runs = [run for run in self._contents.tables.rows("runs") if run.function in self._steps]
        ends = list(accumulate(len(self._steps[run.function]) for run in runs))

        def made(place: int) -> ExecutionStep:
            at = bisect_right(ends, place)
            steps = self._steps[runs[at].function]
            return ExecutionStep(self._contents, runs[at], steps[place - ends[at]])

        return Lazy(ends[-1] if ends else 0, made)
