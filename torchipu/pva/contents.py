"""What the objects of a report have in common: rows by what they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from torchipu.pva.by_tile import Patterns
from torchipu.pva.enums import ProgramType
from torchipu.pva.tables import Tables
from torchipu.report.facts import rows


class Contents:
    """The rows of a report by what they belong to, each index made when it is first needed.

    Args:
        tables: Of the report.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.patterns = Patterns(tables)

    # ------------------------------------------------------------------ programs
    @property
    def programs(self) -> tuple[rows.Program, ...]:
        """All programs."""
        return self.tables.rows("programs")

    @cached_property
    def _children(self) -> dict[int, list[rows.Program]]:
        found: dict[int, list[rows.Program]] = {}
        for row in self.programs:
            found.setdefault(row.parent, []).append(row)
        return found

    @cached_property
    def _functions(self) -> dict[str, rows.Program]:
        # A function comes after the entry points, which may have its name.
        return {row.name: row for row in self._children.get(-1, ())}

    def children_of(self, row: rows.Program) -> Sequence[rows.Program]:
        """Return what a program holds; of a call, the function that it runs."""
        if row.function:
            return [self._functions[row.function]] if row.function in self._functions else []
        return self._children.get(row.number, [])

    @cached_property
    def compute_sets(self) -> list[rows.Program]:
        """Programs that run a compute set."""
        return [row for row in self.programs if row.type == ProgramType.OnTileExecute.name]

    @cached_property
    def _vertices(self) -> dict[int, list[rows.Vertices]]:
        found: dict[int, list[rows.Vertices]] = {}
        for row in self.tables.rows("vertices"):
            found.setdefault(row.program, []).append(row)
        return found

    def vertices_of(self, program: int) -> Sequence[rows.Vertices]:
        """Return the vertices that a program runs, by codelet."""
        return self._vertices.get(program, ())

    @cached_property
    def _step_of_program(self) -> dict[int, rows.Step]:
        return {row.program: row for row in reversed(self.tables.rows("steps"))}

    def cycles_by_tile(self, row: rows.Program) -> list[int]:
        """Return the cycles of one run of a program on each tile of all IPUs."""
        step = self._step_of_program.get(row.number)
        num_tiles, num_ipus = self.patterns.num_tiles, self.patterns.num_ipus
        if step is None:
            return [0] * (num_tiles * num_ipus)
        if step.cycles_by_tile >= 0:
            return self.patterns.on_all(row.ipu, step.cycles_by_tile)
        if row.ipu < 0:
            return [step.cycles] * (num_tiles * num_ipus)
        return [step.cycles if ipu == row.ipu else 0 for ipu in range(num_ipus) for _ in range(num_tiles)]

    # ------------------------------------------------------------------ variables
    @cached_property
    def _variables_by_program(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for row in self.tables.rows("program_variables"):
            found.setdefault(row.program, []).append(row.variable)
        return found

    def variables_of(self, program: int) -> Sequence[rows.Variable]:
        """Return the variables that a program reads or writes itself."""
        held: tuple[rows.Variable, ...] = self.tables.rows("variables")
        return [held[number] for number in self._variables_by_program.get(program, ())]

    @cached_property
    def shares(self) -> dict[int, list[rows.Share]]:
        """Bytes on tiles by number of the variable."""
        found: dict[int, list[rows.Share]] = {}
        for row in self.tables.rows("shares"):
            found.setdefault(row.variable, []).append(row)
        return found

    def share_on(self, variable: rows.Variable, tile: int) -> int:
        """Return the bytes of all copies of a variable on a tile, counted over all IPUs."""
        ipu, on_ipu = divmod(tile, self.patterns.num_tiles)
        if variable.ipu != ipu:
            return 0
        parts = self.shares.get(variable.number, ())
        return next((part.bytes for part in parts if part.first_tile <= on_ipu < part.end_tile), 0)

    def check_tile(self, tile: int) -> int:
        """Return the number of a tile, counted over all IPUs.

        Raises:
            IndexError: There is no such tile.
        """
        count = self.patterns.num_tiles * self.patterns.num_ipus
        if not 0 <= tile < count:
            raise IndexError(f"there is no tile {tile}: the program has {count}, from 0")
        return tile
