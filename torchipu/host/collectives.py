"""Collectives over processes on the host: begun where they stand, waited for where their results are first read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from torchipu.errors import ExecutionError
from torchipu.host.agreement import difference, different
from torchipu.host.generic import call_aten
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.optable.collective import ALL_REDUCE, BROADCAST, PATTERNS, WAIT, is_collective

Flying = dict[Tensor, tuple[Op, torch.Tensor, Sequence[torch.Tensor]]]
"""Results that are on their way: the collective, the result, and what it is made of, which must last as long."""

_COPYING = frozenset({ALL_REDUCE, BROADCAST})  # torch copies their operand before it returns


def wait_for(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor when the collective that makes it has ended; at once where there is none."""
    waited: torch.Tensor = torch.ops._c10d_functional.wait_tensor(value)
    return waited


def with_late_waits(graph: Graph) -> Graph:
    """Return the graph with each wait right before the first op that reads its result, or at the end.

    What lies between runs while the bytes travel. The collectives themselves stay in their order: all processes must
    begin them in the same one.
    """
    due = {op.outputs[0]: op for op in graph.ops if op.target == WAIT}
    if not due:
        return graph
    ops: list[Op] = []

    def settle(operands: Iterable[Tensor]) -> None:
        for operand in operands:
            wait = due.pop(operand, None)
            if wait is not None:
                settle(wait.inputs)
                ops.append(wait)

    for op in graph.ops:
        if op.target != WAIT:
            settle(op.inputs)
            ops.append(op)
    settle(tuple(due))
    return replace(graph, ops=tuple(ops))


def only_awaited(readers: Mapping[Tensor, Sequence[Op]], kept: Iterable[Tensor]) -> frozenset[Tensor]:
    """Return the results of collectives that nothing but waits reads.

    Args:
        readers: Ops that read a tensor.
        kept: What is read when all ops have run.
    """
    waited = {op.inputs[0] for ops in readers.values() for op in ops if op.target == WAIT}
    return frozenset(
        tensor for tensor in waited.difference(kept) if all(op.target == WAIT for op in readers[tensor])
    )


def bind_collective(
    op: Op, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], flying: Flying, awaited: frozenset[Tensor],
) -> Callable[[], None]:
    """Return a callable that begins a collective on fixed tensors, or waits for one.

    Args:
        op: A collective or a wait.
        inputs: Memory of its operands.
        outputs: Memory of its results.
        flying: What is on its way, shared by all ops of a program.
        awaited: Results that nothing but waits reads; others are waited for at once.
    """
    if not is_collective(op):
        return lambda: _wait(op, inputs, outputs, flying)
    is_late = any(result in awaited for result in op.outputs)
    copies = is_late and PATTERNS[op.target] not in _COPYING

    def run() -> None:
        with torch.no_grad():
            given = [value.clone() for value in inputs] if copies else inputs
            try:
                results = call_aten(op, given)
                for tensor, kept, result in zip(op.outputs, outputs, results, strict=True):
                    if tensor in awaited:
                        flying[tensor] = (op, result, given)
                    else:
                        kept.copy_(wait_for(result))
            except RuntimeError as error:
                raise _failed(op, error) from error

    return run


def _wait(op: Op, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], flying: Flying) -> None:
    maker, result, _ = flying.pop(op.inputs[0], (op, inputs[0], ()))
    with torch.no_grad():
        try:
            outputs[0].copy_(wait_for(result))
        except RuntimeError as error:
            raise _failed(maker, error) from error


def _failed(op: Op, error: RuntimeError) -> ExecutionError:
    where = f"rank {torch.distributed.get_rank() if torch.distributed.is_initialized() else 0}: {op.target}: "
    said = difference(op) if is_collective(op) else ""
    if said:
        return different(op, said, where)
    return ExecutionError(
        f"{where}{str(error).splitlines()[0]}", source=op.source, block=op.placement,
        remedy="see whether another process has ended, and why: its own error is the cause; a process that has "
        "compiled another graph, or is still at work when the group's timeout ends, is another",
    )
