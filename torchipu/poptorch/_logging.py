"""PopTorch's log: its levels, the layout of a line on stderr, and the limit on repeated lines."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

TRACE = 5
OFF = logging.CRITICAL + 10
LEVELS = {
    "TRACE": TRACE, "DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERR": logging.ERROR,
    "OFF": OFF,
}
_INTERNAL_LEVELS = {"TRACE_ALL": TRACE, "DEBUG_IR": logging.DEBUG}
_LEVEL_BY_NUMBER = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERR", 6: "OFF"}
UNLIMITED_REPEATS = 2**64 - 1
LEVEL_VARIABLE, DESTINATION_VARIABLE = "POPTORCH_LOG_LEVEL", "POPTORCH_LOG_DEST"
_COLOURS = {TRACE: 37, logging.DEBUG: 36, logging.INFO: 32, logging.WARNING: 33, logging.ERROR: 31}

logging.addLevelName(TRACE, "TRACE")
logger = logging.getLogger("poptorch::python")


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to what ``sys.stderr`` is at that moment, or where ``POPTORCH_LOG_DEST`` says."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self._file: TextIO | None = None
        self._refused = ""

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Where lines go."""
        destination = os.environ.get(DESTINATION_VARIABLE, "")
        if destination in ("", "stderr"):
            return sys.stderr
        if destination == "stdout":
            return sys.stdout
        if destination == self._refused:
            return sys.stderr
        if self._file is None or self._file.name != destination:
            try:
                self._file = open(destination, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the process
            except OSError as error:
                self._refused = destination
                sys.stderr.write(f"{DESTINATION_VARIABLE}: lines of the log go to stderr: {error}\n")
                return sys.stderr
        return self._file


class _Layout(logging.Formatter):
    """``[HH:MM:SS.mmm] [poptorch::python] [level] message``, with colours on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        time = f"{self.formatTime(record, '%H:%M:%S')}.{int(record.msecs):03d}"
        level = record.levelname.lower()
        if sys.stdout.isatty() and sys.stderr.isatty():
            level = f"\033[{_COLOURS.get(record.levelno, 31)}m{level}\033[0m"
        line = f"[{time}] [{record.name}] [{level}] {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _RepeatFilter(logging.Filter):
    """Drops a line that follows its like, once it has come often enough."""

    def __init__(self) -> None:
        super().__init__()
        self.max_repeats = UNLIMITED_REPEATS
        self._last: tuple[int, str] | None = None
        self._times = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record."""
        line = (record.levelno, record.getMessage())
        self._times = self._times + 1 if line == self._last else 1
        self._last = line
        if self._times == self.max_repeats + 1:
            record.msg, record.args = "%s (repeated messages suppressed)", (line[1],)
        return self._times <= self.max_repeats + 1


def setLogLevel(level: str | int) -> None:
    """Set from which level on lines are written.

    Args:
        level: TRACE, DEBUG, INFO, WARN, ERR or OFF, or 0, 1, 2, 3, 4 or 6 for these.

    Raises:
        ValueError: There is no such level.
    """
    if isinstance(level, int):
        if level not in _LEVEL_BY_NUMBER:
            raise ValueError(f"Invalid log level integer {level}")
        level = _LEVEL_BY_NUMBER[level]
    known = LEVELS | _INTERNAL_LEVELS
    if level not in known:
        *first, last = sorted(LEVELS)
        raise ValueError(f"Unknown log level: {level}. Valid values are {', '.join(first)} and {last}")
    logger.setLevel(known[level])


def setPopartLogLevel(level: str) -> None:
    """Set the level of the graph compiler's lines; here they are PopTorch's own.

    Args:
        level: As for `setLogLevel`, as text.

    Raises:
        ValueError: There is no such level.
    """
    if level not in LEVELS:
        raise ValueError(f"Level must be one of {', '.join(LEVELS)}")


def setMaxRepeats(max_repeats: int) -> None:
    """Set how often a line is written again when it follows its like.

    Args:
        max_repeats: How often.
    """
    _repeats.max_repeats = max_repeats


_handler = _Handler()
_handler.setFormatter(_Layout())
_repeats = _RepeatFilter()
_handler.addFilter(_repeats)
if not any(isinstance(handler, _Handler) for handler in logger.handlers):
    logger.addHandler(_handler)
_requested = os.environ.get(LEVEL_VARIABLE, "WARN")
try:
    setLogLevel(int(_requested) if _requested.isdigit() else _requested)
except ValueError as error:
    raise ValueError(f"{LEVEL_VARIABLE}: {error}") from None
