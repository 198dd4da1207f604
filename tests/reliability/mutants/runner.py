"""Runs tests with one fault in: a process that has imported torch forks for each, and the fork imports changed code."""

from __future__ import annotations

import ast
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType

from tests.reliability.mutants.equal import EQUAL
from tests.reliability.mutants.python import mutants, mutated
from tests.reliability.mutants.targets import FURTHER, NEAREST, PACKAGE
from tests.reliability.runs import Found

SECONDS = 240.0
"""Processor time of the tests of one fault; a fault that makes them go on for ever is noticed."""
STILL_SECONDS = 60.0
"""Without any processor time: a fault that makes them wait for ever is noticed, such as a lock that is never let go."""
LOOK_SECONDS = 0.2
TESTS = PACKAGE.parent / "tests"
JUDGED = Path(__file__).parents[1] / "recorded" / "mutants.jsonl"


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


def chosen(count: int, seed: int = 0, before: Collection[str] = ()) -> list[tuple[str, int]]:
    """Choose so many faults, as ``(file, number)``: in turn of each file, at random within it.

    Args:
        count: How many.
        seed: Which.
        before: Names of those of an earlier choice, which come first: code that changes does not choose all anew.
    """
    chance, by_file = random.Random(seed), {}
    for file in NEAREST:
        told = names(file)
        numbers = list(range(len(told)))
        chance.shuffle(numbers)
        by_file[file] = sorted(numbers, key=lambda number: told[number] in before)
    found = list[tuple[str, int]]()
    while len(found) < count and any(by_file.values()):
        found += [(file, numbers.pop()) for file, numbers in by_file.items() if numbers]
    return found[:count]


def names(file: str) -> list[str]:
    """Return each fault of a file in one line: the line of the source as it is, and what becomes of it.

    Lines have no numbers, so that a fault keeps its name when code is put before it. Equal ones are counted.
    """
    source = (PACKAGE / file).read_text(encoding="utf-8")
    lines, seen, found = source.splitlines(), Counter[str](), list[str]()
    for mutant in mutants(ast.parse(source)):
        name = f"{file}: `{lines[mutant.line - 1].strip()}`: {mutant.what}"
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


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
    looks, still, used = 0, 0, 0
    while looks * LOOK_SECONDS < 5 * SECONDS and still * LOOK_SECONDS < STILL_SECONDS:
        time.sleep(LOOK_SECONDS)
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status != 0
        before, used = used, _ticks_of(process)
        looks, still = looks + 1, still + 1 if used == before else 0
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return True


def _ticks_of(session: int) -> int:
    """Return the processor time of the processes of a session, in ticks; it stands where all of them wait."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == session:
            ticks += int(fields[11]) + int(fields[12])
    return ticks


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
    """What came of faults, kept in a file: a run that is broken off goes on where it stood.

    A fault that tests have noticed is not judged again while its file stays as it is. One that escaped is judged by
    every run, since a test may have been written for it; not where it is known that none can be.

    Args:
        path: Lines of JSON: name of a fault, version of its file, word.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.words = path, dict[str, tuple[str, str]]()
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                name, version, word = json.loads(line)
                self.words[name] = version, word

    def word(self, file: str, name: str) -> str | None:
        """Return the word for a fault of a file; None where it has to be judged."""
        version, word = self.words.get(name, ("", ""))
        is_settled = bool(word) and (word != "escaped" or name in EQUAL)
        return word if is_settled and version == _version(file) else None

    def of_its_day(self, name: str) -> str | None:
        """Return the word for a fault, whatever has become of its file since; None where it was never judged."""
        return self.words[name][1] if name in self.words else None

    def is_of_today(self, file: str, name: str) -> bool:
        """Whether a fault was judged in its file as it is."""
        return name in self.words and self.words[name][0] == _version(file)

    def keep(self, file: str, name: str, word: str) -> None:
        """Write down what came of a fault."""
        self.words[name] = _version(file), word
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps([name, *self.words[name]]) + "\n")

    def tidy(self) -> None:
        """Leave out faults of code that is no longer there, and sort the others."""
        there = {name for file in NEAREST for name in names(file)}
        kept = sorted((name, *words) for name, words in self.words.items() if name in there)
        self.path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


def _version(file: str) -> str:
    return hashlib.blake2b((PACKAGE / file).read_bytes(), digest_size=8).hexdigest()


@cache
def _sound(tests: tuple[str, ...]) -> bool:
    return not fails(tests)


def _judge(file: str, number: int) -> str:
    fault = PACKAGE / file, number
    if fails(NEAREST[file], fault):
        return "nearest"
    return "further" if fails(FURTHER, fault) else "escaped"


def _prepare_forks() -> None:
    import hypothesis  # noqa: F401 - imported once for all forks
    import numpy as np  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    loaded = {Path(module.__file__) for module in sys.modules.values() if getattr(module, "__file__", None)}
    assert not loaded & {PACKAGE / file for file in NEAREST}, "forks would not import it anew"


def run(size: int, seed: int = 0, path: Path = JUDGED, seconds: float = math.inf) -> Found:
    """Put so many faults in, one at a time.

    Args:
        size: How many.
        seed: Which.
        path: Where what came of them is kept.
        seconds: After which no more are judged: what came of the others in an earlier version of their files counts.

    Returns:
        mutants: How many.
        nearest: How many the tests nearest to them noticed.
        caught: How many those or the further ones noticed.
        unsound: Files whose tests fail without a fault, and which were left out.
        as it is: How many were put into the version of their file that there is.
        escaped: Names of those that no test noticed.
    """
    _prepare_forks()
    judged, words, unsound, escaped = Judged(path), Counter[str](), set[str](), list[str]()
    begun, of_today = time.monotonic(), 0
    told = {file: names(file) for file in NEAREST}
    for file, number in chosen(size, seed, set(judged.words)):
        name = told[file][number]
        word = judged.word(file, name)
        if word is None and time.monotonic() - begun >= seconds:
            word = judged.of_its_day(name)
            if word is None:
                continue
        if word is None:
            if not (_sound(NEAREST[file]) and _sound(FURTHER)):
                unsound.add(file)
                continue
            word = _judge(file, number)
            judged.keep(file, name, word)
        words[word] += 1
        of_today += judged.is_of_today(file, name)
        if word != "nearest":
            print(f"{word}: {name}", flush=True)
        if word == "escaped":
            escaped.append(name)
    judged.tidy()
    caught = words["nearest"] + words["further"]
    return {"mutants": words.total(), "nearest": words["nearest"], "caught": caught, "unsound": len(unsound),
            "as it is": of_today, "escaped": sorted(escaped)}
