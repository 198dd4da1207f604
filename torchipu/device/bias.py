"""The compute set that adds a bias to the results of a product."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchipu.device.codelets import busiest_elements, vector_codelet
from torchipu.device.compute_sets import elementwise_set
from torchipu.device.tilings.nothing import nothing_left
from torchipu.ir.graph import Tensor
from torchipu.optable.codelet import Vertices

if TYPE_CHECKING:
    from torchipu.target import Target

ADD_BIAS = vector_codelet("popops::BroadcastVectorInner<add>", 2, 2, supervisor=15)
ADD = vector_codelet("popops::BinaryOp1DInPlace<add>", 3, 3)


def with_bias(sets: tuple[Vertices, ...], target: Target, added: Tensor | None, result: Tensor) -> tuple[Vertices, ...]:
    """Return the sets of a product, and behind them the one that adds something to its results.

    PopLibs has no vertices that multiply and add a bias: a program of its own fetches the bias to where the results
    lie. Here the vertices of the product add it before they round, which leaves that set nothing to do.

    Args:
        sets: Of the product.
        target: The machine.
        added: A bias, which is fetched, or an addend of the result's shape, which lies where the result does.
        result: Of the product.

    Source: ``poplin::addBias`` and PopART's linear layers, an in-place addition of popops behind the product.
    """
    if added is None or not result.num_elements:
        return sets
    dtype = result.dtype
    is_spread = added.num_elements < result.num_elements
    mine = busiest_elements(target, result.num_elements, target.vector_width(dtype.device_bytes), dtype.device_bytes)
    fetched = min(mine, added.num_elements) if is_spread else 0
    addition = elementwise_set(
        target, ADD_BIAS if is_spread else ADD, result.num_elements, dtype, gathered_elements=fetched,
    )
    return *sets, replace(addition, tiling=nothing_left if sets and sets[0].tiling is not None else None)
