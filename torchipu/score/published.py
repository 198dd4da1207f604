"""What others published of whole models and of single vertices, told by the numbers of the rows."""

from __future__ import annotations

from torchipu.score.rows import FOLDER, Line, Row, lines_of

FILE = FOLDER / "published.csv"


def lines_of_kinds(*kinds: str) -> tuple[Line, ...]:
    """Return the lines of some kinds of the file."""
    return tuple(line for line in lines_of(FILE) if line.text("kind") in kinds)


def row_of(line: Line, measured: float | None = None) -> Row:
    """Return a line as a row; what it measured is its value unless given."""
    name = f"{line.text('id')} {line.text('chip')} x{line.text('n_ipu')} {line.text('workload')}"
    details = f", {line.text('config')}" if line.text("config") else ""
    return Row(name + details, line.number_in("value") if measured is None else measured, line.text("source"), line)
