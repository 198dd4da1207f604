"""A report as a whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from torchipu.pva import enums
from torchipu.pva.compilation import Compilation
from torchipu.pva.contents import Contents
from torchipu.pva.execution import Execution
from torchipu.pva.lazy import print_length
from torchipu.pva.tables import Tables
from torchipu.report.database import VERSION
from torchipu.report.debug import Context, read_debug
from torchipu.report.directory import DEBUG

SDK = (3, 3, 0)
"""The SDK of Graphcore's whose names these are."""


class PoplarVersion(NamedTuple):
    """The SDK whose behaviour the program has.

    Attributes:
        major: First number.
        minor: Second number.
        point: Third number.
        packageHash: What stands in its place: the version of torchipu.
    """

    major: int
    minor: int
    point: int
    packageHash: str

    @property
    def string(self) -> str:
        """All of it."""
        return f"{self.major}.{self.minor}.{self.point} ({self.packageHash})"


class Version(NamedTuple):
    """Of the format of the file.

    Attributes:
        major: Rises where older readers cannot read it.
        minor: 0.
        point: 0.
        isUnstableFormat: Whether files may not be read by the next release.
    """

    major: int
    minor: int
    point: int
    isUnstableFormat: bool


class InstrumentationSettings:
    """How finely cycles are told; they come from a model, and nothing was instrumented."""

    ComputeInstrumentationLevel = enums.ComputeInstrumentationLevel
    ExternalExchangeInstrumentationLevel = enums.ExternalExchangeInstrumentationLevel

    @property
    def computeInstrumentationLevel(self) -> enums.ComputeInstrumentationLevel:
        """Cycles of compute sets are told for each tile."""
        return enums.ComputeInstrumentationLevel.Tile

    @property
    def externalExchangeInstrumentationLevel(self) -> enums.ExternalExchangeInstrumentationLevel:
        """Those of exchanges with other IPUs are not."""
        return enums.ExternalExchangeInstrumentationLevel.Off


class Report:
    """A report; each table of the file is read when something first needs it.

    Args:
        path: ``profile.pop``.
        contexts: Where its ops come from; None where that was not read.
    """

    def __init__(self, path: Path, contexts: Sequence[Context] = ()) -> None:
        self._contents = Contents(Tables(path))
        self._contexts = contexts

    @cached_property
    def compilation(self) -> Compilation:
        """The program."""
        return Compilation(self._contents)

    @cached_property
    def execution(self) -> Execution:
        """What runs when in an iteration."""
        return Execution(self._contents)

    @property
    def instrumentationSettings(self) -> InstrumentationSettings:
        """How finely cycles are told."""
        return InstrumentationSettings()

    @property
    def poplarVersion(self) -> PoplarVersion:
        """The SDK whose behaviour the program has, and the torchipu that made it."""
        return PoplarVersion(*SDK, f"torchipu {self._contents.tables.setting('torchipu', 'unknown')}")

    @property
    def version(self) -> Version:
        """Of the format of the file."""
        return Version(VERSION, 0, 0, isUnstableFormat=True)

    def listPrintLength(self, length: int) -> None:
        """Let lists print so many of their members, of all reports.

        Raises:
            ValueError: It is less than 0.
        """
        print_length(length)

    def __repr__(self) -> str:
        return f"Report({str(self._contents.tables.path)!r})"


def openReport(profile_path: str | os.PathLike[str], debug_path: str | os.PathLike[str] | None = None) -> Report:
    """Open a report.

    Args:
        profile_path: A ``profile.pop`` that torchipu wrote.
        debug_path: Its ``debug.cbor``; without one, that beside the profile, if there is one.

    Raises:
        FileNotFoundError: There is no such file.
        ReportError: One of them is empty, damaged, of another program, or of another version.
    """
    path = Path(profile_path)
    report = Report(path)
    beside = path.with_name(DEBUG)
    if debug_path is not None or beside.is_file():
        report._contexts = read_debug(beside if debug_path is None else Path(debug_path))
    return report
