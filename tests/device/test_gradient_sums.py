"""Gradients of a weight that several stages use: each stage adds its own, and nothing waits for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

import torchipu
from tests.strategies import GraphBuilder
from torchipu.device.gradient_sums import accumulated_apart
from torchipu.ir.graph import Graph
from torchipu.ir.text import format_graph
from torchipu.ir.types import Leg, Role
from torchipu.ir.verify import verify_graph
from torchipu.options import Options
from torchipu.passes.placement import place
from torchipu.target import lookup_target

MK2 = lookup_target("mk2")


def tied(*ipus: int, read_again: bool = False) -> Graph:
    """Return a chain of products with one weight, a block an IPU, whose gradients are added up and accumulated."""
    build = GraphBuilder()
    value, weight = build.input("x"), build.input("w", Role.WEIGHT)
    held = build.input("acc", Role.ACCUMULATOR)
    for number, ipu in enumerate(ipus):
        build.block = (f"B{number}", ipu)
        value = build.mm(value, weight)
    build.leg, total = Leg.BACKWARD, None
    for number, ipu in reversed(list(enumerate(ipus))):
        build.block = (f"B{number}", ipu)
        gradient = build.mm(value, value)
        total = gradient if total is None else build.add(total, gradient)
    assert total is not None
    build.block = None
    result = build.op("ipu.accumulate.default", ("accumulator", held), ("gradient", total))
    build.updates.append((held, result))
    return build.graph(value, *([total] if read_again else []))


def placed(graph: Graph) -> Graph:
    return place(graph, Options(), MK2)


def accumulated(graph: Graph) -> list[tuple[int, int]]:
    """Return stage and IPU of what adds to the accumulator."""
    found = [op.placement for op in graph.ops if op.kind == "accumulate"]
    return [(place.stage, place.ipu) for place in found if place is not None]


def test_each_stage_on_the_weights_ipu_accumulates_its_own_gradient() -> None:
    result = accumulated_apart(placed(tied(0, 1, 0)))
    verify_graph(result, "test")
    # That of IPU 1 goes where the sum went: to the first stage.
    assert accumulated(result) == [(2, 0), (0, 0), (0, 0)]
    assert not any(op.kind == "add" for op in result.ops)
    assert "= accumulate(%acc, %3)  @ipu0 2B block=B2" in format_graph(result)
    assert result.updates[0][1] is [op for op in result.ops if op.kind == "accumulate"][-1].outputs[0]


@pytest.mark.parametrize("ipus", [(0, 1), (0, 0, 0), (1, 0)])
def test_sums_of_one_stage_of_the_weights_ipu_stay(ipus: Sequence[int]) -> None:
    graph = placed(tied(*ipus))
    assert accumulated_apart(graph) is graph


def test_a_sum_that_is_read_elsewhere_stays() -> None:
    graph = placed(tied(0, 1, 0, read_again=True))
    assert accumulated_apart(graph) is graph


class Tied(nn.Module):
    """A table, a layer on another IPU, and the table again as the last product: mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(512, 64)
        self.inner = nn.Linear(64, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with torchipu.Block("first", 0):
            x = self.words(tokens)
        with torchipu.Block("second", 1):
            x = self.inner(x)
        with torchipu.Block("last", 0):
            return (x @ self.words.weight.T).square().mean()


def test_no_gradient_of_a_shared_weight_waits_between_stages() -> None:
    model = Tied()
    tokens = torch.randint(512, (16, 4))
    options = Options(gradient_accumulation=8, seed=1)
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), options)
    step(tokens)
    table = model.words.weight.numel()
    waiting = [v for v in step.compiled.executable.variables if v.num_elements == table and v.depth > 1]
    assert waiting == []
    # Values are those of PyTorch, which adds up first.
    twin = Tied()
    alone = torchipu.TrainStep(
        twin, torch.optim.SGD(twin.parameters(), lr=0.1), replace(options, execution="sharded"),
    )
    alone(tokens)
    assert torch.equal(model.words.weight, twin.words.weight)
