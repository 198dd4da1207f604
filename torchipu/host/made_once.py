"""Which storage holds values of weights that seldom change: what is packed of it serves many calls."""

from __future__ import annotations

from collections.abc import Collection

from torchipu.host.memory import Memory
from torchipu.host.steps import Step
from torchipu.host.storage import Place
from torchipu.optable.host_tensor import HostTensor


class MadeOnce:
    """Frozen weights, and what steps make of them alone, such as floats of halves.

    Args:
        memory: Of the plan.
        frozen: Numbers of the inputs that seldom change.
        has_states: Whether states are weights, which no update of the plan writes.
    """

    def __init__(self, memory: Memory, frozen: Collection[int], *, has_states: bool) -> None:
        self._memory, self._frozen, self._has_states = memory, frozen, has_states
        self._made: set[int] = set()
        self._others: set[int] = set()  # where anything else was ever written

    def holds(self, held: HostTensor) -> bool:
        """Return whether nothing but such values lies where a tensor does, as far as steps have been noted."""
        allocation = self._memory.allocations[held.buffer]
        if allocation.place is Place.INPUT:
            return allocation.index in self._frozen
        is_made = held.buffer in self._made and held.buffer not in self._others
        return is_made or (self._has_states and allocation.place is Place.STATE)

    def note(self, step: Step) -> None:
        """Take note of a step, in the order in which they run."""
        is_of_weights = step.is_hoistable and bool(step.read) and all(map(self.holds, step.read))
        for held in step.written:
            is_apart = self._memory.allocations[held.buffer].place is not Place.ARENA
            (self._made if is_of_weights and not is_apart else self._others).add(held.buffer)
