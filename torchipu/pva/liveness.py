"""What lives while each compute set runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from torchipu.pva.contents import Contents
from torchipu.pva.lazy import Lazy
from torchipu.pva.programs import Program
from torchipu.pva.variables import Variable
from torchipu.report.facts import rows

TEMPORARIES = "(vertex temporaries)"
"""Name of what vertices need while they run and no variable holds."""


class NotAlwaysLiveMemory:
    """What is held at a moment and not all the time.

    Args:
        bytes: On the tiles in question.
        variables: With the bytes of each there, the largest first.
    """

    def __init__(self, bytes: int, variables: Sequence[Variable]) -> None:
        self.bytes = bytes
        self.variables = variables

    def __repr__(self) -> str:
        return f"NotAlwaysLiveMemory({self.bytes} B, {len(self.variables)} variables)"


class LivenessProgramStep:
    """A compute set, or the vertices of one codelet in it, in the order in which functions first run; of one replica.

    Its memory is that of the IPU that runs it.
    """

    def __init__(self, lives: Lives, row: rows.LiveStep) -> None:
        self._lives = lives
        self._row = row

    @property
    def program(self) -> Program:
        """What runs.

        Raises:
            LookupError: The report lacks it.
        """
        return self._lives.program_of(self._row)

    @property
    def ipu(self) -> int:
        """Where it runs."""
        return self._row.ipu

    @property
    def notAlwaysLiveMemory(self) -> NotAlwaysLiveMemory:
        """On all tiles of the IPU."""
        return NotAlwaysLiveMemory(self._row.live_bytes, self._lives.variables(self._row))

    def notAlwaysLiveMemoryForTile(self, tile: int) -> NotAlwaysLiveMemory:
        """Return what is held on a tile.

        Args:
            tile: Counted over all IPUs; on those of other IPUs the step holds nothing.

        Raises:
            IndexError: There is no such tile.
        """
        held = self._lives.variables(self._row, tile)
        return NotAlwaysLiveMemory(sum(one.size for one in held), held)

    def __repr__(self) -> str:
        return f"LivenessProgramStep({self._row.name!r}, {self._row.live_bytes} B)"


class Lives:
    """The steps of liveness.

    Args:
        contents: Of the report.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    @cached_property
    def steps(self) -> Lazy[LivenessProgramStep]:
        """All of them in order."""
        found: tuple[rows.LiveStep, ...] = self._contents.tables.rows("liveness")
        return Lazy(len(found), lambda place: LivenessProgramStep(self, found[place]))

    @cached_property
    def passing(self) -> dict[int, list[rows.Variable]]:
        """Variables that are not held all the time, by IPU."""
        found: dict[int, list[rows.Variable]] = {}
        for row in self._contents.tables.rows("variables"):
            if not row.always:
                found.setdefault(row.ipu, []).append(row)
        return found

    @cached_property
    def _programs(self) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for row in self._contents.tables.rows("steps"):
            if row.cycles_by_tile >= 0:
                found.setdefault((row.function, row.name), row.program)
        return found

    def program_of(self, row: rows.LiveStep) -> Program:
        """Return the program that runs at a step.

        Raises:
            LookupError: The report lacks it.
        """
        number = self._programs.get((row.function, row.name))
        if number is None:
            raise LookupError(f"{self._contents.tables.path} holds no program {row.name} of {row.function}")
        return Program(self._contents, self._contents.programs[number])

    def variables(self, row: rows.LiveStep, tile: int | None = None) -> list[Variable]:
        """Return what lives at a step and not always, the largest first.

        Copies that a stash holds besides are held all the time, and none of these.

        Args:
            row: The step.
            tile: Counted over all IPUs; None for all tiles of its IPU.
        """
        if tile is not None:
            self._contents.check_tile(tile)
        held = [*self._held(row, tile), *self._temporaries(row, tile)]
        return sorted(held, key=lambda one: -one.size)

    def _held(self, row: rows.LiveStep, tile: int | None) -> Iterator[Variable]:
        for one in self.passing.get(row.ipu, ()):
            if one.begin <= row.step <= one.end:
                size = (one.bytes if tile is None else self._contents.share_on(one, tile)) // max(1, one.depth)
                if size:
                    yield Variable(one, size)

    def _temporaries(self, row: rows.LiveStep, tile: int | None) -> Iterator[Variable]:
        if not row.temporary_bytes:
            return
        runs = self._contents.patterns.on_ipu(row.vertices_by_tile) > 0
        if tile is None:
            count = int(runs.sum())
        else:
            ipu, on_ipu = divmod(tile, self._contents.patterns.num_tiles)
            count = int(ipu == row.ipu and runs[on_ipu])
        if count:
            # A variable of no table: of the kind that vertices have, on the step's IPU.
            named = rows.Variable(
                -1, TEMPORARIES, row.ipu, "", "", "temporary", 0, 1, False, False, row.step, row.step, 0, 0,
                row.operation,
            )
            yield Variable(named, count * row.temporary_bytes)
