"""What one replica runs of an op whose states are shared out among the replicas: the op on its own elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import Variable, VertexGroup
from torchipu.ir.region import Numbers


class OwnShare:
    """The part of a replica of an op of one compute set that goes element by element.

    Args:
        group: Of the op.
        fields: Variables of its operands and results.
        numbering: Of operands that are views.
        replicas: How many share.
        replica: Whose part.

    Attributes:
        op: On as many elements as the replica has.
        fields: The same variables by operand and result of that.
        numbering: Which element of a variable that holds all of them each is.
        first: Element of the whole that the first of the replica is.
        sets: The compute set, on fewer elements; none where there is nothing left for this replica.
    """

    def __init__(
        self, group: VertexGroup, fields: Mapping[Tensor, Variable], numbering: Mapping[Tensor, Numbers],
        replicas: int, replica: int,
    ) -> None:
        size = group.op.inputs[0].num_elements
        share = -(-size // replicas)
        first = self.first = min(replica * share, size)
        count = min(share, size - first)
        self.fields: dict[Tensor, Variable] = {}
        self.numbering: dict[Tensor, Numbers] = {}
        own: dict[Tensor, Tensor] = {}
        for tensor, variable in fields.items():
            is_divided = group.is_divided(tensor, variable)
            is_share = variable.num_elements == share < tensor.num_elements == size
            own[tensor] = replace(tensor, shape=(count,)) if is_divided or is_share else tensor
            self.fields[own[tensor]] = variable
            if is_divided:
                elements = numbering.get(tensor, np.arange(size, dtype=np.int64))
                self.numbering[own[tensor]] = elements[first : first + count]
            elif tensor in numbering:
                self.numbering[own[tensor]] = numbering[tensor]
        self.op: Op = replace(
            group.op, inputs=tuple(own[tensor] for tensor in group.op.inputs),
            outputs=tuple(own[tensor] for tensor in group.op.outputs),
        )
        self.sets = [(replace(group, runs=_beginning(group.runs, count)), 1)] if count else []


def _beginning(runs: TileMapping, count: int) -> TileMapping:
    """Return the runs of the first elements of an iteration space."""
    return TileMapping(tuple((tile, begin, min(end, count)) for tile, begin, end in runs.runs if begin < count))
