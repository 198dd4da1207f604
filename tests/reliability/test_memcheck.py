"""Whether memcheck tells what a shared library does wrong from what others do."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.reliability import memcheck
from tests.reliability.memcheck import findings

pytestmark = pytest.mark.skipif(
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


@pytest.mark.parametrize(("read", "expected"), [(4, []), (5, ["InvalidRead"])])
def test_a_read_beyond_the_end_is_found_in_the_library_that_does_it(
    read: int, expected: list[str], tmp_path: Path,
) -> None:
    source, library = tmp_path / "sums.c", tmp_path / "sums.so"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-g", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    program = f"import ctypes; ctypes.CDLL({str(library)!r}).sum(4, {read})"
    status, kinds = findings(("-S", "-c", program), ours="sums.so")
    assert status == 0
    assert kinds == expected


def test_a_run_that_was_broken_off_goes_on_behind_the_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[list[str]] = []

    def of_files(paths: Sequence[Path]) -> dict[str, int]:
        done.append([path.name for path in paths])
        if len(done) == 2:
            raise KeyboardInterrupt
        return {"files": len(paths), "findings": 3, "failed": 0}

    monkeypatch.setattr(memcheck, "AT_A_TIME", 2)
    monkeypatch.setattr(memcheck, "_of_files", of_files)
    with pytest.raises(KeyboardInterrupt):
        memcheck.run(5, tmp_path / "recorded", tmp_path / "judged")
    found = memcheck.run(5, tmp_path / "recorded", tmp_path / "judged")
    assert found == {"all files": len(memcheck.smallest_first()), "files": 5, "findings": 9, "failed": 0}
    names = [path.name for path in memcheck.smallest_first()[:5]]
    assert done == [names[:2], names[2:4], names[2:4], names[4:]]
