"""Views of images that have their channels second, last, or their planes as one dimension: in blocks all are one.

``[N, C, H, W]`` is shown as ``[N, H, W, C]`` by a permutation, as ``[N, C, H * W]`` by a view, which a transposition
turns into tokens, ``[N, H * W, C]``; and back. Whatever shows rows of channels in another shape, the last dimension as
it was, is such a view too.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchipu.ir.graph import Op, Tensor
from torchipu.ops.blocked.activations import is_floating
from torchipu.optable.blocked import (
    BlockedForm,
    BlockedPlanner,
    Rows,
    Sizes,
    follows_nothing,
    register_blocked,
    register_flat,
    register_rows,
    saves_nothing,
)

PERMUTE, TRANSPOSE = "aten.permute.default", "aten.transpose.int"
RESHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
VIEWS = (PERMUTE, TRANSPOSE, *RESHAPES)


def without_views(ops: Sequence[Op]) -> list[Op]:
    """Return the ops of a run that compute something."""
    return [op for op in ops if op.target not in VIEWS]


def is_view(op: Op, rows: Rows) -> bool:
    """Whether an op shows images in another shape, so that in blocks nothing changes."""
    if op.target not in VIEWS:
        return False
    x, result = op.inputs[0], op.outputs[0]
    if op.target in RESHAPES and x in rows:
        return result in rows
    if x in rows:
        return result in rows.flat or _comes_back(op, rows)
    if x in rows.flat:
        return result in rows or (op.target in RESHAPES and result.shape == rows.flat[x])
    return len(x.shape) == 4 and (result in rows or result in rows.flat)


# --------------------------------------------------------------------------- which values hold images, and how
def _order(op: Op) -> tuple[int, ...]:
    """Return which dimension of its operand each one of its result is."""
    rank = len(op.inputs[0].shape)
    if op.target == PERMUTE:
        return tuple(dim % rank for dim in op.integers("dims"))
    dims = list(range(rank))
    if rank:
        one, other = op.integer("dim0") % rank, op.integer("dim1") % rank
        dims[one], dims[other] = other, one
    return tuple(dims)


def _comes_back(op: Op, rows: Rows) -> bool:
    """Whether channels that were last become second again, of the images that they were of."""
    x = op.inputs[0]
    if x not in rows or len(x.shape) != 4:
        return False
    images, channels, height, width = rows[x]
    return x.shape == (images, height, width, channels) and _order(op) == (0, 3, 1, 2)


def _rows_of_order(op: Op, rows: Rows) -> Sizes | None:
    """Return the images whose channels go last."""
    x, order = op.inputs[0], _order(op)
    if x in rows.flat and order == (0, 2, 1):
        return rows.flat[x]
    if x in rows or order != (0, 2, 3, 1) or not is_floating(x) or not x.num_elements:
        return None
    images, channels, height, width = x.shape
    return images, channels, height, width


def _flat_of_order(op: Op, rows: Rows) -> Sizes | None:
    """Return the images of tokens whose channels become second."""
    x = op.inputs[0]
    if x not in rows or _order(op) != (0, 2, 1):
        return None
    images, channels, height, width = rows[x]
    return rows[x] if x.shape == (images, height * width, channels) else None


def _rows_of_reshape(op: Op, rows: Rows) -> Sizes | None:
    """Return the images whose rows are shown in another shape."""
    x, result = op.inputs[0], op.outputs[0]
    return rows.get(x) if result.shape and result.shape[-1] == x.shape[-1] else None


def _flat_of_reshape(op: Op, rows: Rows) -> Sizes | None:
    """Return the images whose planes become one dimension."""
    x, result = op.inputs[0], op.outputs[0]
    if x in rows or len(x.shape) != 4 or not is_floating(x) or not x.num_elements:
        return None
    images, channels, height, width = x.shape
    return (images, channels, height, width) if result.shape == (images, channels, height * width) else None


for _target in (PERMUTE, TRANSPOSE):
    register_rows(_target, _rows_of_order)
    register_flat(_target, _flat_of_order)
for _target in RESHAPES:
    register_rows(_target, _rows_of_reshape)
    register_flat(_target, _flat_of_reshape)


# --------------------------------------------------------------------------- in blocks
def _source(ops: Sequence[Op]) -> Sequence[Tensor]:
    return (ops[0].inputs[0],)


def _emit_view(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    plan.blocked_view(ops[0].outputs[0], ops[0].inputs[0])


for _target in VIEWS:
    register_blocked(_target, BlockedForm(is_view, follows_nothing, _source, saves_nothing, _emit_view))
