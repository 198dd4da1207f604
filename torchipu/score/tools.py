"""Other ops on Graphcore's IPU Model: the tools of PopLibs' regression tests that run no product or convolution."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from torchipu.score.kinds import Kind, NotExpressed, Prediction
from torchipu.score.products import DTYPES, LEARNING_RATE, MACHINES, MODEL, arguments_of, is_tool, pair_of, rows
from torchipu.score.programs import Frozen, OnDevice, Resident, Workload, outcome_of
from torchipu.score.rows import Row

LAYERS: Mapping[str, Callable[[int, int], nn.Module]] = {"lstm": nn.LSTM, "gru": nn.GRU}
REASONS = {
    "cholesky": "popsolver's blocked Cholesky has no record: PyTorch's runs as a generic op, at estimated cycles",
    "matrix_solver": "popsolver's triangular solve goes block by block; ours is another program, at estimated cycles",
    "oct_conv": "an octave convolution is several convolutions at two resolutions, whose split the tool chooses",
}

LEAST_MEMORY = 1e-6
"""Memory proportion of the embedding tool, which nothing fits. PopLibs' planner of embeddings looked for the least
memory before it looked for the fewest cycles, and the rows show it: an index more takes 8.3 bytes more of every tile,
which are those of the index and of one word of its row, so that no tile has a wider part of the table, nor do indices
have parts. It also takes 98.9 cycles more, on machines of 1,216 tiles and of 1,472 alike: the IPU Model's estimates
count each index as one of a row that the vertex has, however many parts the rows have."""


# --------------------------------------------------------------------------- workloads
@dataclass(frozen=True)
class Pooling(OnDevice):
    """Forward and backward of maximum pooling."""

    batch: int
    channels: int
    field: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: int
    dtype: torch.dtype

    def model(self) -> nn.Module:
        """Return the module."""
        out = [
            (side + 2 * self.padding - kernel) // stride + 1
            for side, kernel, stride in zip(self.field, self.kernel, self.stride, strict=True)
        ]
        lead = (self.batch, self.channels)
        return Pooled(self, self.dtype, x=(*lead, *self.field), g=(*lead, *out))


class Pooled(Resident):
    """Pools, and returns the gradient too."""

    def __init__(self, of: Pooling, dtype: torch.dtype, **operands: tuple[int, ...]) -> None:
        super().__init__(dtype, **operands)
        self.of = of

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the largest of each window, and the gradient of the input."""
        of = self.of
        window = (of.kernel, of.stride, (of.padding, of.padding), (1, 1), False)
        y, places = torch.ops.aten.max_pool2d_with_indices(self.x, *window)
        return y, torch.ops.aten.max_pool2d_with_indices_backward(self.g, self.x, *window, places)


@dataclass(frozen=True)
class Reduction(OnDevice):
    """A reduction over some dimensions."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    operation: str
    dtype: torch.dtype

    def model(self) -> nn.Module:
        """Return the module."""
        return Reduced(self, self.dtype, x=self.shape)


class Reduced(Resident):
    """Reduces."""

    def __init__(self, of: Reduction, dtype: torch.dtype, **operands: tuple[int, ...]) -> None:
        super().__init__(dtype, **operands)
        self.of = of

    def forward(self) -> torch.Tensor:
        """Return the result of the operation."""
        return OPERATIONS[self.of.operation](self.x, self.of.dims)


OPERATIONS: Mapping[str, Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]] = {
    "ADD": lambda x, dims: x.sum(dims),
    # Squares within the reduction, as poplibs' vertex does; the root is taken by the vertices of the last level.
    "SQUARE_ADD": lambda x, dims: torch.linalg.vector_norm(x, 2, dims),
    "MAX": lambda x, dims: x.amax(dims),
    "MIN": lambda x, dims: x.amin(dims),
}


@dataclass(frozen=True)
class Embedding(OnDevice):
    """A look-up in a table of halves, and the update of what was looked up."""

    table: tuple[int, int]
    indices: int

    def model(self) -> nn.Module:
        """Return the module."""
        return Embedded(self.indices, torch.half, w=self.table, g=(self.indices, self.table[1]))


class Embedded(Resident):
    """Looks rows up, and updates them."""

    def __init__(self, indices: int, dtype: torch.dtype, **operands: tuple[int, ...]) -> None:
        super().__init__(dtype, **operands)
        self.register_buffer("index", torch.zeros(indices, dtype=torch.int64))

    def forward(self) -> torch.Tensor:
        """Return the rows, and update the table."""
        looked_up = self.w.index_select(0, self.index)
        self.w.index_add_(0, self.index, self.g, alpha=-LEARNING_RATE)
        return looked_up


@dataclass(frozen=True)
class Layer(OnDevice):
    """An LSTM or a GRU over a sequence: forward, or also backward and weight update."""

    kind: Callable[[int, int], nn.Module]
    batch: int
    length: int
    inputs_: int
    outputs: int
    dtype: torch.dtype
    trains: bool

    def model(self) -> nn.Module:
        """Return the module."""
        return Recurrent(self).to(self.dtype).train(self.trains)

    def optimiser(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Return SGD where it trains."""
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE) if self.trains else None


