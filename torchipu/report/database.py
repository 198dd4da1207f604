"""``profile.pop``: the tables of a report as a SQLite database, complete or not there."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from torchipu.errors import ReportError
from torchipu.report.facts.gather import Facts
from torchipu.report.facts.rows import TABLES, Fact

FORMAT, VERSION = "torchipu.report", 4
MAGIC = b"SQLite format 3\x00"
"""How every SQLite database begins. Source: sqlite.org/fileformat2.html, section 1.3."""
COLUMN_TYPES = {"int": "INTEGER", "bool": "INTEGER", "float": "REAL", "str": "TEXT"}
_TYPES = {"int": int, "bool": int, "float": float, "str": str}
VIEWS = (
    'CREATE VIEW execution AS SELECT runs.number AS run, runs.ipu, runs."begin" + steps."begin" AS started, steps.* '
    "FROM runs JOIN steps ON steps.function = runs.function ORDER BY runs.number, steps.number",
)
"""Every step of an iteration, as often as its function runs."""


def write_database(facts: Facts, final: Path) -> None:
    """Write the tables to a file, which is either complete or as it was before.

    Args:
        facts: The tables.
        final: The file; its folder is made.

    Raises:
        OSError: The folder cannot be written.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}.{os.getpid()}.part")
    partial.unlink(missing_ok=True)
    try:
        with _said(final), closing(sqlite3.connect(partial)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("CREATE TABLE format (name TEXT NOT NULL, version INTEGER NOT NULL)")
            connection.execute("INSERT INTO format VALUES (?, ?)", (FORMAT, VERSION))
            for name, row in TABLES.items():
                connection.execute(f"CREATE TABLE {name} ({', '.join(_columns(row))})")
                marks = ", ".join("?" for _ in row._fields)
                connection.executemany(f"INSERT INTO {name} VALUES ({marks})", facts.tables[name])
            for view in VIEWS:
                connection.execute(view)
            connection.commit()
        partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _said(final: Path) -> Iterator[None]:
    """Let an error of the database be one of the system, with the name of the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(f"{final} cannot be written: {error}") from error


def read_database(path: Path) -> Facts:
    """Return the tables of a file.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is none.
        ReportError: It is empty, damaged, of another program, or of a newer version.
    """
    with opened(path) as connection:
        return Facts({name: tuple(_rows(connection, name, row)) for name, row in TABLES.items()})


def read_table(path: Path, name: str) -> tuple[Any, ...]:
    """Return the rows of one table of a file.

    Args:
        path: The file.
        name: Of the table, one of `TABLES`.

    Raises:
        FileNotFoundError: There is none.
        ReportError: As of `read_database`.
    """
    with opened(path) as connection:
        return tuple(_rows(connection, name, TABLES[name]))


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file for reading; errors of the database within are those of a damaged file.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is none.
        ReportError: As of `read_database`.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no profile {path}")
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
    if not begin:
        raise _refused(path, "is empty", "the run that wrote it was stopped: run it again")
    if begin != MAGIC:
        raise _refused(path, "is no profile of torchipu", "give a profile.pop that torchipu wrote, or its directory")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            _check_format(connection, path)
            yield connection
    except (sqlite3.DatabaseError, TypeError, ValueError, RecursionError) as error:
        raise _refused(path, f"is damaged: {error}", "run the program again with its report on") from error


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    held = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'format'").fetchone()[0]
    found = connection.execute("SELECT name, version FROM format").fetchone() if held else None
    if found is None or found[0] != FORMAT:
        raise _refused(
            path, "is a database, but no profile of torchipu", "give a profile.pop that torchipu wrote; those of "
            "PopVision have a format of their own, which is not public",
        )
    if found[1] != VERSION:
        raise _refused(
            path, f"has version {found[1]} of the format, and this torchipu reads {VERSION}",
            "use the torchipu that wrote it, or a newer one" if found[1] > VERSION else "write it again",
        )


def _rows(connection: sqlite3.Connection, name: str, row: type[Any]) -> Iterator[NamedTuple]:
    """Yield the rows of a table.

    Raises:
        TypeError: A value has another type than its column: SQLite does not look when it reads.
        ValueError, RecursionError: A fact is no JSON.
    """
    kinds = _kinds(row)
    flags = [index for index, kind in enumerate(kinds) if kind == "bool"]
    expected = tuple(_TYPES[kind] for kind in kinds)
    columns = ", ".join(f'"{column}"' for column in row._fields)
    for values in connection.execute(f"SELECT {columns} FROM {name} ORDER BY rowid"):
        if (found := tuple(map(type, values))) != expected:
            at = next(index for index, kind in enumerate(found) if kind is not expected[index])
            raise TypeError(f"{row._fields[at]} of {name} is {values[at]!r:.40}, no {kinds[at]}")
        held = list(values)
        for index in flags:
            held[index] = bool(held[index])
        made = row._make(held)
        if isinstance(made, Fact):
            json.loads(made.value)
        yield made


def _columns(row: type[NamedTuple]) -> list[str]:
    return [f'"{name}" {COLUMN_TYPES[kind]} NOT NULL' for name, kind in zip(row._fields, _kinds(row), strict=True)]


def _kinds(row: type[NamedTuple]) -> list[str]:
    hints = get_type_hints(row)
    return [hints[name].__name__ for name in row._fields]


def _refused(path: Path, what: str, remedy: str) -> ReportError:
    return ReportError(f"{path} {what}", remedy=remedy)
