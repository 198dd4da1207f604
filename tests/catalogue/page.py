"""Writes the page of the catalogue from a run of its tests: each case, what its user is told, and the test.

    python -m tests.catalogue.page docs/faults.md
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.raises import RaisesExc

from tests.catalogue.cases import CASES, PARTS, Case
from tests.catalogue.elsewhere import ELSEWHERE, OPEN

TESTS = Path(__file__).parents[1]
LEAST_WORDS = 3
"""Messages shorter than this many words tell a reader nothing: names of classes, numbers."""
_INTRODUCTION = """# Bad input and faults

Written by `python -m tests.catalogue.page docs/faults.md`, which runs the tests; do not edit. What is done to torchipu,
what its user gets, the first line of what is said, and the test that shows it. {tested} of {all} cases have a test;
{failed} of {run} tests failed in this run.
"""


class Heard:
    """A plugin of pytest that keeps the words of every error that a test waits for, and of `told`."""

    def __init__(self) -> None:
        self.words: dict[str, list[str]] = defaultdict(list)
        self.cases: dict[str, list[int]] = defaultdict(list)
        self.outcomes: dict[str, bool] = {}
        self.running = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Listen to `pytest.raises` while a test runs."""
        self.running = item.nodeid
        original = RaisesExc.__exit__

        def listening(raised: Any, kind: Any, value: Any, trace: Any) -> Any:
            result = original(raised, kind, value, trace)
            if result and value is not None:
                self.hear(str(getattr(value, "inner_exception", None) or value))
            return result

        RaisesExc.__exit__ = listening  # type: ignore[method-assign]
        try:
            return (yield)
        finally:
            RaisesExc.__exit__ = original  # type: ignore[method-assign]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test recorded, and whether it passed."""
        if report.when == "call" or report.failed:
            self.outcomes[report.nodeid] = report.passed
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == "case":
                self.cases[report.nodeid].append(int(str(value)))
            elif name == "told":
                self.running = report.nodeid
                self.hear(str(value))

    def hear(self, text: str) -> None:
        """Keep the first line of a message."""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines and len(lines[0].split()) >= LEAST_WORDS:
            self.words[self.running].append(lines[0])


def page_of(heard: Heard) -> str:
    """Return the page for a run."""
    tests: dict[int, list[str]] = defaultdict(list)
    for node, numbers in heard.cases.items():
        for number in numbers:
            tests[number].append(node)
    for number, names in ELSEWHERE.items():
        prefixes = tuple(f"tests/{name.replace('::', '::test_')}" for name in names)
        tests[number] += [node for node in heard.outcomes if node.partition("[")[0] in prefixes]
    failed = sum(not passed for passed in heard.outcomes.values())
    lines = [_INTRODUCTION.format(
        tested=len(CASES) - len(OPEN), all=len(CASES), failed=failed, run=len(heard.outcomes),
    )]
    for part in PARTS:
        lines += [f"## {part}", "", "| | case | outcome | says | test |", "| --- | --- | --- | --- | --- |"]
        lines += [_row(case, tests[case.number], heard) for case in CASES.values() if case.part == part]
        lines.append("")
    return "\n".join(lines)


def _row(case: Case, nodes: list[str], heard: Heard) -> str:
    said = list(dict.fromkeys(word for node in nodes for word in heard.words[node]))
    shown = "; ".join(f"`{_plain(word)}`" for word in said[:2])
    names = dict.fromkeys(node.partition("[")[0] for node in nodes)
    links = ", ".join(f"[{name.rpartition('::test_')[2]}](../{name.partition('::')[0]})" for name in names)
    return f"| {case.number} | {case.what} | {case.outcome} | {shown} | {links or 'none yet'} |"


def _plain(words: str) -> str:
    """Return a message without what differs from machine to machine, fit for a cell of a table."""
    words = words.replace(str(TESTS.parent) + "/", "").replace("|", "\\|").replace("`", "'")
    words = re.sub(r"/tmp/\S*/", ".../", words)
    words = re.sub(r"0x[0-9a-f]+", "0x...", words)
    return words if len(words) <= 160 else words[:157] + "..."


def main(path: str) -> int:
    """Run the tests of the catalogue and write the page."""
    named = {f"tests/{name.replace('::', '::test_')}" for names in ELSEWHERE.values() for name in names}
    heard = Heard()
    status = pytest.main(["-q", "--thorough", "-p", "no:xdist", "tests/catalogue", *sorted(named)], plugins=[heard])
    Path(path).write_text(page_of(heard), encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
