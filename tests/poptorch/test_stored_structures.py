"""Executable files whose arguments and results are named tuples and objects with a parser of the user's."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchipu import poptorch

Pair = collections.namedtuple("Pair", ["left", "right"])


class Graph:
    """Holds nodes and edges, and a number of its own."""

    def __init__(self, nodes: torch.Tensor, edges: torch.Tensor, scale: float) -> None:
        self.nodes, self.edges, self.scale = nodes, edges, scale


class Compact:
    """Holds a tensor in a slot."""

    __slots__ = ("value",)

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class GraphParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Graph) -> Iterator[torch.Tensor]:
        yield struct.nodes
        yield struct.edges

    def reconstruct(self, original_structure: Graph, tensor_iterator: Iterator[torch.Tensor]) -> Graph:
        return Graph(next(tensor_iterator), next(tensor_iterator), original_structure.scale)


class CompactParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Compact) -> Iterator[torch.Tensor]:
        yield struct.value

    def reconstruct(self, original_structure: Compact, tensor_iterator: Iterator[torch.Tensor]) -> Compact:
        return Compact(next(tensor_iterator))


class Model(nn.Module):
    """Takes and returns both kinds, nested."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, pair: Any, graph: Any) -> Any:
        nodes = self.linear(graph.nodes) * graph.scale + pair.left
        return Pair(nodes, {"graph": Graph(nodes * 2, graph.edges + 1, 3.0), "compact": Compact(pair.right * 2)})


@pytest.fixture
def parsers() -> Iterator[None]:
    poptorch.registerCustomArgParser(Graph, GraphParser())
    poptorch.registerCustomArgParser(Compact, CompactParser())
    yield
    poptorch.registerCustomArgParser(Graph, None)
    poptorch.registerCustomArgParser(Compact, None)


def inputs() -> tuple[Any, Graph]:
    return Pair(torch.ones(2, 4), torch.zeros(2, 3)), Graph(torch.randn(2, 4), torch.ones(2, 1), 0.5)


@pytest.mark.usefixtures("parsers")
@pytest.mark.parametrize("way", ["load", "loadExecutable"])
def test_a_loaded_program_takes_and_returns_what_the_saved_one_did(tmp_path: Path, way: str) -> None:
    step, (pair, graph) = poptorch.inferenceModel(Model()), inputs()
    step.compileAndExport(tmp_path / "a.poptorch", pair, graph)
    expected = step(pair, graph)
    if way == "load":
        loaded = poptorch.load(tmp_path / "a.poptorch")
    else:
        loaded = poptorch.inferenceModel(Model())
        loaded.loadExecutable(tmp_path / "a.poptorch")
    got = loaded(pair, graph)
    assert type(got) is Pair
    assert type(got.right["graph"]) is Graph
    assert type(got.right["compact"]) is Compact
    assert got.right["graph"].scale == 3.0
    assert got.left.equal(expected.left)
    assert got.right["graph"].nodes.equal(expected.right["graph"].nodes)
    assert got.right["graph"].edges.equal(graph.edges + 1)
    assert got.right["compact"].value.equal(pair.right * 2)
    with pytest.raises(poptorch.Error, match=r"Type mismatch for pair: expected .*Pair.* but got .*tuple"):
        loaded((pair.left, pair.right), graph)


def test_a_file_with_objects_asks_for_their_parser(tmp_path: Path, parsers: None) -> None:
    step, (pair, graph) = poptorch.inferenceModel(Model()), inputs()
    step.compileAndExport(tmp_path / "a.poptorch", pair, graph)
    poptorch.registerCustomArgParser(Graph, None)
    with pytest.raises(poptorch.Error, match=r"of class Graph: import .*test_stored_structures and call "
                                             r"poptorch.registerCustomArgParser"):
        poptorch.load(tmp_path / "a.poptorch")
    fresh = poptorch.inferenceModel(Model())
    with pytest.raises(poptorch.Error, match="of class Graph"):
        fresh.loadExecutable(tmp_path / "a.poptorch")
    assert not fresh.isCompiled()
    poptorch.registerCustomArgParser(Graph, GraphParser())
    assert fresh(pair, graph).left.equal(step(pair, graph).left)


def test_a_named_tuple_whose_class_is_gone_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = poptorch.inferenceModel(lambda x: Pair(x + 1, x))
    step.compileAndExport(tmp_path / "a.poptorch", torch.ones(2))
    monkeypatch.delitem(globals(), "Pair")
    got = poptorch.load(tmp_path / "a.poptorch")(torch.ones(2))
    assert got._fields == ("left", "right")
    assert got.left.equal(torch.full((2,), 2.0))


def test_objects_without_a_parser_cannot_be_stored(tmp_path: Path) -> None:
    step = poptorch.inferenceModel(lambda x, settings: x + 1)
    step.compile(torch.ones(2), range(3))
    with pytest.raises(poptorch.Error, match="An object of class range cannot be stored in an executable file"):
        step.save(tmp_path / "a.poptorch")
    assert not (tmp_path / "a.poptorch").exists()
    assert step(torch.ones(2), range(3)).equal(torch.full((2,), 2.0))
