"""Which functions run when: the pipeline cycles of a schedule, and what comes before the update."""

from __future__ import annotations

from collections.abc import Iterable

from torchipu.device.lower.values import BROADCAST, PHASES
from torchipu.ir.program import Call, OnIpus, Program, Sequence, Sync
from torchipu.ir.schedule import Action, Schedule
from torchipu.ir.types import Leg

REPLICA_SYNC = Sync("replica")
NOTHING = Sequence(())


def cycles(schedule: Schedule, functions: dict[str, Program], num_ipus: int) -> Iterable[Program]:
    """Yield the programs of all pipeline cycles: legs side by side, then what crosses between IPUs."""
    calls: dict[tuple[str, int | None], Call] = {}

    def call(name: str, micro_batch: int | None) -> Call:
        return calls.setdefault((name, micro_batch), Call(name, micro_batch))

    if BROADCAST in functions:
        yield REPLICA_SYNC
        yield call(BROADCAST, None)
    updated: set[str] = set()
    for step in schedule.steps:
        cells = [_distinct_calls(cell, ipu) for ipu, cell in enumerate(step)]
        updates = {name for cell in cells for name, _ in cell if name.startswith("U")}
        if updates and not updated:
            yield from _before_updates(functions, num_ipus)
        # The update of an IPU is that of all its stages, which a sharded schedule updates in turn.
        cells = [[(name, micro_batch) for name, micro_batch in cell if name not in updated] for cell in cells]
        if updates and updates <= updated:
            continue
        updated |= updates
        yield from _one_cycle([[call(*pair) for pair in cell] for cell in cells], functions, num_ipus)
    if not updated and any(name.startswith("U") for name in functions):
        cells = [[(f"U{ipu}", None)] if f"U{ipu}" in functions else [] for ipu in range(num_ipus)]
        yield from _one_cycle([[call(*pair) for pair in cell] for cell in cells], functions, num_ipus)


def _before_updates(functions: dict[str, Program], num_ipus: int) -> Iterable[Program]:
    """Yield what comes before the update, phase by phase, all IPUs side by side.

    The sum over the replicas joins each IPU with its twins in the other replicas.
    """
    for phase in dict.fromkeys(PHASES.values()):
        names = [f"{phase}{ipu}" for ipu in range(num_ipus)]
        if any(name in functions for name in names):
            yield REPLICA_SYNC
            yield from _one_cycle([[Call(name)] if name in functions else [] for name in names], functions, num_ipus)


def _distinct_calls(cell: Iterable[Action], ipu: int) -> list[tuple[str, int | None]]:
    """List the functions of a cell; the stages of one IPU share an update function."""
    return list(dict.fromkeys((_function_of_action(action, ipu), action.micro_batch) for action in cell))


def _one_cycle(cells: list[list[Call]], functions: dict[str, Program], num_ipus: int) -> Iterable[Program]:
    """Yield one pipeline cycle."""
    for cell in cells:
        for call in cell:
            functions.setdefault(call.function, NOTHING)
    bodies = [call_list[0] if len(call_list) == 1 else Sequence(tuple(call_list)) for call_list in cells]
    yield OnIpus(tuple(bodies) + (NOTHING,) * (num_ipus - len(bodies)))
    if num_ipus > 1:
        yield REPLICA_SYNC
        for cell in cells:
            for call in cell:
                if f"{call.function}.send" in functions:
                    yield Call(f"{call.function}.send", call.micro_batch)


def _function_of_action(action: Action, ipu: int) -> str:
    return f"U{ipu}" if action.leg is Leg.UPDATE else f"{action.stage}{action.leg.value}"
