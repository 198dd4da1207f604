"""`serializedMatMul`: a product computed in parts, one after another, that needs less memory at a time."""

from __future__ import annotations

from typing import Any

import torch

from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.enums import MatMulSerializationMode
from torchipu.poptorch.poptorch_core import createPoptorchError


def serializedMatMul(
    lhs: torch.Tensor, rhs: torch.Tensor, mode: MatMulSerializationMode, factor: int = 0, keep_precision: bool = False,
) -> torch.Tensor:
    """Multiply two matrices in parts, in the backward too.

    Args:
        lhs: ``[..., N, K]``.
        rhs: ``[..., K, M]``.
        mode: What is cut: ``InputChannels`` the rows ``N``, ``ReducingDim`` the sums over ``K``, ``OutputChannels`` the
            columns ``M``, ``Disabled`` nothing.
        factor: Number of parts.
        keep_precision: Whether sums over parts are float32 where the operands are half.

    Returns:
        ``lhs @ rhs``, ``[..., N, M]``.

    Raises:
        Error: The size is no multiple of the factor.
    """
    if not isinstance(keep_precision, bool):
        raise AssertionError(f"keep_precision must be a bool, not {type(keep_precision)}")
    if not isinstance(factor, int):
        raise AssertionError(f"factor must be an int, not {type(factor)}")
    if not isinstance(mode, MatMulSerializationMode):
        raise AssertionError(f"mode must be a MatMulSerializationMode, not {type(mode)}")
    if mode == MatMulSerializationMode.Disabled or not isRunningOnIpu():
        return lhs @ rhs
    operand, dim = {
        MatMulSerializationMode.InputChannels: (lhs, -2), MatMulSerializationMode.ReducingDim: (lhs, -1),
        MatMulSerializationMode.OutputChannels: (rhs, -1),
    }[mode]
    if operand.dim() < -dim or (rhs.dim() == 1 and mode == MatMulSerializationMode.OutputChannels):
        raise createPoptorchError(f"poptorch.serializedMatMul: {mode} needs matrices, but one is a vector")
    size = operand.shape[dim]
    if factor < 1 or size % factor:
        raise createPoptorchError(
            f"Invalid serialisation factor {factor} for {mode} of size {size}. It should be a multiple of the "
            "serialisation factor."
        )
    if mode == MatMulSerializationMode.InputChannels:
        return torch.cat([part @ rhs for part in lhs.chunk(factor, dim)], -2 if rhs.dim() > 1 else -1)
    if mode == MatMulSerializationMode.OutputChannels:
        return torch.cat([lhs @ part for part in rhs.chunk(factor, dim)], -1)
    return _sum_of_parts(lhs, rhs, factor, keep_precision)


def _sum_of_parts(lhs: torch.Tensor, rhs: torch.Tensor, factor: int, keep_precision: bool) -> torch.Tensor:
    """Return a product as a sum over parts of the inner dimension."""
    parts = zip(lhs.chunk(factor, -1), rhs.chunk(factor, -2 if rhs.dim() > 1 else -1), strict=True)
    is_wide = keep_precision and lhs.dtype == rhs.dtype == torch.float16
    total = None
    for left, right in parts:
        product = _in_float(left, right) if is_wide else left @ right
        total = product if total is None else total + product
    assert total is not None
    return total.to(torch.float16) if is_wide else total


def _in_float(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    """Return the product of halves as float."""
    if rhs.dim() == 2 and lhs.dim() >= 2:
        product: torch.Tensor = _WideProduct.apply(lhs.flatten(0, -2), rhs)
        return product.reshape(*lhs.shape[:-1], rhs.shape[-1])
    return lhs.float() @ rhs.float()


class _WideProduct(torch.autograd.Function):
    """The product of two matrices of halves as float, which torch computes on some devices only."""

    @staticmethod
    def forward(context: Any, lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        """Multiply ``[N, K]`` and ``[K, M]``."""
        context.save_for_backward(lhs, rhs)
        return torch.mm(lhs, rhs, out_dtype=torch.float32)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        """Return the gradients of both, computed in halves."""
        lhs, rhs = context.saved_tensors
        half = gradient.half()
        return half @ rhs.T, lhs.T @ half
