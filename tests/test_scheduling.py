"""A process of pytest that dies costs the test in which it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.costs import costs
from tests.scheduling import SECONDS_OF_FIXTURES, longest

ROOT = Path(__file__).parents[1]
FILES = 5
DYING = """
import os
import pytest

@pytest.mark.parametrize("number", range(4))
def test_one(number):
    {folder}.joinpath("{file}." + str(number)).open("a").write("x")
    if ({file}, number) in {deaths}:
        os._exit(3)
"""

CONFTEST = """
from tests.scheduling import FileScheduling

def pytest_xdist_make_scheduler(config, log):
    return FileScheduling(config, log)
"""


def test_all_other_tests_run_once_and_the_run_ends(tmp_path: Path) -> None:
    folder, deaths = tmp_path / "ran", [(1, 2), (3, 3), (4, 0)]
    folder.mkdir()
    named = repr(folder).replace("PosixPath", "__import__('pathlib').Path")
    for file in range(FILES):
        (tmp_path / f"test_{file}.py").write_text(DYING.format(folder=named, file=file, deaths=deaths))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )
    assert f"{len(deaths)} failed, {4 * FILES - len(deaths)} passed" in done.stdout
    assert all(f"crashed while running 'test_{file}.py::test_one[{number}]'" in done.stdout for file, number in deaths)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        f"{file}.{number}": "x" for file in range(FILES) for number in range(4)
    }


def test_a_file_of_few_long_tests_begins_before_one_of_many_short_ones() -> None:
    seconds, file, name = max((value, file, name) for file, tests in costs().items() for name, value in tests.items())
    assert seconds > 2
    files = {"short.py": ["one"] * 50, file: [f"{file}::{name}[case]"], "many.py": ["one"] * 99}
    assert longest(files) == file
    del files[file]
    assert longest(files) == "many.py"
    assert all((ROOT / file).is_file() for file in SECONDS_OF_FIXTURES)
