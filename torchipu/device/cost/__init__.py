"""The cycle reader of a device program: what one weight update, or one inference run, takes on the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torchipu.device.cost.cycles import CATEGORIES, FunctionCost, Superstep, function_cost
from torchipu.device.cost.exchange import link_cycles
from torchipu.device.cost.host_buffers import buffer_bytes, lags_of, ring_of
from torchipu.device.cost.sync import sync_cycles
from torchipu.device.cost.timeline import LEGEND, LINK, RECOMPUTE, TRANSFER, Span, Timeline, chart
from torchipu.ir.graph import Tensor
from torchipu.ir.program import Call, Copy, Executable, OnIpus, Program, Repeat, Sequence, Sync
from torchipu.ir.schedule import Schedule
from torchipu.target import Target

__all__ = ["CATEGORIES", "LEGEND", "Cost", "FunctionCost", "Span", "Superstep", "Timeline", "chart", "estimate"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles of one iteration of the main program: a weight update, or an inference run.

    Attributes:
        cycles: Cycles of one iteration.
        device_iterations: Iterations in a call.
        pipeline_cycles: Rows of the schedule in which some stage runs.
        micro_batches: Micro-batches of an iteration.
        functions: One run of each function, by name.
        runs_by_function: How often each runs in an iteration.
        cycles_by_category_by_ipu: For each IPU its cycles by category, and ``idle``; they add up to ``cycles``.
        timeline: What each IPU does when.
        host_waits_by_ipu: Cycles, among those of the category ``host``, in which each IPU waits for the host to fill
            buffers of inputs.
        host_buffer_bytes: Of the host's memory that these buffers of one replica take.
    """

    cycles: int
    device_iterations: int
    pipeline_cycles: int
    micro_batches: int
    functions: Mapping[str, FunctionCost]
    runs_by_function: Mapping[str, int]
    cycles_by_category_by_ipu: tuple[Mapping[str, int], ...]
    timeline: Timeline
    host_waits_by_ipu: tuple[int, ...] = ()
    host_buffer_bytes: int = 0

    @property
    def efficiency_by_ipu(self) -> tuple[float, ...]:
        """Share of the time in which each IPU runs a leg of its stages, 0 to 1."""
        return tuple(
            self.timeline.busy(ipu) / self.cycles if self.cycles else 1.0
            for ipu in range(len(self.timeline.spans_by_ipu))
        )

    @property
    def pipeline_fill(self) -> float:
        """Micro-batches over pipeline cycles: ``GA / (GA + 2 S - 2)`` for ``S`` stages in training, 0 to 1.

        Equal to the efficiency only if every cycle took as long as one that runs both legs; fill and flush cycles run
        one leg and are shorter, so IPUs with balanced stages are busier than this.
        """
        return self.micro_batches / self.pipeline_cycles if self.pipeline_cycles else 1.0

    @property
    def cycles_by_result(self) -> dict[Tensor, int]:
        """Cycles of one run of each op, by its first result."""
        spent: dict[Tensor, int] = {}
        for function in self.functions.values():
            for step in function.supersteps:
                if step.op.outputs:
                    spent[step.op.outputs[0]] = spent.get(step.op.outputs[0], 0) + step.cycles
        return spent


def estimate(
    executable: Executable, target: Target, schedule: Schedule, *, sync_pattern: str = "full", prefetch_depth: int = 1,
) -> Cost:
    """Return the cycles of an executable.

    Args:
        executable: From the lower pass; addresses are not needed.
        target: The machine.
        schedule: That it was lowered with.
        sync_pattern: ``full`` where all IPUs wait for the host streams of one; other patterns let the others compute.
        prefetch_depth: Buffers of each input that the host fills ahead; 0 for none.

    Source: PopTorch's sync patterns; a cycle of PopART's pipeline loads streams before any stage computes,
    ``ipu_hardware.md`` 4.1.
    """
    functions = {
        name: function_cost(name, program, target, executable.functions, executable.num_ipus)
        for name, program in executable.functions.items()
    }
    main = executable.programs["main"]
    iterations = main.count if isinstance(main, Repeat) else 1
    micro_batches = len({action.micro_batch for row in schedule.steps for cell in row for action in cell})
    depth = min(prefetch_depth, 2 * micro_batches)  # more than an iteration reads are never waited for
    clock = _settled(
        lambda: _Clock(executable, target, functions, waits_for_all=sync_pattern == "full", prefetch_depth=depth),
        main.body if isinstance(main, Repeat) else main,
    )
    actions = [[a for cell in step for a in cell if a.micro_batch is not None] for step in schedule.steps]
    runs = {name: count for by_name in clock.runs for name, count in by_name.items()}
    return Cost(
        cycles=clock.now, device_iterations=iterations, pipeline_cycles=sum(1 for row in actions if row),
        micro_batches=len({action.micro_batch for row in actions for action in row}), functions=functions,
        runs_by_function=runs, cycles_by_category_by_ipu=tuple(clock.categories()),
        timeline=Timeline(clock.spans, clock.now, clock.transfers), host_waits_by_ipu=tuple(clock.host_waits),
        host_buffer_bytes=buffer_bytes(executable, prefetch_depth),
    )


