"""What the variables of a device program hold: one value for each replica and slot, poisoned until it is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from torchipu.errors import DeviceProgramError
from torchipu.ir.program import Executable, Variable
from torchipu.ir.types import DType, Role

Values = np.ndarray
"""``[replicas, *shape]``."""
LASTING = frozenset({Role.CONSTANT, Role.HYPERPARAMETER})


class Moment(NamedTuple):
    """Which run of the schedule, and which micro-batch in it; None for what belongs to the update."""

    iteration: int
    micro_batch: int | None

    def __str__(self) -> str:
        what = "the update" if self.micro_batch is None else f"micro-batch {self.micro_batch}"
        return f"{what} of iteration {self.iteration}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the program something happens.

    Attributes:
        function: Name of the function that runs.
        step: The compute set, or the copy.
        moment: What it runs for.
        source: The user's line.
        trips: Of the loops of the user's around, the outermost first.
    """

    function: str
    step: str
    moment: Moment
    source: object = None
    trips: tuple[int, ...] = ()

    def fault(self, message: str, remedy: str = "") -> DeviceProgramError:
        """Return an error about this place."""
        return DeviceProgramError(
            f"{self.step} in {self.function} for {self.moment}: {message}", source=self.source, remedy=remedy,
        )


@dataclass(slots=True)
class Slot:
    """One copy of a variable."""

    number: int
    is_written: bool = False
    values: Values | None = None
    moment: Moment | None = None
    is_share: bool = False
    lost: str = "nobody has written it"
    due: set[int] = field(default_factory=set)  # rows that nobody has written


def outlives(variable: Variable) -> bool:
    """Whether a variable is the same for all micro-batches."""
    return variable.role.is_state or variable.role in LASTING


def _order(slot: Slot) -> tuple[int, int]:
    """Return a key by which slots stand in the order in which they were written."""
    if slot.moment is None:
        return (-1, -1)
    return (slot.moment.iteration, -1 if slot.moment.micro_batch is None else slot.moment.micro_batch)


def _is_before_update(made: Moment | None, read: Moment) -> bool:
    return made is not None and read.micro_batch is None and made.iteration == read.iteration


