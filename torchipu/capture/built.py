"""All that capture gives of a model, with what trains it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchipu.capture.captured import Captured
from torchipu.capture.optimiser import OptimiserImport
from torchipu.ir.graph import Graph, Tensor


@dataclass(frozen=True, slots=True)
class Built:
    """What capture gives.

    Attributes:
        capture: The model.
        graph: The whole graph, with accumulation and update for training.
        states: The user's tensor of each state of the program; None for those that only the program knows.
        written: States that a call changes.
        optimiser: The update, for training.
    """

    capture: Captured
    graph: Graph
    states: dict[Tensor, torch.Tensor | None]
    written: frozenset[Tensor]
    optimiser: OptimiserImport | None = None
