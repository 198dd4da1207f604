"""Stencils on Mk1 silicon: a convolution over an image, written back 200 times."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from torchipu.errors import RowsError
from torchipu.score.kinds import Kind, NotExpressed, Prediction
from torchipu.score.products import DTYPES
from torchipu.score.programs import Frozen, OnDevice, Outcome, Resident, outcome_of
from torchipu.score.rows import FOLDER, Line, Row, lines_of
from torchipu.target import lookup_target

FILE = FOLDER / "stencil_mk1.csv"
SOURCE = "University of Bristol, lbm-graphcore"
CONVOLUTION = "poplibs_conv3x3_amp"
REPEATS = 200
CHANNELS = 4
FIELDS = {"bricks": (302, 499), "leaf": (1024, 768), "cheese": (1122, 2200)}
"""Rows and columns of the images."""
OUT_OF_MEMORY = "N/A"
EXCHANGES = 2
"""Of a repeat: of the image's parts that meet windows of other tiles, and of the result as it is copied back."""
OUTSIDE_CYCLES = 2038
"""Of an exchange between IPUs beside its bytes.

Source: the phases of the hand-written stencil of the same authors, on 16 IPUs: edges of halves take 3,043 cycles
between IPUs, those of floats, which have twice the bytes, 4,048."""


@dataclass(frozen=True)
class Stencil(OnDevice):
    """A 3x3 convolution of an image with four channels, whose result is copied back."""

    field: tuple[int, int]
    dtype: torch.dtype

    def model(self) -> nn.Module:
        """Return the module."""
        return Filtered(self.dtype, x=(1, CHANNELS, *self.field), w=(CHANNELS, CHANNELS, 3, 3))


class Filtered(Resident):
    """Filters its image in place."""

    def forward(self) -> torch.Tensor:
        """Filter once; a weight stands for a result, since a program has one."""
        self.x.copy_(F.conv2d(self.x, self.w, padding=1))
        return self.w[0, 0, 0, 0]


def case_of(line: Line) -> dict[str, str]:
    """Return the settings of a row by name."""
    return dict(part.split("=", 1) for part in line.text("case").split(","))


def is_convolution(line: Line) -> bool:
    """Whether PopLibs' convolution was timed."""
    return line.text("experiment") == CONVOLUTION


def rows() -> tuple[Row, ...]:
    """Return what took a time, in cycles of a repeat."""
    clock = lookup_target("mk1").clock_hz
    found = []
    for line in lines_of(FILE):
        if line.text("value") == OUT_OF_MEMORY:
            continue
        cycles = line.number_in("value", or_zero=not is_convolution(line))
        if is_convolution(line):
            cycles *= clock / REPEATS
        found.append(Row(f"{line.text('experiment')} {line.text('case')}", cycles, SOURCE, line))
    return tuple(found)


def decisions() -> tuple[Row, ...]:
    """Return which convolutions fitted into memory."""
    return tuple(
        Row(f"{CONVOLUTION} {line.text('case')}", float(line.text("value") != OUT_OF_MEMORY), SOURCE, line)
        for line in lines_of(FILE) if is_convolution(line)
    )


def outcome_of_row(row: Row) -> Outcome | NotExpressed:
    """Compile a convolution."""
    line = row.line
    if not is_convolution(line):
        return NotExpressed("hand-written vertices with an exchange of their own, which no operator stands for")
    case = case_of(line)
    try:
        field, dtype, memory, ipus = FIELDS[case["image"]], DTYPES[case["dtype"]], float(case["amp"]), int(case["ipus"])
    except (KeyError, ValueError) as error:
        raise RowsError(f"no such case: {error}", file=line.file, line=line.number, column="case") from error
    return outcome_of(Stencil(field, dtype), Frozen("mk1", memory=(memory,), chips=ipus))


def cycles(row: Row) -> Prediction | NotExpressed:
    """Predict the cycles of a repeat."""
    outcome = outcome_of_row(row)
    if isinstance(outcome, NotExpressed):
        return outcome
    outside = EXCHANGES * OUTSIDE_CYCLES if int(case_of(row.line)["ipus"]) > 1 else 0
    split = outcome.device_split
    return Prediction(
        outcome.device_cycles + outside, split | {"exchange": split.get("exchange", 0) + outside},
    )


KINDS = (Kind("stencil", "3x3 convolution of an image", "cycles", rows, cycles, is_quick=False),)
