"""Removes ops that compute nothing new: copies, pairs that undo each other, repetitions, results that nobody reads."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from torchipu.ir.bodies import with_bodies_changed
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.sizes import may_be_same
from torchipu.ir.types import Leg
from torchipu.optable.dead_ops import drop_dead
from torchipu.optable.spec import spec_of


def canonicalise(graph: Graph) -> Graph:
    """Return a graph without no-ops, repetitions and dead ops.

    Shapes and dtypes of outputs and updates stay as they are, and so do the inputs. Ops that draw random bits are
    never merged. Ops of different legs or blocks are never merged: that would keep a value alive from the forward
    to the backward, or move it between IPUs, to save a cheap op.

    Args:
        graph: A valid graph, placed or not.

    Returns:
        The new graph, or the same object when there is nothing to remove.
    """
    return drop_dead(_merge(with_bodies_changed(graph, canonicalise)))


# --------------------------------------------------------------------------- no-ops and repetitions
def _merge(graph: Graph) -> Graph:
    """Replace no-ops by what they repeat and repeated ops by the first, in one walk."""
    changing = _Changing(graph)
    kept: list[Op] = []
    same: dict[Tensor, Tensor] = {}
    maker: dict[Tensor, Op] = {}
    seen: dict[Hashable, Op] = {}
    for op in graph.ops:
        op = _with_inputs(op, same)
        origin = _origin(op, maker)
        if origin is not None and not changing.forbids(op, origin, maker):
            same[op.outputs[0]] = origin
            continue
        key = _key(op)
        first = seen.setdefault(key, op) if key is not None else op
        if first is not op:
            same.update(zip(op.outputs, first.outputs, strict=True))
            continue
        kept.append(op)
        maker.update(dict.fromkeys(op.outputs, op))
    if not same:
        return graph
    return replace(
        graph, ops=tuple(kept), outputs=tuple(same.get(tensor, tensor) for tensor in graph.outputs),
        updates=tuple((state, same.get(value, value)) for state, value in graph.updates),
    )


def _with_inputs(op: Op, same: Mapping[Tensor, Tensor]) -> Op:
    if not any(tensor in same for tensor in op.inputs):
        return op
    return replace(op, inputs=tuple(same.get(tensor, tensor) for tensor in op.inputs))


class _Changing:
    """States that are written, and so may not stand in for a copy of what they were.

    A state written by the update leg changes after every reader but the outputs. One written by another leg, such as
    a running mean, also changes before the backward leg of a pipelined micro-batch.
    """

    def __init__(self, graph: Graph) -> None:
        maker = {tensor: op for op in graph.ops for tensor in op.outputs}
        self._states = {state for state, _ in graph.updates}
        self._early = {
            state for state, value in graph.updates if value not in maker or maker[value].leg is not Leg.UPDATE
        }
        self._escaping = {*graph.outputs, *(value for _, value in graph.updates)}
        self._legs: dict[Tensor, set[Leg]] = {}
        for op in graph.ops:
            for tensor in op.inputs:
                self._legs.setdefault(tensor, set()).add(op.leg)

    def forbids(self, op: Op, origin: Tensor, maker: Mapping[Tensor, Op]) -> bool:
        """Whether readers of an op's result would see another value if they read its origin."""
        result = op.outputs[0]
        if origin not in self._states:
            return False
        if result in self._escaping:
            return True
        made_in = {maker[tensor].leg for tensor in op.inputs if tensor in maker}
        return origin in self._early and not (made_in | self._legs.get(result, set())) <= {op.leg}


def _key(op: Op) -> Hashable | None:
    """Return what two ops must share to compute the same, or None for an op that must not be merged."""
    spec = spec_of(op)
    # An op without a record may draw random bits for all that we know.
    if spec is None or spec.is_random or spec.has_effect or not op.outputs or op.bodies:
        return None
    results = tuple((tensor.shape, tensor.dtype) for tensor in op.outputs)
    attrs = tuple(sorted((name, _frozen(value)) for name, value in op.attrs.items()))
    return op.target, op.inputs, op.operands, attrs, results, op.leg, op.block, op.placement


