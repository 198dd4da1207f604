"""What tests take is measured, written down, and asked for by the name of a case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import costs
from tests.costs import RECORDED, seconds_of, written

ROOT = Path(__file__).parents[1]
TESTS = """
import time
import pytest

@pytest.fixture(scope="module")
def others_too():
    spend(0.4)

def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

@pytest.mark.parametrize("number", [1, 2])
def test_long(number, others_too):
    spend(0.1 * number)

def test_short():
    pass

def test_failing():
    spend(0.3)
    assert False
"""
CONFTEST = """
from pathlib import Path
from tests import costs

costs.RECORDED = Path("some/costs.json").absolute()

def pytest_sessionstart(session):
    session.config.pluginmanager.register(costs.Recorder(costs.RECORDED))
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_what_passes_is_recorded_without_fixtures_and_what_did_not_run_stays(tmp_path: Path, processes: str) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_one.py").write_text(TESTS)
    (folder / "test_two.py").write_text("")
    known = {"some/test_two.py": {"test_kept": 3.0}, "some/test_one.py": {"test_short": 2.0},
             "some/test_gone.py": {"test_gone": 9.0}}
    (folder / "costs.json").write_text(json.dumps(known))
    subprocess.run(
        [sys.executable, "-m", "pytest", "-n", processes, "-p", "no:cacheprovider", "some"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )
    found = json.loads((folder / "costs.json").read_text())
    assert found.pop("some/test_two.py") == {"test_kept": 3.0}
    assert found["some/test_one.py"].keys() == {"test_long"}
    assert found.pop("some/test_one.py")["test_long"] == pytest.approx(0.15, abs=0.05)
    assert not found


def test_a_case_takes_what_its_test_does_and_what_is_not_recorded_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "costs", lambda: {"some/test_one.py": {"test_long": 1.5}})
    assert seconds_of("some/test_one.py::test_long[a::b]") == seconds_of("some/test_one.py::test_long") == 1.5
    assert seconds_of("some/test_one.py::test_short") == seconds_of("some/test_two.py::test_long") == 0


def test_what_is_recorded_is_of_files_that_are_there() -> None:
    recorded = {f"{file}::{name}": value for file, tests in costs.costs().items() for name, value in tests.items()}
    assert written(recorded) == RECORDED.read_text(encoding="utf-8")
