"""The tile mapping pass: every element once, whole vectors, results where operands are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.placed_graphs import op, tensor, training_graph
from torchipu.device.tile_mapping import map_tiles
from torchipu.ir.graph import Graph
from torchipu.ir.types import DType, Role
from torchipu.ir.verify import verify_mapping
from torchipu.target import lookup_target

MK2 = lookup_target("mk2")


@given(st.integers(0, 200_000), st.sampled_from([DType.HALF, DType.FLOAT, DType.BOOL, DType.LONG]))
@settings(max_examples=60, deadline=None)
def test_each_element_is_mapped_once_in_whole_vectors_of_128_bytes(elements, dtype):
    x = tensor("x", elements, dtype=dtype, role=Role.INPUT)
    mapping = map_tiles(Graph("g", (x,), (x,), ()), MK2)[x]
    verify_mapping(mapping, elements, MK2.num_tiles, MK2.vector_width(dtype.device_bytes))
    if len(mapping.runs) > 1:
        assert all((end - begin) * dtype.device_bytes >= 120 for _, begin, end in mapping.runs[:-1])


def test_every_tensor_of_a_training_graph_is_mapped():
    graph = training_graph(3, 5000)
    mappings = map_tiles(graph, MK2)
    made = [*graph.inputs, *(result for one in graph.ops for result in one.outputs)]
    assert set(mappings) == set(made)
    for one in made:
        verify_mapping(mappings[one], one.num_elements, MK2.num_tiles, 2)


def test_elementwise_result_follows_its_operand():
    w, x, out = tensor("w", 640, role=Role.WEIGHT), tensor("w2", 640, role=Role.WEIGHT), tensor("o", 640)
    graph = Graph("g", (w, x), (out,), (op("add", (x, x), out),))
    mappings = map_tiles(graph, MK2)
    assert mappings[out] is mappings[x]
    assert mappings[x].runs[0][0] == 20, "states do not pile up on tile 0"
    assert mappings[w].runs[0][0] == 0


def test_broadcast_result_does_not_follow_the_small_operand():
    bias, wide, out = tensor("b", 64), tensor("x", 100, 64), tensor("o", 100, 64)
    graph = Graph("g", (bias, wide), (out,), (op("add", (bias, wide), out),))
    mappings = map_tiles(graph, MK2)
    assert mappings[out] is mappings[wide]


@pytest.mark.parametrize("name", ["mk1", "bow"])
def test_states_stay_on_tiles_that_exist(name):
    target = lookup_target(name)
    graph = training_graph(1, 32 * 700, layers=4)
    for one, mapping in map_tiles(graph, target).items():
        assert max(mapping.tiles) < target.num_tiles, one.name
