"""The kernels under memcheck of valgrind: reads of what nobody has written, and beyond what was asked.

``python -m tests.reliability memcheck --size 30`` runs the tests of so many files below ``tests/kernels``, the smallest
first. What came of a file is kept as it ends, with the version of its tests, so that a run which is broken off goes on
behind it. Valgrind knows no AVX-512, so that they run with AVX2, fifty times as slowly as by themselves. To import
torch alone takes minutes so, which all files of a process share. The interpreter and torch are not clean, by design:
what counts is findings with a kernel of ours among the callers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).parents[1] / "kernels"
JUDGED = Path(__file__).parent / "recorded" / "memcheck.jsonl"
OURS = "_kernels/abi."
"""Part of the path of the extension module, which holds all kernels."""
OTHERS = ("*/libpython*", "*/bin/python*", "*/lib-dynload/*", "*/torch/lib/*", "*/numpy/*")
"""Files whose own findings are not told: of so many that valgrind would look for no more."""
SIZES = (1, 2, 4, 8, 16, 32)
KINDS = ("Cond", "Overlap", "Free", *(f"{kind}{size}" for kind in ("Value", "Addr") for size in SIZES))


def findings(command: Sequence[str], ours: str = OURS) -> tuple[int, list[str]]:
    """Run a Python command under memcheck.

    Args:
        command: Arguments of the interpreter.
        ours: Part of the path of a shared library.

    Returns:
        The status with which the command ended, and what kinds of findings have that library among the callers.

    Raises:
        FileNotFoundError: There is no valgrind.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said.xml"
        status = _watched(command, said)
        return status, kinds(said.read_bytes(), ours)


def _watched(command: Sequence[str], said: Path) -> int:
    """Run a Python command under memcheck, which writes what it finds into a file; return its status."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise FileNotFoundError("there is no valgrind: it is a package of most systems")
    # Memory of objects comes from malloc, one piece for each: a pool would hide where one ends.
    environment = os.environ | {"TORCHIPU_ISA": "avx2", "PYTHONMALLOC": "malloc", "TORCHIPU_CACHE": "0"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # each takes seconds to import
    spared = said.with_suffix(".supp")
    spared.write_text("".join(
        f"{{\n{kind} {obj}\nMemcheck:{kind}\nobj:{obj}\n}}\n" for kind in KINDS for obj in OTHERS
    ))
    watched = [
        valgrind, "--quiet", "--num-callers=20", "--error-limit=no", "--leak-check=no", "--child-silent-after-fork=yes",
        f"--suppressions={spared}", "--xml=yes", f"--xml-file={said}", sys.executable, *command,
    ]
    return subprocess.run(watched, env=environment, capture_output=True, check=False).returncode


def kinds(said: bytes, ours: str) -> list[str]:
    """Return the kind of each error in part of valgrind's XML that one of these callers is part of."""
    found = []
    for text in re.findall(rb"<error>.*?</error>", said, re.DOTALL):
        error = ElementTree.fromstring(text)
        kind = error.findtext("kind", "")
        is_leak = kind.startswith("Leak_")  # objects that live as long as the interpreter
        if not is_leak and any(ours in str(obj.text) for obj in error.iter("obj")):
            found.append(kind)
    return found


def smallest_first() -> list[Path]:
    """Return the files with tests of kernels in the order in which they run: a short run ends some of them."""
    return sorted(TESTS.glob("test_*.py"), key=lambda path: (path.stat().st_size, path.name))


