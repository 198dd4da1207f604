"""Products of a batch that read operands in the dimensions which they had before a reshape made one batch of them.

Where dimensions do not follow one another in memory - of windows that overlap, of matrices that are repeated for many
others - the reshape is a copy, as large as the matrices together. Products of single lines take less time than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchipu.host.dead_ops import without_dead
from torchipu.host.emit.line_products import are_lines
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.marks import BFLOATS

PRODUCT = "aten.bmm.default"
RESHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
TRANSPOSE, PERMUTE = "aten.transpose.int", "aten.permute.default"


def with_products_of_views(graph: Graph) -> Graph:
    """Return the graph with such products reading what their operands were before they were reshaped."""
    makers = {tensor: op for op in graph.ops for tensor in op.outputs}
    ops: list[Op] = []
    for op in graph.ops:
        ops += _of_views(op, makers) if _is_of_lines(op) else [op]
    if len(ops) == len(graph.ops) and all(new is old for new, old in zip(ops, graph.ops, strict=True)):
        return graph
    return replace(graph, ops=without_dead(ops, graph, (*RESHAPES, TRANSPOSE, PERMUTE)))


def _is_of_lines(op: Op) -> bool:
    if op.target != PRODUCT or op.attrs.get(BFLOATS):
        return False
    if any(tensor.dtype is not DType.FLOAT for tensor in (*op.inputs, *op.outputs)):
        return False
    (batch, rows, inner), columns = op.inputs[0].shape, op.inputs[1].shape[2]
    return are_lines(batch, rows, columns, inner)


def _of_views(op: Op, makers: Mapping[Tensor, Op]) -> list[Op]:
    """Return the product with what it reads instead; transposed first where the reshaped matrices were."""
    found = [_before_reshape(tensor, makers) for tensor in op.inputs]
    if all(len(source.shape) == 3 for source, _ in found):
        return [op]
    made: list[Op] = []
    inputs: list[Tensor] = []
    for number, (tensor, (source, is_turned)) in enumerate(zip(op.inputs, found, strict=True)):
        if len(source.shape) == 3:
            inputs.append(tensor)
            continue
        if is_turned:
            rank = len(source.shape)
            *batch, rows, columns = source.shape
            turned = Tensor(f"{op.outputs[0].name}_turned_{number}", (*batch, columns, rows), source.dtype)
            made.append(replace(
                op, kind="transpose", target=TRANSPOSE, inputs=(source,), outputs=(turned,), operands=("self",),
                attrs={"dim0": rank - 2, "dim1": rank - 1},
            ))
            source = turned
        inputs.append(source)
    return [*made, replace(op, inputs=tuple(inputs))]


def _before_reshape(tensor: Tensor, makers: Mapping[Tensor, Op]) -> tuple[Tensor, bool]:
    """Return what a batch of matrices was reshaped from, and whether the matrices have been transposed since."""
    is_turned, maker = False, makers.get(tensor)
    while maker is not None and _turns(maker):
        tensor, is_turned = maker.inputs[0], not is_turned
        maker = makers.get(tensor)
    if maker is not None and maker.target in RESHAPES:
        source = maker.inputs[0]
        if len(source.shape) > 3 and source.shape[-2:] == tensor.shape[-2:]:
            tensor = source
    return tensor, is_turned


def _turns(op: Op) -> bool:
    """Whether an op exchanges the rows and columns of a batch of matrices."""
    if len(op.outputs[0].shape) != 3:
        return False
    if op.target == TRANSPOSE:
        return {op.integer("dim0") % 3, op.integer("dim1") % 3} == {1, 2}
    return op.target == PERMUTE and [dim % 3 for dim in op.integers("dims")] == [0, 2, 1]
