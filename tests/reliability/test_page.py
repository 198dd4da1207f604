"""The page says what the runs recorded, and all that it names is there."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from tests.reliability.__main__ import RECORDED
from tests.reliability.mutants.equal import EQUAL
from tests.reliability.page import page
from tests.reliability.rows import ROWS
from tests.reliability.runs import RUNS

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_recorded_runs_give() -> None:
    """After a run, or a change of a row: python -m tests.reliability.page docs/reliability.md."""
    assert (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8") == page()


def test_rows_name_runs_and_tests_that_exist() -> None:
    for row in ROWS:
        assert row.runs or row.tests or row.said
        assert {name for name, _ in row.runs} <= set(RUNS)
        assert [path for path in row.tests if not (ROOT / "tests" / path).exists()] == []
    named = {name for row in ROWS for name, _ in row.runs}
    assert named == set(RUNS), "each run stands in a row"


def test_what_is_wrong_or_smaller_or_missing_is_said(tmp_path: Path) -> None:
    found = {"loaders": 7, "hangs": 1, "wrong": 0}
    (tmp_path / "forks.json").write_text(json.dumps({"run": "forks", "day": "2026-01-02", "size": 7, "found": found}))
    text = page(tmp_path)
    assert "callers not run; **1 hangs and 0 wrong of 7 loaders (size 7 of 100) (2026-01-02)**" in text


def test_faults_that_no_test_notices_are_named_with_why_where_that_is_known(tmp_path: Path) -> None:
    known, reason = next(iter(EQUAL.items()))
    escaped = [known, "a.py: `x = 1`: 1 -> 2"]
    found = {"mutants": 300, "nearest": 290, "caught": 298, "unsound": 0, "as it is": 200, "escaped": escaped}
    kept = {"run": "mutants", "day": "2026-01-02", "size": 300, "found": found}
    (tmp_path / "mutants.json").write_text(json.dumps(kept))
    text = page(tmp_path)
    assert "298 of 300 caught, 290 of them by the tests nearest to them; each once" in text
    assert text.endswith(f"\n- {known}. {reason}\n- a.py: `x = 1`: 1 -> 2\n")
    found["escaped"] = []
    (tmp_path / "mutants.json").write_text(json.dumps(kept))
    assert "Faults that no test notices" not in page(tmp_path)


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda path: path.stem)
def test_recorded_runs_found_nothing_wrong(path: Path) -> None:
    kept = json.loads(path.read_text())
    assert kept["run"] == path.stem
    assert datetime.date.fromisoformat(kept["day"])
    assert RUNS[kept["run"]].failures(kept["found"]) == []
