"""When each stage runs: a grid of actions, one row a pipeline cycle and one column an IPU."""

from __future__ import annotations

from dataclasses import dataclass

from torchipu.ir.types import Leg


@dataclass(frozen=True, slots=True)
class Action:
    """One leg of one stage for one micro-batch; prints as ``2F0``, an update as ``2U``."""

    stage: int
    leg: Leg
    micro_batch: int | None

    def __str__(self) -> str:
        return f"{self.stage}{self.leg.value}{'' if self.micro_batch is None else self.micro_batch}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The actions of one weight update (or one inference run).

    Attributes:
        steps: For each pipeline cycle, for each IPU, the actions that it runs one after another.
        fill: Cycles at the beginning in which not every stage has work.
        flush: Such cycles at the end, before the update.
    """

    steps: tuple[tuple[tuple[Action, ...], ...], ...]
    fill: int = 0
    flush: int = 0
