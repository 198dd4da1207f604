"""Calls that mix half and float operands, which torch refuses and the IPU computes in the type of the activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

FLOATS = (torch.float16, torch.float32)

FOLLOW_FIRST: frozenset[Any] = frozenset({
    F.linear, F.bilinear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
    torch.matmul, torch.mm, torch.bmm, torch.mv, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.bmm,
    torch.Tensor.__matmul__, torch.dot, torch.tensordot, torch.inner, F.layer_norm, F.group_norm, F.prelu,
})
"""Their results follow the type of the first operand."""

FOLLOW_SECOND: frozenset[Any] = frozenset({
    torch.addmm, torch.Tensor.addmm, torch.baddbmm, torch.addmv, torch.einsum,
})
"""Their first operand is a bias, or says what is computed."""


def with_common_type(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, half and float operands brought to one type where the IPU does so."""
    if function in FOLLOW_FIRST:
        leader = args[0] if args else kwargs.get("input")
    elif function in FOLLOW_SECOND and len(args) > 1:
        leader = args[1]
    else:
        return args, kwargs
    if isinstance(leader, (list, tuple)) and leader:
        leader = leader[0]
    if not isinstance(leader, torch.Tensor) or leader.dtype not in FLOATS:
        return args, kwargs

    def follow(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in FLOATS and value.dtype != leader.dtype:
            return value.to(leader.dtype)
        return type(value)(map(follow, value)) if type(value) in (list, tuple) else value

    return tuple(follow(value) for value in args), {name: follow(value) for name, value in kwargs.items()}
