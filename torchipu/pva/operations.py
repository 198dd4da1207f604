"""The user's ops of a report, and where each comes from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torchipu.pva.contents import Contents
from torchipu.pva.lazy import Lazy
from torchipu.pva.programs import Program, lazily
from torchipu.report.debug import NO_OPERATION, Context
from torchipu.report.facts import rows

if TYPE_CHECKING:
    from torchipu.pva.report import Report


class SourceLocation:
    """A line of the user's.

    Args:
        fileName: Its file; empty for none.
        lineNumber: From 1; 0 for none.
        code: Its text.
    """

    def __init__(self, fileName: str, lineNumber: int, code: str) -> None:
        self.fileName = fileName
        self.lineNumber = lineNumber
        self.code = code

    def __repr__(self) -> str:
        return f"{self.fileName}:{self.lineNumber}" if self.fileName else "unknown line"


class DebugContext:
    """Where an op comes from.

    Args:
        number: Of the context.
        context: What ``debug.cbor`` says.
    """

    def __init__(self, number: int, context: Context) -> None:
        self.id = number
        self._context = context

    @property
    def name(self) -> str:
        """Of the op."""
        return self._context.name

    @property
    def layer(self) -> str:
        """Of the software that gave the op: ``poptorch`` or ``torchipu``."""
        return self._context.layer

    @property
    def module(self) -> str:
        """Path of the module whose forward held the op."""
        return self._context.module

    @property
    def location(self) -> SourceLocation:
        """The user's line; an empty name and line 0 where it is unknown, as that of an update, or was left out."""
        return SourceLocation(self._context.file, self._context.line, self._context.code)

    @property
    def json(self) -> str:
        """All of it as JSON."""
        one, place = self._context, self.location
        held: dict[str, Any] = {
            "id": self.id, "name": one.name, "opType": one.type, "layer": one.layer, "module": one.module,
        }
        if place.fileName:
            held["location"] = {"fileName": place.fileName, "lineNumber": place.lineNumber, "code": place.code}
        return json.dumps(held)

    def __repr__(self) -> str:
        return f"DebugContext({self.name!r}, {self.location!r})"


class Operation:
    """An op of the user's model, over all its runs in an iteration."""

    def __init__(self, analysis: OperationAnalysis, row: rows.Operation) -> None:
        self._analysis = analysis
        self._row = row

    @property
    def name(self) -> str:
        """Of its first result."""
        return self._row.name

    @property
    def type(self) -> str:
        """What it computes."""
        return self._row.kind

    @property
    def debugContext(self) -> DebugContext | None:
        """Where it comes from; None where ``debug.cbor`` does not have it."""
        return self._analysis._contexts.get(self._row.number)

    @property
    def replacedDebugContext(self) -> DebugContext | None:
        """Where the op comes from that it computes again in the backward; None for other ops."""
        return self._analysis._contexts.get(self._analysis._numbers_by_name.get(self._row.recomputes, NO_OPERATION))

    @property
    def cycles(self) -> int:
        """Compute, exchange and sync, of all runs."""
        return self._row.cycles

    @property
    def computeCycles(self) -> int:
        """Those of its compute sets."""
        return self._row.compute

    @property
    def exchangeCycles(self) -> int:
        """Those of its exchanges."""
        return self._row.exchange

    @property
    def syncCycles(self) -> int:
        """Those of its syncs."""
        return self._row.sync

    @property
    def flops(self) -> int:
        """Arithmetic of all runs."""
        return self._row.flops

    @property
    def exchangedBytes(self) -> int:
        """That its exchanges move, in all runs."""
        return self._row.exchanged_bytes

    @property
    def codeBytes(self) -> int:
        """Of its codelets, on a tile."""
        return self._row.code_bytes

    @property
    def programs(self) -> Sequence[Program]:
        """The programs that it became: its compute sets with the exchanges and syncs before them."""
        return self._analysis._programs_of(self._row.number)

    def __repr__(self) -> str:
        return f"Operation({self.type} {self.name!r}, {self.cycles} cycles)"


class OperationAnalysis:
    """The ops of a report.

    Args:
        report: From `openReport`.
    """

    def __init__(self, report: Report) -> None:
        self._contents: Contents = report._contents
        self._contexts = {one.operation: DebugContext(number, one) for number, one in enumerate(report._contexts)}
        self._contexts.pop(NO_OPERATION, None)

    @property
    def operations(self) -> Sequence[Operation]:
        """All of them, in the order in which the program first reaches them."""
        found: tuple[rows.Operation, ...] = self._contents.tables.rows("operations")
        return Lazy(len(found), lambda place: Operation(self, found[place]))

    @cached_property
    def _numbers_by_name(self) -> dict[str, int]:
        return {row.name: row.number for row in self._contents.tables.rows("operations")}

    def _programs_of(self, operation: int) -> Sequence[Program]:
        numbers = self._programs_by_operation.get(operation, {})
        return lazily(self._contents, [self._contents.programs[number] for number in numbers])

    @cached_property
    def _programs_by_operation(self) -> dict[int, dict[int, None]]:
        found: dict[int, dict[int, None]] = {}
        for row in self._contents.tables.rows("steps"):
            found.setdefault(row.operation, {})[row.program] = None
        return found
