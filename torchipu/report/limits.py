"""Limits of figures, for a run that nobody watches: ``max_tile>95%`` is a failure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchipu.errors import ReportError, nearest

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}
MAX_TILE = "max_tile"
"""Beside the figures of a summary: the share of its memory to which the fullest tile is filled."""
_WRITTEN = re.compile(r"\s*(?P<name>[\w.-]+)\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<value>[\d_.eE+-]+)\s*(?P<percent>%?)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """What a figure may not be.

    Attributes:
        text: As it is written.
        name: Of a figure of ``summary.json``, or ``max_tile``.
        sign: How the figure and the value are compared.
        value: A percentage as a share.
    """

    text: str
    name: str
    sign: str
    value: float

    def broken(self, summary: Mapping[str, Any]) -> str:
        """Return in words what is beyond the limit; nothing where it holds.

        Args:
            summary: As in ``summary.json``.

        Raises:
            ReportError: There is no such figure, or it is no number.
        """
        figures = {**summary, MAX_TILE: summary["fullest_tile_bytes"] / summary["tile_memory_bytes"]}
        if self.name not in figures:
            raise ReportError(
                f"--fail-if {self.text}: there is no figure {self.name!r}{nearest(self.name, figures)}",
                remedy="name max_tile or a figure of summary.json",
            )
        figure = figures[self.name]
        if not isinstance(figure, (int, float)):
            raise ReportError(
                f"--fail-if {self.text}: {self.name} is {figure!r}, which is no number", remedy="name another figure",
            )
        if not COMPARISONS[self.sign](figure, self.value):
            return ""
        return f"{self.name} is {figure:,.4g}, and may not be {self.sign} {self.value:,g} (--fail-if {self.text})"


def limit_of(text: str) -> Limit:
    """Return a limit.

    Args:
        text: A figure, a comparison and a number, which may be a percentage.

    Raises:
        ReportError: It is no limit.
    """
    found = _WRITTEN.fullmatch(text)
    try:
        value = float(found["value"]) if found else None
    except ValueError:
        value = None
    if found is None or value is None:
        raise ReportError(
            f"--fail-if expects a figure, one of {', '.join(COMPARISONS)}, and a number, got {text!r}",
            remedy="write it as in --fail-if 'max_tile>95%'",
        )
    return Limit(text, found["name"], found["sign"], value / 100 if found["percent"] else value)
