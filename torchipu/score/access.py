"""Access to rows by index, and the blocks of SchNet made of it, on a Bow: what hydronet-gnn's benchmark runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from torchipu.score.kinds import Kind, Prediction
from torchipu.score.programs import Frozen, OnDevice, Resident, outcome_of
from torchipu.score.rows import FOLDER, Row, lines_of

FILE = FOLDER / "rows_by_index_bow.csv"
SOURCE = "hydronet-gnn's benchmark"
NUM_GAUSSIANS = 50
"""Radial functions of an interaction block; PyTorch Geometric's default, since the benchmark's is not published."""


@dataclass(frozen=True)
class Access(OnDevice):
    """A benchmark by the columns of its rows.

    Attributes:
        kind: Makes the module of the three numbers below.
        num_inputs: Rows of the table: what is gathered from, or added up in; nodes of a block.
        num_features: Elements of a row.
        num_outputs: Indices; pairs of nodes of a block.
        counts: Whether the loop counts its repeats. The rows with a memory proportion take 318 cycles less than those
            without one, whatever the shape (in nine of ten of 798 pairs within 317 to 354): what one more small op
            costs, so the runs of `experiments/bow_amp_0.1` are taken not to have it.
    """

    kind: Callable[[int, int, int], nn.Module]
    num_inputs: int
    num_features: int
    num_outputs: int
    counts: bool = True

    def model(self) -> nn.Module:
        """Return the module."""
        module = self.kind(self.num_inputs, self.num_features, self.num_outputs).eval()
        assert isinstance(module, Repeated)
        module.counts = self.counts
        return module


class Repeated(Resident):
    """What a loop on the device repeats: beside its work it may count.

    Args:
        **operands: Shapes of floats by name.
    """

    repeats: torch.Tensor
    counts = True

    def __init__(self, **operands: tuple[int, ...]) -> None:
        super().__init__(torch.float, **operands)
        self.register_buffer("repeats", torch.zeros(1, dtype=torch.int32))

    def count(self) -> None:
        """Count a repeat."""
        if self.counts:
            self.repeats.add_(1)


class Gather(Repeated):
    """Takes ``outputs`` of ``inputs`` rows."""

    def __init__(self, inputs: int, features: int, outputs: int) -> None:
        super().__init__(x=(inputs, features))
        self.register_buffer("index", torch.zeros(outputs, dtype=torch.int64))

    def forward(self) -> torch.Tensor:
        """Return `[outputs, features]`."""
        self.count()
        return self.x.index_select(0, self.index)


class ScatterAdd(Repeated):
    """Adds ``outputs`` rows up in ``inputs``, as an interaction block adds up messages along pairs at its nodes."""

    def __init__(self, inputs: int, features: int, outputs: int) -> None:
        super().__init__(x=(outputs, features))
        self.register_buffer("index", torch.zeros(outputs, dtype=torch.int64))
        self.nodes = inputs

    def forward(self) -> torch.Tensor:
        """Return `[inputs, features]`."""
        self.count()
        index = self.index.unsqueeze(-1).expand_as(self.x)
        return torch.zeros(self.nodes, self.x.shape[1]).scatter_add(0, index, self.x)


def shifted_softplus(x: torch.Tensor) -> torch.Tensor:
    """SchNet's activation."""
    return F.softplus(x) - math.log(2.0)


class Interaction(Repeated):
    """SchNet's interaction block (Schuett et al. 2017): messages along pairs, weighted by functions of distance."""

    distances: torch.Tensor
    gaussians: torch.Tensor
    ends: torch.Tensor

    def __init__(self, nodes: int, features: int, pairs: int) -> None:
        super().__init__(x=(nodes, features), distances=(pairs,), gaussians=(pairs, NUM_GAUSSIANS))
        self.register_buffer("ends", torch.zeros(2, pairs, dtype=torch.int64))
        self.filter = nn.Sequential(nn.Linear(NUM_GAUSSIANS, features), Softplus(), nn.Linear(features, features))
        self.before = nn.Linear(features, features, bias=False)
        self.after = nn.Linear(features, features)
        self.out = nn.Linear(features, features)

    def forward(self) -> torch.Tensor:
        """Return what the block adds to the nodes' features, `[nodes, features]`."""
        self.count()
        cutoff = 0.5 * (torch.cos(self.distances * (math.pi / 10.0)) + 1.0)
        weights = self.filter(self.gaussians) * cutoff.unsqueeze(-1)
        messages = self.before(self.x).index_select(0, self.ends[0]) * weights
        index = self.ends[1].unsqueeze(-1).expand_as(messages)
        sums = torch.zeros_like(self.x).scatter_add(0, index, messages)
        return self.out(shifted_softplus(self.after(sums)))


class Softplus(nn.Module):
    """SchNet's activation as a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return it element by element."""
        return shifted_softplus(x)


WORKLOADS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "gather": Gather, "scatter_add": ScatterAdd, "schnet_block": Interaction,
}


def rows(op: str) -> tuple[Row, ...]:
    """Return the rows of one benchmark."""
    found = []
    for line in lines_of(FILE):
        if line.text("op") == op:
            size = "x".join(str(line.size_in(column)) for column in ("num_inputs", "num_features", "num_outputs"))
            name = f"{op} {size} memory {line.text('amp')}"
            found.append(Row(name, line.number_in("cycles_per_iteration"), SOURCE, line))
    return tuple(found)


def cycles(row: Row) -> Prediction:
    """Predict the cycles of one repeat."""
    line = row.line
    memory = () if line.text("amp") == "default" else (line.number_in("amp"),)
    workload = Access(
        WORKLOADS[line.text("op")], line.size_in("num_inputs"), line.size_in("num_features"),
        line.size_in("num_outputs"), counts=not memory,
    )
    outcome = outcome_of(workload, Frozen("bow", memory=memory))
    return Prediction(outcome.device_cycles, outcome.device_split)


KINDS = (
    Kind("gather", "gather of rows", "cycles", lambda: rows("gather"), cycles),
    Kind("scatter", "scatter-add of rows", "cycles", lambda: rows("scatter_add"), cycles),
    Kind("schnet", "interaction block of SchNet", "cycles", lambda: rows("schnet_block"), cycles, is_quick=False),
)
