"""Assertions on values: torch asks for the values, a graph has an operator that ends the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.fx.node import has_side_effect

has_side_effect(torch.ops.aten._assert_async.default)  # torch knows it of the overload with a message
# As torch 2.13 has it: 2.10 drops it, and hands back NaN in the place of an inverse.
_register_effectful_op("aten::_linalg_check_errors", _EffectType.ORDERED)


def assert_(condition: Any, message: str) -> None:
    """`torch._assert`, of a tensor with one element when the program runs."""
    if isinstance(condition, Tensor):
        torch._assert_async(condition, message)
    elif not condition:
        raise AssertionError(message)


def check_tensor_all(cond: Tensor, message: Callable[[], Any] | None = None) -> None:
    """`torch._check_tensor_all`, when the program runs: all elements of a tensor of booleans have to be true."""
    if not isinstance(cond, Tensor):
        raise TypeError(f"cond must be a tensor, but got {type(cond)}")
    if cond.dtype != torch.bool:
        raise TypeError(f"cond tensor must have dtype torch.bool, but got {cond.dtype}")
    torch._assert_async(cond.all(), "Expected cond to be True, but got False" if message is None else str(message()))


TRACED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch._assert: assert_, torch._check_tensor_all: check_tensor_all,
}
