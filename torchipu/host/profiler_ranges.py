"""Ranges of `torch.profiler`: while it records, each step of a plan is one, named by kernel, op, block and line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler

from torchipu._kernels.abi import Plan
from torchipu.host.steps import Step
from torchipu.host.timing import named

PREFIX = "ipu::"
"""What the names of all ranges begin with."""


def is_recording() -> bool:
    """Whether a profiler of torch's records."""
    return bool(profiler._is_profiler_enabled)


@contextmanager
def ranges(engine: Plan, steps: Sequence[Step], names: dict[int, str], whole: str) -> Iterator[None]:
    """Make a range of what is run meanwhile, and of every step of it; does nothing while no profiler records.

    Args:
        engine: That runs the steps.
        steps: Of the plan, in the engine's order.
        names: Names of ranges that were made before, by step; grows.
        whole: Name of the graph.
    """
    if not is_recording():
        yield
        return
    begun: list[_RecordFunctionFast] = []

    def end() -> None:
        while begun:
            begun.pop().__exit__(None, None, None)

    def watch(number: int) -> None:
        end()
        if number < 0 or steps[number].mark is not None or steps[number].goes_to is not None:
            return
        name = names.get(number)
        if name is None:
            name = names[number] = _name_of(steps[number])
        begun.append(_RecordFunctionFast(name))
        begun[0].__enter__()

    engine.watch(watch)
    try:
        with _RecordFunctionFast(f"{PREFIX}{whole}"):
            try:
                yield
            finally:
                end()
    finally:
        engine.watch(None)


def _name_of(step: Step) -> str:
    """Return the name of a range, such as ``ipu::gemm aten.addmm.default block 1 @ model.py:12 fc1``."""
    kernel, _ = named(step)
    op = step.op
    if op is None:
        return f"{PREFIX}{kernel}"
    words = [f"{PREFIX}{kernel}", op.target]
    if op.placement is not None:
        words.append(f"[{op.placement}]")
    if op.source.file:
        words.append(f"@ {os.path.basename(op.source.file)}:{op.source.line}")
    if op.source.module:
        words.append(op.source.module)
    return " ".join(words)
