"""Rows of values that products have made, brought together before a softmax reduces them.

The matrix unit leaves results in groups of 16 rows, whose elements alternate, and shares the columns out among tiles. A
softmax wants rows: tiles exchange their pieces of a group of rows and copy these element by element into rows. What it
makes lies in rows, which the next product takes as they are where elements of a row are its summands.

Source: the vendor's profile of a SigLIP encoder on a C600 (github.com/osmarks/ipu-stack): scores of 365 x 16 on a tile
go to 8 rows of 736 each before the softmax, in 4,477 cycles of exchange; ``ipu_hardware.md`` 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from torchipu.device.codelets import STRIDED_COPY, busiest_elements
from torchipu.device.matrix_unit import INPUT_GROUP
from torchipu.device.tilings.nothing import nothing_left
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.optable.codelet import Vertices
from torchipu.optable.spec import spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchipu.ir.types import DType
    from torchipu.target import Target

SCATTERED_ROWS = "scattered_rows"
"""Attribute of a softmax, or of its gradient, whose operand lies as a product has left it, as `torchipu.passes.layers`
has found."""

PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm"})
READ_IN_ROWS = {
    "softmax": "self", "log_softmax": "self", "safe_softmax": "self", "softmax_grad": "grad_output",
    "log_softmax_grad": "grad_output",
}
"""Which operand an op brings together, by its kind: a gradient is told of by what its forward has made."""

TURNS = frozenset({"t", "t_copy", "transpose", "transpose_copy", "permute", "permute_copy"})


@dataclass(slots=True)
class Lying:
    """How values lie that products or a softmax have made; all others are in neither.

    Attributes:
        scattered: As products leave them, in groups of rows.
        whole: In rows.
    """

    scattered: set[Tensor] = field(default_factory=set)
    whole: set[Tensor] = field(default_factory=set)


def lying_in(graph: Graph) -> Lying:
    """Return how values of a graph lie: results of elementwise ops lie as the first operand of their shape does.

    Args:
        graph: A valid graph.
    """
    lying = Lying()
    for op in graph.ops:
        source = _followed(op)
        if op.kind in PRODUCTS:
            lying.scattered.update(op.outputs)
        elif op.kind in READ_IN_ROWS and is_along_rows(op):
            lying.whole.update(op.outputs)
        elif source is not None:
            for held in (lying.scattered, lying.whole):
                if source in held:
                    held.update(result for result in op.outputs if result.shape[-1:] == source.shape[-1:])
    return lying


def is_along_rows(op: Op) -> bool:
    """Whether a softmax goes along the last dimension of several rows."""
    shape, dim = op.inputs[0].shape, op.attrs.get("dim")
    return len(shape) > 1 and isinstance(dim, int) and dim % len(shape) == len(shape) - 1 and shape[-1] > 1


def _followed(op: Op) -> Tensor | None:
    """Return the operand as which a result lies, None where it is laid out anew or its rows are others."""
    spec = spec_of(op)
    if spec is None or not op.inputs:
        return None
    if spec.is_view:
        return op.inputs[0] if op.kind not in TURNS or _keeps_rows(op) else None
    if spec.instruction is None and not spec.is_random:
        return None
    return next((operand for operand in op.inputs if operand.shape == op.outputs[0].shape), None)


def _keeps_rows(op: Op) -> bool:
    """Whether a view that turns dimensions leaves the last one where it is."""
    rank = len(op.inputs[0].shape)
    if not rank:
        return False
    if op.kind.startswith("permute"):
        return op.integers("dims")[-1] % rank == rank - 1
    return op.kind.startswith("transpose") and rank - 1 not in (op.integer("dim0") % rank, op.integer("dim1") % rank)


def brought_together(target: Target, shape: Sequence[int], dtype: DType) -> Vertices:
    """Return the compute set that lays out rows, with the exchange of what it copies.

    A tile receives one piece for each column of a group of rows: of 8 rows of 729 halves 729 pieces of 16 bytes.

    Args:
        target: The machine.
        shape: Of the values; rows go along the last dimension.
        dtype: Of an element.
    """
    elements, size = prod(shape), dtype.device_bytes
    mine = busiest_elements(target, elements, target.vector_width(size), size)
    rows = max(1, min(INPUT_GROUP, mine // shape[-1]))
    work = {"bytes": mine * size, "rows": mine, "element_bytes": size}
    return Vertices(
        STRIDED_COPY, elements, lambda count: work, gathered_bytes=mine * size, fragments=-(-mine // rows),
        temporary_bytes=2 * mine * size, tiling=nothing_left,
    )
