"""Functions of torch_geometric whose sizes values tell: in a program they have eager's numbers at fixed sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import poptorch
import poptorch_geometric
import pytest
import torch
import torch_geometric.nn as nn
from torch_geometric import utils
from torch_geometric.data import Batch

from tests.geometric.judge import check_step, graph

NUM_NODES, WIDTH = 12, 8
GRAPH = graph(NUM_NODES, features=WIDTH, seed=3)
BATCH = torch.arange(NUM_NODES) // 4
PTR = torch.tensor([0, 4, 4, 9, 12])


class Called(torch.nn.Module):
    """Calls a function on what a layer makes of the features, so that it has gradients."""

    def __init__(self, function: Callable[..., Any], *modules: torch.nn.Module) -> None:
        super().__init__()
        self.front = torch.nn.Linear(WIDTH, WIDTH)
        self.inner = torch.nn.ModuleList(modules)
        self.function = function

    def forward(self, x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.function(*self.inner, self.front(x), *rest)
        return out, poptorch.identity_loss(out.square().mean(), reduction="none")


def layer(make: Callable[[], torch.nn.Module], *rest: torch.Tensor) -> None:
    of_nodes(make, GRAPH.edge_index, *rest)


def of_nodes(make: Callable[[], torch.nn.Module], *rest: torch.Tensor) -> None:
    torch.manual_seed(0)
    check_step(Called(lambda inner, x, *more: inner(x, *more), make()), GRAPH.x, *rest)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GCNConv(WIDTH, WIDTH), lambda: nn.GCNConv(WIDTH, WIDTH, improved=True),
        lambda: nn.SGConv(WIDTH, WIDTH),
        lambda: nn.APPNP(2, 0.1), lambda: nn.GATConv(WIDTH, WIDTH, heads=2), lambda: nn.GATv2Conv(WIDTH, WIDTH),
        lambda: nn.AGNNConv(), lambda: nn.FeaStConv(WIDTH, WIDTH),
    ],
    ids=["gcn", "improved", "sg", "appnp", "gat", "gatv2", "agnn", "feast"],
)
def test_layers_replace_the_self_loops_that_a_graph_has(make: Callable[[], torch.nn.Module]) -> None:
    assert utils.contains_self_loops(GRAPH.edge_index)
    layer(make)


class Spread(nn.GCNConv):
    """Adds its messages up in a way of its own."""

    def aggregate(self, inputs: torch.Tensor, index: torch.Tensor, dim_size: int | None = None) -> torch.Tensor:
        found = [utils.scatter(inputs, index, self.node_dim, dim_size, reduce) for reduce in ("max", "mean", "min")]
        return found[0] - found[1] * found[2]


class Unweighted(nn.GCNConv):
    """Sends features as they are along edges that have been normalised."""

    def message(self, x_j: torch.Tensor) -> torch.Tensor:
        return x_j


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GCNConv(WIDTH, WIDTH, aggr="mean"), lambda: nn.TAGConv(WIDTH, WIDTH, K=1, aggr="max"),
        lambda: nn.EGConv(WIDTH, WIDTH, ["sum", "symnorm", "std"], num_heads=2, num_bases=2),
        lambda: nn.ChebConv(WIDTH, WIDTH, 2, aggr="std"), lambda: nn.ClusterGCNConv(WIDTH, WIDTH, 0.5),
        lambda: nn.ClusterGCNConv(WIDTH, WIDTH, 0.5, aggr="mean"), lambda: Spread(WIDTH, WIDTH),
        lambda: Unweighted(WIDTH, WIDTH),
    ],
    ids=["mean", "max", "several", "std", "cluster", "cluster mean", "own", "unweighted"],
)
def test_self_loops_with_a_weight_of_zero_count_in_no_aggregation(make: Callable[[], torch.nn.Module]) -> None:
    layer(make)


KINDS = torch.arange(NUM_NODES) % 3


@pytest.mark.parametrize(
    ("make", "rest"),
    [
        (lambda: nn.MFConv(WIDTH, WIDTH, max_degree=2), [GRAPH.edge_index]),
        (lambda: nn.HeteroLinear(WIDTH, WIDTH, 3), [KINDS]),
        (lambda: nn.MaskLabel(3, WIDTH), [KINDS - (KINDS == 2) * 4, KINDS < 2]),
        (lambda: nn.MaskLabel(3, WIDTH, method="concat"), [KINDS, KINDS < 2]),
        (lambda: nn.HeteroBatchNorm(WIDTH, 4), [KINDS]),
        (lambda: nn.HEATConv(WIDTH, WIDTH, 3, 2, 2, 3, 4), [
            GRAPH.edge_index, KINDS, GRAPH.edge_index[0] % 2, GRAPH.edge_attr,
        ]),
    ],
    ids=["degrees", "types", "labels", "labels beside", "normalised", "heat"],
)
def test_kinds_of_nodes(make: Callable[[], torch.nn.Module], rest: list[torch.Tensor]) -> None:
    of_nodes(make, *rest)


def test_running_statistics_change_for_the_types_that_a_batch_has() -> None:
    norm, judge = (nn.HeteroBatchNorm(WIDTH, 4) for _ in range(2))
    judge(GRAPH.x, KINDS)
    model = Called(lambda inner, x, kinds: inner(x, kinds) + 0 * x, norm)
    model.front.requires_grad_(False)
    with torch.no_grad():
        model.front.weight.copy_(torch.eye(WIDTH))
        model.front.bias.zero_()
    training = poptorch.trainingModel(model, poptorch.Options(), poptorch.optim.SGD(model.parameters(), lr=0.0))
    training(GRAPH.x, KINDS)
    training.destroy()
    torch.testing.assert_close(norm.running_mean, judge.running_mean)
    torch.testing.assert_close(norm.running_var, judge.running_var)
    assert not norm.running_mean[3].any()  # no node is of that type


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.RGCNConv(WIDTH, WIDTH, 2), lambda: nn.RGCNConv(WIDTH, WIDTH, 2, num_bases=2, aggr="max"),
        lambda: nn.RGCNConv(WIDTH, WIDTH, 2, num_blocks=2), lambda: nn.FiLMConv(WIDTH, WIDTH, 2),
        lambda: nn.RGATConv(WIDTH, WIDTH, 2, attention_mechanism="within-relation"),
    ],
    ids=["rgcn", "bases", "blocks", "film", "rgat"],
)
def test_relations_pick_their_edges(make: Callable[[], torch.nn.Module]) -> None:
    layer(make, GRAPH.edge_index[0] % 2)


@pytest.mark.parametrize("norm", [nn.GraphNorm, nn.InstanceNorm, nn.LayerNorm])
def test_normalisations_know_how_many_graphs_a_batch_has(norm: type[torch.nn.Module]) -> None:
    batch = Batch.from_data_list([graph(4, features=WIDTH, seed=n) for n in range(3)])
    check_step(Called(lambda inner, x, given: inner(x, given.batch), norm(WIDTH)), batch.x, batch)


def test_layers_stay_in_one_graph_of_a_compiled_function() -> None:
    inner = nn.SAGEConv(WIDTH, WIDTH)
    found = torch.compile(inner, backend="ipu", fullgraph=True)(GRAPH.x, GRAPH.edge_index)
    torch.testing.assert_close(found, inner(GRAPH.x, GRAPH.edge_index))


def test_weights_of_self_loops_stay() -> None:
    layer(lambda: nn.GCNConv(WIDTH, WIDTH), torch.rand(GRAPH.num_edges) + 0.1)


@pytest.mark.parametrize("fill_value", ["mean", 2.0])
def test_attributes_of_self_loops_are_made_of_those_of_other_edges(fill_value: Any) -> None:
    layer(lambda: nn.GATConv(WIDTH, WIDTH, edge_dim=3, fill_value=fill_value), GRAPH.edge_attr)


def test_what_cannot_be_skipped_says_what_to_do() -> None:
    model = poptorch.inferenceModel(lambda edges: utils.remove_self_loops(edges)[0])
    with pytest.raises(poptorch.Error, match=r"remove_self_loops: how many edges.*AddRemainingSelfLoops"):
        model(GRAPH.edge_index)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "mul"])
def test_a_scatter_has_a_kernel(reduce: str) -> None:
    check_step(Called(lambda x, index: utils.scatter(x, index, 0, 3, reduce)), GRAPH.x, BATCH)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_segments_have_the_kernels_of_scatters(reduce: str) -> None:
    # An empty segment is zero, as torch_geometric has it.
    check_step(Called(lambda x, ptr: utils.segment(x, ptr, reduce)), GRAPH.x, PTR)


def test_a_softmax_over_segments() -> None:
    check_step(Called(lambda x, ptr: utils.softmax(x, ptr=ptr)), GRAPH.x, PTR)
    check_step(Called(lambda x, index: utils.softmax(x, index, num_nodes=3)), GRAPH.x, BATCH)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.SoftmaxAggregation(learn=True), lambda: nn.PowerMeanAggregation(learn=True),
        lambda: nn.StdAggregation(), lambda: nn.MedianAggregation(),
        lambda: nn.MultiAggregation(["mean", "max", "std"]), lambda: nn.Set2Set(WIDTH, 2),
    ],
    ids=["softmax", "powermean", "std", "median", "multi", "set2set"],
)
def test_aggregations_have_kernels(make: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(0)
    check_step(Called(lambda inner, x, index: inner(x, index, dim_size=3), make()), GRAPH.x, BATCH)


def test_a_recurrent_aggregation_trusts_that_nodes_are_sorted() -> None:
    torch.manual_seed(0)
    inner = nn.GRUAggregation(WIDTH, WIDTH)
    check_step(
        Called(lambda inner, x, index: inner(x, index, dim_size=3, max_num_elements=4), inner), GRAPH.x, BATCH
    )


def test_a_dense_batch_needs_its_width() -> None:
    model = poptorch.inferenceModel(lambda x, index: utils.to_dense_batch(x, index)[0])
    with pytest.raises(poptorch.Error, match=r"to_dense_batch: how many nodes the largest graph has.*max_num_nodes="):
        model(GRAPH.x, BATCH)


@pytest.mark.parametrize("normalization", ["sym", "rw", None])
@pytest.mark.parametrize("lambda_max", [None, 2.5], ids=["largest weight", "given"])
def test_chebyshev_polynomials_of_a_graph_with_self_loops(normalization: str | None, lambda_max: float | None) -> None:
    edge_index = GRAPH.edge_index.clone()
    edge_index[1, ::5] = edge_index[0, ::5]
    torch.manual_seed(0)
    weight = torch.rand(edge_index.shape[1]) + 0.5
    inner = nn.ChebConv(WIDTH, WIDTH, K=3, normalization=normalization)
    check_step(
        Called(lambda inner, x, *edges: inner(x, *edges, lambda_max=lambda_max), inner), GRAPH.x, edge_index, weight
    )


@pytest.mark.parametrize("width", [4, 3], ids=["all fit", "some nodes do not"])
def test_a_dense_adjacency(width: int) -> None:
    rows = torch.tensor([0, 1, 3, 4, 5, 7, 8, 11, 0, 1])
    columns = torch.tensor([1, 3, 3, 6, 4, 7, 11, 9, 1, 2])

    def dense(x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        attr = x[edges[0]] * x[edges[1]]
        weighted = utils.to_dense_adj(edges, batch, attr, max_num_nodes=width, batch_size=3)
        counted = utils.to_dense_adj(edges, batch, max_num_nodes=width, batch_size=3)
        whole = utils.to_dense_adj(edges, edge_attr=attr, max_num_nodes=NUM_NODES)
        return torch.cat([weighted.flatten(), counted.flatten(), whole.flatten()])

    check_step(Called(dense), GRAPH.x, torch.stack([rows, columns]), BATCH)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, edges, batch: utils.to_dense_adj(edges, batch, batch_size=3), "Give max_num_nodes="),
        (lambda x, edges, batch: utils.to_dense_adj(edges, batch + 0, max_num_nodes=4), "Give batch_size="),
        (lambda x, edges, batch: nn.HypergraphConv(WIDTH, WIDTH)(x, edges), "Give num_edges="),
        (lambda x, edges, batch: nn.TopKPooling(WIDTH)(x, edges, batch=batch)[0], "Weigh nodes by their scores"),
        (lambda x, edges, batch: nn.SAGPooling(WIDTH)(x, edges, batch=batch)[0], "Weigh nodes by their scores"),
        (lambda x, edges, batch: nn.ASAPooling(WIDTH)(x, edges, batch=batch)[0], "Weigh nodes by their scores"),
    ],
    ids=["width", "graphs", "hyperedges", "top k", "sag", "asap"],
)
def test_sizes_that_only_values_tell_are_refused_with_what_to_use(call: Callable[..., Any], words: str) -> None:
    class Plain(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return call(*args)

    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(Plain())(GRAPH.x, GRAPH.edge_index, BATCH)


def test_nearest_neighbours_are_found_in_the_program() -> None:
    distances = torch.cdist(GRAPH.pos, GRAPH.pos)
    distances[BATCH[:, None] != BATCH[None]] = float("inf")
    distances.fill_diagonal_(float("inf"))
    nearest = distances.topk(2, largest=False).indices.tolist()
    expected = {(near, node) for node in range(NUM_NODES) for near in nearest[node]}
    found = poptorch.inferenceModel(lambda pos, index: nn.knn_graph(pos, 2, index))(GRAPH.pos, BATCH)
    assert {tuple(edge) for edge in found.T.tolist()} == expected


@pytest.mark.parametrize("count", [2, 6])
def test_messages_pass_along_as_many_neighbours_as_there_are(count: int) -> None:
    # Graphs have four nodes: with six neighbours asked for, three are there.
    def nearest(x: torch.Tensor, pos: torch.Tensor, index: torch.Tensor, inner: Any = None) -> torch.Tensor:
        return nn.SimpleConv("mean")(x, nn.knn_graph(pos, count, index))

    def judged(x: torch.Tensor, pos: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        distances = torch.cdist(pos, pos).masked_fill(index[:, None] != index[None], float("inf"))
        distances.fill_diagonal_(float("inf"))
        near, ends = distances.topk(min(count, NUM_NODES), largest=False)
        is_edge = near.isfinite()
        rows = torch.zeros(NUM_NODES, NUM_NODES, dtype=x.dtype).scatter(1, ends, is_edge.to(x.dtype))
        return (rows @ x) / rows.sum(1, keepdim=True)

    torch.manual_seed(0)
    check_step(Called(nearest), GRAPH.x, GRAPH.pos, BATCH, eager=Called(judged))


def test_eager_code_is_unchanged() -> None:
    edges, _ = utils.remove_self_loops(GRAPH.edge_index)
    assert edges.shape[1] < GRAPH.num_edges
    assert utils.scatter(GRAPH.x, BATCH).shape == (3, WIDTH)
    assert nn.global_add_pool(GRAPH.x, BATCH).shape == (3, WIDTH)


def test_the_stepper_compares_both_trainings() -> None:
    torch.manual_seed(0)

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.GCNConv(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            out = self.conv(x, edge_index)
            return out, poptorch.identity_loss(out.square().mean(), reduction="none")

    stepper = poptorch_geometric.TrainingStepper(Classifier(), lr=0.01)
    stepper.run(3, (GRAPH.x, GRAPH.edge_index))
    with torch.no_grad():
        stepper.cpu_model.conv.bias += 1
    with pytest.raises(AssertionError, match=r"conv.bias: "):
        stepper.check_parameters()
    with pytest.raises(AssertionError, match="loss of step 0: "):
        stepper.run(1, (GRAPH.x, GRAPH.edge_index))


def test_a_masked_layer_sees_zeros_for_padding() -> None:
    x, mask = torch.randn(4, 3), torch.tensor([True, True, False, False])
    masked = poptorch_geometric.PreLayerMasker()(x, mask)
    torch.testing.assert_close(masked, torch.cat([x[:2], torch.zeros(2, 3)]), rtol=0, atol=0)
    norm = torch.nn.LayerNorm(3)
    torch.testing.assert_close(poptorch_geometric.PreLayerMasker(norm)(x, mask), norm(masked))
