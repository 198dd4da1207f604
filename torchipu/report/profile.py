"""The profile of an executable: cycles, memory of the fullest tiles, pipeline efficiency and what runs generically."""

from __future__ import annotations

from dataclasses import dataclass

from torchipu.device.cost import Cost, chart
from torchipu.device.memory import tile_memory
from torchipu.ir.graph import Op
from torchipu.ir.program import Executable, Execute, HostCopy, leaves_of
from torchipu.ir.types import Role
from torchipu.report import markup
from torchipu.report.figures import ChoiceCycles, CodeletUse, Figures, GenericOp, OpCycles
from torchipu.report.json import format_json
from torchipu.report.text import format_full, format_summary
from torchipu.target import Target


@dataclass(frozen=True, slots=True)
class Profile(Figures):
    """Figures that can show themselves."""

    def summary(self) -> str:
        """Return cycles, memory of the fullest tile and pipeline efficiency in a few lines."""
        return format_summary(self)

    def text(self) -> str:
        """Return the summary and the tables behind it."""
        return format_full(self)

    def json(self) -> str:
        """Return all of it as JSON."""
        return format_json(self)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """Return the headline and tables for a notebook."""
        return markup.figures(self)


def profile_of(executable: Executable, cost: Cost, target: Target, io_tiles: int = 0) -> Profile:
    """Return the profile of an executable.

    Args:
        executable: With or without addresses.
        cost: From ``torchipu.device.cost.estimate``.
        target: The machine.
        io_tiles: Tiles of each IPU that are set apart for transfers, and which the target lacks.
    """
    seconds = cost.cycles / target.clock_hz
    size = micro_batch_size(executable)
    runs = cost.runs_by_function
    replicas = executable.replicas * executable.instances
    return Profile(
        target=target.name, title=target.title, clock_hz=target.clock_hz,
        tile_memory_bytes=target.tile_memory_bytes, num_ipus=executable.num_ipus,
        replicas=replicas,
        is_training=any(name.startswith("U") for name in executable.functions),
        micro_batches=cost.micro_batches, micro_batch_size=size, device_iterations=cost.device_iterations,
        cycles_per_update=cost.cycles, microseconds_per_update=seconds * 1e6,
        samples_per_second=size * cost.micro_batches * replicas / seconds if seconds else 0.0,
        memory_by_ipu=tile_memory(executable, target, io_tiles), efficiency_by_ipu=cost.efficiency_by_ipu,
        pipeline_fill=cost.pipeline_fill,
        cycles_by_category_by_ipu=tuple(dict(cycles) for cycles in cost.cycles_by_category_by_ipu),
        cycles_by_function={name: function.cycles for name, function in cost.functions.items()},
        num_compute_sets=sum(len(function.supersteps) for function in cost.functions.values()),
        supersteps_per_update=sum(len(f.supersteps) * runs.get(name, 0) for name, f in cost.functions.items()),
        codelets=_codelets(executable, cost), slowest_ops=_slowest(cost), choices=_choices(cost),
        generic_ops=_generic(cost),
        timeline=chart(cost.timeline), host_buffer_bytes=cost.host_buffer_bytes,
        host_waits_by_ipu=cost.host_waits_by_ipu,
    )


def micro_batch_size(executable: Executable) -> int:
    """Return the first size of the first input that is streamed in; 1 where there is none."""
    streams = (
        step for program in executable.functions.values() for step in leaves_of(program) if isinstance(step, HostCopy)
    )
    shapes = (s.variable.shape for s in streams if s.to_device and s.variable.role is Role.INPUT and s.variable.shape)
    return next((shape[0] for shape in shapes), 1)


def _codelets(executable: Executable, cost: Cost) -> tuple[CodeletUse, ...]:
    sets: dict[str, int] = {}
    cycles: dict[str, int] = {}
    for name, program in executable.functions.items():
        runs = cost.runs_by_function.get(name, 0)
        within = {step.name: step.runs for step in cost.functions[name].supersteps}
        for step in leaves_of(program):
            if isinstance(step, Execute):
                times = runs * within.get(step.compute_set.name, 1)
                for group in step.compute_set.groups:
                    sets[group.codelet] = sets.get(group.codelet, 0) + 1
                    cycles[group.codelet] = cycles.get(group.codelet, 0) + group.cycles * times
    uses = [CodeletUse(name, sets[name], cycles[name], executable.code_bytes.get(name, 0)) for name in sets]
    return tuple(sorted(uses, key=lambda use: (-use.cycles, use.name)))


def _slowest(cost: Cost, most: int = 10) -> tuple[OpCycles, ...]:
    ops: dict[int, Op] = {}
    cycles: dict[int, int] = {}
    functions: dict[int, str] = {}
    for name, function in cost.functions.items():
        runs = cost.runs_by_function.get(name, 0)
        for step in function.supersteps:
            ops[id(step.op)] = step.op
            functions[id(step.op)] = name
            cycles[id(step.op)] = cycles.get(id(step.op), 0) + step.cycles * runs
    order = sorted(cycles, key=lambda key: -cycles[key])[:most]
    return tuple(
        OpCycles(
            ops[key].outputs[0].name if ops[key].outputs else ops[key].kind, ops[key].kind, functions[key],
            str(ops[key].source), cycles[key],
        )
        for key in order
    )


def _choices(cost: Cost) -> tuple[ChoiceCycles, ...]:
    return tuple(
        ChoiceCycles(choice.op.kind, name, str(choice.op.source), choice.cycles)
        for name, function in cost.functions.items() for choice in function.choices
    )


def _generic(cost: Cost) -> tuple[GenericOp, ...]:
    ops = {id(step.op): step.op for function in cost.functions.values() for step in function.supersteps}
    counts: dict[str, int] = {}
    sources: dict[str, str] = {}
    for op in ops.values():
        if op.kind == "generic":
            counts[op.target] = counts.get(op.target, 0) + 1
            sources.setdefault(op.target, str(op.source))
    return tuple(GenericOp(target, counts[target], sources[target]) for target in sorted(counts))
