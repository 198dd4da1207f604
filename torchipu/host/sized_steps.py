"""What a planner has emitted for sizes that are known when a program is called, and the plan once they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchipu.host.arrangement import Emitted, arranged
from torchipu.host.plan import HostPlan
from torchipu.host.steps import Step
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.guards import Guards, Numbers
from torchipu.ir.settling import Settling
from torchipu.ir.size import Size
from torchipu.ir.types import DType
from torchipu.optable.alternatives import Either, EitherTensor


class SizedSteps:
    """Steps that a planner has emitted with sizes.

    Args:
        guards: What was decided by sizes.
        count: Of all numbers that are computed of sizes.
        emitted: The steps.
        lying: Strides of inputs that are not row-major, by number.
        made: Strides of outputs.
    """

    def __init__(
        self, guards: Guards, count: int, emitted: Emitted, lying: Mapping[int, tuple[Any, ...]],
        made: Mapping[int, tuple[Any, ...]],
    ) -> None:
        self.guards = guards
        self._emitted = emitted
        self._cells = Cells(count)
        self._strides = Copied(self._cells, Strides(dict(lying), dict(made)), ("lying", "made"))
        self._steps = [CopiedStep(self._cells, step) for step in emitted.steps]
        self._allocations = [Copied(self._cells, one, ("num_bytes",)) for one in emitted.allocations]
        self._whole = Copied(self._cells, emitted, ("outputs", "constants"))

    def settled(
        self, numbers: Numbers, lying: Mapping[int, tuple[int, ...]], made: Mapping[int, tuple[int, ...]],
    ) -> HostPlan | None:
        """Return the plan for plain numbers, with its memory; None where inputs or outputs do not lie as was planned.

        Args:
            numbers: What the sizes are.
            lying: Strides of inputs that are not row-major, by number.
            made: Strides of outputs.
        """
        cells = self._cells.filled(numbers)
        strides: Strides = self._strides.filled(cells)
        if strides.lying != lying or strides.made != made:
            return None  # as may be where dimensions have one element
        emitted: Emitted = self._whole.filled(cells)
        there = [step for step in self._steps if step.is_there(cells)]
        steps = emitted.steps = [step.filled(cells) for step in there]
        emitted.allocations = [allocation.filled(cells) for allocation in self._allocations]
        for allocation in emitted.allocations:
            allocation.writers = []
        if emitted.loops:
            fresh = {id(old.value): new for old, new in zip(there, steps, strict=True)}
            emitted.loops = [(fresh[id(first)], fresh[id(last)]) for first, last in emitted.loops]
        settling = Settling(numbers)
        for step in steps:
            if step.kernel is None and step.op is not None:  # torch is called with the op's own arguments
                step.op = settling.op(step.op)
        emitted.awaited = frozenset(map(settling.tensor, emitted.awaited))
        plan = arranged(emitted)
        plan.ops_by_step = SettledOps(plan.ops_by_step, settling)
        return plan


@dataclass(frozen=True, slots=True)
class Strides:
    """Strides by number of inputs and of outputs that are not row-major."""

    lying: dict[int, tuple[Any, ...]]
    made: dict[int, tuple[Any, ...]]


class SettledOps(Sequence[Op | None]):
    """Ops with plain sizes, made when somebody asks for one, as the text of an error does.

    Args:
        ops: With sizes.
        settling: What makes them plain.
    """

    def __init__(self, ops: Sequence[Op | None], settling: Settling) -> None:
        self._ops, self._settling = ops, settling

    def __len__(self) -> int:
        return len(self._ops)

    def __getitem__(self, place: Any) -> Any:
        found = self._ops[place]
        if isinstance(place, slice):
            return [one and self._settling.op(one) for one in found]
        return found and self._settling.op(found)


# --------------------------------------------------------------------------- values with sizes in them
class Cells:
    """A list of numbers, followed by values that are made of those before them: each once, however often it comes.

    Args:
        count: Of the numbers.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._made: list[tuple[Callable[[list[Any]], Any], list[Any], list[tuple[int, int]]]] = []
        self._known: dict[Any, int] = {}
        self._seen: dict[int, tuple[int | None, Any]] = {}

    def of(self, value: Any) -> int | None:
        """Return the cell of a value; None where it has no sizes."""
        kind: Any = type(value)
        if kind in _ATOMS:
            return None
        if kind is Size:
            return int(value.place)
        seen = self._seen.get(id(value))
        if seen is None:
            # What was seen is kept, so that no other object has its id.
            seen = self._seen[id(value)] = self._of(kind, value), value
        return seen[0]

    def _of(self, kind: Any, value: Any) -> int | None:
        if isinstance(value, (tuple, list)):
            return self._cell(kind, getattr(kind, "_make", kind), value)
        if isinstance(value, dict):
            keys = tuple(value)
            return self._cell(keys, lambda members: dict(zip(keys, members, strict=True)), value.values())
        if hasattr(kind, "__dataclass_fields__") and kind not in (Op, Tensor):
            make = kind.settled if kind in (Either, EitherTensor) else kind
            members = [getattr(value, name) for name in _names_of(value)]
            return self._cell(kind, lambda members: make(*members), members)
        return None

    def _cell(self, kind: Any, make: Callable[[list[Any]], Any], members: Iterable[Any]) -> int | None:
        """Return the cell of what is made of members; None where none of these has sizes."""
        members = list(members)
        holes: list[tuple[int, int]] = []
        parts: list[Any] = [kind]
        for place, member in enumerate(members):
            cell = None if type(member) in _ATOMS else self.of(member)
            if cell is None:
                parts.append(id(member))  # plain members are kept, so that no other object has their ids
            else:
                holes.append((place, cell))
                parts.append((cell,))
        if not holes:
            return None
        key = tuple(parts)
        if key not in self._known:
            self._known[key] = self._count + len(self._made)
            self._made.append((make, members, holes))
        return self._known[key]

    def filled(self, numbers: Numbers) -> list[Any]:
        """Return what all cells hold for numbers."""
        cells = list(numbers[: self._count])
        for make, members, holes in self._made:
            held = members.copy()
            for place, cell in holes:
                held[place] = cells[cell]
            cells.append(make(held))
        return cells


