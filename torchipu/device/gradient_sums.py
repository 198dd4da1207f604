"""Adds gradients of a weight that several stages use to its accumulator one by one, as they are made.

For device programs only: their sum would be held, whole, from the backward of the last of these stages to that of the
first. The host adds up the sum first, as PyTorch does, so that values do not depend on where stages begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.types import Leg, Role

ACCUMULATE = "ipu.accumulate.default"
ADD = "aten.add.Tensor"


def accumulated_apart(graph: Graph) -> Graph:
    """Return a graph in which terms of a gradient that several stages make are accumulated by each of them.

    A term that is made on another IPU than the accumulator's is sent there, as the sum would be.

    Args:
        graph: Placed, with everything that is recomputed.

    Returns:
        The graph, or the same object where no gradient has terms of several stages on one IPU.

    Source: PopART's TiedGather patterns, which let the lookup and the product that share a weight accumulate apart;
    ``ipu_hardware.md`` 4.1.
    """
    uses: dict[Tensor, int] = {}
    for op in graph.ops:
        for tensor in op.inputs:
            uses[tensor] = uses.get(tensor, 0) + 1
    for tensor in (*graph.outputs, *(value for _, value in graph.updates)):
        uses[tensor] = uses.get(tensor, 0) + 1
    maker = {tensor: op for op in graph.ops for tensor in op.outputs}
    order = {id(op): position for position, op in enumerate(graph.ops)}
    behind: dict[int, list[Op]] = {}
    dropped: set[int] = set()
    for op in graph.ops:
        if op.target != ACCUMULATE or op.placement is None:
            continue
        terms = _terms(op.inputs[1], maker, uses)
        if len({place.stage for place in _places(terms) if place.ipu == op.placement.ipu}) < 2:
            continue
        dropped.add(id(op))
        dropped.update(sum_id for term in terms for sum_id in term.sums)
        terms.sort(key=lambda term: order[id(term.op)])
        for made in _accumulations(op, terms):
            behind.setdefault(id(made[0]), []).append(made[1])
    if not dropped:
        return graph
    ops: list[Op] = []
    for op in graph.ops:
        ops += [op] if id(op) not in dropped else []
        ops += behind.get(id(op), [])
    return replace(graph, ops=tuple(ops))


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of a gradient: the op that makes it, and the additions between it and the accumulator."""

    value: Tensor
    op: Op
    sums: tuple[int, ...]


def _terms(value: Tensor, maker: Mapping[Tensor, Op], uses: Mapping[Tensor, int]) -> list[_Term]:
    """Return the terms of a gradient, none where one is not made by the backward; read elsewhere, a sum is a term."""
    terms: list[_Term] = []
    stack: list[tuple[Tensor, tuple[int, ...]]] = [(value, ())]
    while stack:
        tensor, sums = stack.pop()
        op = maker.get(tensor)
        if op is None or op.leg is not Leg.BACKWARD or op.placement is None:
            return []
        if _is_sum(op) and uses[tensor] == 1:
            stack += [(operand, (*sums, id(op))) for operand in op.inputs]
        else:
            terms.append(_Term(tensor, op, sums))
    return terms


def _places(terms: Iterable[_Term]) -> Iterator[Placement]:
    return (term.op.placement for term in terms if term.op.placement is not None)


def _is_sum(op: Op) -> bool:
    """Whether an op adds two gradients of equal shape and type."""
    return (
        op.target == ADD and op.leg is Leg.BACKWARD and op.attrs.get("alpha", 1) == 1 and len(op.inputs) == 2
        and all(t.shape == op.outputs[0].shape and t.dtype is op.outputs[0].dtype for t in op.inputs)
    )


def _accumulations(last: Op, terms: list[_Term]) -> Iterator[tuple[Op, Op]]:
    """Yield what accumulates each term, behind the op that makes it: in its stage, or where the accumulator is."""
    held = last.inputs[0]
    for number, term in enumerate(terms):
        is_last = number == len(terms) - 1
        total = last.outputs[0] if is_last else replace(
            last.outputs[0], name=f"{last.outputs[0].name}.part{number}", role=Role.ACCUMULATOR,
        )
        assert term.op.placement is not None and last.placement is not None
        is_here = term.op.placement.ipu == last.placement.ipu
        placement = term.op.placement if is_here else last.placement
        yield term.op, replace(last, inputs=(held, term.value), outputs=(total,), placement=placement, leg=Leg.BACKWARD)
        held = total
