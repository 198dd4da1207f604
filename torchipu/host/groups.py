"""In which order ops are emitted, and which elementwise ones make a chain together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import Leg
from torchipu.optable.chain import MAX_OPERANDS
from torchipu.optable.spec import spec_of

MAX_OPS_PAST_OPEN_CHAIN = 4
"""A chain that stays open holds its operands in memory; after this many other ops it is closed."""


def grouped(ops: Sequence[Op], joins: Callable[[Op], bool]) -> Iterator[tuple[Op, ...]]:
    """Yield chains of ops, and the others one by one; an op that a chain waits for comes before it.

    Args:
        ops: In an order in which they can run.
        joins: Whether an op may be part of a chain.
    """
    chain: list[Op] = []
    written: set[Tensor] = set()
    passed = 0
    for op in ops:
        if joins(op):
            if chain and not _fits(chain, op):
                yield tuple(chain)
                chain, written, passed = [], set(), 0
            chain.append(op)
            written.update(op.outputs)
        elif chain and not any(operand in written for operand in op.inputs):
            yield (op,)
            passed += not _is_view(op)
            if passed > MAX_OPS_PAST_OPEN_CHAIN:
                yield tuple(chain)
                chain, written, passed = [], set(), 0
        else:
            if chain:
                yield tuple(chain)
                chain, written, passed = [], set(), 0
            yield (op,)
    if chain:
        yield tuple(chain)


def _fits(chain: Sequence[Op], op: Op) -> bool:
    """Whether an op may join a chain: same shape and leg, and room for its operands."""
    if op.outputs[0].shape != chain[0].outputs[0].shape or (op.leg is Leg.UPDATE) != (chain[0].leg is Leg.UPDATE):
        return False
    members = [*chain, op]
    made = {result for member in members for result in member.outputs}
    read = {operand for member in members for operand in member.inputs if operand not in made}
    return len(read) + len(made) <= MAX_OPERANDS


def _is_view(op: Op) -> bool:
    spec = spec_of(op)
    return spec is not None and spec.is_view
