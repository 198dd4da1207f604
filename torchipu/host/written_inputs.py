"""Results that a caller writes over its inputs: stored there at once, where nothing can go wrong on the way.

What an in-place operator has computed AOT autograd returns beside the results, and copies into the tensor that it
changes. A step that has read that tensor to the end may as well write there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchipu._kernels.table.copy import CONCATENATE_ROWS, COPY, FILL, TRANSPOSE
from torchipu._kernels.table.elementwise import CHAIN
from torchipu._kernels.table.reduce import REDUCE_COLUMNS, REDUCE_ROWS
from torchipu.host.steps import Step
from torchipu.host.storage import Allocation, Place
from torchipu.optable.host_tensor import HostTensor

_NEVER_REFUSING = frozenset([CONCATENATE_ROWS, COPY, FILL, TRANSPOSE, REDUCE_ROWS, REDUCE_COLUMNS])


def write_inputs(
    steps: Sequence[Step], allocations: Sequence[Allocation], outputs: list[HostTensor],
    written: Mapping[int, HostTensor],
) -> dict[int, int]:
    """Let steps store results where the inputs lie that they are to replace.

    A plan with a step that may refuse a value is left as it is: inputs stay what they were where that happens.

    Args:
        steps: In the order in which they were emitted; changed, as are the allocations.
        allocations: By number.
        outputs: Where the results lie; changed.
        written: By number of the result the input that it is to replace, which overlaps no other input.

    Returns:
        By number of the result the input that it lies in.
    """
    if not written or any(_may_refuse(step) for step in steps):
        return {}
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        for held in step.written:
            writers.setdefault(held.buffer, []).append(number)
        for held in step.read:
            readers.setdefault(held.buffer, []).append(number)
    moved: dict[int, HostTensor] = {}
    places: dict[int, int] = {}
    shown = [held.buffer for held in outputs]
    for index, target in written.items():
        made = outputs[index]
        writing, reading = writers.get(made.buffer, ()), readers.get(target.buffer, ())
        if (
            allocations[made.buffer].place is Place.OUTPUT and shown.count(made.buffer) == 1
            and target.buffer not in shown and target.buffer not in writers
            and _lie_alike(made, target) and len(writing) == 1 and max(reading, default=-1) <= writing[0]
            and _reads_first(steps[writing[0]], made, target)
        ):
            moved[made.buffer], outputs[index] = target, target
            places[index] = allocations[target.buffer].index
            allocations[target.buffer].is_apart = True
    for step in steps if moved else ():
        step.outputs = tuple(_moved(held, moved) for held in step.outputs)
        step.inputs = tuple(_moved(held, moved) for held in step.inputs)
    return places


def _may_refuse(step: Step) -> bool:
    """Whether a step may stop the program, as far as is known."""
    if step.kernel is CHAIN:
        return not step.overwrites
    return step.kernel not in _NEVER_REFUSING or bool(step.endings)


def _lie_alike(made: HostTensor, target: HostTensor) -> bool:
    return (
        made.dtype is target.dtype and made.shape == target.shape and made.is_contiguous and target.is_contiguous
        and made.offset == target.offset == 0
    )


def _reads_first(step: Step, made: HostTensor, target: HostTensor) -> bool:
    """Whether a step reads each element of an input before it stores the result at the same place."""
    results = [place for place, held in enumerate(step.outputs) if held.buffer == made.buffer]
    if len(results) != 1 or not _lie_alike(step.outputs[results[0]], target):
        return False
    read = [place for place, held in enumerate(step.inputs) if held.buffer == target.buffer]
    if not read:
        return True
    return bool(step.overwrites) and all(
        place in step.overwrites[results[0]] and step.inputs[place].num_elements == target.num_elements
        and step.inputs[place].is_contiguous and step.inputs[place].offset == 0 for place in read
    )


def _moved(held: HostTensor, moved: Mapping[int, HostTensor]) -> HostTensor:
    """Return the same view of other memory."""
    target = moved.get(held.buffer)
    return held if target is None else replace(held, buffer=target.buffer)
