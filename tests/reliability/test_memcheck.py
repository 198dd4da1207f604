"""Whether memcheck tells what a shared library does wrong from what others do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

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
