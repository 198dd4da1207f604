"""Operators on pairs of floats where torch's `ComplexTensor` does not have them, or has them in more steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchipu.capture import complex_functions, complex_transforms
from torchipu.capture.complex_pairs import REAL, ComplexTensor, as_complex, as_pair, is_pair, of_pair, typed
from torchipu.errors import ConstraintError

aten = torch.ops.aten


def _polar(magnitude: Tensor, angle: Tensor) -> Any:
    _check_one_type(magnitude, angle)
    return ComplexTensor(magnitude * angle.cos(), magnitude * angle.sin())


def _mul(left: Any, right: Any) -> Any:
    """Multiply; what is real has no products with the imaginary part that it lacks."""
    if is_pair(right) and not is_pair(left):
        left, right = right, left
    if not is_pair(left):
        return ComplexTensor(left * right.real, left * right.imag)  # a real tensor and a complex number
    if isinstance(right, Tensor) and not is_pair(right) or isinstance(right, (int, float)):
        return ComplexTensor(left.re * right, left.im * right)
    real, imaginary = (right.re, right.im) if is_pair(right) else (right.real, right.imag)
    return ComplexTensor(left.re * real - left.im * imaginary, left.re * imaginary + left.im * real)


def _pow(value: Any, exponent: Any) -> Any:
    """Raise to a power; a square is a product, as it is for eager PyTorch."""
    return _mul(value, value) if is_pair(value) and exponent == 2 else aten.pow(*map(as_complex, (value, exponent)))


def _cumprod(value: Any, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    if not value.dim() or not value.shape[dim]:
        return value
    products = [ComplexTensor(*parts) for parts in zip(value.re.unbind(dim), value.im.unbind(dim), strict=True)]
    for place in range(1, len(products)):
        products[place] = _mul(products[place - 1], products[place])
    return ComplexTensor(torch.stack([one.re for one in products], dim), torch.stack([one.im for one in products], dim))


def _logcumsumexp(value: Any, dim: int) -> Any:
    if not value.dim() or not value.shape[dim]:
        return value
    sums = list(zip(value.re.unbind(dim), value.im.unbind(dim), strict=True))
    for place in range(1, len(sums)):
        sums[place] = complex_functions.logaddexp(sums[place - 1], sums[place])
    return ComplexTensor(*(torch.stack(parts, dim) for parts in zip(*sums, strict=True)))


def _div(left: Any, right: Any, **mode: Any) -> Any:
    if mode or is_pair(right) or isinstance(right, complex):
        return aten.div(*map(as_complex, (left, right)), **mode)
    return ComplexTensor(left.re / right, left.im / right)


def _plus(value: Any, product: Any, beta: Any, alpha: Any) -> Any:
    return (value if beta == 1 else value * beta) + (product if alpha == 1 else product * alpha)


def _conj_dot(left: Any, right: Any) -> Any:
    return (left.conj() * right).sum()


def _ones(value: Any, size: Any = None, **_: Any) -> Any:
    like = value.re if is_pair(value) else value
    size = like.shape if size is None else size
    return ComplexTensor(*(torch.full(size, part, dtype=like.dtype, device=like.device) for part in (1.0, 0.0)))


def _zeros(value: Any, **_: Any) -> Any:
    """Return zeros that do not depend on the values that they are like: nothing else may read these."""
    like = value.re if is_pair(value) else value
    return ComplexTensor(*(torch.zeros(like.shape, dtype=like.dtype, device=like.device) for _ in range(2)))


def _uniform(value: Any, low: float = 0.0, high: float = 1.0, **_: Any) -> Any:
    return ComplexTensor(*(aten.uniform(part, low, high) for part in (value.re, value.im)))


def _normal(value: Any, mean: complex = 0.0, std: float = 1.0, **_: Any) -> Any:
    """Draw both parts, each with half of the variance."""
    mean, each = complex(mean), std * 0.5**0.5
    return ComplexTensor(
        aten.normal_functional(value.re, mean.real, each), aten.normal_functional(value.im, mean.imag, each),
    )


def _check_one_type(first: Tensor, second: Tensor) -> None:
    if first.dtype is not second.dtype:
        raise ConstraintError(
            f"the parts of a complex number must be of one type: expected {first.dtype}, got {second.dtype}",
            remedy="convert one of them with .to()",
        )


def _of_parts(real: Tensor, imag: Tensor) -> Any:
    _check_one_type(real, imag)
    return ComplexTensor(*torch.broadcast_tensors(real, imag))


def _randn(size: Any, **kwargs: Any) -> Any:
    real = {**kwargs, "dtype": REAL[kwargs["dtype"]]}
    return ComplexTensor(torch.randn(size, **real) * 0.5**0.5, torch.randn(size, **real) * 0.5**0.5)


def _on_pairs(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    """Make an operator of a function of pairs of tensors."""
    def call(*values: Any) -> Any:
        return ComplexTensor(*function(*((value.re, value.im) for value in map(as_complex, values))))
    return call


def _logarithm(base: float) -> Callable[[Any], Any]:
    factor = 1 / math.log(base)

    def call(value: Any) -> Any:
        natural = value.log()
        return ComplexTensor(natural.re * factor, natural.im * factor)
    return call


def _acosh(value: Any) -> Any:
    """Return the inverse hyperbolic cosine, on the side where its real part is not negative."""
    angle = aten.acos(value)
    return ComplexTensor(angle.im.abs(), torch.copysign(angle.re, value.im))


def _sigmoid(value: Any) -> Any:
    """Return the logistic function by powers of e of at most 1: none of a large number, which is infinite."""
    is_left = value.re < 0
    power: Any = ComplexTensor(-value.re.abs(), torch.where(is_left, value.im, -value.im)).exp()
    upper, lower = 1 / (power + 1), power / (power + 1)
    return ComplexTensor(torch.where(is_left, lower.re, upper.re), torch.where(is_left, lower.im, upper.im))


def _sinc(value: Any) -> Any:
    is_zero = (value.re == 0) & (value.im == 0)
    turned: Any = ComplexTensor(torch.where(is_zero, 1.0, value.re * math.pi), value.im * math.pi)
    made: Any = turned.sin() / turned
    return ComplexTensor(torch.where(is_zero, 1.0, made.re), torch.where(is_zero, 0.0, made.im))


def _prod(value: Any, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    value = as_complex(value if dtype is None else typed(value, torch.empty(0, dtype=dtype)))
    if not value.dim():
        return value
    parts = (value.re, value.im) if dim is not None else (value.re.flatten(), value.im.flatten())
    along = 0 if dim is None else dim
    made = complex_functions.prod(parts, along)
    return ComplexTensor(*(made if keepdim else (part.squeeze(along) for part in made)))


def _var_mean(value: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    parts = (value.re, value.im)
    first, second = (aten.var.correction(part, dim, correction=correction, keepdim=keepdim) for part in parts)
    return first + second, ComplexTensor(*(aten.mean.dim(part, dim, keepdim) for part in parts))


def _std_mean(value: Any, dim: Any = None, **options: Any) -> Any:
    variance, mean = _var_mean(value, dim, **options)
    return variance.sqrt(), mean


OWN: dict[Any, Callable[..., Any]] = {
    **complex_transforms.TRANSFORMS,
    aten.polar.default: _polar,
    aten.complex.default: _of_parts,
    aten.view_as_complex.default: of_pair,
    aten.view_as_real.default: lambda value: as_pair(value),
    aten.randn.default: _randn,
    aten.uniform.default: _uniform,
    aten.ones_like.default: _ones,
    aten.zeros_like.default: _zeros,
    aten.new_ones.default: _ones,
    aten.normal_functional.default: _normal,
    aten.mv.default: lambda matrix, vector: (matrix @ vector.unsqueeze(-1)).squeeze(-1),
    aten.dot.default: lambda left, right: (left * right).sum(),
    aten.vdot.default: _conj_dot,
    aten.addmm.default: lambda c, a, b, beta=1, alpha=1: _plus(c, a @ b, beta, alpha),
    aten.addmv.default: lambda c, a, b, beta=1, alpha=1: _plus(c, (a @ b.unsqueeze(-1)).squeeze(-1), beta, alpha),
    aten.baddbmm.default: lambda c, a, b, beta=1, alpha=1: _plus(c, a @ b, beta, alpha),
    aten.addcmul.default: lambda c, a, b, value=1: _plus(c, a * b, 1, value),
    aten.addcdiv.default: lambda c, a, b, value=1: _plus(c, a / b, 1, value),
    aten.asin.default: _on_pairs(complex_functions.asin),
    aten.asinh.default: _on_pairs(complex_functions.asinh),
    aten.acosh.default: _acosh,
    aten.sigmoid.default: _sigmoid,
    aten.sigmoid_backward.default: lambda gradient, result: gradient * (result * (1 - result)).conj(),
    aten.log1p.default: _on_pairs(complex_functions.log1p),
    aten.log2.default: _logarithm(2),
    aten.log10.default: _logarithm(10),
    aten.logaddexp.default: _on_pairs(complex_functions.logaddexp),
    aten.logcumsumexp.default: _logcumsumexp,
    aten.exp2.default: lambda value: (value * math.log(2)).exp(),
    aten.sinc.default: _sinc,
    aten.silu.default: lambda value: value * _sigmoid(value),
    aten.lerp.Scalar: lambda start, end, weight: start + (end - start) * weight,
    aten.lerp.Tensor: lambda start, end, weight: start + (end - start) * weight,
    aten.pow.Tensor_Scalar: _pow,
    aten.ldexp.Tensor: lambda value, other: _mul(value, torch.pow(2.0, other)),
    aten.prod.default: _prod,
    aten.prod.dim_int: _prod,
    aten.var_mean.correction: _var_mean,
    aten.std_mean.correction: _std_mean,
    aten.std.correction: lambda value, dim=None, **options: _std_mean(value, dim, **options)[0],
    aten.mul.Tensor: _mul,
    aten.mul.Scalar: _mul,
    aten.cumprod.default: _cumprod,
    aten.div.Tensor: _div,
    aten.div.Scalar: _div,
    aten.clone.default: lambda value, **_: ComplexTensor(value.re.clone(), value.im.clone()),
}
"""What an operator does with pairs where torch does not say, or says it in more steps."""
