"""`poptorch.testing` and the private functions over nested values."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from torchipu import poptorch

ONE = torch.ones(2)


@pytest.mark.parametrize(("actual", "desired", "is_close"), [
    (ONE, ONE + 1e-7, True), (ONE, ONE + 1e-3, False), ((ONE, [ONE]), (ONE, [ONE]), True),
    ((ONE, [ONE]), (ONE, [ONE * 2]), False), ({"a": ONE, "b": 3}, {"b": 3, "a": ONE}, True),
    ({"a": ONE, "b": 3}, {"b": 4, "a": ONE}, False), (None, None, True), (ONE * torch.nan, ONE * torch.nan, False),
])
def test_nested_values_are_compared(actual: Any, desired: Any, is_close: bool) -> None:
    assert poptorch.testing.allclose(actual, desired) is is_close


def test_tolerances_are_those_of_torch() -> None:
    assert poptorch.testing.allclose([ONE], [ONE + 1e-3], atol=1e-2)
    assert poptorch.testing.allclose([ONE], [ONE + 1e-3], rtol=1e-2)
    assert poptorch.testing.allclose(ONE * torch.nan, ONE * torch.nan, equal_nan=True)


@pytest.mark.parametrize(("actual", "desired", "words"), [
    ((ONE,), [ONE], "expected <class 'list'>"), ((ONE,), (ONE, ONE), "expected 2 members but got 1"),
    (ONE, torch.ones(3), "expected the shape"), (ONE, ONE.double(), "expected the type torch.float64"),
    ({"a": ONE}, {"b": ONE}, "expected the keys"), (1.0, ONE, "expected a tensor"),
])
def test_other_structures_are_refused(actual: Any, desired: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        poptorch.testing.allclose(actual, desired)


def test_nested_values_are_taken_apart_and_put_together() -> None:
    pair = collections.namedtuple("pair", "first second")
    value = {"a": [ONE, (ONE + 1, None)], "b": pair(ONE + 2, "text")}
    tensors = poptorch._utils.flattenTensorStructure(value)
    assert [int(tensor[0]) for tensor in tensors] == [1, 2, 3]
    twin = poptorch._utils.reconstructTensorStructure(value, [tensor * 10 for tensor in tensors])
    assert isinstance(twin["b"], pair)
    assert poptorch.testing.allclose(twin, {"a": [ONE * 10, (ONE * 20, None)], "b": pair(ONE * 30, "text")})
