"""Replicas on the host: accumulators of what they add up, and states of which each has its own."""

from __future__ import annotations

from dataclasses import replace

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import Leg, Role

ACCUMULATING = ("accumulate", "accumulate_mean", "count_beyond")


def states_of_replicas(graph: Graph) -> frozenset[Tensor]:
    """Return the states of which each replica has its own: those that the micro-batches change, but for gradients.

    An accumulator, which begins anew with each replica, is none of them.
    """
    updating = {tensor for op in graph.ops if op.leg is Leg.UPDATE for tensor in op.outputs}
    return frozenset(
        state for state, value in graph.updates if value not in updating and state.role is not Role.ACCUMULATOR
    )


def with_totals(graph: Graph) -> tuple[Graph, tuple[Tensor, ...]]:
    """Give what the replicas reduce an accumulator, unless it is one.

    What a replica makes is kept until it has run all its micro-batches, and the next one may take its memory.

    Args:
        graph: The graph; its all-reduce ops belong to the update.

    Returns:
        The graph in which every all-reduce reads an accumulator, and the accumulators added to its inputs.
    """
    maker = {tensor: op for op in graph.ops for tensor in op.outputs}
    due = {
        op.inputs[0]: _names(op.inputs[0]) for op in graph.ops
        if op.kind == "all_reduce" and (op.inputs[0] not in maker or maker[op.inputs[0]].kind not in ACCUMULATING)
    }
    if not due:
        return graph, ()
    # A gradient that the graph is given is added up first of all.
    ops = [_accumulate(tensor, due[tensor], None) for tensor in due if tensor not in maker]
    for op in graph.ops:
        if op.kind == "all_reduce" and op.inputs[0] in due:
            op = replace(op, inputs=(due[op.inputs[0]][1],))
        ops += [op, *(_accumulate(tensor, due[tensor], op) for tensor in op.outputs if tensor in due)]
    ops += [
        Op("fill_zero", (total,), (zero,), target="ipu.fill_zero.default", operands=("accumulator",), leg=Leg.UPDATE)
        for _, total, zero in due.values()
    ]
    held = tuple(names[0] for names in due.values())
    zeros = tuple((names[0], names[2]) for names in due.values())
    return replace(
        graph, inputs=(*graph.inputs, *held), ops=tuple(ops), updates=(*graph.updates, *zeros),
    ), held


def _accumulate(gradient: Tensor, names: tuple[Tensor, Tensor, Tensor], maker: Op | None) -> Op:
    """Make the op that adds a gradient to its accumulator."""
    held, total, _ = names
    op = Op(
        "accumulate", (held, gradient), (total,), target="ipu.accumulate.default",
        operands=("accumulator", "gradient"), leg=Leg.BACKWARD,
    )
    return op if maker is None else replace(op, source=maker.source, placement=maker.placement)


def _names(gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return accumulator, sum and zero of a gradient."""
    names = (f"{gradient.name}.total", f"{gradient.name}.sum", f"{gradient.name}.zero")
    held, total, zero = (Tensor(name, gradient.shape, gradient.dtype, Role.ACCUMULATOR) for name in names)
    return held, total, zero
