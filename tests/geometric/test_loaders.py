"""Loaders and samplers: every graph once, batches of one size, and what a model makes of them."""

from __future__ import annotations

from typing import Any

import poptorch
import poptorch_geometric
import pytest
import torch
from poptorch_geometric import (
    CustomFixedSizeDataLoader,
    FixedBatchSampler,
    FixedSizeDataLoader,
    FixedSizeNeighborLoader,
    FixedSizeOptions,
    FixedSizeStrategy,
    OverSizeStrategy,
    StreamPackingSampler,
)
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from tests.geometric.judge import graph, graphs


def numbered(count: int) -> list[Data]:
    data = graphs(count)
    for number, one in enumerate(data):
        one.number = torch.tensor([float(number)])
    return data


def numbers_in(batch: Any) -> list[float]:
    return batch.number[batch.graphs_mask].tolist()


@pytest.mark.parametrize("strategy", FixedSizeStrategy)
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_has_every_graph_once(strategy: FixedSizeStrategy, shuffle: bool) -> None:
    loader = FixedSizeDataLoader(
        numbered(12), 3, shuffle, fixed_size_strategy=strategy, drop_last=False,
        fixed_size_options=FixedSizeOptions(24, 60, 4),
    )
    batches = list(loader)
    assert {(batch.num_nodes, batch.num_edges, batch.num_graphs) for batch in batches} == {(24, 60, 4)}
    assert sorted(number for batch in batches for number in numbers_in(batch)) == list(range(12))


def test_packing_puts_more_graphs_into_a_batch_than_padding_to_the_largest() -> None:
    data = [graph(12 if index % 4 == 0 else 3, seed=index) for index in range(24)]
    size = FixedSizeOptions(26, 60, 9)
    lengths = {
        strategy: len(FixedSizeDataLoader(data, 2, fixed_size_options=size, fixed_size_strategy=strategy))
        for strategy in FixedSizeStrategy
    }
    assert lengths == {FixedSizeStrategy.PadToMax: 12, FixedSizeStrategy.StreamPack: 6}


def test_a_call_has_the_batches_of_all_iterations() -> None:
    options = poptorch.Options().deviceIterations(3)
    loader = FixedSizeDataLoader(numbered(12), 3, options=options)
    batch = next(iter(loader))
    size = loader.fixed_size_options
    assert batch.x.shape == (3 * size.num_nodes, 4)
    assert batch.edge_index.shape == (6, size.num_edges)

    class Numbers(torch.nn.Module):
        def forward(self, batch: Data) -> tuple[torch.Tensor, torch.Tensor]:
            assert batch.num_graphs == 3
            assert batch.num_nodes == size.num_nodes
            return batch.number, global_add_pool(batch.x, batch.batch)

    found, sums = poptorch.inferenceModel(Numbers(), options)(batch)
    assert found[batch.graphs_mask].tolist() == list(range(6))
    expected = torch.stack([one.x.double().sum(0) for one in numbered(6)])
    torch.testing.assert_close(sums[batch.graphs_mask].double(), expected, rtol=1e-6, atol=1e-6)


def test_batches_may_be_made_in_another_process() -> None:
    data = numbered(8)
    expected = [numbers_in(batch) for batch in FixedSizeDataLoader(data, 2)]
    loader = FixedSizeDataLoader(data, 2, mode=poptorch.DataLoaderMode.Async)
    assert [numbers_in(batch) for batch in loader] == expected
    loader.terminate()


def test_a_model_returns_a_batch() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, batch: Data) -> Data:
            batch.x = 2 * batch.x
            return batch

    batch = next(iter(FixedSizeDataLoader(graphs(2), 2)))
    before = batch.x.clone()
    found = poptorch.inferenceModel(Doubled())(batch)
    assert type(found) is type(batch)
    torch.testing.assert_close(found.x, 2 * before)


def test_a_batch_of_another_size_is_an_error_with_both() -> None:
    model = poptorch.inferenceModel(lambda batch: batch.x + 1)
    collate = [poptorch_geometric.FixedSizeCollater(FixedSizeOptions(size, 40)) for size in (10, 11)]
    model(collate[0](graphs(1)))
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for batch\[\d\]: expected torch.Size.* but got"):
        model(collate[1](graphs(1)))


