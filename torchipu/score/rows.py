"""Reads the rows: measurements of others, from ``measured/``; each knows its place, for what is wrong there."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchipu.errors import RowsError

FOLDER = Path(__file__).parent / "measured"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, by column.

    Attributes:
        file: Name of the file.
        number: Of the line, from 1 for that of the headings.
        values: Text by column.
    """

    file: str
    number: int
    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return what stands in a column.

        Raises:
            RowsError: There is no such column.
        """
        if column not in self.values:
            raise RowsError("there is no such column", file=self.file, line=self.number, column=column)
        return self.values[column]

    def number_in(self, column: str, *, or_zero: bool = False) -> float:
        """Return the number in a column, which is above 0: sizes, cycles, bytes and rates are.

        Args:
            column: Its heading.
            or_zero: Whether it may be 0, as the cycles of a phase that does nothing.

        Raises:
            RowsError: There is no such column, or no such number.
        """
        written = self.text(column)
        try:
            value = float(written)
        except ValueError:
            value = math.nan
        if not (value > 0 or (or_zero and value == 0)) or math.isinf(value):
            raise RowsError(
                f"expected a number {'from' if or_zero else 'above'} 0, got {written!r}", file=self.file,
                line=self.number, column=column,
            )
        return value

    def size_in(self, column: str) -> int:
        """Return the whole number in a column.

        Raises:
            RowsError: There is no such column, or no whole number above 0.
        """
        value = self.number_in(column)
        if value != int(value):
            raise RowsError(
                f"expected a whole number, got {self.text(column)!r}", file=self.file, line=self.number, column=column,
            )
        return int(value)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    Attributes:
        name: Tells it from the others of its kind.
        measured: The number, in the unit of its kind.
        source: Who measured it.
        line: What else is known of it.
    """

    name: str
    measured: float
    source: str
    line: Line


@cache
def lines_of(path: Path) -> tuple[Line, ...]:
    """Return the lines of a file of rows.

    Raises:
        RowsError: The file is missing or empty, or a line has more or fewer columns than the headings.
    """
    return tuple(_read(path))


def _read(path: Path) -> Iterator[Line]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            headings = next(reader, None)
            if not headings:
                raise RowsError("the file is empty", file=path.name, line=1)
            for cells in reader:
                if len(cells) != len(headings):
                    raise RowsError(
                        f"expected {len(headings)} columns, got {len(cells)}", file=path.name, line=reader.line_num,
                    )
                yield Line(path.name, reader.line_num, dict(zip(headings, cells, strict=True)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RowsError(f"cannot be read: {error}", file=path.name) from error
