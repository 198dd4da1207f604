"""Products and convolutions on Graphcore's IPU Model: what the tools of PopLibs' regression tests run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from torchipu.score.kinds import Kind, Prediction
from torchipu.score.programs import Frozen, OnDevice, Outcome, Resident, outcome_of
from torchipu.score.rows import FOLDER, Line, Row, lines_of

FILE = FOLDER / "poplibs_ipumodel.csv"
SOURCE = "PopLibs' regression tests"
MACHINES = {"IpuModel1": "mk1", "IpuModel2": "mk2"}
LEARNING_RATE = 0.1
DTYPES = {"half": torch.half, "float": torch.float}
MATRIX_TOOLS = ("conv", "fc", "gemm")


# --------------------------------------------------------------------------- workloads
@dataclass(frozen=True)
class Product(OnDevice):
    """`[groups, rows, inner]` by `[groups, inner, columns]`; without groups if there is one."""

    groups: int
    rows: int
    inner: int
    columns: int
    dtype: torch.dtype
    trains: bool

    def model(self) -> nn.Module:
        """Return a module of one product, or of the three of a layer that is trained."""
        lead = (self.groups,) if self.groups > 1 else ()
        kind = Trained if self.trains else Multiplied
        return kind(
            self.dtype, x=(*lead, self.rows, self.inner), w=(*lead, self.inner, self.columns),
            g=(*lead, self.rows, self.columns), b=(*lead, 1, self.columns),
        )


class Multiplied(Resident):
    """One product, added to a third matrix, as the tool for products runs it."""

    def forward(self) -> torch.Tensor:
        """Add the product to what is there."""
        _add_product(self.g, self.x, self.w, 1.0)
        return self.g[..., :1, :1]


class Trained(Resident):
    """Forward, backward and weight update of a layer with a bias, as the fully connected tool runs them by default."""

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the result and the gradient of the input, and update weight and bias."""
        y = (torch.baddbmm if self.x.dim() == 3 else torch.addmm)(self.b, self.x, self.w)
        gradient = torch.matmul(self.g, self.w.mT)
        _add_product(self.w, self.x.mT, self.g, -LEARNING_RATE)
        self.b.sub_(self.g.sum(-2, keepdim=True), alpha=LEARNING_RATE)
        return y, gradient


def _add_product(to: torch.Tensor, left: torch.Tensor, right: torch.Tensor, factor: float) -> None:
    """Add a product to a matrix, or products to a group of them: what the tools call ``matMulAcc`` for."""
    (to.baddbmm_ if to.dim() == 3 else to.addmm_)(left, right, alpha=factor)


@dataclass(frozen=True)
class Convolution(OnDevice):
    """Forward, backward and weight update of a convolution without bias."""

    batch: int
    field: tuple[int, int]
    kernel: tuple[int, int]
    in_channels: int
    out_channels: int
    groups: int
    stride: tuple[int, int]
    padding: tuple[int, int]
    padding_lower: int
    dtype: torch.dtype = torch.half
    trains: bool = True

    @property
    def outputs(self) -> list[int]:
        """Height and width of the result."""
        return self._outputs(self.padding_lower)

    @property
    def symmetric_padding(self) -> tuple[int, int] | None:
        """Padding of both sides that gives the same result; None where windows would reach what the upper side has."""
        low = self.padding_lower
        if self._outputs(2 * low) != self.outputs:
            return None
        return self.padding[0] + low, self.padding[1] + low

    def _outputs(self, more: int) -> list[int]:
        return [
            (side + more + 2 * pad - kernel) // stride + 1
            for side, pad, kernel, stride in zip(self.field, self.padding, self.kernel, self.stride, strict=True)
        ]

    def model(self) -> nn.Module:
        """Return a module of one convolution, or of the three of a layer that is trained."""
        out = self.outputs
        channels, out_channels = self.in_channels * self.groups, self.out_channels * self.groups
        return Convolved(
            self, self.dtype, x=(self.batch, channels, *self.field), w=(out_channels, self.in_channels, *self.kernel),
            g=(self.batch, out_channels, *out),
        )