def _frozen(value: object) -> str:
    """Return a text that tells values apart as a kernel would: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_frozen, value))}]"
    return f"{type(value).__name__} {value!r}"


# --------------------------------------------------------------------------- which ops are no-ops
# An op below whose result has the shape and dtype of its only operand is that operand: SSA values have no identity
# beyond their elements. ``slice`` is one of them when it takes every element.
COPIES = frozenset((
    "alias", "alias_copy", "detach", "detach_copy", "clone", "contiguous", "lift", "lift_fresh", "lift_fresh_copy",
    "_to_copy", "to", "cast", "expand", "expand_copy", "slice", "flatten",
))

# Ops that keep elements in row-major order: the last shape of several in a row is all that counts.
RESHAPES = frozenset((
    "view", "view_copy", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "squeeze_copy", "unsqueeze",
    "unsqueeze_copy",
))

SELECTIONS = frozenset(("select", "select_copy"))


def _origin(op: Op, maker: Mapping[Tensor, Op]) -> Tensor | None:
    """Return the tensor whose value an op repeats: its operand, or the operand of an op that it undoes."""
    if is_no_op(op):
        return op.inputs[0]
    if _base_name(op.target) == "copy" and len(op.inputs) == 2:
        written = op.needed("src")
        return written if _agree(written, op.outputs[0]) else None
    inner = maker.get(op.inputs[0]) if len(op.inputs) == 1 and len(op.outputs) == 1 else None
    if inner is None:
        return None
    return inner.inputs[0] if _undoes(op, inner) else _picked(op, inner)


def _picked(op: Op, inner: Op) -> Tensor | None:
    """Return which member of a stack an op selects, as the real part of what a transform has put together is."""
    if _base_name(op.target) not in SELECTIONS or _base_name(inner.target) != "stack":
        return None
    rank, index = len(op.inputs[0].shape), op.attrs.get("index")
    if not isinstance(index, int) or op.integer("dim") % rank != inner.integer("dim", 0) % rank:
        return None
    member = inner.inputs[index % len(inner.inputs)]
    return member if _agree(member, op.outputs[0]) else None


def is_no_op(op: Op) -> bool:
    """Whether an op's result is its operand."""
    if len(op.inputs) != 1 or len(op.outputs) != 1 or not _agree(op.inputs[0], op.outputs[0]):
        return False
    name = _base_name(op.target)
    if name == "slice":
        return op.attrs.get("step", 1) == 1
    order = _order(op)
    return name in COPIES or name in RESHAPES or (order is not None and order == tuple(range(len(order))))


def _undoes(op: Op, inner: Op) -> bool:
    """Whether an op takes back what the op before it did, as the transposes around a backward product do."""
    if len(inner.inputs) != 1 or len(inner.outputs) != 1 or not _agree(inner.inputs[0], op.outputs[0]):
        return False
    if inner.outputs[0].dtype is not op.outputs[0].dtype:
        return False
    if {_base_name(op.target), _base_name(inner.target)} <= RESHAPES:
        return True
    outer_order, inner_order = _order(op), _order(inner)
    if outer_order is None or inner_order is None:
        return False
    return tuple(inner_order[dim] for dim in outer_order) == tuple(range(len(outer_order)))


def _agree(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have the same shape and type; where shapes only happen to agree an op stays what it is."""
    return first.dtype is second.dtype and may_be_same(first.shape, second.shape) and first.shape == second.shape


def _order(op: Op) -> tuple[int, ...] | None:
    """Return the dimension of the operand behind each dimension of the result, for an op that only permutes them."""
    name, rank = _base_name(op.target), len(op.inputs[0].shape)
    dims = list(range(rank))
    if name == "permute":
        given = op.attrs.get("dims")
        return tuple(dim % max(1, rank) for dim in given) if isinstance(given, Sequence) else None
    if name == "t":
        return tuple(reversed(dims))
    first, second = op.attrs.get("dim0"), op.attrs.get("dim1")
    if name != "transpose" or not isinstance(first, int) or not isinstance(second, int):
        return None
    if rank:
        dims[first], dims[second] = dims[second], dims[first]
    return tuple(dims)


def _base_name(target: str) -> str:
    """Return ``add`` for ``aten.add.Tensor``."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 else target
