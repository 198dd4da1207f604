"""Python's collector looks less often while programs are made, and afterwards as the user has set it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from torchipu.ir.garbage import THRESHOLDS, seldom_collected


@pytest.fixture(autouse=True)
def user_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("given", "meanwhile"), [
    ((700, 10, 10), THRESHOLDS), ((900_000, 1, 7), (900_000, *THRESHOLDS[1:])), ((0, 10, 10), (0, 10, 10)),
])
def test_thresholds_are_raised_for_a_while(given: tuple[int, int, int], meanwhile: tuple[int, int, int]) -> None:
    gc.set_threshold(*given)
    with seldom_collected():
        assert gc.get_threshold() == meanwhile
    assert gc.get_threshold() == given


def test_the_last_of_several_compilations_puts_back_what_the_first_has_found() -> None:
    gc.set_threshold(701, 10, 10)
    first, second = seldom_collected(), seldom_collected()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLDS
    with pytest.raises(ValueError, match="within"), seldom_collected():
        raise ValueError("within")
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (701, 10, 10)
