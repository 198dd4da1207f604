"""How many lines of the package tests reach: ``python -m tests.reliability reached``, on Python 3.12 and later.

Lines of functions count, those of modules and classes run when they are imported. Kernels have none: they are compiled.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

from tests.reliability.runs import Found
from tests.repeats import is_left_out
from tests.repeats.__main__ import read
from tests.repeats.recording import REACHED

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "torchipu"
PARTS = {"readers": "stored", "cache": "cache", "memory": "device/memory", "schedule": "device/schedule.py"}
"""Files and folders of the package that are told by themselves, by what they are."""


def run(size: int) -> Found:
    """Run all tests that are not thorough, so many times over, and return how many lines there are and are reached.

    Raises:
        RuntimeError: This Python does not tell of lines.
    """
    if sys.version_info < (3, 12):
        raise RuntimeError("lines are told from Python 3.12 on: make reliability VENV=another PYTHON=python3.13")
    command = ["-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", "-p", "tests.repeats.recording"]
    for _ in range(size):
        subprocess.run([sys.executable, *command], cwd=ROOT, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return share()


def share(folder: Path = REACHED) -> Found:
    """Return how many lines there are, and are reached by tests that are not left out: in all, and of ``PARTS``."""
    by_test, _, _ = read(folder)
    reached = {line for test, lines in by_test.items() if not is_left_out(test) for line in lines}
    found: Found = {}
    for name, part in {"all": "", **PARTS}.items():
        place = PACKAGE / part
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        there = {f"{file}:{line}" for file in files for line in lines_of(file)}
        found |= {f"{name} lines": len(there), f"{name} reached": len(there & reached)}
    return found


def lines_of(file: Path) -> set[int]:
    """Return the lines of a file that run within functions."""
    module = compile(file.read_text(encoding="utf-8"), file, "exec")
    return {line for code in _functions(module) for line in _told(code)}


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_OPTIMIZED:
                yield constant
            yield from _functions(constant)


def _told(code: CodeType) -> set[int]:
    """Return the lines of a function that are told when they run: not the one that begins it, but of one line."""
    lines = {line for _, _, line in code.co_lines() if line is not None}
    return lines if len(lines) == 1 else lines - {code.co_firstlineno}
