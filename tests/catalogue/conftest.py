"""What tests of the catalogue share: the number of their case, the words told, and that nothing was lost."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.catalogue.cases import CASES


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _case(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Name the cases of the test, for the page."""
    marker = request.node.get_closest_marker("case")
    assert marker is not None, "a test of the catalogue says @pytest.mark.case(number)"
    for number in marker.args:
        record_property("case", CASES[number].number)


@pytest.fixture
def told(record_property: Callable[[str, object], None]) -> Callable[[object, str], str]:
    """Return a function that asserts words of an error or warning, and keeps the first line for the page."""

    def asserted(error: object, *words: str) -> str:
        text = str(getattr(error, "inner_exception", None) or error)
        missing = [word for word in words if word not in text]
        assert not missing, f"{missing} not in:\n{text}"
        record_property("told", text.strip().splitlines()[0])
        return text

    return asserted


@pytest.fixture
def caught_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Every warning of the test, each as often as it is given."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
