"""The catalogue itself: every case has a test, or says why it cannot occur."""

import ast
from pathlib import Path

import pytest

from tests.catalogue.cases import CASES

HERE = Path(__file__).parent


def cases_of(path: Path) -> set[int]:
    """Return the numbers in ``@pytest.mark.case(...)`` of a file."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {
        number.value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "case"
        for number in call.args if isinstance(number, ast.Constant)
    }


@pytest.mark.case
def test_every_case_has_a_test():
    tested = set().union(*(cases_of(path) for path in HERE.glob("test_*.py")))
    assert sorted(set(CASES) - tested) == []
