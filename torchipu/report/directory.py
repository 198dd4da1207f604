"""The directory of a report: the files of one program, each complete or as it was before."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from torchipu.errors import ReportError
from torchipu.report.database import read_database, write_database
from torchipu.report.debug import Context, contexts_of, debug_bytes
from torchipu.report.facts.gather import Facts
from torchipu.report.json import write_whole
from torchipu.report.summary import summary_text
from torchipu.report.trace import trace_bytes

PROFILE, TRACE, SUMMARY, DEBUG = "profile.pop", "trace.json.gz", "summary.json", "debug.cbor"
LOCK = ".report.lock"


def write_directory(facts: Facts, folder: Path, contexts: Sequence[Context] | None = None) -> Path:
    """Write ``profile.pop``, ``debug.cbor``, ``trace.json.gz`` and ``summary.json``.

    Processes that write one directory take turns: what lies there in the end is all of the last.

    Args:
        facts: Of a program.
        folder: Where to; it is made.
        contexts: Where the ops come from, for ``debug.cbor``; None for what the tables say.

    Returns:
        ``profile.pop``.

    Raises:
        OSError: The directory cannot be written, or is full; files that were there are as before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK):
        write_database(facts, folder / PROFILE)
        _write_bytes(debug_bytes(tuple(contexts_of(facts)) if contexts is None else contexts), folder / DEBUG)
        _write_bytes(trace_bytes(facts), folder / TRACE)
        write_whole(summary_text(facts), folder / SUMMARY)
    return folder / PROFILE


def read_directory(path: Path) -> dict[str, Facts]:
    """Return the programs of a directory, or of those right below it, by their path; of one file, that one.

    Args:
        path: A ``profile.pop``, a directory that holds one, or one whose directories do.

    Raises:
        FileNotFoundError: There is no such directory.
        ReportError: It holds no profile, or one that cannot be read.
    """
    if path.is_file():
        return {str(path): read_database(path)}
    if not path.is_dir():
        raise FileNotFoundError(f"there is no report {path}")
    found = [path / PROFILE] if (path / PROFILE).is_file() else sorted(path.glob(f"*/{PROFILE}"))
    if not found:
        raise ReportError(
            f"{path} holds no {PROFILE}", remedy="give the directory that step.report(directory) or autoReport wrote",
        )
    return {str(one.parent): read_database(one) for one in found}


def _write_bytes(data: bytes, final: Path) -> None:
    partial = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(data)
        partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)
