"""Ops that the host can compute with channels in blocks, ``[N, blocks, H, W, lanes]``, and what that is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchipu.ir.graph import Op, Tensor
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner


class BlockedPlanner(HostPlanner, Protocol):
    """What the emitter of a blocked form may ask of the planner beside what others may.

    Attributes:
        is_strict: Whether convolutions are the sums that define them, and no transforms are made.
    """

    is_strict: bool

    def blocked(self, tensor: Tensor) -> HostTensor:
        """Return where a value of ``[N, C, H, W]`` lies in the blocked layout, brought there if need be."""
        ...

    def is_blocked(self, tensor: Tensor) -> bool:
        """Whether a value lies in the blocked layout already."""
        ...

    def blocked_output(self, tensor: Tensor) -> HostTensor:
        """Return storage in the blocked layout for a result."""
        ...


@dataclass(frozen=True, slots=True)
class BlockedForm:
    """How ops are computed in the blocked layout.

    Attributes:
        serves: Whether the form takes an op.
        follows: Whether what is computed so far goes on with an op, which alone reads its first result.
        sources: The values that ops read in the blocked layout, the one that decides first.
        gain_ns: Nanoseconds that the form saves over the plain one on one thread, what bringing values into the
            layout and back costs aside.
        emit: Host steps that give the first result of the last op in the blocked layout, or wherever it belongs.
    """

    serves: Callable[[Op], bool]
    follows: Callable[[Sequence[Op], Op], bool]
    sources: Callable[[Sequence[Op]], Sequence[Tensor]]
    gain_ns: Callable[[Sequence[Op]], float]
    emit: Callable[[Sequence[Op], BlockedPlanner], None]


BLOCKED_FORMS: dict[str, BlockedForm] = {}


def register_blocked(target: str, form: BlockedForm) -> None:
    """Enter the form of ops that begin with one of a target."""
    BLOCKED_FORMS[target] = form


def follows_nothing(ops: Sequence[Op], after: Op) -> bool:
    """Whether an op joins those before it: none does."""
    return False


def saves_nothing(ops: Sequence[Op]) -> float:
    """Return what is saved by ops that are as quick in either layout."""
    return 0.0
