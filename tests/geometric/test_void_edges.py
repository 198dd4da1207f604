"""Edges that are removed, dropped or drawn: fixed numbers of them, and eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import poptorch
import pytest
import torch
import torch_geometric.nn as nn
from torch_geometric import utils
from torch_geometric.data import Batch

from tests.geometric.judge import check_step, graph
from tests.geometric.test_overrides import GRAPH, NUM_NODES, WIDTH, Called, layer

OTHERS = GRAPH.edge_index.flip(0).roll(1, 1)


# ---------------------------------------------------------------------- self-loops
@pytest.mark.parametrize("aggregators", [["sum"], ["mean", "max"], ["min", "var"]], ids=" ".join)
@pytest.mark.parametrize("last", [NUM_NODES, NUM_NODES - 2], ids=["all", "nodes behind the last edge"])
def test_self_loops_of_layers_without_weights(aggregators: list[str], last: int) -> None:
    torch.manual_seed(0)
    edge_index = GRAPH.edge_index.clamp(max=last - 1)
    check_step(
        Called(lambda inner, x, edges: inner(x, edges), nn.EGConv(WIDTH, WIDTH, aggregators, num_heads=2)),
        GRAPH.x, edge_index,
    )


@pytest.mark.parametrize("kind", ["MX", "SD"])
def test_supervised_attention_and_its_loss(kind: str) -> None:
    def called(inner: Any, x: torch.Tensor, edges: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return inner(x, edges, others) + inner.get_attention_loss()

    torch.manual_seed(0)
    check_step(
        Called(called, nn.SuperGATConv(WIDTH, WIDTH, heads=2, attention_type=kind)), GRAPH.x, GRAPH.edge_index, OTHERS
    )


@pytest.mark.parametrize("within_graphs", [False, True], ids=["one graph", "graphs"])
def test_supervised_attention_draws_its_pairs(within_graphs: bool) -> None:
    class Losses(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.SuperGATConv(WIDTH, WIDTH, edge_sample_ratio=0.7)

        def forward(self, batch: Any) -> Any:
            out = self.inner(batch.x, batch.edge_index, batch=batch.batch if within_graphs else None)
            loss = self.inner.get_attention_loss()
            return loss, poptorch.identity_loss(loss + out.square().mean(), reduction="none")

    torch.manual_seed(0)
    model = Losses()
    training = poptorch.trainingModel(model, poptorch.Options(), poptorch.optim.SGD(model.parameters(), lr=0.01))
    batch = Batch.from_data_list([graph(6, features=WIDTH, seed=seed) for seed in range(3)])
    losses = [float(training(batch)[0]) for _ in range(2)]
    assert losses[0] != losses[1]
    assert all(0 < loss < 10 for loss in losses)


@pytest.mark.parametrize("mod", ["scaled", "f-scaled", "f-additive"])
def test_scaled_attention_within_relations(mod: str) -> None:
    def make() -> torch.nn.Module:
        inner = nn.RGATConv(WIDTH, WIDTH, 2, attention_mechanism="within-relation", mod=mod)
        for name in ("w", "l1", "b1", "l2", "b2"):
            torch.nn.init.uniform_(getattr(inner, name), 0.1, 0.5)  # torch_geometric leaves one of them as memory was
        return inner

    layer(make, GRAPH.edge_index[0] % 2)


# ---------------------------------------------------------------------- edges that are dropped
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.SAGEConv(WIDTH, WIDTH), lambda: nn.GCNConv(WIDTH, WIDTH), lambda: nn.GATConv(WIDTH, WIDTH),
        lambda: nn.TAGConv(WIDTH, WIDTH, K=2), lambda: nn.GCNConv(WIDTH, WIDTH, aggr="max"),
        lambda: nn.EGConv(WIDTH, WIDTH, ["sum", "symnorm"]),
    ],
    ids=["sage", "gcn", "gat", "tag", "gcn max", "eg"],
)
def test_layers_skip_dropped_edges_in_all_that_they_compute(make: Callable[[], torch.nn.Module]) -> None:
    # What has been dropped is returned too: eager, on the edges that were kept, judges the rest.
    class Dropping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> Any:
            kept_edges, kept = utils.dropout_edge(edges, p=0.4)
            return self.inner(x, kept_edges), kept

    torch.manual_seed(0)
    model = Dropping()
    found, kept = poptorch.inferenceModel(model)(GRAPH.x, GRAPH.edge_index)
    assert 0 < int(kept.sum()) < len(kept)
    # Edges of the last nodes among those kept: EGConv adds no self-loops behind them.
    expected = model.inner.double()(GRAPH.x.double(), GRAPH.edge_index[:, kept.bool()])
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)


def test_no_edge_is_dropped_in_inference() -> None:
    class Plain(torch.nn.Module):
        def forward(self, edges: torch.Tensor) -> torch.Tensor:
            return utils.dropout_edge(edges, p=0.5, training=False)[0]

    torch.testing.assert_close(poptorch.inferenceModel(Plain())(GRAPH.edge_index).long(), GRAPH.edge_index)


# ---------------------------------------------------------------------- pairs without an edge
def pairs(edges: torch.Tensor) -> list[tuple[int, int]]:
    return [(int(row), int(column)) for row, column in edges.T.tolist()]


@pytest.mark.parametrize(
    ("asked", "count"), [({}, 24), ({"num_neg_samples": 30}, 30), ({"num_neg_samples": 0.5}, 12)],
    ids=["for each edge", "number", "share"],
)
def test_pairs_are_drawn_once_each_from_those_without_an_edge(asked: dict[str, Any], count: int) -> None:
    model = poptorch.inferenceModel(lambda edges: utils.negative_sampling(edges, NUM_NODES, **asked))
    drawn = [pairs(model(GRAPH.edge_index)) for _ in range(2)]
    for found in drawn:
        assert len(set(found)) == len(found) == count
        assert not set(found) & set(pairs(GRAPH.edge_index))
        assert all(row != column for row, column in found)
    assert drawn[0] != drawn[1]


def test_every_pair_is_as_likely() -> None:
    model = poptorch.inferenceModel(lambda edges: utils.negative_sampling(edges, NUM_NODES, 27))
    runs = 60
    counts = torch.zeros(NUM_NODES, NUM_NODES)
    for _ in range(runs):
        for row, column in pairs(model(GRAPH.edge_index)):
            counts[row, column] += 1
    free = torch.ones(NUM_NODES, NUM_NODES).fill_diagonal_(0)
    free[GRAPH.edge_index[0], GRAPH.edge_index[1]] = 0
    share = 27 / float(free.sum())
    deviation = (runs * share * (1 - share)) ** 0.5
    assert float((counts[free > 0] - runs * share).abs().max()) < 5 * deviation


def test_fewer_pairs_than_asked_for_come_again() -> None:
    full = torch.ones(4, 4).fill_diagonal_(0)
    full[0, 1] = full[2, 3] = 0
    found = pairs(poptorch.inferenceModel(lambda edges: utils.negative_sampling(edges, 4, 6))(full.nonzero().T))
    assert sorted(found) == [(0, 1)] * 3 + [(2, 3)] * 3


def test_undirected_pairs_come_both_ways() -> None:
    call = poptorch.inferenceModel(lambda edges: utils.negative_sampling(edges, NUM_NODES, 20, force_undirected=True))
    found = pairs(call(GRAPH.edge_index))
    assert len(set(found)) == 20
    assert {(column, row) for row, column in found} == set(found)
    assert not set(found) & set(pairs(GRAPH.edge_index))


def test_pairs_of_a_batch_lie_within_graphs() -> None:
    batch = Batch.from_data_list([graph(6, seed=seed) for seed in range(3)])

    class Drawn(torch.nn.Module):
        def forward(self, batch: Any) -> torch.Tensor:
            return utils.batched_negative_sampling(batch.edge_index, batch.batch, 5)

    found = pairs(poptorch.inferenceModel(Drawn())(batch))
    assert len(set(found)) == 15
    assert all(batch.batch[row] == batch.batch[column] for row, column in found)
    assert not set(found) & set(pairs(batch.edge_index))


@pytest.mark.parametrize("with_loops", [True, False])
def test_each_edge_gets_a_node_that_its_source_has_no_edge_to(with_loops: bool) -> None:
    draw = poptorch.inferenceModel(
        lambda edges: torch.stack(utils.structured_negative_sampling(edges, NUM_NODES, with_loops))
    )
    found = draw(GRAPH.edge_index)
    torch.testing.assert_close(found[:2].long(), GRAPH.edge_index)
    drawn = set(pairs(found[[0, 2]]))
    assert not drawn & set(pairs(GRAPH.edge_index))
    assert with_loops or all(row != column for row, column in drawn)


# ---------------------------------------------------------------------- paths
@pytest.mark.parametrize("length", [1, 3])
def test_paths_are_counted_by_length(length: int) -> None:
    def judged(inner: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        adjacency = torch.zeros(NUM_NODES, NUM_NODES, dtype=x.dtype)
        for source, end in pairs(edges):
            adjacency[end, source] += 1
        weight = torch.ones((), dtype=x.dtype)
        total = reached = torch.zeros_like(adjacency)
        for power in range(length + 1):
            weight = weight * inner.weight[power]
            total = total + weight * torch.linalg.matrix_power(adjacency, power)
            reached = reached + torch.linalg.matrix_power(adjacency, power)
        scale = (reached != 0).sum(1).to(x.dtype).rsqrt()
        return inner.lin((scale[:, None] * total * scale) @ x)

    torch.manual_seed(0)
    inner = nn.PANConv(WIDTH, WIDTH, length)
    torch.nn.init.uniform_(inner.weight, 0.3, 0.9)
    check_step(
        Called(lambda inner, x, edges: inner(x, edges)[0], inner), GRAPH.x, GRAPH.edge_index,
        eager=Called(judged, inner), within=1e-5,
    )
