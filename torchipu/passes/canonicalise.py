"""Removes ops that compute nothing new: copies of SSA values, repeated computations, results that nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import Leg
from torchipu.ops.spec import spec_of

Rule = Callable[[Op], bool]


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
    return _drop_dead(_merge(graph))


# --------------------------------------------------------------------------- no-ops and repetitions
def _merge(graph: Graph) -> Graph:
    """Replace no-ops by their operand and repeated ops by the first, in one walk."""
    pinned = _pinned_tensors(graph)
    same: dict[Tensor, Tensor] = {}
    seen: dict[Hashable, Op] = {}
    kept: list[Op] = []
    for op in graph.ops:
        op = _with_inputs(op, same)
        if is_no_op(op) and op.outputs[0] not in pinned:
            same[op.outputs[0]] = op.inputs[0]
            continue
        key = _key(op)
        first = seen.setdefault(key, op) if key is not None else op
        if first is not op:
            same.update(zip(op.outputs, first.outputs, strict=True))
            continue
        kept.append(op)
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


def _pinned_tensors(graph: Graph) -> set[Tensor]:
    """Return copies of a state that must stay copies because the state changes while they are in use.

    A state written by the update leg changes after every reader but the outputs. One written by another leg, such
    as a running mean, also changes before the backward leg of a pipelined micro-batch.
    """
    maker = {tensor: op for op in graph.ops for tensor in op.outputs}
    early = {state for state, value in graph.updates if value not in maker or maker[value].leg is not Leg.UPDATE}
    copies: dict[Tensor, Tensor] = {state: state for state, _ in graph.updates}
    for op in graph.ops:
        if is_no_op(op) and op.inputs[0] in copies:
            copies[op.outputs[0]] = copies[op.inputs[0]]
    escaping = {*graph.outputs, *(value for _, value in graph.updates)}
    pinned = {tensor for tensor in copies if tensor in escaping and tensor in maker}
    for op in graph.ops:
        for tensor in op.inputs:
            if tensor in maker and tensor in copies and copies[tensor] in early and op.leg is not maker[tensor].leg:
                pinned.add(tensor)
    return pinned


def _key(op: Op) -> Hashable | None:
    """Return what two ops must share to compute the same, or None for an op that must not be merged."""
    spec = spec_of(op)
    # An op without a record may draw random bits for all that we know.
    if spec is None or spec.is_random or not op.outputs:
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
def _always(op: Op) -> bool:
    return True


def _keeps_order(op: Op) -> bool:
    dims = op.attrs.get("dims")
    rank = len(op.outputs[0].shape)
    return isinstance(dims, Sequence) and [dim % max(1, rank) for dim in dims] == list(range(rank))


def _keeps_dims(op: Op) -> bool:
    first, second = op.attrs.get("dim0"), op.attrs.get("dim1")
    rank = max(1, len(op.outputs[0].shape))
    return isinstance(first, int) and isinstance(second, int) and first % rank == second % rank


def _takes_all(op: Op) -> bool:
    return op.attrs.get("step", 1) == 1


# An op below whose result has the shape and dtype of its only operand is that operand, if the rule holds too.
NO_OPS: Mapping[str, Rule] = {
    **dict.fromkeys(
        ("alias", "alias_copy", "detach", "detach_copy", "clone", "contiguous", "lift", "lift_fresh", "lift_fresh_copy",
         "_to_copy", "to", "cast", "view", "view_copy", "_unsafe_view", "reshape", "_reshape_alias", "expand",
         "expand_copy", "squeeze", "squeeze_copy", "flatten"),
        _always,
    ),
    "permute": _keeps_order,
    "transpose": _keeps_dims,
    "slice": _takes_all,
}


def is_no_op(op: Op) -> bool:
    """Whether an op's result is its operand: SSA values have no identity beyond their elements."""
    rule = NO_OPS.get(_base_name(op.target))
    if rule is None or len(op.inputs) != 1 or len(op.outputs) != 1:
        return False
    value, result = op.inputs[0], op.outputs[0]
    return value.shape == result.shape and value.dtype is result.dtype and rule(op)


def _base_name(target: str) -> str:
    """Return ``add`` for ``aten.add.Tensor``."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 else target


# --------------------------------------------------------------------------- dead ops
def _drop_dead(graph: Graph) -> Graph:
    """Drop ops whose results reach neither an output nor an update; an op without results is there for its effect."""
    live = {*graph.outputs, *(value for _, value in graph.updates)}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if not op.outputs or any(tensor in live for tensor in op.outputs):
            live.update(op.inputs)
            kept.append(op)
    if len(kept) == len(graph.ops):
        return graph
    return replace(graph, ops=tuple(reversed(kept)))

