"""Where the time of the host goes: how long each step of a plan has run, and what it moved."""

from __future__ import annotations

from dataclasses import dataclass

from torchipu._kernels.abi import Plan
from torchipu.host.steps import Step
from torchipu.ir.graph import Op


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of a step in all runs that were timed.

    Attributes:
        op: That it belongs to; None for what no op asked for.
        name: Of the kernel, of the ATen overload, or of what is waited for.
        kind: ``kernel``, ``aten`` or ``exchange``.
        runs: How often, for each micro-batch and replica.
        seconds: Altogether.
        moved_bytes: Of operands and results, in a run.
    """

    op: Op | None
    name: str
    kind: str
    runs: int
    seconds: float
    moved_bytes: int


def step_times(engine: Plan, steps: list[Step]) -> tuple[StepTime, ...]:
    """Return the times of the steps that have run since the engine began to time them.

    Args:
        engine: That runs the steps.
        steps: Of the plan, in the engine's order.
    """
    found = []
    for step, (seconds, runs) in zip(steps, engine.times(), strict=False):
        if runs and step.mark is None and step.goes_to is None:
            name, kind = named(step)
            found.append(StepTime(step.op, name, kind, runs, seconds, _moved_bytes(step)))
    return tuple(found)


def named(step: Step) -> tuple[str, str]:
    """Return the name of what a step runs or waits for, and its kind; see `StepTime`."""
    if step.waits_for is not None or step.signals:
        return "sums of other processes", "exchange"
    if step.kernel is not None:
        return step.kernel.name, "kernel"
    return ("" if step.op is None else step.op.target), "aten"


def _moved_bytes(step: Step) -> int:
    return sum(held.num_elements * held.dtype.host_bytes for held in (*step.written, *step.read))
