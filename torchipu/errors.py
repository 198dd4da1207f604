"""Every exception that torchipu raises, and how its text is laid out.

The first line of a message must suffice alone: torch wraps an error raised while compiling and keeps that line.
Below it come the op, the user's line, the block and what to do, each where it is known.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class IpuError(Exception):
    """Base of all torchipu errors.

    Args:
        message: One line that says what is wrong, with what was expected and what was got.
        op: Text of the operation concerned, as the IR prints it.
        source: The user's line, ``file:line  code``.
        block: Block, IPU, stage and leg of the operation.
        remedy: What to do next.
        detail: Further lines (a grid, a table), placed between the facts and the remedy.
    """

    def __init__(
        self, message: str, *, op: object = None, source: object = None, block: object = None,
        remedy: str = "", detail: str = "",
    ) -> None:
        self.message = message
        self.op = op
        self.source = source
        self.block = block
        self.remedy = remedy
        self.detail = detail
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by state: the arguments of ``__init__`` differ from class to class."""
        return _restored, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        facts = (("op", self.op), ("source", self.source), ("block", self.block))
        lines = [self.message, *(f"  {label:<8}{fact}" for label, fact in facts if fact and str(fact))]
        lines += [f"  {line}" for line in self.detail.splitlines()]
        if self.remedy:
            lines.append(f"  {'do':<8}{self.remedy}")
        return "\n".join(lines)


def _restored(kind: type[IpuError], arguments: tuple[object, ...], state: dict[str, object]) -> IpuError:
    """Make an error as it was before it was pickled, for instance in a DataLoader worker."""
    error = Exception.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the closest known spelling, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


class OptionsError(IpuError, ValueError):
    """An option is unknown, of the wrong type or out of range.

    Args:
        message: What is wrong.
        option: Name of the option.
        value: The value given.
        allowed: Text of the allowed values.
    """

    def __init__(self, message: str, *, option: str, value: object = None, allowed: str = "", remedy: str = "") -> None:
        super().__init__(message, detail=f"allowed {allowed}" if allowed else "", remedy=remedy)
        self.option = option
        self.value = value
        self.allowed = allowed


class CaptureError(IpuError):
    """The model cannot be captured as one graph; torch's own reason is kept as ``__cause__``."""


class UnsupportedOpError(CaptureError, NotImplementedError):
    """An op has no record in the op table (under ``strict_ops``), or has none for this dtype."""


class ConstraintError(CaptureError, ValueError):
    """The op is supported, but not in this configuration."""


class PlacementError(IpuError):
    """An unknown block, a gap in the stages, or an IPU that the target does not have."""


class ReportError(IpuError):
    """A file of a report is damaged, empty, foreign or newer."""


class OnnxError(IpuError, ValueError):
    """An ONNX file is damaged, incomplete or not what it says, or its inputs are not those of the model.

    Args:
        message: What is wrong.
        file: Path of the file.
    """

    def __init__(self, message: str, *, file: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.file = file


class ScheduleError(IpuError):
    """The schedule cannot be built or is not valid; ``detail`` holds the grid with an arrow at the fault."""


class OutOfTileMemoryError(IpuError, MemoryError):
    """The fullest tile does not hold what the program needs.

    Args:
        message: What is wrong.
        ipu: IPU of the fullest tile.
        tile: Its number on that IPU.
        needed_bytes: Bytes that the tile needs.
        available_bytes: Bytes that the tile has.

    Attributes:
        tried: What was tried against it, best first: what to set as it is written, the bytes that it frees of the
            fullest tile, and whether the program then fits. Empty where nothing was tried, or nothing helps.
    """

    def __init__(
        self, message: str, *, ipu: int, tile: int, needed_bytes: int, available_bytes: int, detail: str = "",
        remedy: str = "",
    ) -> None:
        super().__init__(message, detail=detail, remedy=remedy)
        self.ipu = ipu
        self.tile = tile
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.tried: tuple[tuple[str, int, bool], ...] = ()


class VerifyError(IpuError, AssertionError):
    """An invariant of the IR does not hold: a defect of torchipu.

    Args:
        message: The broken invariant.
        after: The pass after which it was found.
        context: About ten lines of the IR around the fault.
    """

    def __init__(self, message: str, *, after: str = "", context: str = "") -> None:
        where = f" after pass {after!r}" if after else ""
        super().__init__(
            f"invariant broken{where}: {message}", detail=context,
            remedy="this is a defect of torchipu: report it with the text above and TORCHIPU_DUMP=<dir> output",
        )
        self.after = after


class InternalError(IpuError, RuntimeError):
    """A stage of the compiler failed in a way that none should: a defect of torchipu; its own error is the cause.

    Args:
        failure: The stage, and what it raised.
        script: Path of a script that repeats the failure; None if there is none.
        reason: Why there is none.
    """

    def __init__(self, failure: str, *, script: str | None, reason: str = "") -> None:
        remedy = f"report it with this script, which repeats it and holds no weights: {script}" if script else \
            f"report it with the model (a script that repeats it could not be written: {reason})"
        super().__init__(f"defect of torchipu in stage {failure}", remedy=remedy)
        self.script = script


class DeviceProgramError(IpuError, AssertionError):
    """A device program does what no IPU may: reads what nobody wrote, leaves out a sync, loses a stash."""


class ExecutionError(IpuError):
    """A trap at run time: a bad index, a value out of range, a non-finite number, an empty stream."""


class AssertionFailedError(ExecutionError, RuntimeError):
    """An assertion of the model does not hold: a RuntimeError in the words of the assertion, as in eager PyTorch."""


class PeerError(IpuError, RuntimeError):
    """Another process of the group has gone, does not answer, has left a run halfway, or does not fit this one.

    Args:
        message: What is wrong.
        rank: The other process, by its rank in the group; -1 where several differ, or where it is not known.
    """

    def __init__(self, message: str, *, rank: int = -1, detail: str = "", remedy: str = "") -> None:
        super().__init__(message, detail=detail, remedy=remedy)
        self.rank = rank


class PeerMismatchError(PeerError, ValueError):
    """Processes that are to train together differ in what they have to agree on; all of them raise it.

    Args:
        message: What differs.
        field: Name of the first that does.
        values: What each rank has there.
    """

    def __init__(
        self, message: str, *, field: str, values: tuple[str, ...], detail: str = "", remedy: str = "",
    ) -> None:
        super().__init__(message, detail=detail, remedy=remedy)
        self.field = field
        self.values = values


class RendezvousError(IpuError, RuntimeError):
    """Processes that are to train together do not come together."""


class RowsError(IpuError, ValueError):
    """A file of measurements is damaged.

    Args:
        message: What is wrong.
        file: Name of the file.
        line: Number of the line, from 1.
        column: Heading of the column.
    """

    def __init__(self, message: str, *, file: str, line: int | None = None, column: str = "") -> None:
        place = file + (f", line {line}" if line else "") + (f", column {column}" if column else "")
        super().__init__(f"{place}: {message}", remedy="restore the file, or correct the line")
        self.file = file
        self.line = line
        self.column = column
