"""Half results whose floats stay beside them: what reads a half as float has nothing to convert.

Kernels compute floats, and a half result is these, rounded. Where something asks for the result as float, the step
that has made it leaves the rounded floats too; halves that nothing reads then are not written at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from torchipu._kernels.table.round_blocks import Kept
from torchipu.host.rounding import Computed
from torchipu.host.steps import Step
from torchipu.ir.types import DType
from torchipu.optable.emission import Stored
from torchipu.optable.host_tensor import HostTensor

MOST_ARGUMENTS = 48
"""Of a chain that stores one result more, well below what the engine takes."""


@dataclass(frozen=True, slots=True)
class Way:
    """How to have the floats of a half result.

    Attributes:
        keep: Lets the step that makes the result leave its floats too, and returns where; None where it cannot.
        drop: Lets it leave the floats alone.
    """

    keep: Callable[[], HostTensor | None]
    drop: Callable[[], None]


class KeptFloats:
    """Which results have floats, or may have them, by the buffer of their halves, which is theirs alone.

    Args:
        emit: Emits what a chain stores once more, and puts it in place of the step that did.
        scratch: Returns storage in the arena.
        last_step: Returns the step that was emitted last.
    """

    def __init__(
        self, emit: Callable[[Step, Stored], None], scratch: Callable[[Sequence[int], DType], HostTensor],
        last_step: Callable[[], Step],
    ) -> None:
        self._emit, self._scratch, self._last_step = emit, scratch, last_step
        self._ways: dict[int, Way] = {}
        self._floats: dict[int, HostTensor] = {}

    def note_ended(self, steps: Sequence[Step], result: Computed) -> None:
        """Note a result that steps round as they end; see `end_steps`."""
        ending = [step for step in steps if any(each.halves == result.halves for each in step.endings)]
        if all(each.is_last for step in ending for each in step.endings if each.halves == result.halves):
            self._ways[result.halves.buffer] = Way(
                lambda: _keep(ending, result, Kept.BOTH), lambda: (_keep(ending, result, Kept.FLOATS), None)[1],
            )

    def note_chain(self, stored: Stored) -> None:
        """Note the half results of a chain that has been emitted last."""
        step = self._step_of(stored)
        for place, (_, held) in enumerate(stored.results):
            if step is not None and held.dtype is DType.HALF and held.is_contiguous and held.offset == 0:
                self._note_stored(step, stored, place, held)

    def _step_of(self, stored: Stored) -> Step | None:
        """Return the step that stores results; None where there was nothing to store."""
        if not stored.results or stored.results[0][1].num_elements == 0:
            return None
        return self._last_step()

    def _note_stored(self, step: Step, stored: Stored, place: int, held: HostTensor) -> None:
        def keep() -> HostTensor | None:
            if len(step.outputs) + len(step.inputs) >= MOST_ARGUMENTS:
                return None
            floats = self._scratch(held.shape, DType.FLOAT)
            stored.results.append((stored.rounded(place), floats))
            self._emit(step, stored)
            return floats

        def drop() -> None:
            stored.results[:] = [(value, other) for value, other in stored.results if other != held]
            self._emit(step, stored)

        self._ways[held.buffer] = Way(keep, drop)

    def note_exact(self, floats: HostTensor, halves: HostTensor, stored: Stored) -> None:
        """Note halves that the chain that has been emitted last makes of floats that are halves' values."""
        step = self._step_of(stored)
        if step is None:
            return

        def drop() -> None:
            assert step is not None
            stored.results.clear()
            self._emit(step, stored)

        self._ways[halves.buffer] = Way(lambda: floats, drop)

    def may_have(self, held: HostTensor) -> bool:
        """Whether a view may have floats: they are there, or its maker is asked for them."""
        return held.dtype is DType.HALF and (held.buffer in self._floats or held.buffer in self._ways)

    def of(self, held: HostTensor) -> HostTensor | None:
        """Return the floats of a view of a half result, left by its maker from now on; None where that leaves none."""
        if held.dtype is not DType.HALF:
            return None
        if held.buffer not in self._floats:
            way = self._ways.get(held.buffer)
            floats = None if way is None else way.keep()
            if floats is None:
                return None
            self._floats[held.buffer] = floats
        floats = self._floats[held.buffer]
        return HostTensor(floats.buffer, floats.offset + held.offset, held.shape, held.strides, DType.FLOAT)

    def drop_halves(self, read: Collection[int]) -> None:
        """Let those makers that leave floats write no halves that nothing reads.

        Args:
            read: The buffers that something reads.
        """
        for buffer in self._floats:
            if buffer not in read:
                self._ways[buffer].drop()


def _keep(steps: Sequence[Step], result: Computed, kept: Kept) -> HostTensor:
    """Let steps that round a result leave its floats where they are computed."""
    for step in steps:
        step.endings = tuple(
            replace(each, keeps=kept, item_floats=0) if each.halves == result.halves else each for each in step.endings
        )
    return result.floats
