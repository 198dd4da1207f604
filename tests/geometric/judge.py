"""Judges models of graphs: one step of training as a program, against eager torch_geometric in float64."""

from __future__ import annotations

import copy
from typing import Any

import poptorch
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import BaseData

from torchipu.ir.graph import walk_ops
from torchipu.report.recorder import recording

NUM_CLASSES = 3


def graph(num_nodes: int, *, features: int = 4, seed: int = 0) -> Data:
    """Return a graph with two edges for each node, self-loops among them."""
    generator = torch.Generator().manual_seed(1000 * seed + num_nodes)
    edge_index = torch.randint(num_nodes, (2, 2 * num_nodes), generator=generator)
    edge_index[:, 0] = 0
    return Data(
        x=torch.randn(num_nodes, features, generator=generator), edge_index=edge_index,
        edge_attr=torch.randn(2 * num_nodes, 3, generator=generator),
        y=torch.randint(NUM_CLASSES, (1,), generator=generator),
        pos=torch.randn(num_nodes, 3, generator=generator),
    )


def graphs(count: int) -> list[Data]:
    return [graph(3 + index % 5, seed=index) for index in range(count)]


def in_double(value: Any) -> Any:
    if isinstance(value, BaseData):
        return value.clone().apply(in_double)
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def masked_loss(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of values of which some are padding's."""
    return poptorch.identity_loss((values * mask).sum() / mask.sum(), reduction="none")


def check_step(
    model: torch.nn.Module, *args: Any, eager: torch.nn.Module | None = None, within: float = 2e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compare result, loss and gradients of all parameters with eager's; no op may run through the generic codelet.

    Args:
        model: Returns a result and a loss.
        *args: Its arguments.
        eager: What runs eagerly, with the same parameters; None for the model.
        within: Largest difference, of gradients relative to the largest of the parameter if that is above 1.
    """
    judge = copy.deepcopy(eager or model).double()
    judge.load_state_dict(model.state_dict())
    expected, expected_loss = judge(*map(in_double, args))
    expected_loss.backward()
    before = {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}
    training = poptorch.trainingModel(model, poptorch.Options(), poptorch.optim.SGD(model.parameters(), lr=1.0))
    with recording() as programs:
        found, loss = training(*args)
    training.destroy()
    generic = {op.target for program in programs for op in walk_ops(program.program.graph.ops) if op.kind == "generic"}
    assert programs
    assert not generic
    torch.testing.assert_close(found.double(), expected, rtol=within, atol=within)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=within, atol=within)
    for name, parameter in judge.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        stepped = before[name] - dict(model.named_parameters())[name].detach().double()
        bound = within * max(1.0, float(gradient.abs().max()) if gradient.numel() else 0.0)
        torch.testing.assert_close(stepped, gradient, rtol=0, atol=bound, msg=lambda text, name=name: f"{name}: {text}")
    return found, loss
