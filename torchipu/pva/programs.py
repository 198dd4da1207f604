"""Programs of a report, what visits them, and the vertices of their compute sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from torchipu.pva.contents import Contents
from torchipu.pva.enums import ProgramType
from torchipu.pva.lazy import Lazy
from torchipu.pva.variables import Variable
from torchipu.report.facts import rows


class ProgramVisitor:
    """Is told of a program by ``program.accept(visitor)``: derive from it, and override what you look for.

    Each method is given the program; those that are not overridden do nothing. ``accept`` visits one program only, not
    those that it holds.
    """

    def visitUnknown(self, program: Program) -> None:
        """Visit a program of none of the other kinds."""

    def visitCall(self, call: Program) -> None:
        """Visit a call of a function."""

    def visitDoExchange(self, doExchange: Program) -> None:
        """Visit an exchange between tiles of an IPU."""

    def visitGlobalExchange(self, globalExchange: Program) -> None:
        """Visit an exchange between IPUs."""

    def visitIf(self, if_: Program) -> None:
        """Visit a choice of two programs."""

    def visitOnTileExecute(self, onTileExecute: Program) -> None:
        """Visit the run of a compute set."""

    def visitRepeat(self, repeat: Program) -> None:
        """Visit a loop with a fixed count."""

    def visitRepeatWhile(self, repeatWhile: Program) -> None:
        """Visit a loop that ends when a test says so."""

    def visitSequence(self, sequence: Program) -> None:
        """Visit programs one after another."""

    def visitStreamCopyBegin(self, streamCopy: Program) -> None:
        """Visit the begin of a stream copy; torchipu has one program for all of one."""

    def visitStreamCopyMid(self, streamCopy: Program) -> None:
        """Visit a stream copy."""

    def visitStreamCopyEnd(self, streamCopy: Program) -> None:
        """Visit the end of a stream copy; torchipu has one program for all of one."""

    def visitSwitch(self, switch: Program) -> None:
        """Visit a choice of many programs; torchipu has none."""

    def visitSync(self, sync: Program) -> None:
        """Visit a sync."""

    def visitSyncExternal(self, sync: Program) -> None:
        """Visit a sync with what is outside; torchipu has none of this name."""


class VertexType:
    """Code that vertices run.

    Args:
        name: Of the codelet.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"VertexType({self.name!r})"


class VertexInstances:
    """Vertices of one type, of a compute set or on a tile.

    Args:
        type: Theirs.
        count: How many.
    """

    def __init__(self, type: VertexType, count: int) -> None:
        self.type = type
        self.count = count

    def __repr__(self) -> str:
        return f"VertexInstances({self.type.name!r}, count={self.count})"


class Program:
    """A program in Poplar's sense: what an entry point or a function is made of."""

    Type = ProgramType

    def __init__(self, contents: Contents, row: rows.Program) -> None:
        self._contents = contents
        self._row = row

    @property
    def _id(self) -> int:
        return self._row.number

    @property
    def name(self) -> str:
        """Of an entry point, function, compute set or stream, or its kind."""
        return self._row.name

    @property
    def type(self) -> ProgramType:
        """Its kind."""
        return _type_of(self._row)

    @property
    def children(self) -> Sequence[Program]:
        """The programs that it holds; a call holds the function that it runs."""
        return lazily(self._contents, self._contents.children_of(self._row))

    @property
    def count(self) -> int:
        """How often it runs what it holds."""
        return self._row.repeats

    @property
    def vars(self) -> Sequence[Variable]:
        """Variables that it reads or writes itself, not through programs that it holds."""
        return [Variable(row) for row in self._contents.variables_of(self._row.number)]

    @property
    def computeset(self) -> ComputeSet | None:
        """The compute set that it runs; None where it is no `OnTileExecute`."""
        return ComputeSet(self._contents, self) if self.type is ProgramType.OnTileExecute else None

    @property
    def estimatedCyclesByTile(self) -> list[int]:
        """Cycles of one run on each tile of all IPUs; for programs that run no vertices on all tiles those of it."""
        return self._contents.cycles_by_tile(self._row)

    def accept(self, visitor: ProgramVisitor) -> Any:
        """Call the method of a visitor for programs of this kind, and return what it returns."""
        return getattr(visitor, f"visit{self.type.name}")(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and (other._contents is self._contents and other._id == self._id)

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"Program({self.type.name}, {self.name!r})"


class ComputeSet:
    """Vertices that run together."""

    def __init__(self, contents: Contents, program: Program) -> None:
        self._contents = contents
        self._program = program

    @property
    def name(self) -> str:
        """Its name; sets of repeated runs have names of their own."""
        return self._program.name

    @property
    def program(self) -> Program:
        """What runs it."""
        return self._program

    @cached_property
    def vertices(self) -> list[VertexInstances]:
        """Its vertices, those of one type together."""
        counts: dict[str, int] = {}
        for row in self._contents.vertices_of(self._program._id):
            counts[row.codelet] = counts.get(row.codelet, 0) + row.vertices
        return [VertexInstances(VertexType(name), count) for name, count in counts.items()]

    @property
    def estimatedCyclesByTile(self) -> list[int]:
        """Cycles of one run on each tile of all IPUs, as the model has them."""
        return self._program.estimatedCyclesByTile

    @property
    def cyclesByTile(self) -> list[int]:
        """The same: there is nothing else that measures them."""
        return self._program.estimatedCyclesByTile

    def __repr__(self) -> str:
        return f"ComputeSet({self.name!r})"


def _type_of(row: rows.Program) -> ProgramType:
    known: Mapping[str, ProgramType] = ProgramType.__members__
    return known.get(row.type, ProgramType.Unknown)


def lazily(contents: Contents, found: Sequence[rows.Program]) -> Lazy[Program]:
    """Return programs of some rows."""
    return Lazy(len(found), lambda place: Program(contents, found[place]))
