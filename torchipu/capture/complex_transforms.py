"""Fourier transforms in a graph with complex numbers, without what is known to be zero or that nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from torchipu.capture import zero_tails
from torchipu.capture.complex_pairs import ComplexTensor, is_pair
from torchipu.capture.fourier import DIRECT_REAL, Pair, half_of_real, real_of_half, transform

aten = torch.ops.aten


def _parts_of(value: Any) -> Pair:
    return (value.re, value.im) if is_pair(value) else (value, None)


def _norm_factor(kind: int, shape: Any, dims: Any) -> float:
    """Return by what a transform is multiplied: 0 for nothing, 1 for the root of the length, 2 for the length."""
    length = 1
    for dim in dims:
        length *= shape[dim]
    return {0: 1.0, 1: length ** -0.5, 2: 1.0 / length}[kind]


def _scaled(parts: tuple[Tensor, Tensor], factor: float) -> Any:
    real, imaginary = parts
    return ComplexTensor(real, imaginary) if factor == 1.0 else ComplexTensor(real * factor, imaginary * factor)


def _r2c(
    value: Tensor, dim: list[int], normalization: int, onesided: bool, *, lengths: Mapping[int, int], to_real: bool,
) -> Any:
    dims = [one % value.dim() for one in dim]
    last = dims[-1]
    shape = [lengths.get(one, size) for one, size in enumerate(value.shape)]
    real = half_of_real(value, last, shape[last]) if onesided else transform((value, None), [last], -1, lengths)
    parts = transform(real, dims[:-1], -1, lengths, to_real=to_real)
    return _scaled(parts, _norm_factor(normalization, shape, dims))


def _c2c(
    value: Any, dim: list[int], normalization: int, forward: bool, *, lengths: Mapping[int, int], to_real: bool,
) -> Any:
    dims = [one % value.dim() for one in dim]
    parts = transform(_parts_of(value), dims, -1 if forward else 1, lengths, to_real=to_real)
    shape = [lengths.get(one, size) for one, size in enumerate(value.shape)]
    return _scaled(parts, _norm_factor(normalization, shape, dims))


def _c2r(
    value: Any, dim: list[int], normalization: int, last_dim_size: int, *, lengths: Mapping[int, int],
) -> Tensor:
    dims = [one % value.dim() for one in dim]
    shape = [lengths.get(one, size) for one, size in enumerate(value.shape)]
    shape[dims[-1]] = last_dim_size
    made = real_of_half(transform(_parts_of(value), dims[:-1], 1, lengths), dims[-1], last_dim_size)
    factor = _norm_factor(normalization, shape, dims)
    return made if factor == 1.0 else made * factor


TRANSFORMS: dict[Any, Callable[..., Any]] = {
    aten._fft_r2c.default: _r2c, aten._fft_c2c.default: _c2c, aten._fft_c2r.default: _c2r,
}
"""What computes each of ATen's transforms, told as `without_zeros` says what is zero or not read."""


def without_zeros(node: Node, args: Any, values: Mapping[Node, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the arguments of a transform whose first one lacks the zeros known of it, and what else is known.

    Zeros lie behind the values, or are the imaginary parts of real ones.

    Args:
        node: The transform, of `TRANSFORMS`.
        args: What it is given.
        values: What each node before it gave.
    """
    source, value = node.args[0], args[0]
    held = source
    lengths: dict[int, int] = {}
    for dim in (one % value.dim() for one in args[1]):
        begins = zero_tails.without_tail(source, dim) if isinstance(source, Node) else None
        if begins is not None and begins is not source and not lengths:
            lengths[dim], value, held = value.shape[dim], values[begins], begins
    real = zero_tails.real_values(held) if isinstance(held, Node) and is_pair(value) else None
    if real is not None:
        value = values[real]
    if node.target is aten._fft_c2r.default:
        return (value, *args[1:]), {"lengths": lengths}
    return (value, *args[1:]), {"lengths": lengths, "to_real": zero_tails.is_read_as_real(node)}


def first_frequencies(node: Node, values: Mapping[Node, Any]) -> Any:
    """Return the first frequencies of real values where a slice takes no others; None for any other slice.

    Args:
        node: The slice.
        values: What each node before it gave.
    """
    source = node.args[0]
    if not isinstance(source, Node) or source.target is not aten._fft_r2c.default or len(source.args[1]) != 1:  # type: ignore[arg-type]
        return None
    given: Any = map_arg(source.args, values.__getitem__)
    value, dims, normalization, onesided = given
    dim = dims[0] % value.dim()
    kept = zero_tails.first_taken(node, dim)
    if kept is None or not onesided or value.shape[dim] > DIRECT_REAL:
        return None
    (value, *_), known = without_zeros(source, (value, dims), values)
    length = known["lengths"].get(dim, value.shape[dim])
    shape = [known["lengths"].get(one, size) for one, size in enumerate(value.shape)]
    return _scaled(half_of_real(value, dim, length, kept), _norm_factor(normalization, shape, dims))