class Recurrent(Resident):
    """A recurrent layer of its own input, and the sum of its results as a loss."""

    def __init__(self, of: Layer) -> None:
        super().__init__(of.dtype, x=(of.length, of.batch, of.inputs_))
        self.of = of
        if of.trains:  # the tool computes the gradient of the input too
            shape = self.x.shape
            del self.x
            self.x = nn.Parameter(torch.zeros(shape))
        self.layer = of.kind(of.inputs_, of.outputs)

    def forward(self) -> torch.Tensor:
        """Return the results, or the loss."""
        y, _ = self.layer(self.x)
        return y.sum() if self.of.trains else y


# --------------------------------------------------------------------------- rows
def _numbers(written: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", written))


def workload_of(row: Row) -> Workload:
    """Return what a tool runs."""
    tool, given = row.line.text("tool"), arguments_of(row.line)
    dtype = DTYPES[given.get("data-type", given.get("type", "half"))]
    if tool == "pooling":
        return Pooling(
            int(given["batch-size"]), int(given["channels"]), pair_of(given["field"]), pair_of(given["kernel"]),
            pair_of(given["stride"]), int(given.get("padding-lower", "0")), dtype,
        )
    if tool == "reduction":
        return Reduction(_numbers(given["shape"]), _numbers(given["dims"]), given["operation"], dtype)
    if tool == "embedding":
        return Embedding(pair_of(given["shape"]), int(given["num-indices"]))
    return Layer(
        LAYERS[tool], int(given["batch-size"]), int(given["sequence-size"]), int(given["input-size"]),
        int(given["output-size"]), dtype, given.get("phase") == "all",
    )


def cycles(row: Row) -> Prediction | NotExpressed:
    """Predict the cycles of a tool."""
    reason = REASONS.get(row.line.text("tool"))
    if reason is not None:
        return NotExpressed(reason)
    outcome = outcome_of(workload_of(row), _options_of(row))
    return Prediction(outcome.device_cycles, outcome.device_split)


def _options_of(row: Row) -> Frozen:
    """Return the options that a tool runs with."""
    machine, tiles = MACHINES[row.line.text("target")], int(arguments_of(row.line).get("tiles-per-ipu", "0"))
    if row.line.text("tool") == "embedding":
        return Frozen(machine, tiles=tiles, memory=(LEAST_MEMORY,), indices="one_point")
    return Frozen(machine, tiles=tiles)


def _kind(name: str, title: str, *tools: str) -> Kind:
    return Kind(name, title, "cycles", lambda: rows("cycles", lambda line: is_tool(line, *tools)), cycles, MODEL)


KINDS = (
    _kind("pooling", "maximum pooling: forward, backward", "pooling"),
    _kind("reduction", "reduction", "reduction"),
    _kind("embedding", "look-up and update of rows", "embedding"),
    _kind("lstm", "LSTM or GRU: forward, or all of training", "lstm", "gru"),
    _kind("solver", "octave convolutions and solvers", *REASONS),
)
