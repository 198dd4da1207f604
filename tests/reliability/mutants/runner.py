"""Runs tests with one fault in: a process that has imported torch forks for each, and the fork imports changed code."""

from __future__ import annotations

import ast
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType

from tests.reliability.mutants.python import mutants, mutated
from tests.reliability.mutants.targets import FURTHER, NEAREST, PACKAGE

SECONDS = 240.0
"""Processor time of the tests of one fault; a fault that makes them go on for ever is noticed."""
TESTS = PACKAGE.parent / "tests"
JUDGED = PACKAGE.parent / "build" / "reliability" / "mutants.jsonl"


class _Changed(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Loads one module from a changed tree, and leaves all others alone."""

    def __init__(self, file: Path, number: int) -> None:
        relative = file.relative_to(PACKAGE.parent).with_suffix("")
        name = ".".join(relative.parts)
        super().__init__(name.removesuffix(".__init__"), str(file))
        self.number = number

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> object:
        """Answer for the one module."""
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, name: str) -> CodeType:
        """Compile the changed tree; no file of byte code is read or written."""
        return compile(mutated(Path(self.path).read_text(encoding="utf-8"), self.number), self.path, "exec")


def chosen(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Choose so many faults, as ``(file, number)``: in turn of each file, at random within it."""
    chance, by_file = random.Random(seed), {}
    for file in NEAREST:
        numbers = list(range(len(mutants(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))))))
        chance.shuffle(numbers)
        by_file[file] = numbers
    found = list[tuple[str, int]]()
    while len(found) < count and any(by_file.values()):
        found += [(file, numbers.pop()) for file, numbers in by_file.items() if numbers]
    return found[:count]


def describe(file: str, number: int) -> str:
    """Return a fault in one line."""
    mutant = mutants(ast.parse((PACKAGE / file).read_text(encoding="utf-8")))[number]
    return f"{file}:{mutant.line} #{number} {mutant.what}"


def fails(tests: Sequence[str], fault: tuple[Path, int] | None = None) -> bool:
    """Whether one of the tests fails, in a fork of this process, which must not have imported the package.

    Args:
        tests: Paths below ``tests``.
        fault: File and number; None for the code as it is.
    """
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        _become_tests([str(TESTS / test) for test in tests], fault)
    begun, used, status = time.monotonic(), 0.0, None
    while status is None:
        time.sleep(0.2)
        ended, code = os.waitpid(process, os.WNOHANG)
        status = code if ended else None
        used = time.monotonic() - begun
        if status is None and used > 5 * SECONDS:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return True
    return status != 0


def _become_tests(paths: list[str], fault: tuple[Path, int] | None) -> None:
    import resource

    import pytest

    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS), int(SECONDS)))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    if fault is not None:
        sys.meta_path.insert(0, _Changed(*fault))
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
    status = 1
    try:
        status = int(pytest.main([*words, *paths]))
    finally:
        os._exit(status)


class Judged:
    """What came of faults, kept in a file: a run that is broken off goes on where it stood."""

    def __init__(self, path: Path) -> None:
        self.path, self.words = path, dict[str, str]()
        if path.exists():
            self.words = dict(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())

    def word(self, file: str, number: int | None, judge: Callable[[], str]) -> str:
        """Return the word for a fault, or for the code as it is; a changed file is judged anew."""
        digest = hashlib.blake2b((PACKAGE / file).read_bytes(), digest_size=8).hexdigest()
        key = f"{file} {digest} {number}"
        if key not in self.words:
            self.words[key] = judge()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([key, self.words[key]]) + "\n")
        return self.words[key]


def _unharmed(file: str) -> str:
    return "fails anyway" if fails(NEAREST[file]) else "sound"


def _judge(file: str, number: int) -> str:
    fault = PACKAGE / file, number
    if fails(NEAREST[file], fault):
        return "nearest"
    return "further" if fails(FURTHER, fault) else "escaped"


def run(size: int, seed: int = 0, path: Path = JUDGED) -> dict[str, int]:
    """Put so many faults in, one at a time.

    Args:
        size: How many.
        seed: Which.
        path: Where what came of them is kept.

    Returns:
        mutants: How many.
        nearest: How many the tests nearest to them noticed.
        caught: How many those or the further ones noticed.
        unsound: Files whose tests fail without a fault, and which were left out.
    """
    import numpy as np  # noqa: F401 - imported once for all forks
    import torch  # noqa: F401

    loaded = {Path(module.__file__) for module in sys.modules.values() if getattr(module, "__file__", None)}
    assert not loaded & {PACKAGE / file for file in NEAREST}, "forks would not import it anew"
    judged, words, unsound = Judged(path), Counter[str](), set[str]()
    for file, number in chosen(size, seed):
        if file in unsound or judged.word(file, None, partial(_unharmed, file)) != "sound":
            unsound.add(file)
            continue
        word = judged.word(file, number, partial(_judge, file, number))
        words[word] += 1
        if word != "nearest":
            print(f"{word}: {describe(file, number)}", flush=True)
    caught = words["nearest"] + words["further"]
    return {"mutants": words.total(), "nearest": words["nearest"], "caught": caught, "unsound": len(unsound)}