class Judged:
    """What came of files of tests, by their names.

    Args:
        path: Lines of JSON: name of a file, version of it, and counts.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.files = path, dict[str, tuple[str, dict[str, int]]]()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            name, version, counts = json.loads(line)
            self.files[name] = version, counts

    def is_clean(self, path: Path) -> bool:
        """Whether a file was run as it is, without any finding or failure."""
        version, counts = self.files.get(path.name, ("", {}))
        return version == _version(path) and not counts["findings"] and not counts["failed"]

    def keep(self, path: Path, counts: dict[str, int]) -> None:
        """Write down what came of a file, and leave out those that are no longer there."""
        self.files[path.name] = _version(path), counts
        there = {one.name for one in path.parent.iterdir()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(
            json.dumps([name, *words]) + "\n" for name, words in sorted(self.files.items()) if name in there
        ), encoding="utf-8")


def _version(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def run(size: int, path: Path = JUDGED, ours: str = OURS) -> dict[str, int]:
    """Run the tests of so many files, the smallest first, but those that were run as they are.

    Args:
        size: How many files.
        path: Where what came of them is kept.
        ours: Part of the path of a shared library.

    Returns:
        files: With tests of kernels, that were run.
        all files: With tests of kernels.
        tests: That passed.
        findings: With a kernel among the callers.
        failed: Tests that failed, and files that did not end.
    """
    every = smallest_first()
    left = [one for one in every[:size] if not Judged(path).is_clean(one)]
    while left:
        left = _of_files(left, path, ours)
        if left:  # the process has ended in this one: the others begin behind it
            Judged(path).keep(left.pop(0), {"tests": 0, "findings": 0, "failed": 1})
    judged = Judged(path).files
    counts = [judged[one.name][1] for one in every if one.name in judged]
    return {"all files": len(every), "files": len(counts)} | {
        word: sum(one[word] for one in counts) for word in ("tests", "findings", "failed")
    }


def _of_files(paths: Sequence[Path], judged: Path, ours: str) -> list[Path]:
    """Run the tests of files in one process, which keeps what comes of each; return those that did not come to an end.
    """
    with tempfile.TemporaryDirectory() as folder:
        said, ended = Path(folder) / "said.xml", Path(folder) / "ended"
        ended.touch()
        told = map(str, (said, judged, ended, ours, *paths))
        _watched(("-m", "tests.reliability.memcheck", *told), said)
        names = ended.read_text(encoding="utf-8").splitlines()
        return [path for path in paths if path.name not in names]


class Files:
    """Plugin of pytest, in the process that valgrind watches: keeps what came of each file as it ends.

    Args:
        said: What valgrind writes.
        judged: Where what came of files is kept.
        ended: Gets the name of each.
        paths: The files.
        ours: Part of the path of a shared library.
    """

    def __init__(self, said: Path, judged: Path, ended: Path, paths: Sequence[Path], ours: str) -> None:
        self.said, self.judged, self.ended, self.ours = said, judged, ended, ours
        self.left, self.read, self.outcomes = list(paths), 0, Counter[str]()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that cannot be imported: no test of it runs."""
        path = next((path for path in self.left if path.name == Path(report.nodeid).name), None)
        if report.failed and path is not None:
            self.outcomes["failed"] += 1
            self.keep(path)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep files without any test for this instruction set."""
        with_tests = {item.path for item in session.items}
        for path in [path for path in self.left if path not in with_tests]:
            self.keep(path)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count tests that pass, and whatever fails."""
        if report.failed or (report.passed and report.when == "call"):
            self.outcomes[report.outcome] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Look whether a test was the last of its file."""
        result = yield
        if nextitem is None or nextitem.path != item.path:
            self.keep(item.path)
        return result

    def keep(self, path: Path) -> None:
        """Keep what came of the tests of a file."""
        said = self.said.read_bytes()
        found = kinds(said[self.read :], self.ours)
        counts = {"tests": self.outcomes["passed"], "findings": len(found), "failed": self.outcomes["failed"]}
        Judged(self.judged).keep(path, counts)
        with self.ended.open("a", encoding="utf-8") as ended:
            ended.write(f"{path.name}\n")
        self.left.remove(path)
        self.read = len(said)
        self.outcomes.clear()


def _main(said: str, judged: str, ended: str, ours: str, *paths: str) -> None:
    """Run the tests of files, one behind the other."""
    plugin = Files(Path(said), Path(judged), Path(ended), [Path(path) for path in paths], ours)
    # Of a limit of time nothing is left where all takes fifty times as long.
    words = ["-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-o", "timeout=0",
             "--continue-on-collection-errors"]
    pytest.main([*words, *paths], plugins=[plugin])


if __name__ == "__main__":
    _main(*sys.argv[1:])
