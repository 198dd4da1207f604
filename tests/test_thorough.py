"""Which cases of a test run unless all are asked for, and that whatever is asked for runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Hashable
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import thorough
from tests.thorough import ALLOTTED_SECONDS, affordable, covering

ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(Path(__file__).parents[1]),
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin",  # the others take a second to import
}


def test_of_a_product_each_value_runs_and_what_is_chosen_goes_through_all_pairs_in_turn() -> None:
    cases = list(product("abcdef", [False, True], ["float", "half", "int"]))
    chosen = [cases[number] for number in covering(cases)]
    assert len(chosen) == 6
    assert [len({case[place] for case in chosen}) for place in range(3)] == [6, 2, 3]
    assert len({case[1:] for case in chosen}) == 6


def test_of_three_places_every_pair_may_be_asked_for() -> None:
    cases = list(product(range(4), range(4), range(3)))
    chosen = [cases[number] for number in covering(cases, together=2)]
    for first, second in combinations(range(3), 2):
        assert {(case[first], case[second]) for case in chosen} == {(case[first], case[second]) for case in cases}
    assert 16 <= len(chosen) <= 20
    assert covering(list(product(range(3), range(2))), together=2) == list(range(6))


def test_of_a_list_all_run() -> None:
    assert covering([(number,) for number in range(20)]) == list(range(20))


def test_cases_that_only_others_make_superfluous_are_left_out_and_those_with_a_value_of_their_own_are_not() -> None:
    assert covering([(0, "x"), (0, "y"), (1, "x"), (1, "y"), (2, "x")]) == [0, 3, 4]


def test_the_same_is_chosen_at_each_call_and_equal_numbers_of_different_types_are_two() -> None:
    cases = [((type(value), value), other) for value in (1, True, 1.0) for other in range(3)]
    assert covering(cases) == covering(cases)
    assert len(covering(cases)) == 3


class Case(NamedTuple):
    """What is asked of a test with parameters."""

    nodeid: str
    params: dict[str, object]
    marks: tuple[str, ...] = ()
    path: Path = Path("/elsewhere/test_some.py")

    @property
    def callspec(self) -> Case:
        return self

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def cases_of(name: str, seconds: float, monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[Any]:
    monkeypatch.setattr(thorough, "seconds_of", {f"{name}[{number}]": seconds for number in range(6)}.__getitem__)
    return [Held(Case(f"{name}[{number}]", {"number": number}, **more)) for number in range(6)]


class Held:
    """A case that is told by what it is, as pytest's are."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __getattr__(self, name: str) -> Any:
        return getattr(self.case, name)


def test_of_long_cases_as_many_run_as_there_is_time_for_and_those_of_a_file_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met = Counter[Hashable]()

    def chosen(name: str, seconds: float, **more: Any) -> list[int]:
        cases = cases_of(name, seconds, monkeypatch, **more)
        return sorted(case.params["number"] for case in affordable(cases, met))

    assert chosen("first", ALLOTTED_SECONDS / 2) == [0, 1]
    assert chosen("second", ALLOTTED_SECONDS / 3) == [2, 3, 4]
    assert chosen("third", 10 * ALLOTTED_SECONDS) == [5]
    assert chosen("short", 0.0) == chosen("marked", 9.0, marks=("whole",)) == list(range(6))
    assert chosen("noticing", 9.0, path=thorough.NOTICING[0]) == list(range(6))
    assert all(path.exists() for path in thorough.NOTICING)


TESTS = """
import pytest

@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("second", [[0], [1]])
def test_product(first, second):
    pass

class TestOfAClass:
    @pytest.mark.parametrize("first", range(4))
    def test_list(self, first):
        pass

@pytest.mark.thorough
def test_marked(is_thorough):
    assert is_thorough

@pytest.mark.suffices(first=[1, 2])
@pytest.mark.parametrize("first", range(5))
def test_some(first):
    pass

@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])
def test_rows_that_are_a_product(first, second):
    pass

@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 2), (2, 3), (3, 4), (4, 4)])
def test_rows(first, second):
    pass

@pytest.mark.parametrize("second", ["x", "y"])
@pytest.mark.parametrize("first", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_product_with_a_marked_value(first, second):
    pass
"""
SELECTED, PRODUCTS, ALL = 3 + 4 + 2 + 3 + 5 + 2, 6 + 5 + 4, 6 + 4 + 1 + 5 + 5 + 5 + 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tests")
    (path / "test_some.py").write_text(TESTS)
    (path / "conftest.py").write_text(
        "from tests.thorough import (\n"
        "    is_thorough, pytest_addoption, pytest_collection_modifyitems, pytest_report_header,\n)\n"
    )
    (path / "pytest.ini").write_text("[pytest]\nmarkers =\n  thorough\n  suffices\n  whole\n")
    return path


def pytest_says(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(("arguments", "count"), [
    ([], SELECTED),
    (["--thorough"], ALL),
    (["-k", "product"], PRODUCTS),
    (["-m", "thorough"], ALL - SELECTED),
    (["test_some.py::test_product"], 6),
    (["-n", "1"], SELECTED),
    (["-n", "1", "-k", "product"], PRODUCTS),
])
def test_what_is_asked_for_runs(folder: Path, arguments: list[str], count: int) -> None:
    said = pytest_says(folder, *arguments)
    assert f"{count} passed" in said
    assert ("--thorough runs all" in said) == (count == SELECTED)


def test_a_value_that_no_case_has_is_refused(folder: Path) -> None:
    (folder / "test_unknown.py").write_text(
        "import pytest\n\n@pytest.mark.suffices(first=[1, 9])\n@pytest.mark.parametrize('first', range(3))\n"
        "def test_one(first):\n    pass\n"
    )
    said = pytest_says(folder, "test_unknown.py")
    (folder / "test_unknown.py").unlink()
    assert "test_unknown.py::test_one[0]: suffices has first=[9], of which there is no case" in said


def test_tests_that_failed_run_again_whichever_they_are(folder: Path) -> None:
    (folder / "test_failing.py").write_text("import pytest\n\n@pytest.mark.thorough\ndef test_one():\n    assert 0\n")
    assert "1 failed" in pytest_says(folder, "test_failing.py", "--thorough")
    assert "1 failed" in pytest_says(folder, "test_failing.py", "--last-failed")
    (folder / "test_failing.py").unlink()
