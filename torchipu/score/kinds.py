"""What a kind of row is: the rows, and the function that predicts one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchipu.score.rows import Row


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of a row.

    Attributes:
        value: In the unit of the kind; 1 or 0 where the kind is a decision.
        split: Of what it is made: cycles, or bytes, by category.
    """

    value: float
    split: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotExpressed:
    """Stands for a prediction where the configuration of a row cannot be written as a program yet.

    Attributes:
        reason: Why not.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows that are scored together.

    Attributes:
        name: For ``--kind``.
        title: For tables.
        unit: Of what is measured.
        rows: Returns the rows.
        predict: Returns the model's number for a row, or why there is none.
        source: Silicon, or Graphcore's IPU Model.
        is_decision: Whether a row is a yes or a no, 1 or 0; otherwise a number above 0.
        stated: Why the model is off in rows whose number it cannot give, by the first word of their names; what was
            looked at, and where.
        is_quick: Whether a row takes well below a second, so that a part of them is compared in the tests.
        scales: Whether there are rows of one program on different numbers of IPUs, which are then compared.
    """

    name: str
    title: str
    unit: str
    rows: Callable[[], tuple[Row, ...]]
    predict: Callable[[Row], Prediction | NotExpressed]
    source: str = "silicon"
    is_decision: bool = False
    is_quick: bool = True
    scales: bool = False
    stated: Mapping[str, str] = field(default_factory=dict)