class Copied:
    """Copies of an object of a dataclass with plain numbers in some of its fields.

    Args:
        cells: Where values with sizes are made.
        value: The object.
        names: The fields.
    """

    def __init__(self, cells: Cells, value: Any, names: Sequence[str]) -> None:
        self._kind = type(value)
        order = _names_of(value)
        self._values = [getattr(value, name) for name in order]
        found = ((order.index(name), cells.of(getattr(value, name))) for name in names)
        self._holes = [(place, cell) for place, cell in found if cell is not None]

    def filled(self, cells: Sequence[Any]) -> Any:
        """Return a copy, given what the cells hold."""
        values = self._values.copy()
        for place, cell in self._holes:
            values[place] = cells[cell]
        return self._kind(*values)


class CopiedStep(Copied):
    """Copies of a step.

    Args:
        cells: Where values with sizes are made.
        step: With sizes.

    Attributes:
        value: That one.
    """

    def __init__(self, cells: Cells, step: Step) -> None:
        super().__init__(cells, step, _OF_STEP)
        self.value = step
        self._is_there = cells.of(step.is_there)

    def is_there(self, cells: Sequence[Any]) -> bool:
        """Whether a plan has the step, given what the cells hold."""
        return self._is_there is None or bool(cells[self._is_there])


def _names_of(value: Any) -> tuple[str, ...]:
    """Return the fields of an object of a dataclass."""
    kind = type(value)
    if kind not in _NAMES:
        _NAMES[kind] = tuple(kind.__dataclass_fields__)
    return _NAMES[kind]


_NAMES: dict[type, tuple[str, ...]] = {}
_ATOMS = frozenset({int, float, bool, str, type(None), DType})
_OF_STEP = (
    "outputs", "inputs", "ints", "scalars", "items", "grain", "scratch_bytes", "endings", "samples", "rounds",
)
"""Fields of a step that a plan needs and that may hold sizes."""
