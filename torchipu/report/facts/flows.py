"""Which op takes what another computes, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torchipu.ir.graph import Op, Tensor
from torchipu.report.facts import rows


def flow_rows(ops: Sequence[Op], views: Mapping[Tensor, Op]) -> tuple[rows.Flow, ...]:
    """Return the values that go from op to op; those seen through views come from what computes them.

    Args:
        ops: In the order of their numbers.
        views: The op that makes each value without a variable of its own.
    """
    makers = {result: number for number, op in enumerate(ops) for result in op.outputs}
    found: dict[tuple[int, int, str], rows.Flow] = {}
    for number, op in enumerate(ops):
        for operand in op.inputs:
            for value in _computed(operand, makers, views):
                if makers[value] != number:
                    flow = rows.Flow(makers[value], number, value.name, value.device_bytes)
                    found.setdefault(flow[:3], flow)
    return tuple(found.values())


def _computed(value: Tensor, makers: Mapping[Tensor, int], views: Mapping[Tensor, Op]) -> Iterator[Tensor]:
    """Yield the values of which one is a view, or itself; nothing for what is given to the program."""
    if value in makers:
        yield value
    elif value in views:
        for operand in views[value].inputs:
            yield from _computed(operand, makers, views)
