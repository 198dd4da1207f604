"""Comparing nested results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def allclose(
    actual: Any, desired: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False,
) -> bool:
    """Return whether nested results are equal within a tolerance; as ``torch.allclose`` for tensors.

    Args:
        actual: A tensor, or tuples, lists and dicts of tensors and other values, nested at will.
        desired: The same structure.
        rtol: Allowed difference, relative to ``desired``.
        atol: Allowed absolute difference.
        equal_nan: Whether NaN equals NaN.

    Raises:
        AssertionError: The structures, shapes or types of elements differ.
    """
    if isinstance(desired, torch.Tensor):
        if not isinstance(actual, torch.Tensor):
            raise AssertionError(f"expected a tensor but got {type(actual)}")
        if actual.shape != desired.shape:
            raise AssertionError(f"expected the shape {desired.shape} but got {actual.shape}")
        if actual.dtype != desired.dtype:
            raise AssertionError(f"expected the type {desired.dtype} but got {actual.dtype}")
        return torch.allclose(actual, desired, rtol=rtol, atol=atol, equal_nan=equal_nan)
    if type(actual) is not type(desired):
        raise AssertionError(f"expected {type(desired)} but got {type(actual)}")
    if isinstance(desired, Mapping):
        if actual.keys() != desired.keys():
            raise AssertionError(f"expected the keys {list(desired)} but got {list(actual)}")
        pairs = [(actual[key], value) for key, value in desired.items()]
    elif isinstance(desired, (tuple, list)):
        if len(actual) != len(desired):
            raise AssertionError(f"expected {len(desired)} members but got {len(actual)}")
        pairs = list(zip(actual, desired, strict=True))
    else:
        return bool(actual == desired)
    return all(allclose(one, other, rtol, atol, equal_nan) for one, other in pairs)
