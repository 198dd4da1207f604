"""The lines of torchipu that a process runs, by the test in which it does.

Python 3.12 tells of each line once and then lets the code run at its own speed; told to begin anew for each test, it
finds what each of twelve thousand tests reaches in the time that they take. Lines of modules and classes are left out:
they run once a process, in whichever test comes first.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from types import CodeType

PACKAGES = tuple(f"{Path(__file__).parents[2] / name}{os.sep}" for name in ("torchipu", "aliases"))
OUTSIDE = ""
"""Stands for the test where there is none."""


class Lines:
    """Notes each line of the package that runs; there is one in a process.

    Args:
        folder: Into which ``write`` puts a file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.test = folder, OUTSIDE
        self.reached = defaultdict[str, set[tuple[str, int]]](set)
        self._heard = dict[int, CodeType]()
        self._process = os.getpid()

    def begin(self) -> None:
        """Listen from now on."""
        watch = sys.monitoring
        watch.use_tool_id(watch.COVERAGE_ID, "lines that tests reach")
        watch.register_callback(watch.COVERAGE_ID, watch.events.PY_START, self._on_start)
        watch.register_callback(watch.COVERAGE_ID, watch.events.PY_RESUME, self._on_start)
        watch.register_callback(watch.COVERAGE_ID, watch.events.LINE, self._on_line)
        watch.set_events(watch.COVERAGE_ID, watch.events.PY_START | watch.events.PY_RESUME)

    def begin_test(self, name: str) -> None:
        """Tell of each line anew, and say that it runs in this test."""
        self.test = name
        heard, self._heard = self._heard, {}
        for code in heard.values():
            sys.monitoring.set_local_events(sys.monitoring.COVERAGE_ID, code, 0)
            self._hear(code)

    def write(self) -> None:
        """Write what was reached, unless this process was forked from the one that listens."""
        if os.getpid() != self._process:
            return
        found = {test: sorted(f"{file}:{line}" for file, line in lines) for test, lines in self.reached.items()}
        path = self.folder / f"lines-{self._process}.json"
        path.write_text(json.dumps(found), encoding="utf-8")

    def _hear(self, code: CodeType) -> None:
        self._heard[id(code)] = code
        sys.monitoring.set_local_events(sys.monitoring.COVERAGE_ID, code, sys.monitoring.events.LINE)

    def _on_start(self, code: CodeType, _: int) -> object:
        is_ours = code.co_filename.startswith(PACKAGES) and code.co_flags & inspect.CO_OPTIMIZED
        if is_ours and id(code) not in self._heard:
            self._hear(code)
        return sys.monitoring.DISABLE

    def _on_line(self, code: CodeType, line: int) -> object:
        self.reached[self.test].add((code.co_filename, line))
        return sys.monitoring.DISABLE
