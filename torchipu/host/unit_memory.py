"""Values that the steps of one strand alone touch: of them a thread has those of one unit near, in its scratch.

Samples go through the steps of a strand a unit at a time. What a step makes for the next one is read while it is in the
cache; but where each unit has memory of its own, all of it is written to memory in the end, though nothing reads it
again. So each thread has memory for one unit, in which the next unit takes the place of the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchipu.host.steps import Step
from torchipu.host.storage import Allocation, Place, aligned
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.samples import Samples

Near = tuple[tuple[int, int, int], ...]
"""Of each argument that is near: which one, its offset, and the bytes that a unit has of it."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Which allocations steps touch.

    Attributes:
        touching: How many steps of the plan touch each of them.
        kept: What is read when the steps have run.
        allocations: By number.
    """

    touching: Mapping[int, int]
    kept: Collection[int]
    allocations: Sequence[Allocation]

    @staticmethod
    def of(steps: Iterable[Step], kept: Iterable[HostTensor], allocations: Sequence[Allocation]) -> Ownership:
        """Return who touches what in a plan of these steps, after which some values are read."""
        touching = Counter(buffer for step in steps for buffer in touched_by(step))
        return Ownership(touching, {held.buffer for held in kept}, allocations)

    def is_own(self, buffer: int, steps: Collection[Step]) -> bool:
        """Whether these steps alone touch an allocation, in an arena."""
        is_theirs = self.touching[buffer] == sum(buffer in touched_by(step) for step in steps)
        return is_theirs and buffer not in self.kept and self.allocations[buffer].place is Place.ARENA


def touched_by(step: Step) -> set[int]:
    """Return the allocations that a step reads or writes."""
    return {held.buffer for held in (*step.written, *step.read)}


def near_arguments(members: Sequence[tuple[Step, Samples]], chunk: int, ownership: Ownership) -> list[Near]:
    """Return for each step of a strand which of its arguments are near.

    Args:
        members: The steps in order, and how samples go through them, counted alike.
        chunk: Samples of a unit.
        ownership: Who touches what.
    """
    offsets: dict[int, tuple[int, int]] = {}
    taken = 0
    for buffer, stride in _divided_throughout(members).items():
        if ownership.is_own(buffer, [step for step, _ in members]):
            offsets[buffer] = taken, stride * chunk
            taken += aligned(stride * chunk)
    return [
        tuple(
            (place, offsets[held.buffer][0] + held.offset * held.dtype.host_bytes, offsets[held.buffer][1])
            for place, held in enumerate((*step.outputs, *step.inputs)) if held.buffer in offsets
        )
        for step, _ in members
    ]


def _divided_throughout(members: Sequence[tuple[Step, Samples]]) -> dict[int, int]:
    """Return the bytes of a sample of each allocation that is made by a step and divided alike wherever it is touched.

    Each sample's part lies apart from those of others, and the first step that touches it writes it.
    """
    windows: dict[int, set[tuple[int, int, int]]] = {}
    unfit: set[int] = set()
    for step, samples in members:
        arguments = (*step.outputs, *step.inputs)
        made = set() if step.reads_outputs else {held.buffer for held in step.outputs}
        made -= {held.buffer for held in step.inputs}
        touched = touched_by(step)
        unfit |= touched - made - windows.keys()
        ended = {step.outputs[ending.place].buffer for ending in step.endings}
        unfit |= ended | (touched - {held.buffer for held in arguments})
        windows.update((buffer, set()) for buffer in touched - windows.keys())
        for held, stride in zip(arguments, samples.strides, strict=True):
            windows.setdefault(held.buffer, set()).add(window(held, stride, samples.count))
    return {
        buffer: next(iter(found))[2] for buffer, found in windows.items()
        if buffer not in unfit and lie_apart(found) and min(begin for begin, _, _ in found) >= 0
        and max(end for _, end, _ in found) <= next(iter(found))[2]
    }


def window(held: HostTensor, stride: int, count: int) -> tuple[int, int, int]:
    """Return where the part of the first of so many samples begins and ends, and the bytes to that of the next."""
    begin, bytes_each = held.offset * held.dtype.host_bytes, held.dtype.host_bytes
    last = sum((size - 1) * step for size, step in zip(held.shape, held.strides, strict=True))
    return begin, begin + (last + 1) * bytes_each - (count - 1) * stride, stride


def lie_apart(windows: Collection[tuple[int, int, int]]) -> bool:
    """Whether such parts of an allocation lie apart from those of the next sample, as far as there are any."""
    if not windows:
        return False
    begins, ends, strides = zip(*windows, strict=True)
    return len(set(strides)) == 1 and 0 < max(ends) - min(begins) <= strides[0]