def test_stream_packing_keeps_the_order_and_the_limits() -> None:
    data = [graph(size, seed=index) for index, size in enumerate([5, 4, 3, 8, 2, 2, 2, 9])]
    assert list(StreamPackingSampler(data, 3, max_num_nodes=10)) == [[0, 1], [2], [3, 4], [5, 6], [7]]
    assert list(StreamPackingSampler(data, 2)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert list(StreamPackingSampler(data, 9, max_num_edges=18)) == [[0, 1], [2], [3], [4, 5, 6], [7]]
    assert len(StreamPackingSampler(data, 3, max_num_nodes=10)) == 5
    with pytest.raises(ValueError, match="graph 7 has 9 nodes and 18 edges, and a batch has room for 8"):
        list(StreamPackingSampler(data, 3, max_num_nodes=8))
    skipping = StreamPackingSampler(data, 3, max_num_nodes=8, allow_skip_data=True, base_sampler=[7, 0, 2])
    assert list(skipping) == [[0, 2]]


def test_batches_of_one_number_of_graphs_let_large_ones_wait() -> None:
    data = [graph(size, seed=index) for index, size in enumerate([8, 8, 3, 3, 4, 4])]
    assert list(FixedBatchSampler(data, 2, num_nodes=12)) == [[0, 2], [1, 3], [4, 5]]
    assert len(FixedBatchSampler(data, 2, num_nodes=12)) == 3
    batches = list(FixedSizeDataLoader(
        data, batch_sampler=FixedBatchSampler(data, 2, num_nodes=12), fixed_size_options=FixedSizeOptions(13, 30, 3),
    ))
    assert [int(batch.nodes_mask.sum()) for batch in batches] == [11, 11, 8]


def test_batches_that_are_too_large_are_trimmed_where_that_is_asked_for() -> None:
    size = FixedSizeOptions(8, 9, 3)
    with pytest.raises(ValueError, match="make it larger, the batch smaller"):
        list(FixedSizeDataLoader(graphs(6), 2, fixed_size_options=size))
    trimmed = FixedSizeDataLoader(
        graphs(6), 2, fixed_size_options=size, over_size_strategy=OverSizeStrategy.TrimNodesAndEdges
    )
    assert [(batch.num_nodes, batch.num_edges) for batch in trimmed] == [(8, 9)] * 3


def test_a_collater_of_ones_own() -> None:
    loader = CustomFixedSizeDataLoader(graphs(4), 2, collater=lambda data: torch.stack([one.x[:3] for one in data]))
    assert [batch.shape for batch in loader] == [(2, 3, 4)] * 2
    with pytest.raises(ValueError, match="needs a collater"):
        CustomFixedSizeDataLoader(graphs(4), 2)


class FirstNeighbours(BaseSampler):
    """Takes the first edges into each node: torch_geometric's own sampler is another package's."""

    def __init__(self, data: Data, count: int) -> None:
        self.data, self.count = data, count

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        nodes, edges = inputs.node.tolist(), []
        for node in list(nodes):
            for edge in (self.data.edge_index[1] == node).nonzero().flatten().tolist()[: self.count]:
                edges.append(edge)
                source = int(self.data.edge_index[0, edge])
                if source not in nodes:
                    nodes.append(source)
        place = {node: index for index, node in enumerate(nodes)}
        row, col = (torch.tensor([place[int(self.data.edge_index[end, edge])] for edge in edges]) for end in (0, 1))
        return SamplerOutput(
            node=torch.tensor(nodes), row=row.long(), col=col.long(), edge=torch.tensor(edges).long(), batch=None,
            num_sampled_nodes=[len(nodes)], num_sampled_edges=[len(edges)], metadata=(inputs.input_id, inputs.time),
        )


    def sample_from_edges(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def test_neighbourhoods_have_one_size_and_their_nodes_first() -> None:
    data = graph(20)
    data.y = torch.arange(20)
    loader = FixedSizeNeighborLoader(
        data, [2], batch_size=4, neighbor_loader_kwargs={"neighbor_sampler": FirstNeighbours(data, 2)},
    )
    batches = list(loader)
    assert len({(batch.num_nodes, batch.num_edges) for batch in batches}) == 1
    asked = [batch.y[batch.input_nodes_mask] for batch in batches]
    assert torch.cat(asked).tolist() == list(range(20))
    for batch in batches:
        real = batch.edge_index[:, batch.edges_mask]
        ends = {(int(batch.y[row]), int(batch.y[col])) for row, col in real.T}
        assert ends <= {tuple(edge) for edge in data.edge_index.T.tolist()}


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_the_number_of_graphs_counts_that_of_the_padding(batch_size: int) -> None:
    loader = FixedSizeDataLoader(numbered(8), batch_size)
    expected = max(batch_size, 2)
    assert loader.fixed_size_options.num_graphs == expected
    assert {(batch.num_graphs, int(batch.graphs_mask.sum())) for batch in loader} == {(expected, expected - 1)}


class Summed(torch.nn.Module):
    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return global_add_pool(x, index)


@pytest.mark.parametrize("iterations", [1, 2])
def test_tensors_of_a_batch_tell_how_many_graphs_there_are_by_themselves(iterations: int) -> None:
    # The last graphs of padding have no node: their number is the batch's, and not that of the values.
    data = graphs(2 * iterations)
    options = poptorch.Options().deviceIterations(iterations)
    size = FixedSizeOptions(20, 60, 5)
    batch = next(iter(FixedSizeDataLoader(data, 2, fixed_size_options=size, options=options)))
    tensors = next(iter(CustomFixedSizeDataLoader(
        data, 2, options=options,
        collater=poptorch_geometric.TupleCollater(("x", "batch"), poptorch_geometric.FixedSizeCollater(size)),
    )))
    expected = torch.stack([one.x.double().sum(0) for one in data])
    for x, index in ((batch.x, batch.batch), tensors):
        sums = poptorch.inferenceModel(Summed(), options)(x, index)
        assert sums.shape == (5 * iterations, 4)
        torch.testing.assert_close(sums[batch.graphs_mask].double(), expected, rtol=1e-6, atol=1e-6)