def _settled(make: Callable[[], _Clock], program: Program) -> _Clock:
    """Return the clock of an iteration among many alike, so that buffers are as full after it as before.

    Args:
        make: Makes a clock, all of whose buffers are full.
        program: The iteration.
    """
    clock = _run(make(), program)
    if not any(map(any, lags_of(clock.rings, clock.now).values())):
        return clock
    # The host is behind: what it has filled of a run that begins with empty buffers it has filled of the next.
    for number in range(SETTLING):
        lags = lags_of(clock.rings, clock.now) if number else {n: ring.empty for n, ring in clock.rings.items()}
        clock = make()
        for name, ring in clock.rings.items():
            ring.full.clear()
            ring.full.extend(lags[name])
        clock = _run(clock, program)
        if lags_of(clock.rings, clock.now) == lags:
            break
    return clock


SETTLING = 4
"""Iterations that are looked at, at most, where the host is behind: mostly two are alike after two."""


def _run(clock: _Clock, program: Program) -> _Clock:
    clock.run(program)
    clock.end_sends()
    return clock


class _Clock:
    """Walks the main program and keeps the time of all IPUs.

    Args:
        executable: The program.
        target: The machine.
        functions: Cost of each function.
        waits_for_all: Whether no IPU computes while another waits for a host stream.
        prefetch_depth: Buffers of each input that the host fills ahead.
    """

    def __init__(
        self, executable: Executable, target: Target, functions: Mapping[str, FunctionCost], *, waits_for_all: bool,
        prefetch_depth: int,
    ) -> None:
        self.waits_for_all = waits_for_all
        self.executable = executable
        self.target = target
        self.functions = functions
        self.now = 0
        self.spans: list[list[Span]] = [[] for _ in range(executable.num_ipus)]
        self.runs: list[dict[str, int]] = [{} for _ in range(executable.num_ipus)]
        self.transfers: list[list[Span]] = [[] for _ in range(executable.num_ipus)]
        self.exposed = [0] * executable.num_ipus  # waits for the host that a run of a function does not show
        self.shared = dict.fromkeys(CATEGORIES, 0)
        self.traffic: dict[tuple[int, int], int] = {}
        self.sends = {name: _link_bytes(program) for name, program in executable.functions.items()}
        found = {
            name: ring_of(program, target, prefetch_depth, functions[name].load_cycles)
            for name, program in executable.functions.items()
        }
        self.rings = {name: ring for name, ring in found.items() if ring is not None}
        self.host_waits = [0] * executable.num_ipus
        # Thousands of cycles run the same few functions.
        self.cycles = {
            name: (cost.cycles, cost.first_cycles, cost.recompute_cycles) for name, cost in functions.items()
        }

    def run(self, program: Program) -> None:
        """Advance over a program."""
        match program:
            case Sequence(body=body):
                for part in body:
                    self.run(part)
            case Repeat(count=count, body=body):
                for _ in range(count):
                    self.run(body)
            case OnIpus(bodies=bodies):
                self.end_sends()
                calls = [tuple(_calls(body)) for body in bodies]
                fills = [self._wait_for_host(ipu, some) for ipu, some in enumerate(calls)]
                delays = fills
                if self.waits_for_all:
                    waits = [self._waits(some) for some in calls]
                    loaded = max(map(sum, zip(fills, waits, strict=True)), default=0)
                    delays = [loaded - wait for wait in waits]
                self.now += max(
                    (delay + self._run_on(ipu, some, self.now + delay)
                     for ipu, (some, delay) in enumerate(zip(calls, delays, strict=True)) if some),
                    default=0,
                )
            case Sync(scope=scope):
                self.end_sends()
                self._spend("sync", sync_cycles(self.target, scope))
            case Call(function=function):
                self._call(function)
            case _:
                raise TypeError(f"{type(program).__name__} in the main program outside a function")

    def _call(self, function: str) -> None:
        """Take part in the copies between IPUs that follow a cycle, or run alone where it is no such function."""
        sent = self.sends[function]
        if sent is None:
            call = (Call(function),)
            self.now += self._wait_for_host(0, call)
            self.now += self._run_on(0, call, self.now)
            return
        for pair, count in sent.items():
            self.traffic[pair] = self.traffic.get(pair, 0) + count

    def end_sends(self) -> None:
        """Let all copies between IPUs end; pairs of IPUs send side by side, the busiest decides."""
        if self.traffic:
            for pair, count in self.traffic.items():
                for ipu in pair:
                    self._add_link(ipu, self.now + link_cycles(self.target, count))
            self._spend("link", link_cycles(self.target, max(self.traffic.values())))
            self.traffic = {}

    def _add_link(self, ipu: int, end: int) -> None:
        """Record that an IPU sends or receives from now on; what it does with several others overlaps."""
        spans = self.spans[ipu]
        if spans and spans[-1].action == LINK and spans[-1].begin == self.now:
            end = max(end, spans.pop().end)
        if end > self.now:
            spans.append(Span(LINK, self.now, end))

    def _spend(self, category: str, cycles: int) -> None:
        self.shared[category] += cycles
        self.now += cycles

    def _waits(self, calls: Iterable[Call]) -> int:
        """Return the cycles of one IPU's host streams in a pipeline cycle."""
        return sum(self.functions[call.function].cycles_by_category["host"] for call in calls)

    def _wait_for_host(self, ipu: int, calls: Iterable[Call]) -> int:
        """Return the cycles from now on in which an IPU waits for the inputs of its calls, and record them."""
        waited = 0
        for call in calls:
            ring = self.rings.get(call.function)
            if ring is not None:
                waited += ring.wait(self.now + waited)
        self.host_waits[ipu] += waited
        self.exposed[ipu] += waited
        return waited

    def _run_on(self, ipu: int, calls: Iterable[Call], start: int) -> int:
        """Record the calls of one IPU, from a cycle on, and return their cycles."""
        begin = start
        for call in calls:
            usual, first, again = self.cycles[call.function]
            cycles = first if call.micro_batch == 0 else usual
            self._add_transfers(ipu, begin, self.functions[call.function], is_first=call.micro_batch == 0)
            if call.function in self.rings:
                self.rings[call.function].read(begin)
            self.exposed[ipu] += cycles - usual
            label = call.function if call.micro_batch is None else f"{call.function}{call.micro_batch}"
            if again:
                self.spans[ipu].append(
                    Span(f"{label}.{RECOMPUTE}", begin, begin + again, call.function, call.micro_batch),
                )
            if cycles > again:
                self.spans[ipu].append(Span(label, begin + again, begin + cycles, call.function, call.micro_batch))
            self.runs[ipu][call.function] = self.runs[ipu].get(call.function, 0) + 1
            begin += cycles
        return begin - start

    def _add_transfers(self, ipu: int, begin: int, cost: FunctionCost, *, is_first: bool) -> None:
        """Record the transfers that run beside a function, from its begin on; those that it waits for end before it."""
        waits = cost.overlapped.get("accumulation_loop", 0) if is_first else 0
        if waits:
            self.transfers[ipu].append(Span(TRANSFER, begin, begin + waits))
        rest = sum(cost.overlapped.values()) - waits
        if rest:
            self.transfers[ipu].append(Span(TRANSFER, begin + waits, begin + waits + rest))

    def categories(self) -> Iterator[dict[str, int]]:
        """Yield each IPU's cycles by category; what it waits for others is idle."""
        for runs, exposed in zip(self.runs, self.exposed, strict=True):
            spent = dict(self.shared)
            spent["host"] += exposed
            for name, count in runs.items():
                for category, cycles in self.functions[name].cycles_by_category.items():
                    spent[category] += cycles * count
            yield {**spent, "idle": self.now - sum(spent.values())}


def _calls(program: Program) -> Iterator[Call]:
    match program:
        case Call():
            yield program
        case Sequence(body=body):
            for part in body:
                yield from _calls(part)
        case _:
            raise TypeError(f"{type(program).__name__} in a pipeline cycle outside a function")


def _link_bytes(program: Program) -> dict[tuple[int, int], int] | None:
    """Return the bytes by pair of IPUs of a function that holds nothing but copies between IPUs, else None."""
    if not isinstance(program, Sequence) or not program.body:
        return None
    sent: dict[tuple[int, int], int] = {}
    for part in program.body:
        if not isinstance(part, Copy) or part.src.ipu == part.dst.ipu:
            return None
        pair = (part.src.ipu, part.dst.ipu)
        sent[pair] = sent.get(pair, 0) + part.total_bytes
    return sent
