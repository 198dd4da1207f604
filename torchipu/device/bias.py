"""The compute set that adds a bias to the results of a product."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchipu.device.codelets import busiest_elements, vector_codelet
from torchipu.device.compute_sets import elementwise_set
from torchipu.device.tilings.nothing import nothing_left
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Tensor
from torchipu.optable.codelet import Vertices

if TYPE_CHECKING:
    from torchipu.target import Target

ADD_BIAS = vector_codelet("popops::BroadcastVectorInner<add>", 2, 2, supervisor=15)
ADD = vector_codelet("popops::ScaledAdd<fast>", 2, 2, supervisor=60, worker_half=24, worker_single=24)
"""With operands in memory elements of their own, one to two cycles a vector (``ipu_hardware.md`` 2.3): poplin asks for
that where it adds a product."""


def with_bias(sets: tuple[Vertices, ...], target: Target, added: Tensor | None, result: Tensor) -> tuple[Vertices, ...]:
    """Return the sets of a product, and behind them the one that adds something to its results.

    PopLibs has no vertices that multiply and add a bias: a program of its own fetches the bias to where the results
    lie. Here the vertices of the product add it before they round, which leaves that set nothing to do. A product that
    is added to a matrix is held beside it until then.

    Args:
        sets: Of the product.
        target: The machine.
        added: A bias, which is fetched, or an addend of the result's shape, which lies where the result does.
        result: Of the product.

    Source: ``poplin::addBias`` and PopART's linear layers, an in-place addition of popops behind the product;
    ``poplin::matMulAcc``.
    """
    if added is None or not result.num_elements:
        return sets
    dtype = result.dtype
    is_spread = added.num_elements < result.num_elements
    mine = busiest_elements(target, result.num_elements, target.vector_width(dtype.device_bytes), dtype.device_bytes)
    fetched = _met(mine, added, result) if is_spread else 0
    addition = elementwise_set(
        target, ADD_BIAS if is_spread else ADD, result.num_elements, dtype, gathered_elements=fetched,
    )
    tiling = nothing_left if sets and sets[0].tiling is not None else None
    held = 0 if is_spread else mine * dtype.device_bytes
    made = *sets, replace(addition, tiling=tiling)
    return tuple(replace(one, temporary_bytes=one.temporary_bytes + held) for one in made)


def _met(mine: int, added: Tensor, result: Tensor) -> int:
    """Return how much of a bias so many elements of the result meet that follow each other: the row of each group."""
    row = added.shape[-1] if added.shape else 1
    groups = added.num_elements // row
    return min(mine, row * ceil_div(mine, result.num_elements // groups))
