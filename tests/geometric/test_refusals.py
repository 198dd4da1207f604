"""Layers and functions whose sizes only values tell: each says so by its name, and what to use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import poptorch
import pytest
import torch
import torch_geometric.nn as nn
from torch_geometric import utils
from torch_geometric.data import Batch, Data
from torch_geometric.nn.models import GNNFF, ViSNet

from tests.geometric.judge import graph
from tests.geometric.test_overrides import BATCH, GRAPH, NUM_NODES, WIDTH

MOLECULE = torch.arange(NUM_NODES) % 7
VISNET = ViSNet(hidden_channels=WIDTH, num_heads=2, num_layers=1)


class Plain(torch.nn.Module):
    """Calls a function on the tensors of a graph."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: torch.Tensor) -> Any:
        return self.call(*args)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, edges, batch: nn.EdgePooling(WIDTH)(x, edges, batch)[0], "EdgePooling: how many nodes"),
        (lambda x, edges, batch: nn.ClusterPooling(WIDTH)(x, edges, batch)[0], "ClusterPooling: how many nodes"),
        (lambda x, edges, batch: nn.PANPooling(WIDTH)(x, None, batch)[0], "PANPooling: how many nodes"),
        (lambda x, edges, batch: nn.GraphUNet(WIDTH, WIDTH, WIDTH, 2)(x, edges, batch), "GraphUNet: how many nodes"),
        (lambda x, edges, batch: nn.DimeNet(8, 1, 1, 2, 3, 3)(MOLECULE, x[:, :3], batch), "DimeNet: how many pairs"),
        (lambda x, edges, batch: GNNFF(8, 8, 1)(MOLECULE, x[:, :3], batch), "GNNFF: how many pairs of edges"),
        (lambda x, edges, batch: VISNET(MOLECULE, x[:, :3], batch), "ViSNet: .* Use SchNet"),
        (lambda x, edges, batch: nn.WLConv()(batch, edges), "WLConv: .* Use WLConvContinuous"),
        (lambda x, edges, batch: nn.max_pool_x(batch, x, batch)[0], "max_pool and avg_pool: .* give size="),
        (lambda x, edges, batch: nn.max_pool(batch, Data(x=x, edge_index=edges)).x, "max_pool and avg_pool: how many"),
        (lambda x, edges, batch: nn.functional.bro(x, batch), "bro: how many nodes"),
        (lambda x, edges, batch: utils.to_undirected(edges), r"to_undirected: .*transforms.ToUndirected\(\)"),
        (lambda x, edges, batch: utils.negative_sampling(edges), "negative_sampling: .* Give num_nodes="),
        (lambda x, edges, batch: utils.dropout_edge(edges, force_undirected=True)[0], "dropout_edge: force_undirected"),
        (lambda x, edges, batch: nn.LabelPropagation(2, 0.5)(batch, edges), "LabelPropagation: how many classes"),
    ],
    ids=[
        "edges", "clusters", "paths", "u-net", "dimenet", "gnnff", "visnet", "colours", "pooled", "coarser", "bro",
        "undirected", "negative", "dropout", "labels",
    ],
)
def test_a_size_that_only_values_tell_is_an_error_that_says_what_to_use(call: Callable[..., Any], words: str) -> None:
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(Plain(call))(GRAPH.x, GRAPH.edge_index, BATCH)


def test_what_constants_tell_is_known() -> None:
    clusters = torch.arange(NUM_NODES) // 3

    def pooled(x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return torch.cat([nn.max_pool_x(clusters, x, batch)[0], nn.global_add_pool(x, clusters)])

    torch.testing.assert_close(poptorch.inferenceModel(Plain(pooled))(GRAPH.x, BATCH), pooled(GRAPH.x, BATCH))


def test_labels_are_propagated_from_those_that_a_mask_has() -> None:
    mask = torch.arange(NUM_NODES) % 3 == 0
    labels = torch.nn.functional.one_hot(BATCH, 3).float()
    inner = nn.LabelPropagation(3, 0.7)
    found = poptorch.inferenceModel(inner)(labels, GRAPH.edge_index, mask)
    torch.testing.assert_close(found.double(), inner(labels.double(), GRAPH.edge_index, mask), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------- neighbours in another set
def nearest_of(pos_x: torch.Tensor, pos_y: torch.Tensor, batch_x: torch.Tensor, batch_y: torch.Tensor) -> torch.Tensor:
    """Distances ``[M, N]`` in float64, infinite between graphs."""
    distances = torch.cdist(pos_y.double(), pos_x.double())
    return distances.masked_fill(batch_y[:, None] != batch_x[None], float("inf"))


def test_the_nearest_of_another_set() -> None:
    batch = Batch.from_data_list([graph(5, seed=seed) for seed in range(3)])
    pos_y, batch_y = batch.pos[::2] + 0.05, batch.batch[::2]
    distances = nearest_of(batch.pos, pos_y, batch.batch, batch_y)
    call = poptorch.inferenceModel(Plain(lambda x, y, bx, by: nn.knn(x, y, 2, bx, by)))
    found = {tuple(pair) for pair in call(batch.pos, pos_y, batch.batch, batch_y).T.tolist()}
    expected = distances.topk(2, largest=False).indices.tolist()
    assert found == {(row, near) for row, pair in enumerate(expected) for near in pair}
    one = poptorch.inferenceModel(Plain(lambda x, y, bx, by: nn.nearest(y, x, by, bx)))
    assert one(batch.pos, pos_y, batch.batch, batch_y).tolist() == distances.argmin(1).tolist()
    near = poptorch.inferenceModel(Plain(lambda x, y, bx, by: nn.SimpleConv()(
        (x, y), nn.radius(x, y, 1.2, bx, by, 5).flip(0), size=(15, 8)
    )))
    assert near is not None


@pytest.mark.parametrize("count", [2, 6], ids=["some", "more than there are"])
def test_features_are_interpolated_between_the_nearest(count: int) -> None:
    batch = Batch.from_data_list([graph(4, seed=seed) for seed in range(3)])
    pos_y, batch_y = batch.pos[::2] + 0.05, batch.batch[::2]
    call = poptorch.inferenceModel(Plain(lambda *given: nn.knn_interpolate(*given, k=count)))
    found = call(batch.x, batch.pos, pos_y, batch.batch, batch_y)
    distances, places = nearest_of(batch.pos, pos_y, batch.batch, batch_y).topk(min(count, 12), largest=False)
    weights = distances.square().reciprocal()
    expected = (batch.x.double()[places] * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
