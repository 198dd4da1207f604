"""Look-ups of rows that several ops read: what concatenates them gets a look-up of its own.

That one is stored where the rows are concatenated, in place of a copy there. What else reads the rows may then be left
alone with its look-up, too, and read the table as it lies: so messages go along edges, and their weights are computed.
"""

from __future__ import annotations

from dataclasses import replace

from torchipu.host.uses import Uses
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import spec_of


def with_look_ups_for_each(graph: Graph) -> Graph:
    """Return the graph with look-ups that a concatenation shares with other readers repeated for it."""
    uses, made_here, ops = Uses(graph), frozenset(graph.ops), list[Op]()
    for op in graph.ops:
        spec = spec_of(op)
        shared = []
        if spec is not None and spec.pieces is not None:
            shared = [tensor for tensor in dict.fromkeys(op.inputs) if _is_shared_look_up(tensor, uses, made_here)]
        own = {tensor: Tensor(f"{op.outputs[0].name}_{tensor.name}", tensor.shape, tensor.dtype) for tensor in shared}
        ops += [replace(uses.makers[tensor], outputs=(copy,)) for tensor, copy in own.items()]
        ops.append(replace(op, inputs=tuple(own.get(tensor, tensor) for tensor in op.inputs)) if own else op)
    return replace(graph, ops=tuple(ops)) if len(ops) > len(graph.ops) else graph


def _is_shared_look_up(tensor: Tensor, uses: Uses, made_here: frozenset[Op]) -> bool:
    """Whether a value is looked up, by an op that may store rows elsewhere, and not for one reader alone."""
    maker = uses.makers.get(tensor)
    spec = None if maker is None else spec_of(maker)
    if maker is None or spec is None or spec.places is None or tensor.dtype is not DType.FLOAT:
        return False
    return len(maker.outputs) == 1 and maker in made_here and (len(uses.readers[tensor]) > 1 or tensor in uses.kept)
