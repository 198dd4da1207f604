"""The tables of a ``.pvti``: a SQLite database of spans and samples of the processes of a program."""

from __future__ import annotations

FORMAT, VERSION = "torchipu.pvti", 1
SUFFIX = ".pvti"
TABLES = (
    "CREATE TABLE format (name TEXT NOT NULL, version INTEGER NOT NULL)",
    # began: microseconds since 1970, when the clock of the other tables was 0.
    "CREATE TABLE processes (pid INTEGER NOT NULL, name TEXT NOT NULL, began INTEGER NOT NULL)",
    "CREATE TABLE threads (tid INTEGER NOT NULL, name TEXT NOT NULL)",
    "CREATE TABLE channels (number INTEGER NOT NULL, name TEXT NOT NULL)",
    # begin, end: nanoseconds.
    'CREATE TABLE events (tid INTEGER NOT NULL, channel INTEGER NOT NULL, label TEXT NOT NULL, "begin" INTEGER NOT '
    'NULL, "end" INTEGER NOT NULL)',
    "CREATE TABLE samples (graph TEXT NOT NULL, unit TEXT NOT NULL, series TEXT NOT NULL, at INTEGER NOT NULL, "
    "value REAL NOT NULL)",
)
