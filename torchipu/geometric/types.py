"""Graphs as arguments and results of models: which tensors they hold."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch_geometric.data import Batch, Data, HeteroData, TemporalData
from torch_geometric.data.data import BaseData

from torchipu.geometric.known_sizes import note_sizes, takes_its_place
from torchipu.poptorch.arguments.structure import (
    ICustomArgParser,
    followTensors,
    registerCustomArgParser,
    tensors_in,
    with_tensors,
)


class PyGArgsParser(ICustomArgParser):
    """Knows the tensors of a graph, of all its types of nodes and edges, by the names of the attributes."""

    def yieldTensors(self, struct: BaseData) -> Iterator[torch.Tensor]:
        """Yield every tensor of a graph."""
        for store in struct.stores:
            for key in sorted(store.keys()):
                yield from tensors_in(store[key])

    def reconstruct(self, original_structure: BaseData, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """Return a graph like another one with other tensors; what is no tensor is the same."""
        made = copy.copy(original_structure)
        for store in made.stores:
            for key in sorted(store.keys()):
                store[key] = with_tensors(store[key], tensor_iterator)
        note_sizes(made)
        return made


def registerCustomArgParsers() -> None:
    """Let graphs and batches of PyTorch Geometric be arguments and results of models."""
    parser = PyGArgsParser()
    for kind in (Data, HeteroData, TemporalData, Batch):
        registerCustomArgParser(kind, parser)
    followTensors(takes_its_place)
