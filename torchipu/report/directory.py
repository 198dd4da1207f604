"""The directory of a report: the files of one program, each complete or as it was before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from torchipu.errors import ReportError
from torchipu.report.database import read_database, write_database
from torchipu.report.debug import Context, contexts_of, debug_bytes
from torchipu.report.facts.gather import Facts
from torchipu.report.garbage import collected_seldom
from torchipu.report.json import write_whole
from torchipu.report.notes import APP, FRAMEWORK, with_notes
from torchipu.report.page import Compared, File, page_of
from torchipu.report.summary import summary_text
from torchipu.report.trace import trace_bytes

PROFILE, TRACE, SUMMARY, PAGE, DEBUG = "profile.pop", "trace.json.gz", "summary.json", "report.html", "debug.cbor"
COMPARISON = "compare.html"
"""The page of two reports, in the directory of the first."""
LOCK = ".report.lock"
HOLDS = {
    PAGE: "all of it as pictures and tables", PROFILE: "all tables, for SQLite and pva",
    DEBUG: "where each op comes from", TRACE: "an iteration on a time line, for ui.perfetto.dev",
    SUMMARY: "the figures, flat", APP: "what you wrote of the run", FRAMEWORK: "what a framework wrote of the run",
}
"""What is in each file of a report."""


def write_directory(facts: Facts, folder: Path, contexts: Sequence[Context] | None = None) -> Path:
    """Write ``profile.pop``, ``debug.cbor``, ``trace.json.gz``, ``summary.json`` and ``report.html``.

    Processes that write one directory take turns: what lies there in the end is all of the last. What an ``app.json``
    or ``framework.json`` there says of the run stands in the report too.

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
    facts = with_notes(facts, folder)
    with FileLock(folder / LOCK), collected_seldom():
        write_database(facts, folder / PROFILE)
        write_whole(debug_bytes(tuple(contexts_of(facts)) if contexts is None else contexts), folder / DEBUG)
        write_whole(trace_bytes(facts), folder / TRACE)
        write_whole(summary_text(facts), folder / SUMMARY)
        write_whole(page_of(facts, folder.resolve().name, files=_files(folder)), folder / PAGE)
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


def page_in(folder: Path, facts: Facts) -> Path:
    """Return ``report.html`` of a directory; it is written where the directory lacks it.

    Args:
        folder: With a ``profile.pop``.
        facts: What that holds.

    Raises:
        OSError: It is not there, and cannot be written.
    """
    page = folder / PAGE
    if not page.is_file():
        with FileLock(folder / LOCK):
            write_whole(page_of(facts, folder.resolve().name, files=_files(folder)), page)
    return page


def write_comparison(folder: Path, facts: Facts, other: Path, other_facts: Facts) -> Path:
    """Write the page of two reports, ``compare.html``, and return it.

    Args:
        folder: Directory of the first report, where the page goes.
        facts: What the first holds.
        other: Directory of the second.
        other_facts: What the second holds.

    Raises:
        OSError: The directory cannot be written.
    """
    titles = [one.resolve().name for one in (folder, other)]
    if titles[0] == titles[1]:  # such as training in two directories
        titles = ["/".join(one.resolve().parts[-2:]) for one in (folder, other)]
    page = folder / COMPARISON
    with FileLock(folder / LOCK):
        compared = Compared(titles[1], other_facts, _files(other))
        write_whole(page_of(facts, titles[0], compared, _files(folder)), page)
    return page


def _files(folder: Path) -> list[File]:
    """Return the files of a report with their sizes, but for the page, which is written last."""
    found = [(name, folder / name) for name in HOLDS if name == PAGE or (folder / name).is_file()]
    return [File(name, HOLDS[name], 0 if name == PAGE else path.stat().st_size) for name, path in found]
