"""What one process has of a compiled graph: its plan, the segments of its body, and what all have to agree on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchipu.distributed.order import Replicas
from torchipu.errors import ConstraintError, OptionsError, PlacementError
from torchipu.host.edge import Edge
from torchipu.host.observation import Observation
from torchipu.host.plan import HostPlan
from torchipu.host.planner import Planner
from torchipu.host.recomputation import undone
from torchipu.host.replicas import with_totals
from torchipu.host.transfers import Order, can_overlap, ordered
from torchipu.ir.graph import Graph, Tensor, walk_ops
from torchipu.optable.random_streams import ROUNDING_STREAM, draws
from torchipu.optable.transfer import NUMBER, RECEIVE
from torchipu.options import Options
from torchipu.parts.cut import Cut, Part, cut
from torchipu.parts.order import Timetable, make_timetable


@dataclass(frozen=True, slots=True)
class Piece:
    """A process's part of a graph with the plan of its steps.

    Attributes:
        cut: The graph in parts.
        part: That of this process.
        planner: Made the plan.
        plan: The steps of this process.
        segments: First step of each segment of the body, and the step after its last.
        is_random: Whether the whole graph draws random bits or rounds stochastically.
    """

    cut: Cut
    part: Part
    planner: Planner
    plan: HostPlan
    segments: tuple[tuple[int, int], ...]
    is_random: bool

    def limit(self, processes: int) -> int:
        """Return how many runs this process may have in hand at a time: enough that none waits for the way there."""
        return processes + 1 if can_overlap(self.plan.steps, self.plan.allocations, self.segments) else 1

    def timetable(self, runs: int, limits: Sequence[int]) -> Timetable:
        """Return the order in which all processes run their segments."""
        return make_timetable([part.segments for part in self.cut.parts], runs, limits)

    def order(self, timetable: Timetable, process: int, replicas: int) -> Order:
        """Return the order of this process's steps."""
        return ordered(timetable.runs[process], self.segments, replicas, timetable.lanes[process])


def make_piece(
    graph: Graph, states: Sequence[Tensor], options: Options, *, rank: int, processes: int, micro_batches: int,
    replicas: Replicas, observation: Observation,
) -> Piece:
    """Cut a graph and plan the part of one process.

    Args:
        graph: After all graph passes.
        states: Inputs that outlast a call.
        options: ``ipus_per_process`` is read.
        rank: The process.
        processes: How many there are.
        micro_batches: Micro-batches of an iteration.
        replicas: Those that these processes run, among all.
        observation: What of results is looked at.

    Raises:
        OptionsError: The processes do not fit the IPUs.
        PlacementError: A process would have nothing to do.
    """
    whole, totals = with_totals(undone(graph))
    of_a_process = ipus_of_a_process(whole, options, processes)
    _check_all_busy(whole, of_a_process, processes)
    cut_up = cut(whole, processes, lambda ipu: ipu // of_a_process, reads_shapes=observation.traps)
    part = cut_up.parts[rank]
    states = (*states, *totals)
    has = set(part.graph.inputs)
    planner = Planner(
        part.graph, states=[state for state in states if state in has], micro_batches=micro_batches, replicas=replicas,
        observation=observation, is_strict=options.strict_numerics, edge=Edge(shows=False),
    )
    plan = planner.plan()
    _refuse_meetings(plan)
    is_random = any(draws(op) or ROUNDING_STREAM in op.attrs for op in walk_ops(whole.ops))
    return Piece(cut_up, part, planner, plan, _segments(plan, part), is_random)


def _refuse_meetings(plan: HostPlan) -> None:
    """Refuse steps that all replicas make together: between two of them a process has to wait for others."""
    for step in plan.steps:
        if step.together and step.op is not None:
            raise ConstraintError(
                f"{step.op.target} is computed over several replicas together, which does not go with a pipeline over "
                "several processes", source=step.op.source, block=step.op.placement,
                remedy="leave replicas at 1, or pipeline_group at None",
            )


def _segments(plan: HostPlan, part: Part) -> tuple[tuple[int, int], ...]:
    """Return the steps of each segment of the body."""
    begin, end = plan.num_prologue, plan.num_prologue + plan.num_body
    firsts = {segment.receives[0].number for segment in part.segments[1:]}
    cuts = [
        number for number in range(begin, end)
        if (op := plan.steps[number].op) is not None and op.kind == RECEIVE and op.attrs.get(NUMBER) in firsts
    ]
    return tuple(zip([begin, *cuts], [*cuts, end], strict=True))


# ---------------------------------------------------------------------- IPUs
def ipus_of_a_process(graph: Graph, options: Options, processes: int) -> int:
    """Return how many IPUs of a replica a process has.

    Raises:
        OptionsError: The processes do not fit the IPUs.
    """
    used = 1 + max((op.placement.ipu for op in graph.ops if op.placement is not None), default=0)
    asked = options.ipus_per_process
    if asked is None and used % processes:
        raise OptionsError(
            f"{processes} processes cannot share the model's {ipus_text(0, used)} evenly", option="ipus_per_process",
            allowed=f"at least {-(-used // processes)} for {processes} processes",
            remedy="set ipus_per_process, give the blocks other IPUs, or use another number of processes",
        )
    of_a_process = asked or used // processes
    needed = -(-used // of_a_process)
    if needed != processes:
        raise OptionsError(
            f"the group has {processes} processes, but the model's {ipus_text(0, used)} at "
            f"ipus_per_process={of_a_process} are for {needed}", option="pipeline_group", value=processes,
            remedy=f"start as many processes, or set ipus_per_process={-(-used // processes)}",
        )
    return of_a_process


def _check_all_busy(graph: Graph, of_a_process: int, processes: int) -> None:
    busy = {op.placement.ipu // of_a_process for op in graph.ops if op.placement is not None}
    for process in range(processes):
        if process not in busy:
            first = process * of_a_process
            raise PlacementError(
                f"process {process} has nothing to do: no block is on {ipus_text(first, of_a_process)}",
                remedy="give a block one of these IPUs, or start fewer processes",
            )


def ipus_text(first: int, count: int) -> str:
    """Return ``ipu 3`` or ``ipus 0 to 3``."""
    return f"ipu {first}" if count == 1 else f"ipus {first} to {first + count - 1}"


# ---------------------------------------------------------------------- what has to agree
NOT_COMPARED = ("process_group", "pipeline_group", "host_threads", "host_times", "dump", "verify")


def facts(graph: Graph, options: Options) -> dict[str, str]:
    """Return what has to be the same on all processes, in words, by its name."""
    lines = [
        repr((
            op.kind, op.target, op.leg.name, [t.name for t in op.inputs],
            [(t.name, t.shape, t.dtype) for t in op.outputs],
            sorted((name, str(value)) for name, value in op.attrs.items()), str(op.placement),
        )) for op in walk_ops(graph.ops)
    ]
    inputs = [f"{t.role.value} {t.name} {t.dtype.text}{list(t.shape)}" for t in graph.inputs]
    found = {"graph": f"{len(lines)} ops, digest {digest(lines)}", "inputs and weights": digest(inputs)}
    return found | {
        f"options.{name}": repr(value) for name, value in options.changed().items() if name not in NOT_COMPARED
    }


def digest(lines: Iterable[str]) -> str:
    """Return a short digest of lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
