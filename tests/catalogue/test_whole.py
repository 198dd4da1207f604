"""The catalogue itself: every case has a test that exists, or is said to lack one."""

import ast
from pathlib import Path

import pytest

from tests.catalogue.cases import CASES
from tests.catalogue.elsewhere import ELSEWHERE, OPEN

HERE = Path(__file__).parent


def cases_of(path: Path) -> set[int]:
    """Return the numbers in ``@pytest.mark.case(...)`` of a file."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {
        number.value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "case"
        for number in call.args if isinstance(number, ast.Constant)
    }


@pytest.mark.case
def test_every_case_has_a_test_or_is_said_to_lack_one():
    tested = set(ELSEWHERE).union(*(cases_of(path) for path in HERE.glob("test_*.py")))
    assert sorted(set(CASES) - tested) == sorted(OPEN)


@pytest.mark.case
def test_tests_elsewhere_exist():
    for name in (name for names in ELSEWHERE.values() for name in names):
        path, test = name.split("::")
        functions = {
            node.name for node in ast.walk(ast.parse((HERE.parent / path).read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        assert f"test_{test}" in functions, name
