"""Whether memcheck tells what a shared library does wrong from what others do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.reliability import memcheck
from tests.reliability.memcheck import findings

NEEDS_VALGRIND = pytest.mark.skipif(
    shutil.which("valgrind") is None or shutil.which("cc") is None, reason="needs valgrind and a C compiler"
)
SOURCE = """
#include <stdlib.h>
int sum(int count, int read) {
  int *values = malloc(sizeof(int) * count), total = 0;
  for (int i = 0; i < count; i++) values[i] = i;
  for (int i = 0; i < read; i++) total += values[i];
  free(values);
  return total;
}
"""


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """Return a shared library that reads where it is told to."""
    source, library = tmp_path / "sums.c", tmp_path / "sums.so"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-g", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@NEEDS_VALGRIND
@pytest.mark.parametrize(("read", "expected"), [(4, []), (5, ["InvalidRead"])])
def test_a_read_beyond_the_end_is_found_in_the_library_that_does_it(
    read: int, expected: list[str], sums: Path,
) -> None:
    program = f"import ctypes; ctypes.CDLL({str(sums)!r}).sum(4, {read})"
    status, kinds = findings(("-S", "-c", program), ours="sums.so")
    assert status == 0
    assert kinds == expected


ERROR = "<error><kind>InvalidRead</kind><stack><frame><obj>{}</obj></frame></stack></error>"


def test_what_comes_of_a_file_is_kept_as_it_ends_and_it_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unwatched(command: Sequence[str], said: Path) -> int:
        said.touch()
        environment = os.environ | {"SAID": str(said), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.run([sys.executable, *command], env=environment, check=False).returncode

    tests = {
        "clean": "pass",
        "fails": "raise ValueError",
        "finds": f"open(os.environ['SAID'], 'a').write({ERROR.format('/of/ours.so')!r})",
        "finds_others": f"open(os.environ['SAID'], 'a').write({ERROR.format('/of/others.so')!r})",
        "none": None,
        "broken": None,
        "ends": "os._exit(3)",
        "last": "pass",
    }
    for number, (name, body) in enumerate(tests.items()):
        text = f"import os\ndef test_it():\n    {body}\n" if body else "raise ValueError\n" if name == "broken" else ""
        (tmp_path / f"test_{name}.py").write_text(text + "#" * 200 * number)
    monkeypatch.setattr(memcheck, "TESTS", tmp_path)
    monkeypatch.setattr(memcheck, "_watched", unwatched)
    judged = tmp_path / "judged.jsonl"
    found = memcheck.run(100, judged, "ours.so")
    assert found == {"all files": 8, "files": 8, "tests": 4, "findings": 1, "failed": 3}
    of_each = {name: words for name, (_, words) in memcheck.Judged(judged).files.items()}
    assert of_each["test_finds.py"] == {"tests": 1, "findings": 1, "failed": 0}
    assert of_each["test_none.py"] == {"tests": 0, "findings": 0, "failed": 0}
    assert of_each["test_ends.py"] == {"tests": 0, "findings": 0, "failed": 1}
    assert of_each["test_last.py"] == {"tests": 1, "findings": 0, "failed": 0}

    again: list[list[str]] = []
    monkeypatch.setattr(memcheck, "_of_files", lambda paths, *_: again.append([path.name for path in paths]) or [])
    assert memcheck.run(100, judged) == found
    assert again == [["test_fails.py", "test_finds.py", "test_broken.py", "test_ends.py"]]
    (tmp_path / "test_clean.py").write_text("")
    memcheck.run(1, judged)
    assert again[1:] == [["test_clean.py"]]
