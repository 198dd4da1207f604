"""Kernels of recurrent layers: the whole loop over time of a block of samples, with the products of the inputs given.

Gates of a sample lie side by side. What is kept for the backward are the gates and the cell of an LSTM, the gates and
the recurrent half of the new gate of a GRU, and nothing of the others.
"""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing

UNITS = 16
"""Units that an item packs: a multiple of a vector, of whose units the weights lie side by side, gate by gate."""


class Cell(IntEnum):
    """What a layer does with the sums of its gates."""

    TANH = 0
    RELU = 1
    LSTM = 2
    GRU = 3


class RecurrentInts(NamedTuple):
    """Integers of both kernels.

    Attributes:
        cell: What the layer does.
        time: Steps.
        batch: Samples.
        hidden: Width of a gate.
        state: Width of what a step hands to the next; it differs from `hidden` with a projection.
        rows: Samples of an item.
        reverse: Whether time runs backwards.
        projects: Whether there is a projection.
        keeps: Whether the forward writes what the backward needs.
        parts: Parts of the units, each an item in each step of time. Steps are rounds; the backward has one more for
            the gradients of the first states. 0 where an item is `rows` samples in all steps.
        units: Units of a part: whole blocks for the forward, whole panels for the backward.
    """

    cell: Cell
    time: int
    batch: int
    hidden: int
    state: int
    rows: int
    reverse: bool
    projects: bool
    keeps: bool
    parts: int
    units: int


class RecurrencePackInts(NamedTuple):
    """Integers of ``recurrence_pack``.

    Attributes:
        gates: How many there are.
        hidden: Width of a gate.
        state: Summands of a gate.
        block: Summands that an item packs.
    """

    gates: int
    hidden: int
    state: int
    block: int


RECURRENCE_PACK = Kernel(
    "recurrence_pack",
    {
        "packed": "[vectors of units][state][gates][units of a vector], zero beyond the last unit",
        "weight": "[gates][hidden][state]",
    },
    RecurrencePackInts,
    Nothing,
    items="blocks of units * blocks of summands",
)
RECURRENCE = Kernel(
    "recurrence",
    {
        "outputs": "[time][batch][state]", "last_cell": "[batch][hidden]", "kept": "[time][batch][0, 5 or 4 hidden]",
        "projected": "products of the inputs, [time][batch][gates]", "h0": "[batch][state]",
        "c0": "[batch][hidden], of an LSTM", "weight": "as `recurrence_pack` leaves it",
        "bias": "recurrent, [gates], of a GRU", "projection": "[hidden][state] in panels",
    },
    RecurrentInts,
    Nothing,
    items="blocks of samples, or steps * parts",
    scratch="rows * hidden floats, of a projection",
)
RECURRENCE_BACKWARD = Kernel(
    "recurrence_backward",
    {
        "projected_grad": "[time][batch][gates]",
        "other_grad": "of the recurrent half of the products, likewise (GRU), or of all outputs (projection)",
        "h0_grad": "[batch][state]", "c0_grad": "[batch][hidden]", "outputs_grad": "[time][batch][state]",
        "last_cell_grad": "[batch][hidden]", "kept": "what the forward wrote", "outputs": "[time][batch][state]",
        "h0": "[batch][state]", "c0": "[batch][hidden], of an LSTM", "weight": "[gates][state] in panels",
        "projection": "[state][hidden] in panels",
    },
    RecurrentInts,
    Nothing,
    items="blocks of samples, or steps * parts",
    scratch="rows * (state + 2 * hidden) floats",
)
