"""Ops that the host computes in one go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchipu.ir.graph import Op, Tensor
from torchipu.optable.planner import HostPlanner


def always(ops: Sequence[Op], makers: Mapping[Tensor, Op]) -> bool:
    """Return that whatever makes operands will do."""
    return True


@dataclass(frozen=True, slots=True)
class Fusion:
    """Ops that the host computes in one go when nothing else reads what each hands to the next.

    Attributes:
        targets: The ops in order; the first result of each is handed to the next.
        applies: Tells whether the kernel serves these ops.
        emit: Host steps that give the results of all, less the values handed on.
        fits: Tells, given the op that makes each value, whether what makes the other operands suits the kernel.
    """

    targets: tuple[str, ...]
    applies: Callable[[Sequence[Op]], bool]
    emit: Callable[[Sequence[Op], HostPlanner], None]
    fits: Callable[[Sequence[Op], Mapping[Tensor, Op]], bool] = always


FUSIONS: dict[tuple[str, ...], Fusion] = {}


def register_fusion(*fusions: Fusion) -> None:
    """Enter sequences that the host planner may join; where several apply it takes the longest."""
    for fusion in fusions:
        FUSIONS[fusion.targets] = fusion
