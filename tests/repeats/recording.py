"""Record which lines each test reaches: ``pytest -p tests.repeats.recording``, on Python 3.12 and later.

Writes what the process and those that its tests start reach, and how long each test keeps the process, into
``build/reached``: nothing else should run beside.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repeats import FOLDER
from tests.repeats.lines import Lines
from tests.thorough import stays

REACHED = Path(__file__).parents[2] / "build" / "reached"


class Recorder:
    """Tells the lines of a process which test runs, and takes the time of each, with its fixtures and its waits."""

    def __init__(self) -> None:
        self.lines, self.seconds, self.staying = Lines(REACHED), defaultdict[str, float](float), set[str]()
        self.lines.begin()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Begin a test anew."""
        self.lines.begin_test(item.nodeid)
        if stays(item):
            self.staying.add(item.nodeid.partition("[")[0])
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] += time.monotonic() - began
            self.lines.begin_test("")

    def pytest_sessionfinish(self) -> None:
        """Write it all."""
        self.lines.write()
        for name, found in ("seconds", self.seconds), ("staying", sorted(self.staying)):
            (REACHED / f"{name}-{os.getpid()}.json").write_text(json.dumps(found), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Begin, and have processes that tests start do the same; a process that hands tests out runs none."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        shutil.rmtree(REACHED, ignore_errors=True)
        REACHED.mkdir(parents=True)
    if is_worker or not config.getoption("numprocesses", None):
        os.environ[FOLDER] = str(REACHED)
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([path] if path else [])])
        config.pluginmanager.register(Recorder())
