"""Models of public examples, one step each against eager float64, and training that lowers the loss."""

from __future__ import annotations

from typing import Any

import poptorch
import poptorch_geometric
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GINEConv,
    GPSConv,
    MessagePassing,
    SchNet,
    SumAggregation,
    global_add_pool,
    global_mean_pool,
)

from tests.geometric.judge import NUM_CLASSES, check_step, graphs, masked_loss

WIDTH = 8
cross_entropy = torch.nn.functional.cross_entropy


def perceptron(given: int, made: int = WIDTH) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(given, made), torch.nn.ReLU(), torch.nn.Linear(made, made))


class OfGraphs(torch.nn.Module):
    """Classifies each graph of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self.layers()
        self.head = torch.nn.Linear(WIDTH, NUM_CLASSES)

    def layers(self) -> tuple[torch.nn.Module, torch.nn.Module]:
        raise NotImplementedError

    def send(self, layer: torch.nn.Module, x: torch.Tensor, batch: Data) -> torch.Tensor:
        return layer(x, batch.edge_index)

    def forward(self, batch: Data) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.send(self.first, batch.x, batch))
        x = self.send(self.second, x, batch)
        logits = self.head(global_mean_pool(x, batch.batch))
        return logits, masked_loss(cross_entropy(logits, batch.y, reduction="none"), batch.graphs_mask)


class GCN(OfGraphs):
    def layers(self) -> Any:
        return GCNConv(4, WIDTH), GCNConv(WIDTH, WIDTH)


class GIN(OfGraphs):
    def layers(self) -> Any:
        return GINEConv(perceptron(4), edge_dim=3), GINEConv(perceptron(WIDTH), edge_dim=3)

    def send(self, layer: torch.nn.Module, x: torch.Tensor, batch: Data) -> torch.Tensor:
        return layer(x, batch.edge_index, batch.edge_attr)


class GAT(GIN):
    def layers(self) -> Any:
        return GATConv(4, WIDTH, edge_dim=3), GATConv(WIDTH, WIDTH // 2, heads=2, edge_dim=3)


class GPS(OfGraphs):
    def layers(self) -> Any:
        conv = GINEConv(perceptron(WIDTH), edge_dim=3)
        return torch.nn.Linear(4, WIDTH), GPSConv(WIDTH, conv, heads=2, norm=None)

    def send(self, layer: torch.nn.Module, x: torch.Tensor, batch: Data) -> torch.Tensor:
        if isinstance(layer, torch.nn.Linear):
            return layer(x)
        return layer(x, batch.edge_index, batch.batch, edge_attr=batch.edge_attr)


def batch_of(count: int = 4) -> Any:
    loader = poptorch_geometric.FixedSizeDataLoader(graphs(count), count + 1)
    return next(iter(loader))


@pytest.mark.parametrize("model_type", [GCN, GIN, GAT, GPS])
def test_a_model_of_graphs_has_eagers_gradients(model_type: type[OfGraphs]) -> None:
    torch.manual_seed(0)
    check_step(model_type(), batch_of())


@pytest.mark.parametrize("model_type", [GCN, GIN, GPS])
def test_a_model_of_graphs_learns(model_type: type[OfGraphs]) -> None:
    torch.manual_seed(0)
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    loader = poptorch_geometric.FixedSizeDataLoader(graphs(16), 5, options=options)
    model = model_type()
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=0.03))
    losses = [float(training(batch)[1]) for _ in range(30) for batch in loader]
    assert losses[-1] < 0.5 * losses[0]
    training.destroy()


def test_padding_changes_no_result_of_a_real_graph() -> None:
    torch.manual_seed(0)
    model = GCN()
    small = batch_of()
    size = poptorch_geometric.FixedSizeOptions(num_nodes=64, num_edges=128, num_graphs=9)
    large = poptorch_geometric.FixedSizeCollater(size, add_masks_to_batch=True)(graphs(4))
    results = [poptorch.inferenceModel(model)(batch)[0] for batch in (small, large)]
    torch.testing.assert_close(results[0][:4], results[1][:4], rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------- molecules
class Molecules(torch.nn.Module):
    def __init__(self, interaction_graph: Any = None) -> None:
        super().__init__()
        self.inner = SchNet(
            hidden_channels=WIDTH, num_filters=WIDTH, num_interactions=2, num_gaussians=6, cutoff=1.5,
            max_num_neighbors=12, interaction_graph=interaction_graph,
        )

    def forward(self, batch: Data) -> tuple[torch.Tensor, torch.Tensor]:
        energies = self.inner(batch.z, batch.pos, batch.batch).squeeze(-1)
        return energies, masked_loss((energies - batch.y).square(), batch.graphs_mask)


def within_the_cutoff(pos: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of one molecule that are near each other, as torch_geometric's radius_graph finds them."""
    near = torch.cdist(pos, pos) <= 1.5
    near &= batch[:, None] == batch[None]
    edges = (near & ~torch.eye(len(pos), dtype=torch.bool)).nonzero().T
    return edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=-1)


