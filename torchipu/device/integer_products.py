"""Compute sets of products of integers: the matrix unit takes none, so workers multiply and add."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torchipu.device.codelets import busiest_elements, element_codelet
from torchipu.device.tilings.integer_products import multiply_integers
from torchipu.device.tilings.products import Describe
from torchipu.ir.types import DType
from torchipu.optable.codelet import Vertices

if TYPE_CHECKING:
    from torchipu.target import Target


MULTIPLY_ADD = element_codelet("torchipu::IntegerMatMul", 4, 4, source="estimate")


def integer_vertices(
    target: Target, results: int, inner: int, dtype: DType, describe: Describe,
) -> tuple[Vertices, ...]:
    """Return one compute set that spreads the results; each tile gathers a row and a column for each of its own.

    Args:
        target: The machine.
        results: Elements of the product.
        inner: Summands of each.
        dtype: Element type.
        describe: Tells which elements meet.
    """
    if not results or not inner:
        return ()
    mine = busiest_elements(target, results, 1, dtype.device_bytes)
    gathered = 2 * inner * max(1, round(mine**0.5)) * dtype.device_bytes
    fixed = {"vector_width": 2, "element_bytes": dtype.device_bytes}
    return (Vertices(
        MULTIPLY_ADD, results, lambda count: {"elements": count * inner, **fixed}, gathered_bytes=gathered,
        temporary_bytes=gathered, tiling=partial(multiply_integers, describe),
    ),)
