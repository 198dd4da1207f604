"""Calls with operands of types that torch refuses where it has no values: half and float together, masks of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

FLOATS = (torch.float16, torch.float32)

FOLLOW_FIRST: frozenset[Any] = frozenset({
    F.linear, F.bilinear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
    torch.matmul, torch.mm, torch.bmm, torch.mv, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.bmm,
    torch.Tensor.__matmul__, torch.Tensor.mv, torch.dot, torch.Tensor.dot, torch.tensordot, torch.inner,
    torch.Tensor.inner, torch.outer, torch.Tensor.outer, torch.linalg.multi_dot, F.layer_norm, F.group_norm, F.rms_norm,
    F.prelu, F.scaled_dot_product_attention,
})
"""Their results follow the type of the first operand."""

FOLLOW_SECOND: frozenset[Any] = frozenset({
    torch.addmm, torch.Tensor.addmm, torch.baddbmm, torch.Tensor.baddbmm, torch.addbmm, torch.Tensor.addbmm,
    torch.addmv, torch.Tensor.addmv, torch.addr, torch.Tensor.addr, torch.einsum,
})
"""Their first operand is a bias, or says what is computed."""

BYTES_ARE_CONDITIONS: dict[Any, int] = {torch.where: 0, torch.Tensor.where: 1}
"""Functions that take uint8 for bool, and which operand that is; torch does so only where it has values."""

STAND_INS = {torch.float64: torch.float32, torch.bfloat16: torch.float32}
"""Types of inputs that the device does not have, and what they become."""


def stand_ins_for(model: Any) -> dict[torch.dtype, torch.dtype]:
    """Return what inputs of types that the device does not have become before the model sees them.

    Inputs of a type that the model itself has keep it, since torch refuses to mix it with others; the device computes
    both as floats.

    Args:
        model: The user's module or function.
    """
    if not isinstance(model, torch.nn.Module):
        return dict(STAND_INS)
    held = {tensor.dtype for tensors in (model.parameters(), model.buffers()) for tensor in tensors}
    return {dtype: stand_in for dtype, stand_in in STAND_INS.items() if dtype not in held}


def with_common_type(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, half and float operands brought to one type where the IPU does so."""
    if function in BYTES_ARE_CONDITIONS:
        return _with_conditions(BYTES_ARE_CONDITIONS[function], args, kwargs)
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


def _with_conditions(
    place: int, args: tuple[Any, ...], kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def as_condition(value: Any) -> Any:
        return value.bool() if isinstance(value, torch.Tensor) and value.dtype == torch.uint8 else value

    if "condition" in kwargs:
        return args, {**kwargs, "condition": as_condition(kwargs["condition"])}
    return tuple(as_condition(value) if at == place else value for at, value in enumerate(args)), kwargs
