"""Batches of one size: what is in them, which of it is padding, and what is refused."""

from __future__ import annotations

import pytest
import torch
from poptorch_geometric import (
    CombinedBatchingCollater,
    FixedSizeCollater,
    FixedSizeOptions,
    TupleCollater,
    make_exclude_keys,
)
from torch_geometric.data import Batch, Data, HeteroData

from tests.geometric.judge import graph, graphs


def test_a_batch_is_torch_geometrics_with_padding_behind() -> None:
    data = graphs(3)
    size = FixedSizeOptions(20, 40, num_graphs=6, node_pad_value=7.0, edge_pad_value={"edge_attr": -1.0})
    batch = FixedSizeCollater(size, add_masks_to_batch=True)(data)
    expected = Batch.from_data_list(data)
    num_nodes, num_edges = expected.num_nodes, expected.num_edges
    assert (batch.num_nodes, batch.num_edges, batch.num_graphs) == (20, 40, 6)
    for key in ("x", "pos", "batch"):
        torch.testing.assert_close(batch[key][:num_nodes], expected[key], rtol=0, atol=0)
    torch.testing.assert_close(batch.edge_index[:, :num_edges], expected.edge_index, rtol=0, atol=0)
    torch.testing.assert_close(batch.y[:3], expected.y, rtol=0, atol=0)
    assert (batch.x[num_nodes:] == 7.0).all()
    assert (batch.edge_attr[num_edges:] == -1.0).all()
    assert (batch.batch[num_nodes:] == 3).all()  # all of it in the first graph of padding
    assert (batch.edge_index[:, num_edges:] == num_nodes).all()  # self-loops of padding's first node
    assert batch.nodes_mask.tolist() == [True] * num_nodes + [False] * (20 - num_nodes)
    assert batch.edges_mask.tolist() == [True] * num_edges + [False] * (40 - num_edges)
    assert batch.graphs_mask.tolist() == [True] * 3 + [False] * 3


def test_the_size_of_a_data_set_fits_every_batch_of_it() -> None:
    data = graphs(9)
    size = FixedSizeOptions.from_dataset(data, batch_size=4)  # three, and one of padding
    collate = FixedSizeCollater(size)
    largest = sorted(data, key=lambda one: one.num_nodes)[-3:]
    for chosen in (largest, data[:3], data[3:4]):
        batch = collate(chosen)
        assert (batch.num_nodes, batch.num_edges, batch.num_graphs) == (size.num_nodes, size.num_edges, 4)
    assert size.num_graphs == 4
    assert size.num_nodes == sum(one.num_nodes for one in largest) + 1


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (FixedSizeOptions(9, 90, 4), r"has 12 nodes, and num_nodes has room for 8 and one of padding: .*TrimNodes"),
        (FixedSizeOptions(30, 9, 4), r"has 24 edges, and num_edges has room for 9: .*OverSizeStrategy.TrimEdges"),
        (FixedSizeOptions(30, 90, 3), r"num_graphs=3 has room for 2 graphs and one of padding, got 3"),
    ],
)
def test_a_batch_that_is_too_large_says_by_how_much(size: FixedSizeOptions, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FixedSizeCollater(size)([graph(4, seed=seed) for seed in range(3)])


def test_nodes_and_edges_are_trimmed_from_the_last_graphs() -> None:
    data = [graph(4, seed=seed) for seed in range(3)]
    collate = FixedSizeCollater(FixedSizeOptions(10, 12, 4), add_masks_to_batch=True, trim_nodes=True, trim_edges=True)
    batch = collate(data)
    assert (batch.num_nodes, batch.num_edges) == (10, 12)
    assert int(batch.nodes_mask.sum()) == 9
    torch.testing.assert_close(batch.x[:8], torch.cat([data[0].x, data[1].x]), rtol=0, atol=0)
    kept = batch.edge_index[:, batch.edges_mask]
    assert int(kept.max()) < 9
    original = {tuple(edge) for edge in Batch.from_data_list(data).edge_index.T.tolist()}
    assert {tuple(edge) for edge in kept.T.tolist()} <= original


def test_the_batches_of_a_call_lie_behind_one_another() -> None:
    data = graphs(4)
    collate = FixedSizeCollater(FixedSizeOptions.from_dataset(data, 3))
    whole = CombinedBatchingCollater(2, collate)(data)
    first, second = collate(data[:2]), collate(data[2:])
    torch.testing.assert_close(whole.edge_index, torch.cat([first.edge_index, second.edge_index]), rtol=0, atol=0)
    torch.testing.assert_close(whole.x, torch.cat([first.x, second.x]), rtol=0, atol=0)
    assert whole.num_graphs == first.num_graphs  # what forward sees


def test_types_of_nodes_and_edges_are_padded_each() -> None:
    data = []
    for num_nodes in (4, 5):
        one = HeteroData()
        one["paper"].x, one["author"].x = torch.randn(num_nodes, 3), torch.randn(num_nodes + 1, 2)
        ends = torch.stack([torch.randint(num_nodes + 1, (7,)), torch.randint(num_nodes, (7,))])
        one["author", "writes", "paper"].edge_index = ends
        one.y = torch.randn(1, 2)
        data.append(one)
    size = FixedSizeOptions(
        {"paper": 12, "author": 15}, {("author", "writes", "paper"): 20}, num_graphs=3,
    )
    batch = FixedSizeCollater(size, add_masks_to_batch=True)(data)
    assert (batch["paper"].num_nodes, batch["author"].num_nodes, batch.y.shape) == (12, 15, (3, 2))
    assert (int(batch["paper"].nodes_mask.sum()), int(batch["author"].nodes_mask.sum())) == (9, 11)
    edges = batch["author", "writes", "paper"]
    assert int(edges.edges_mask.sum()) == 14
    assert edges.edge_index[:, 14:].T.tolist() == [[11, 9]] * 6
    assert FixedSizeOptions.from_dataset(data, 3).num_nodes == {"paper": 10, "author": 12}


def test_graphs_of_padding_have_the_values_that_are_asked_for() -> None:
    data = [Data(x=torch.randn(3, 2), edge_index=torch.zeros(2, 1, dtype=torch.long), y=torch.tensor([1.0]), name="a")]
    size = FixedSizeOptions(5, 4, 3, graph_pad_value={"y": 9.0}, pad_graph_defaults={"name": "padding"})
    batch = FixedSizeCollater(size)(data)
    assert batch.y.tolist() == [1.0, 9.0, 9.0]
    assert batch.name == ["a", "padding", "padding"]


def test_a_tuple_has_the_tensors_in_the_order_of_the_names() -> None:
    data = graphs(2)
    x, edge_index = TupleCollater(("x", "edge_index"))(data)
    torch.testing.assert_close(x, Batch.from_data_list(data).x)
    assert edge_index.shape[0] == 2
    with pytest.raises(KeyError, match="a batch has no weight; it has batch, edge_attr, edge_index, pos, ptr, x, y"):
        TupleCollater(("x", "weight"))(data)
    assert sorted(make_exclude_keys(["x", "y"], data[0])) == ["edge_attr", "edge_index", "pos"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_nodes": 0}, "num_edges must be at least 1|num_nodes must be at least 1"),
        ({"num_nodes": 4, "num_edges": 4, "num_graphs": 1}, "num_graphs must be at least 2"),
        ({"num_nodes": {"a": 3}}, "num_nodes is given by type, so num_edges has to be too"),
    ],
)
def test_sizes_that_cannot_be_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FixedSizeOptions(**arguments)
    assert FixedSizeOptions(4).num_edges == 12
