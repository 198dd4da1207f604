"""What tests take: processor seconds of a case of each, as ``pytest --record-costs`` last found them.

``tests/costs.json`` has them by file and name, those that take a while. They say which cases of long tests run unless
all are asked for (``tests/thorough.py``), and which files begin first (``tests/scheduling.py``).
"""

from __future__ import annotations

import json
import resource
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

RECORDED = Path(__file__).with_suffix(".json")
LEAST_SECONDS = 0.05
"""Tests that take less are not kept."""
_PROPERTY = "processor_seconds"


@cache
def costs() -> Mapping[str, Mapping[str, float]]:
    """Return seconds by file, as in ``tests/ops/test_norms.py``, and name of the test."""
    found: dict[str, dict[str, float]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def seconds_of(test: str) -> float:
    """Return what a case takes, by its node's name; 0 where nothing is recorded."""
    file, _, name = test.partition("[")[0].partition("::")
    return costs().get(file, {}).get(name, 0.0)


class Recorder:
    """Measures the tests that run, and puts them into the file in the place of what it said of them.

    Args:
        path: The file.
    """

    def __init__(self, path: Path = RECORDED) -> None:
        self.path, self.seconds, self._last = path, defaultdict[str, list[float]](list), 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Take the time of the test alone: its fixtures may be those of others too."""
        began = _processor_seconds()
        try:
            return (yield)
        finally:
            self._last = _processor_seconds() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Hand the time on with the report, which goes to the process that writes."""
        report = yield
        if call.when == "call":
            report.user_properties.append((_PROPERTY, self._last))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a test took that passed."""
        if report.when == "call" and report.passed:
            measured = [seconds for name, seconds in report.user_properties if name == _PROPERTY]
            self.seconds[report.nodeid.partition("[")[0]] += measured

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file; not in the processes that pytest-xdist starts."""
        if hasattr(session.config, "workerinput"):
            return
        kept = {f"{file}::{name}": seconds for file, tests in costs().items() for name, seconds in tests.items()}
        kept |= {test: fmean(seconds) for test, seconds in self.seconds.items() if seconds}
        self.path.write_text(written(kept), encoding="utf-8")


def written(seconds: Mapping[str, float]) -> str:
    """Return the text of a file of costs, a line a test, without those that take little or are no longer there."""
    by_file = defaultdict[str, dict[str, float]](dict)
    for test, value in sorted(seconds.items()):
        file, _, name = test.partition("::")
        if value >= LEAST_SECONDS and (RECORDED.parents[1] / file).exists():
            by_file[file][name] = round(value, 2)
    return json.dumps(by_file, indent=1) + "\n"


def _processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