class Stores:
    """The variables of all replicas.

    Args:
        executable: Variables with or without addresses; with them, writing one spoils what lies on the same bytes.
    """

    def __init__(self, executable: Executable) -> None:
        self.replicas = executable.replicas
        self._slots = {
            variable: [Slot(number) for number in range(variable.depth)] for variable in executable.variables
        }
        self._addresses = executable.addresses
        self._tiles = {variable: frozenset(tile for tile, _, _ in variable.mapping.runs) for variable in self._slots}
        self._on_same_bytes: dict[Variable, list[Variable]] = {}

    def read(self, variable: Variable, at: Place, *, shares: bool = False) -> Values:
        """Return what a variable holds for a moment.

        Args:
            variable: The variable.
            at: Where it is read.
            shares: Whether it is enough that each replica has its share.

        Raises:
            DeviceProgramError: Nobody wrote it, its bytes were taken by another variable, it holds the value of
                another micro-batch, or each replica has no more than its share.
        """
        return self._kept(variable, self._checked(variable, at, shares=shares), at)

    def _checked(self, variable: Variable, at: Place, *, shares: bool = False) -> Slot:
        """Return the slot that a moment reads; see ``read`` for what is refused."""
        slot = self._slot(variable, at)
        if not variable.num_elements:  # nobody writes what is empty
            kind = float if variable.dtype.is_floating else bool if variable.dtype is DType.BOOL else np.int64
            slot.values = np.zeros((self.replicas, *variable.shape), kind)
            return slot
        if at.moment.micro_batch is None:  # the update reads what the last micro-batch has left
            slot = max(self._slots[variable], key=_order)
        if not slot.is_written:
            raise at.fault(f"reads %{variable.name} on ipu {variable.ipu}, but {slot.lost}")
        if not (outlives(variable) or slot.moment == at.moment or _is_before_update(slot.moment, at.moment)):
            raise at.fault(
                f"reads %{variable.name} on ipu {variable.ipu}, which holds the value of {slot.moment}: of its "
                f"{variable.depth} slots this one was written for another micro-batch"
            )
        if slot.is_share and not shares:
            raise at.fault(f"reads all of %{variable.name}, of which each replica has no more than its share")
        if slot.due:
            raise at.fault(f"reads all of %{variable.name}, but nobody has written row {min(slot.due)} of it")
        return slot

    def write_row(self, variable: Variable, row: int, values: Values, at: Place) -> None:
        """Let a variable hold a row; what it held for another micro-batch is gone, and the other rows are due.

        Args:
            variable: The variable.
            row: Number of the row.
            values: ``[replicas, ...]`` of the row.
            at: Where it is written.
        """
        slot = self._slot(variable, at)
        shape = (self.replicas, *variable.shape)
        if not slot.is_written or slot.moment != at.moment:
            self.write(variable, np.zeros(shape, values.dtype), at)
            slot.due = set(range(variable.shape[0]))
        self._keep_row(variable, slot, row, values.reshape(self.replicas, *variable.shape[1:]))
        slot.due.discard(row)

    def write(self, variable: Variable, values: Values, at: Place, *, shares: bool = False) -> None:
        """Let a variable hold values, and poison all others on the same bytes.

        Args:
            variable: The variable.
            values: ``[replicas, ...]``.
            at: Where it is written.
            shares: Whether each replica has no more than its share of them.

        Raises:
            DeviceProgramError: They have another size.
        """
        if values.size != self.replicas * variable.num_elements:
            raise at.fault(
                f"writes {values.size} values into %{variable.name} of {list(variable.shape)} "
                f"on {self.replicas} replicas"
            )
        slot = self._begin(variable, at, is_share=shares)
        self._keep(variable, slot, values.reshape(self.replicas, *variable.shape))

    def _begin(self, variable: Variable, at: Place, *, is_share: bool = False) -> Slot:
        """Return the slot that a moment writes, which is its own from now on, and poison others on the same bytes."""
        slot = self._slot(variable, at)
        slot.is_written, slot.moment, slot.is_share, slot.due = True, at.moment, is_share, set()
        for other in self._others(variable):
            for spoilt in self._slots[other]:
                if spoilt.is_written:
                    lost = f"%{variable.name}, on the same bytes, was written by {at.step} in {at.function}"
                    self._lose(other, spoilt, lost)
        return slot

    # ------------------------------------------------------------------ what holds the values
    def _keep(self, variable: Variable, slot: Slot, values: Values) -> None:
        """Let a slot hold values."""
        slot.values = values

    def _keep_row(self, variable: Variable, slot: Slot, row: int, values: Values) -> None:
        """Let a slot hold a row besides."""
        assert slot.values is not None
        slot.values[:, row] = values

    def _kept(self, variable: Variable, slot: Slot, at: Place | None) -> Values:
        """Return what a slot holds."""
        assert slot.values is not None
        return slot.values

    def _lose(self, variable: Variable, slot: Slot, why: str) -> None:
        """Poison a slot."""
        slot.is_written, slot.values, slot.lost = False, None, why

    # ------------------------------------------------------------------ the host
    def load(self, variable: Variable, values: Values) -> None:
        """Fill all slots before the program runs."""
        for slot in self._slots[variable]:
            slot.is_written, slot.moment = True, None
            self._keep(variable, slot, values)

    def final(self, variable: Variable) -> Values:
        """Return what a state holds in the end.

        Raises:
            DeviceProgramError: It was lost.
        """
        (slot,) = self._slots[variable]
        if not slot.is_written:
            raise DeviceProgramError(f"%{variable.name} on ipu {variable.ipu} is lost at the end: {slot.lost}")
        return self._kept(variable, slot, None)

    def forget(self, variables: Iterable[Variable], why: str) -> None:
        """Poison variables."""
        for variable in variables:
            for slot in self._slots[variable]:
                self._lose(variable, slot, why)

    def _slot(self, variable: Variable, at: Place) -> Slot:
        slots = self._slots.get(variable)
        if slots is None:
            raise at.fault(f"uses %{variable.name}, which is no variable of the program")
        return slots[(at.moment.micro_batch or 0) % len(slots)]

    def _others(self, variable: Variable) -> list[Variable]:
        """Return the variables that share bytes of a tile with one."""
        if variable not in self._on_same_bytes:
            self._on_same_bytes[variable] = [
                other for other in self._slots
                if other is not variable and other.ipu == variable.ipu and self._meet(variable, other)
            ]
        return self._on_same_bytes[variable]

    def _meet(self, one: Variable, other: Variable) -> bool:
        if one.name not in self._addresses or other.name not in self._addresses:
            return False
        (begin, end), (start, stop) = self._addresses[one.name], self._addresses[other.name]
        return begin < stop and start < end and not self._tiles[one].isdisjoint(self._tiles[other])
