"""Gradients of products and of running products are one op, which torch would make of a score of masks and scans.

torch keeps zeros apart, by which it cannot divide. The op takes each factor once forwards and once backwards, and
divides by none, but in a row of running products where something is not finite: that has what torch's formula has.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, library
from torch._C import DispatchKey

aten = torch.ops.aten


@library.custom_op(
    "ipu::product_gradient", mutates_args=(), schema="(Tensor grad, Tensor factors, bool running) -> Tensor",
)
def product_gradient(grad: Tensor, factors: Tensor, running: bool) -> Tensor:
    """Return what the factors of rows get of gradients of their products.

    Args:
        grad: Of the products, ``[outer, length, inner]`` where they are running, else ``[outer, 1, inner]``.
        factors: ``[outer, length, inner]``.
        running: Whether each product so far counts, and not the last one alone.
    """
    values, given = factors.double(), grad.double()
    if running:
        with torch.no_grad():  # else it is a formula that has a gradient itself
            gradient: Tensor = aten.cumprod_backward(given, values, 1, values.cumprod(1))
        return gradient.to(factors.dtype, copy=True)
    ones = torch.ones_like(values[:, :1])
    before = torch.cat([ones, values.cumprod(1)], 1)[:, :-1]
    behind = torch.cat([ones, values.flip(1).cumprod(1)], 1)[:, :-1].flip(1)
    return (before * (behind * given)).to(factors.dtype)


@product_gradient.register_fake
def _(grad: Tensor, factors: Tensor, running: bool) -> Tensor:
    return torch.empty_like(factors, memory_format=torch.contiguous_format)


class _Product(torch.autograd.Function):
    """The product along a dimension, which keeps size 1, or all products so far."""

    @staticmethod
    def forward(ctx: Any, factors: Tensor, dim: int, running: bool) -> Tensor:
        ctx.save_for_backward(factors)
        ctx.dim, ctx.running = dim, running
        with torch._C._AutoDispatchBelowAutograd():
            overload, *args = _product(factors, dim, running)
            result: Tensor = overload(*args)
            return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (factors,), (grad,) = ctx.saved_tensors, gradients
        if torch.is_grad_enabled():  # this gradient has one itself, of which torch has formulas
            products = _by_torch(*_product(factors, ctx.dim, ctx.running))
            return *torch.autograd.grad(products, factors, grad, create_graph=True), None, None
        shape, dim = factors.shape, ctx.dim
        outer, length, inner = prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])
        given = grad.reshape(outer, length if ctx.running else 1, inner)
        gradient = torch.ops.ipu.product_gradient(given, factors.reshape(outer, length, inner), ctx.running)
        return gradient.reshape(shape), None, None


def _product(factors: Tensor, dim: int, running: bool) -> tuple[Any, ...]:
    """Return the overload of a product, and its arguments."""
    return (aten.cumprod.default, factors, dim) if running else (aten.prod.dim_int, factors, dim, True)


def _by_torch(overload: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Call what torch has for gradients in C++, though there is another implementation in Python."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(DispatchKey.PythonDispatcher)):
        result: Tensor = overload(*args, **kwargs)
    return result


def _is_transformed() -> bool:
    """Whether this is traced for ``torch.func``, which takes no such function as ours."""
    return bool(torch._C._are_functorch_transforms_active())


# --------------------------------------------------------------------------- what takes the place of torch's
def _by(overload: Any, of_gradient: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what implements an overload: with a gradient of ours where there is to be one."""

    def implement(self: Tensor, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
        has_gradient, is_transformed = torch.is_grad_enabled() and self.requires_grad, _is_transformed()
        if not (has_gradient or is_transformed):
            with torch._C._AutoDispatchBelowAutograd():
                return overload(self, *args, dtype=dtype, **kwargs)
        if is_transformed or self.is_complex() or self.dim() == 0:
            return _by_torch(overload, self, *args, dtype=dtype, **kwargs)
        return of_gradient(self if dtype is None else self.to(dtype), *args, **kwargs)

    return implement


def _running(self: Tensor, dim: int) -> Tensor:
    return _Product.apply(self, dim % self.dim(), True)


def _along(self: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    result: Tensor = _Product.apply(self, dim % self.dim(), False)
    return result if keepdim else result.squeeze(dim)


def _of_all(self: Tensor) -> Tensor:
    return _along(self.reshape(-1), 0)


IMPLEMENTED = {
    aten.cumprod.default: _by(aten.cumprod.default, _running), aten.prod.dim_int: _by(aten.prod.dim_int, _along),
    aten.prod.default: _by(aten.prod.default, _of_all),
}
"""What tracing is given instead of torch's own, at the key for gradients."""
