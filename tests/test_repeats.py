"""Tests that repeat others: what is chosen to run reaches what all reach, and each process tells what it reaches."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import repeats
from tests.repeats.__main__ import chosen, read
from torchipu import errors

HERE = Path(__file__).parent
LINES = {
    "tests/test_step.py::test_all": "abcdef",
    "tests/test_step.py::test_some": "abc",
    "tests/test_step.py::test_others": "def",
    "tests/test_cli.py::test_twice": "abcdef",
    "tests/test_cli.py::test_own": "g",
    "tests/test_cli.py::test_nothing": "",
}
SECONDS = dict(zip(LINES, (9.0, 1.0, 1.0, 4.0, 7.0, 0.5), strict=True))


@pytest.mark.parametrize("times", [1, 2, 3, 9])
def test_each_line_is_reached_so_often_or_by_all_that_reach_it(times: int) -> None:
    running = chosen(LINES, SECONDS, times)
    everywhere = Counter(line for reached in LINES.values() for line in reached)
    here = Counter(line for test in running for line in LINES[test])
    assert here.keys() == everywhere.keys()
    assert all(here[line] >= min(times, count) for line, count in everywhere.items())


def test_those_run_that_take_least_for_what_they_reach_and_one_that_reaches_nothing_does_not() -> None:
    assert {test.rpartition("_")[2] for test in chosen(LINES, SECONDS, 1)} == {"some", "others", "own"}
    assert {test.rpartition("_")[2] for test in chosen(LINES, SECONDS, 2)} == {"some", "others", "own", "twice"}


def test_what_a_line_may_take_is_a_bound_for_those_that_nothing_else_reaches() -> None:
    assert {test.rpartition("_")[2] for test in chosen(LINES, SECONDS, 1, price=6.9)} == {"some", "others"}
    assert {test.rpartition("_")[2] for test in chosen(LINES, SECONDS, 1, price=7.0)} == {"some", "others", "own"}


def test_those_that_stay_count() -> None:
    stay = ["tests/test_step.py::test_all", "tests/test_cli.py::test_nothing"]
    assert chosen(LINES, SECONDS, 1, stay) == {*stay, "tests/test_cli.py::test_own"}


def test_lines_and_seconds_of_all_processes_and_cases_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "lines-1.json").write_text(json.dumps({"a.py::test_one[x]": ["f:1"], "": ["f:9"]}))
    (tmp_path / "lines-2.json").write_text(json.dumps({"a.py::test_one[y]": ["f:2"]}))
    (tmp_path / "seconds-1.json").write_text(json.dumps({"a.py::test_one[x]": 1.0, "a.py::test_one[y]": 2.0}))
    (tmp_path / "staying-1.json").write_text(json.dumps(["a.py::test_one"]))
    assert read(tmp_path) == ({"a.py::test_one": {"f:1", "f:2"}}, {"a.py::test_one": 3.0}, {"a.py::test_one"})


def test_only_tests_that_are_named_are_left_out_whatever_their_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(repeats.FOLDER, raising=False)
    monkeypatch.setattr(repeats, "_left", lambda: {"tests/test_step.py": frozenset({"test_one"})})
    assert repeats.repeats_others("tests/test_step.py::test_one[3-a]")
    assert not repeats.repeats_others("tests/test_step.py::test_other")
    assert not repeats.repeats_others("tests/test_cli.py::test_one")
    monkeypatch.setenv(repeats.FOLDER, "some")
    assert not repeats.repeats_others("tests/test_step.py::test_one")


def test_tests_that_are_left_out_exist() -> None:
    """A test that is given another name runs; its old one is to go."""
    missing = [
        f"{file}::{name}" for file, names in json.loads(repeats.LEFT.read_text()).items() for name in names
        if f"def {name.rpartition('::')[2]}(" not in (HERE.parent / file).read_text()
    ]
    assert not missing, "make repeats chooses anew, and of tests that were renamed or removed the lines can go"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="lines are told from Python 3.12 on")
def test_a_process_that_a_test_starts_tells_its_lines_with_the_test_and_each_anew_for_another_one(
    tmp_path: Path,
) -> None:
    program = (
        "from torchipu.errors import nearest; nearest('abc', ['abd']); nearest('abc', ['abd'])\n"
        "from reached_lines import Lines; import sitecustomize\n"
        "sitecustomize.lines.begin_test('second'); nearest('x', ['abd'])\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=tmp_path,
        env={
            **os.environ, "PYTHONPATH": f"{HERE / 'repeats'}{os.pathsep}{HERE.parent}",
            repeats.FOLDER: str(tmp_path), "PYTEST_CURRENT_TEST": "tests/test_step.py::test_one[a b] (call)",
        },
    )
    (written,) = tmp_path.glob("lines-*.json")
    found = json.loads(written.read_text())
    lines, first = inspect.getsourcelines(errors.nearest)
    reached = [f"{errors.__file__}:{first + number}" for number in range(len(lines))]
    assert {line for line in reached if line in found["tests/test_step.py::test_one[a b]"]}
    assert {line for line in reached if line in found["second"]}
