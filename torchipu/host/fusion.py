"""Which ops one kernel computes together, as the records of fusions have it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.optable.fusion import FUSIONS, Fusion
from torchipu.optable.spec import spec_of

Fused = Mapping[Op, tuple[tuple[Op, ...], Fusion]]
"""For each op that absorbs those before it all of them, itself last, and how."""


def find_fusions(graph: Graph, readers: Mapping[Tensor, Sequence[Op]], kept: Collection[Tensor]) -> Fused:
    """Return the fusions of a graph, the longest first where several would do.

    Args:
        graph: Its own ops only, not those of the graphs that they run.
        readers: The ops that read each value.
        kept: Values that something beside ops reads.
    """
    fused: dict[Op, tuple[tuple[Op, ...], Fusion]] = {}
    taken: set[Op] = set()
    places = {op: place for place, op in enumerate(graph.ops)}
    makers = {result: op for op in graph.ops for result in op.outputs}
    most = max(map(len, FUSIONS))
    for first in graph.ops:
        if first in taken:
            continue
        run = _handed_on(first, most, readers, kept)
        for length in range(len(run), 1, -1):
            ops = run[:length]
            fusion = FUSIONS.get(tuple(op.target for op in ops))
            if fusion is None or taken.intersection(ops) or _are_read_before(ops, places, readers):
                continue
            if fusion.applies(ops) and fusion.fits(ops, makers):
                fused[ops[-1]] = (ops, fusion)
                taken.update(ops)
                break
    return fused


def _are_read_before(ops: Sequence[Op], places: Mapping[Op, int], readers: Mapping[Tensor, Sequence[Op]]) -> bool:
    """Whether an op reads another result of one of these before all are computed: the last, or one before it."""
    others = [result for op in ops[:-1] for result in op.outputs[1:]]
    return any(places[reader] <= places[ops[-1]] for result in others for reader in readers.get(result, ()))


def _handed_on(
    first: Op, most: int, readers: Mapping[Tensor, Sequence[Op]], kept: Collection[Tensor],
) -> tuple[Op, ...]:
    """Return an op and those after it, of which each alone reads the first result of the one before."""
    run = [first]
    while len(run) < most and spec_of(run[-1]) is not None and run[-1].outputs:
        result = run[-1].outputs[0]
        reading = readers.get(result, [])
        if len(reading) != 1 or result in kept or reading[0].leg is not first.leg:
            break
        run.append(reading[0])
    return tuple(run if spec_of(run[-1]) is not None else run[:-1])