class Convolved(Resident):
    """A convolution, and its gradients."""

    def __init__(self, of: Convolution, dtype: torch.dtype, **operands: tuple[int, ...]) -> None:
        super().__init__(dtype, **operands)
        self.of = of

    def forward(self) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the result and the gradient of the input, and update the weight."""
        of = self.of
        low, padding = of.padding_lower, of.symmetric_padding
        x = self.x if padding else F.pad(self.x, (low, 0, low, 0))
        padding = padding or of.padding
        y = F.conv2d(x, self.w, None, of.stride, padding, 1, of.groups)
        if not of.trains:
            return y
        gx, gw, _ = torch.ops.aten.convolution_backward(
            self.g, x, self.w, None, of.stride, padding, (1, 1), False, (0, 0), of.groups, (True, True, False),
        )
        self.w.sub_(gw, alpha=LEARNING_RATE)
        return y, gx


# --------------------------------------------------------------------------- rows
def rows(column: str, belongs: Callable[[Line], bool]) -> tuple[Row, ...]:
    """Return the rows of the regression tests that belong to a kind."""
    return tuple(
        Row(f"{line.text('target')} {line.text('name')}", line.number_in(column), SOURCE, line)
        for line in lines_of(FILE) if belongs(line)
    )


def is_tool(line: Line, *tools: str) -> bool:
    """Whether a line is of one of these tools."""
    return line.text("tool") in tools


def is_bert(line: Line) -> bool:
    """Whether a line has a shape of BERT."""
    return line.text("family") == "bert"


def arguments_of(line: Line) -> dict[str, str]:
    """Return the arguments of the tool, by name without dashes."""
    words = [part for word in shlex.split(line.text("params")) for part in word.split("=", 1)]
    return {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2], strict=True)}


def pair_of(written: str) -> tuple[int, int]:
    """Return the two numbers of ``{1,7}``; one number stands for both."""
    numbers = [int(number) for number in re.findall(r"\d+", written)]
    return (numbers[0], numbers[-1])


def outcome_of_row(row: Row) -> Outcome:
    """Compile what a tool runs."""
    machine = MACHINES[row.line.text("target")]
    given = arguments_of(row.line)
    size = {name: int(value) for name, value in given.items() if value.isdigit()}
    dtype = DTYPES[given.get("data-type", "half")]
    tool = row.line.text("tool")
    workload: Product | Convolution
    if tool == "gemm":
        workload = Product(1, size["m"], size["k"], size["n"], dtype, trains=False)
    elif tool == "fc":
        workload = Product(
            size.get("num-groups", 1), size["batch-size"], size["input-size"], size["output-size"], dtype, trains=True,
        )
    else:
        workload = Convolution(
            size["batch-size"], pair_of(given["field"]), pair_of(given["kernel-size"]), size["input-channels"],
            size["output-channels"], size.get("conv-groups", 1), pair_of(given.get("stride", "1")),
            pair_of(given.get("padding", "0")), size.get("padding-lower", 0), dtype,
        )
    return outcome_of(workload, Frozen(machine))


def cycles(row: Row) -> Prediction:
    """Predict the cycles of a tool."""
    outcome = outcome_of_row(row)
    return Prediction(outcome.device_cycles, outcome.device_split)


def tile_bytes(row: Row) -> Prediction:
    """Predict how far the fullest tile is filled, with the gap below interleaved memory."""
    outcome = outcome_of_row(row)
    return Prediction(
        outcome.tile_bytes, {name: float(count) for name, count in outcome.bytes_by_category.items() if count},
    )


MODEL = "IPU Model"
KINDS = (
    Kind("conv", "convolution: forward, backward, update", "cycles",
         lambda: rows("cycles", lambda line: is_tool(line, "conv")), cycles, MODEL),
    Kind("fc-bert", "fully connected, shapes of BERT", "cycles",
         lambda: rows("cycles", lambda line: is_tool(line, "fc") and is_bert(line)), cycles, MODEL),
    Kind("fc", "fully connected, other shapes", "cycles",
         lambda: rows("cycles", lambda line: is_tool(line, "fc") and not is_bert(line)), cycles, MODEL),
    Kind("gemm", "one product", "cycles", lambda: rows("cycles", lambda line: is_tool(line, "gemm")), cycles, MODEL),
    Kind("tile", "fullest tile, as the model has it", "bytes",
         lambda: rows("max_tile_bytes_incl_gaps", lambda line: is_tool(line, *MATRIX_TOOLS)), tile_bytes, MODEL),
)
