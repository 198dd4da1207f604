"""Writes the page of figures from what runs have recorded: ``python -m tests.reliability.page docs/reliability.md``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.reliability.__main__ import RECORDED
from tests.reliability.mutants.equal import EQUAL
from tests.reliability.rows import ROWS, Row
from tests.reliability.runs import RUNS

_INTRODUCTION = """# Reliability

Written by `make reliability`, from what the runs recorded in `tests/reliability/recorded`; do not edit. *Least* is what
each figure must be, *goal* what is aimed at, *today* what was found. Where a run was smaller than the full one, its row
says so; behind each run stands its day. A small size of each run is a test of its own, beside controls that show that
it would notice what is wrong. What is held by tests is held by all of them, `make test-all`.

| | figure | least | goal | today | how |
| ---: | --- | --- | --- | --- | --- |
"""
_ESCAPED = """
## Faults that no test notices

Those of figure 6: the file, its line as it is, what becomes of it, and, where no test could notice it, why. These too
count as not caught.

"""


def page(folder: Path = RECORDED) -> str:
    """Return the page for what a folder holds."""
    return _INTRODUCTION + "".join(f"| {number} | {row.what} | {row.least} | {row.goal} | {_today(row, folder)} | "
                                   f"{_how(row)} |\n" for number, row in enumerate(ROWS, start=1)) + _escaped(folder)


def _escaped(folder: Path) -> str:
    path = folder / "mutants.json"
    faults = json.loads(path.read_text(encoding="utf-8"))["found"]["escaped"] if path.exists() else []
    lines = [f"- {fault}" + (f". {EQUAL[fault]}" if fault in EQUAL else "") for fault in faults]
    return _ESCAPED + "\n".join(lines) + "\n" if lines else ""


def _today(row: Row, folder: Path) -> str:
    told = [_told(name, words, folder) for name, words in row.runs]
    if row.tests:
        told.append("held by tests" + row.said)
    elif row.said:
        told.append(row.said)
    return "; ".join(told)


def _told(name: str, words: str, folder: Path) -> str:
    path = folder / f"{name}.json"
    if not path.exists():
        return f"{name} not run"
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    text = words.format_map(kept["found"])
    if kept["size"] != RUNS[name].size:
        text += f" (size {kept['size']:,} of {RUNS[name].size:,})"
    text += f" ({kept['day']})"
    return f"**{text}**" if RUNS[name].failures(kept["found"]) else text


def _how(row: Row) -> str:
    names = list(dict.fromkeys(name for name, _ in row.runs))
    how = [f"`make reliability RELIABILITY_ARGS=\"{' '.join(names)}\"`"] if names else []
    return ", ".join([*how, *(f"[{path}](../tests/{path})" for path in row.tests)])


def main(path: str) -> None:
    """Write the page."""
    Path(path).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