def molecules(count: int) -> Any:
    data = []
    for number, one in enumerate(graphs(count)):
        atoms = torch.randint(1, 9, (one.num_nodes,), generator=torch.Generator().manual_seed(number))
        data.append(Data(z=atoms, pos=one.pos, y=torch.tensor([0.1 * number]), edge_index=one.edge_index[:, :1]))
    return next(iter(poptorch_geometric.FixedSizeDataLoader(data, count + 1)))


def test_schnet_finds_its_neighbours_in_the_program() -> None:
    torch.manual_seed(0)
    batch = molecules(4)
    # Padding's atoms lie in one place: nothing there has a gradient, and eager's norm of zero would not be a number.
    real = int(batch.nodes_mask.sum())
    batch.pos[real:] = 10.0 * torch.arange(1, 1 + batch.num_nodes - real)[:, None]
    check_step(Molecules(), batch, eager=Molecules(within_the_cutoff))


@pytest.mark.parametrize("readout", ["add", "mean"])
def test_the_readout_of_schnet_knows_the_molecules_of_tensors_given_by_themselves(readout: str) -> None:
    class Energies(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = SchNet(WIDTH, WIDTH, 1, 6, cutoff=1.5, max_num_neighbors=12, readout=readout)

        def forward(self, z: torch.Tensor, pos: torch.Tensor, index: torch.Tensor, y: torch.Tensor) -> Any:
            energies = self.inner(z, pos, index).squeeze(-1)
            real = len(y) - 1
            return energies, torch.nn.functional.mse_loss(energies[:real], y[:real])

    torch.manual_seed(0)
    batch = molecules(3)
    model = Energies()
    judge = SchNet(
        WIDTH, WIDTH, 1, 6, cutoff=1.5, max_num_neighbors=12, readout=readout, interaction_graph=within_the_cutoff
    )
    judge.load_state_dict(model.inner.state_dict())
    expected = judge.double()(batch.z, batch.pos.double(), batch.batch).squeeze(-1)
    training = poptorch.trainingModel(model, poptorch.Options(), poptorch.optim.SGD(model.parameters(), lr=0.1))
    energies, _ = training(batch.z, batch.pos, batch.batch, batch.y)
    torch.testing.assert_close(energies[:3].double(), expected[:3], rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- knowledge graphs
class BellmanFord(MessagePassing):
    """A step of a path search from a source, along edges with relations, whose vectors multiply messages."""

    def __init__(self, num_relations: int) -> None:
        super().__init__(aggr=["sum", "max"])
        self.relations = torch.nn.Embedding(num_relations, WIDTH)
        self.combine = torch.nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, start: torch.Tensor, batch: Data) -> torch.Tensor:
        found = self.propagate(batch.edge_index, x=x, relation=self.relations(batch.edge_type))
        return torch.relu(self.combine(torch.cat([found, start], dim=-1)))

    def message(self, x_j: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        return x_j * relation


class PathSearch(torch.nn.Module):
    """Scores each node as the end of a query: a source and a relation."""

    def __init__(self, num_relations: int = 3) -> None:
        super().__init__()
        self.query = torch.nn.Embedding(num_relations, WIDTH)
        self.steps = torch.nn.ModuleList(BellmanFord(num_relations) for _ in range(2))
        self.score = torch.nn.Linear(WIDTH, 1)

    def forward(self, batch: Data) -> tuple[torch.Tensor, torch.Tensor]:
        query = self.query(batch.relation)
        start = torch.zeros(batch.num_nodes, WIDTH, dtype=query.dtype).index_add(0, batch.source, query)
        x = start
        for step in self.steps:
            x = step(x, start, batch)
        scores = self.score(x).squeeze(-1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, batch.is_end, reduction="none")
        return scores, masked_loss(loss, batch.nodes_mask)


def test_a_search_for_paths_has_eagers_gradients() -> None:
    torch.manual_seed(0)
    num_nodes, num_edges = 12, 30
    knowledge = Data(
        edge_index=torch.randint(num_nodes, (2, num_edges)), edge_type=torch.randint(3, (num_edges,)),
        is_end=torch.randint(2, (num_nodes,)).float(), num_nodes=num_nodes,
    )
    size = poptorch_geometric.FixedSizeOptions(num_nodes=16, num_edges=40)
    batch = poptorch_geometric.FixedSizeCollater(size, add_masks_to_batch=True)([knowledge])
    batch.source, batch.relation = torch.tensor([3]), torch.tensor([1])
    check_step(PathSearch(), batch)


# ---------------------------------------------------------------------- one graph in clusters
class InBlocks(ClusterData):
    """Clusters of consecutive nodes, in the place of METIS, which is another package's."""

    def _metis(self, edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
        return torch.arange(num_nodes) * self.num_parts // num_nodes


class OfNodes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(4, WIDTH), GCNConv(WIDTH, NUM_CLASSES)

    def forward(self, batch: Data) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.second(torch.relu(self.first(batch.x, batch.edge_index)), batch.edge_index)
        mask = batch.nodes_mask & batch.train_mask
        return logits, masked_loss(cross_entropy(logits, batch.y, reduction="none"), mask)


def citations(num_nodes: int = 48) -> Data:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(NUM_CLASSES, (num_nodes,), generator=generator)
    x = torch.nn.functional.one_hot(y, 4).float() + 0.5 * torch.randn(num_nodes, 4, generator=generator)
    # Citations are of the own class.
    sources = torch.randint(num_nodes, (3 * num_nodes,), generator=generator)
    ends = torch.multinomial((y[:, None] == y[None]).float()[sources], 1, generator=generator).squeeze(1)
    return Data(
        x=x, y=y, edge_index=torch.stack([sources, ends]),
        train_mask=torch.rand(num_nodes, generator=generator) < 0.7,
    )


def test_nodes_of_a_graph_in_clusters_are_classified() -> None:
    torch.manual_seed(0)
    options = poptorch.Options().deviceIterations(2)
    clusters = InBlocks(citations(), num_parts=8, log=False)
    loader = poptorch_geometric.FixedSizeClusterLoader(clusters, batch_size=2, options=options, shuffle=True)
    model = OfNodes()
    check_step(model, next(iter(poptorch_geometric.FixedSizeClusterLoader(clusters, batch_size=2))))
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=0.02))
    losses = [float(training(batch)[1]) for _ in range(40) for batch in loader]
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])


def test_the_number_of_graphs_may_be_set_on_the_model() -> None:
    class Summed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(4, 1)
            self.pool = SumAggregation()

        def forward(self, x: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = self.head(self.pool(x, batch))
            return out, poptorch.identity_loss(out.square().mean(), reduction="none")

    torch.manual_seed(0)
    model = Summed()
    x, batch = torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
    with pytest.raises(poptorch.Error, match="SumAggregation: how many nodes or graphs its index numbers is not known"):
        poptorch.inferenceModel(model)(x, batch)
    poptorch_geometric.set_aggregation_dim_size(model, 3)
    check_step(model, x, batch)


def test_pooling_without_a_size_names_what_to_do() -> None:
    pooled = poptorch.inferenceModel(lambda x, batch: global_add_pool(x, batch))
    with pytest.raises(poptorch.Error, match=r"scatter: how many nodes.* Give dim_size= \(or size=\), pass the batch"):
        pooled(torch.randn(4, 2), torch.tensor([0, 0, 1, 1]))
