"""Python's collector looks less often while programs are made, and afterwards as the user has set it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

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


@pytest.mark.parametrize(("backend", "expected"), [("ipu", THRESHOLDS), ("eager", (701, 10, 10))])
def test_dynamo_captures_for_this_backend_with_few_collections(backend: str, expected: tuple[int, int, int]) -> None:
    seen: list[tuple[int, int, int]] = []

    @torch._dynamo.assume_constant_result
    def note() -> float:
        seen.append(gc.get_threshold())
        return 2.0

    torch._dynamo.reset()
    gc.set_threshold(701, 10, 10)
    run = torch.compile(lambda x: x * note(), backend=backend)
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 2.0))
    assert set(seen) == {expected}
    assert gc.get_threshold() == (701, 10, 10)


def test_a_capture_that_fails_puts_the_thresholds_back() -> None:
    @torch._dynamo.assume_constant_result
    def fail() -> float:
        raise ValueError("within")

    torch._dynamo.reset()
    gc.set_threshold(701, 10, 10)
    with pytest.raises(Exception, match="within"):
        torch.compile(lambda x: x * fail(), backend="ipu", fullgraph=True)(torch.ones(2))
    assert gc.get_threshold() == (701, 10, 10)
