"""What lives on both sides of a step: its states in the program's memory, and the results that it hands back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchipu.errors import ExecutionError

_VERSION = Tensor._version.__get__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Returned:
    """Which micro-batches' results of an output a call returns.

    Attributes:
        mode: ``all``, ``final``, ``sum`` or ``every_n``, as the option ``output_mode``.
        period: For ``every_n``: that of every how many device iterations.
    """

    mode: str
    period: int = 1

    def shape(self, runs: int, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what `join` makes of all of so many runs, each of this shape, where none is left out."""
        if runs == 1:
            return tuple(shape)
        return (runs * shape[0], *shape[1:]) if shape else (runs,)

    def join(self, value: torch.Tensor, device_iterations: int, replicas: int = 1) -> torch.Tensor:
        """Shape what was kept of all micro-batches.

        Args:
            value: ``[micro-batches x replicas, ...]``, of the last micro-batch alone for ``final``.
            device_iterations: In how many device iterations they ran.
            replicas: Replicas, each of which gives a result or, for ``sum``, a sum of its own.

        Returns:
            The results joined along dimension 0, a 0-d result as ``[micro-batches x replicas]``; of a single one the
            result as it is.
        """
        if self.mode == "sum":
            value = value.unflatten(0, (-1, replicas)).sum(0).to(value.dtype)
        if self.mode == "every_n":
            by_iteration = value.unflatten(0, (device_iterations, -1))
            value = by_iteration[self.period - 1 :: self.period].flatten(0, 1)
        if len(value) == 1:
            return value[0]
        return value if value.dim() == 1 else value.flatten(0, 1)


@dataclass(slots=True)
class Resident:
    """A state in the program's memory and the user's tensor that it mirrors.

    Attributes:
        memory: The state; ``[replicas, ...]`` where each replica has its own. The user's tensor itself, where the
            program works on that.
        host: The user's tensor, which has the state of the first replica.
        name: What errors call it.
        shape: Of the user's tensor when the program was made, or since it was given those of all replicas.
        is_written: Whether a call changes the state.
        replicas: What every replica had after the last call that ended well, where each has its own.
        seen: Address and version of the user's tensor when it was last seen.
        is_users: Whether the memory is that of the user's tensor.
    """

    memory: torch.Tensor
    host: torch.Tensor
    name: str
    shape: torch.Size
    is_written: bool
    replicas: torch.Tensor | None = None
    seen: tuple[int, int] = (0, -1)
    is_users: bool = False

    @classmethod
    def of(cls, memory: torch.Tensor, host: torch.Tensor, name: str, is_written: bool, is_apart: bool) -> Resident:
        """Return a state, with room for what each replica has of it where they are apart."""
        return cls(memory, host, name, host.shape, is_written, torch.zeros_like(memory) if is_apart else None)

    def take(self, value: torch.Tensor) -> None:
        """Let the user's tensor be another value, of any shape."""
        self.host.data = value
        self.shape = value.shape

    def misfit(self) -> str:
        """Say why the user's tensor cannot have the state, which is another shape or no memory; "" where it can."""
        if self.host.shape != self.shape:
            return f"{self.name} has shape {list(self.host.shape)}, and the program was made for {list(self.shape)}"
        if self.host.numel() and not self.host.data_ptr():
            return f"{self.name}, of shape {list(self.shape)}, has no memory: its storage was resized to 0 bytes"
        return ""

    def changed(self) -> bool:
        """Whether the user's tensor was written since it was last seen."""
        return self.seen != self._place_and_version()

    def source(self) -> torch.Tensor:
        """Return what the state is to be: the user's tensor, or each replica's own if that is as it was."""
        if self.replicas is None:
            return self.host.detach()
        return self.host.detach().expand_as(self.memory) if self.changed() else self.replicas

    def targets(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return where the state is written back to, and from where."""
        if self.replicas is None:
            return [(self.host, self.memory)]
        return [(self.host, self.memory[0]), (self.replicas, self.memory)]

    def mark(self) -> None:
        """Take note of the user's tensor as it is now."""
        self.seen = self._place_and_version()

    def forget(self) -> None:
        """Take the user's tensor for written since it was last seen."""
        self.seen = (0, -1)

    def _place_and_version(self) -> tuple[int, int]:
        # Tensors of inference mode have no version: what is written there is seen at the next copy.
        return self.host.data_ptr(), 0 if self.host.is_inference() else self.host._version


def changed(residents: Sequence[Resident]) -> list[Resident]:
    """Return those of which the user's tensor was written since it was last seen."""
    now = _seen(residents)
    return [resident for resident, at in zip(residents, now, strict=True) if resident.seen != at]


def refuse_misfits(residents: Iterable[Resident]) -> None:
    """Refuse states whose tensors of the user's are not what they were when the program was made.

    Raises:
        ExecutionError: One has another shape, which a copy might spread out unasked, or no memory.
    """
    if found := [reason for resident in residents if (reason := resident.misfit())]:
        raise ExecutionError(
            "; ".join(found), remedy="assign values of that shape, or resize the storage back; a model of other "
            "shapes needs a step of its own, or destroy() and another call",
        )


def mark(residents: Sequence[Resident]) -> None:
    """Take note of the user's tensors as they are now."""
    for resident, at in zip(residents, _seen(residents), strict=True):
        resident.seen = at


class Versions:
    """How often tensors were written, as torch counts that: asked of all of them at once.

    Args:
        tensors: Of the user's.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._found = _versions_of(tensors)

    def hold(self) -> bool:
        """Return whether none was written; False where torch does not count that."""
        return self._found is not None and _versions_of(self._tensors) == self._found


def _versions_of(tensors: Sequence[Tensor]) -> list[int] | None:
    try:
        return list(map(_VERSION, tensors))
    except RuntimeError:  # some are of inference mode
        return None


def _seen(residents: Sequence[Resident]) -> list[tuple[int, int]]:
    hosts = [resident.host for resident in residents]
    versions = _versions_of(hosts)
    if versions is None:
        return [resident._place_and_version() for resident in residents]
    return list(zip(map(Tensor.data_ptr, hosts), versions, strict=True))
