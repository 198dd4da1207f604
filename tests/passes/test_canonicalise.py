"""Canonicalisation: what goes, what must stay, and that values do not change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given

from tests.passes.records import plain_records
from tests.reference import assert_same_values
from tests.strategies import SIDE, GraphBuilder, graphs, training_graphs
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.text import format_graph
from torchipu.ir.types import DType, Leg, Role
from torchipu.ir.verify import verify_graph
from torchipu.passes.canonicalise import canonicalise, is_no_op


@pytest.fixture(scope="module", autouse=True)
def records() -> Iterator[None]:
    with plain_records():
        yield


@given(graphs())
def test_values_and_signature_do_not_change(graph: Graph) -> None:
    result = canonicalise(graph)
    verify_graph(result, "canonicalise")
    assert result.inputs is graph.inputs
    assert [(t.shape, t.dtype) for t in result.outputs] == [(t.shape, t.dtype) for t in graph.outputs]
    assert [state for state, _ in result.updates] == [state for state, _ in graph.updates]
    assert_same_values(graph, result)


@given(graphs())
def test_second_run_changes_nothing(graph: Graph) -> None:
    once = canonicalise(graph)
    assert canonicalise(once) is once


@given(training_graphs())
def test_training_graph_keeps_its_values(graph: Graph) -> None:
    assert_same_values(graph, canonicalise(graph))


def test_no_ops_go() -> None:
    build = GraphBuilder()
    value = build.unary("detach", build.unary("clone", build.unary("alias", build.input("x"))))
    value = build.view(build.unary("relu", value), (SIDE, SIDE))
    assert format_graph(canonicalise(build.graph(value))) == """\
graph main(%x: float[3,3] input) {
  %0: float[3,3] = relu(%x)
  return %0
}"""


def _selected(build: GraphBuilder, members: list[Tensor], dim: int, index: int, stacked: int) -> Graph:
    """Return a graph that selects along a dimension from a stack along another."""
    shape = list(members[0].shape)
    shape.insert(stacked % (len(shape) + 1), len(members))
    whole = build.op("aten.stack.default", *(("tensors", member) for member in members), shape=shape, dim=stacked)
    rest = shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :]
    return build.graph(build.op("aten.select.int", ("self", whole), shape=rest, dim=dim, index=index))


@pytest.mark.parametrize(("dim", "index", "stacked"), [(0, 0, 0), (-1, 1, 2), (1, -1, 1), (2, 0, -1)])
def test_a_selected_member_of_a_stack_is_that_member(dim: int, index: int, stacked: int) -> None:
    build = GraphBuilder()
    members = [build.unary("relu", build.input("x")), build.unary("neg", build.input("y"))]
    result = canonicalise(_selected(build, members, dim, index, stacked))
    assert result.outputs == (members[index],)
    assert len(result.ops) == 1


def test_what_is_selected_across_a_stack_stays() -> None:
    build = GraphBuilder()
    members = [build.input("x"), build.input("y")]
    graph = _selected(build, members, 0, 1, 2)
    assert canonicalise(graph) is graph


def test_output_may_become_an_input() -> None:
    build = GraphBuilder()
    x = build.input("x")
    assert canonicalise(build.graph(build.unary("clone", x))).outputs == (x,)


@pytest.mark.parametrize(("target", "attrs", "expected"), [
    ("aten._to_copy.default", {"dtype": DType.FLOAT}, True),
    ("aten.expand.default", {"size": [3, 3], "implicit": False}, True),
    ("aten.lift_fresh_copy.default", {}, True),
    ("ipu.cast.default", {"dtype": DType.FLOAT}, True),
    ("aten.permute.default", {"dims": [0, 1]}, True),
    ("aten.permute.default", {"dims": [-2, -1]}, True),
    ("aten.permute.default", {"dims": [1, 0]}, False),
    ("aten.transpose.int", {"dim0": 1, "dim1": -1}, True),
    ("aten.transpose.int", {"dim0": 0, "dim1": 1}, False),
    ("aten.slice.Tensor", {"dim": 0, "start": 0, "end": 9223372036854775807, "step": 1}, True),
    ("aten.slice.Tensor", {}, True),
    ("aten.slice.Tensor", {"dim": 0, "step": -1}, False),
    ("aten.t.default", {}, False),
    ("aten.relu.default", {}, False),
    ("aten.flip.default", {"dims": [0]}, False),
    ("aten.roll.default", {"shifts": [1], "dims": [0]}, False),
    ("users.clone", {}, True),
    ("users.mix.default", {"dim0": 1, "dim1": 1}, False),  # of a user, who may call dimensions as a transpose does
])
def test_no_op_is_told_from_an_op_of_the_same_shape(target: str, attrs: dict[str, object], expected: bool) -> None:
    build = GraphBuilder()
    build.op(target, ("self", build.input("x")), **attrs)
    assert is_no_op(build.ops[0]) is expected


PAIRS = [
    ("aten.t.default", {}, "aten.t.default", {}, True),
    ("aten.t.default", {}, "aten.transpose.int", {"dim0": 0, "dim1": -1}, True),
    ("aten.permute.default", {"dims": [1, 0]}, "aten.t.default", {}, True),
    ("aten.t.default", {}, "aten.transpose.int", {"dim0": 1, "dim1": 1}, False),
    ("aten.t.default", {}, "aten.neg.default", {}, False),
    ("aten.neg.default", {}, "aten.neg.default", {}, False),
    ("aten.flip.default", {"dims": [0]}, "aten.t.default", {}, False),
]


@pytest.mark.parametrize(("first", "first_attrs", "second", "second_attrs", "cancels"), PAIRS)
def test_op_that_undoes_the_one_before_goes(
    first: str, first_attrs: dict[str, object], second: str, second_attrs: dict[str, object], cancels: bool,
) -> None:
    build = GraphBuilder()
    inner = build.op(first, ("self", build.input("x")), **first_attrs)
    graph = build.graph(build.op(second, ("self", inner), **second_attrs))
    result = canonicalise(graph)
    assert (result.outputs == graph.inputs) is cancels
    assert_same_values(graph, result)


@pytest.mark.parametrize(("first", "second", "cancels"), [
    ((1, 2, 0), (2, 0, 1), True), ((1, 2, 0), (1, 2, 0), False), ((2, 1, 0), (-1, 1, 0), True),
])
def test_permutations_of_three_dimensions_are_composed(
    first: tuple[int, ...], second: tuple[int, ...], cancels: bool,
) -> None:
    build = GraphBuilder()
    x = build.input("x", shape=(2, 2, 2))
    inner = build.op("aten.permute.default", ("self", x), dims=first)
    graph = build.graph(build.op("aten.permute.default", ("self", inner), dims=second))
    assert (canonicalise(graph).outputs == (x,)) is cancels
    assert_same_values(graph, canonicalise(graph))


def test_reshape_back_to_the_first_shape_goes_but_not_through_another_type() -> None:
    build = GraphBuilder()
    x = build.input("x")
    back = build.view(build.op("aten.unsqueeze.default", ("self", x), shape=(1, 3, 3), dim=0), (3, 3))
    other = build.view(x, (9,))
    narrow = build.op("aten._to_copy.default", ("self", other), dtype=DType.HALF)
    wide = build.op("aten._to_copy.default", ("self", narrow), dtype=DType.FLOAT)
    result = canonicalise(build.graph(back, wide))
    assert result.outputs[0] is x
    assert [op.kind for op in result.ops] == ["view", "_to_copy", "_to_copy"]


@pytest.mark.parametrize(("updated_in", "stays"), [(Leg.FORWARD, True), (Leg.UPDATE, False)])
def test_backward_reads_a_weight_directly_unless_the_forward_changes_it(updated_in: Leg, stays: bool) -> None:
    build = GraphBuilder()
    state = build.input("state", Role.WEIGHT)
    turned = build.op("aten.t.default", ("self", state))
    build.leg = Leg.BACKWARD
    result = build.unary("tanh", build.op("aten.t.default", ("self", turned)))
    build.leg = updated_in
    build.updates.append((state, build.unary("neg", state)))
    ops = [op.kind for op in canonicalise(build.graph(result)).ops]
    assert ops == (["t", "t", "tanh", "neg"] if stays else ["tanh", "neg"])


def test_change_of_shape_or_dtype_is_no_no_op() -> None:
    build = GraphBuilder()
    x = build.input("x")
    build.view(x, (9,))
    build.op("aten._to_copy.default", ("self", x), dtype=DType.HALF)
    build.ops[-1] = Op("_to_copy", (x,), (Tensor("half", x.shape, DType.HALF),), target="aten._to_copy.default")
    assert [is_no_op(op) for op in build.ops] == [False, False]


def test_repeated_op_is_computed_once() -> None:
    build = GraphBuilder()
    x = build.input("x")
    result = build.mul(build.unary("tanh", x), build.unary("tanh", build.unary("alias", x)))
    assert format_graph(canonicalise(build.graph(result))) == """\
graph main(%x: float[3,3] input) {
  %0: float[3,3] = tanh(%x)
  %1: float[3,3] = mul(%0, %0)
  return %1
}"""


def count(graph: Graph) -> int:
    """Return the number of ops left."""
    return len(canonicalise(graph).ops)


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (0.0, -0.0), (1, True), ([1], [1.0])])
def test_arguments_that_only_compare_equal_do_not_merge(first: object, second: object) -> None:
    build = GraphBuilder()
    x = build.input("x")
    results = [build.op("aten.mul.Scalar", ("self", x), other=other) for other in (first, second, first)]
    assert count(build.graph(*results)) == 2


def test_random_ops_do_not_merge_but_dead_ones_go() -> None:
    build = GraphBuilder()
    x = build.input("x")
    first, second, _ = (build.op("aten.bernoulli.p", ("self", x), p=0.5, generator=None) for _ in range(3))
    assert count(build.graph(build.add(first, second))) == 3


def test_ops_without_a_record_do_not_merge() -> None:
    build = GraphBuilder()
    x = build.input("x")
    assert count(build.graph(*(build.unary("rand_like", x) for _ in range(2)))) == 2


@pytest.mark.parametrize("change", ["leg", "block"])
def test_ops_of_different_legs_or_blocks_do_not_merge(change: str) -> None:
    build = GraphBuilder(block=("A", 0))
    x = build.input("x")
    first = build.unary("tanh", x)
    if change == "leg":
        build.leg = Leg.BACKWARD
    else:
        build.block = ("B", 1)
    assert count(build.graph(first, build.unary("tanh", x))) == 2


def test_dead_ops_go_and_updates_keep_theirs() -> None:
    build = GraphBuilder()
    x, state = build.input("x"), build.input("running", Role.BUFFER)
    result, following = build.unary("relu", x), build.add(state, x)
    build.unary("tanh", build.unary("neg", x))
    build.updates.append((state, following))
    assert [op.kind for op in canonicalise(build.graph(result)).ops] == ["relu", "add"]


def test_op_without_results_stays() -> None:
    build = GraphBuilder()
    x = build.input("x")
    build.ops.append(Op("generic", (x,), (), {}, "aten._assert_async.default", ("self",)))
    assert count(build.graph(build.unary("relu", x))) == 2


def test_clean_graph_is_returned_as_it_is() -> None:
    build = GraphBuilder()
    graph = build.graph(build.unary("relu", build.input("x")))
    assert canonicalise(graph) is graph


def test_output_that_copies_an_updated_state_stays_a_copy() -> None:
    build = GraphBuilder()
    state = build.input("running", Role.BUFFER)
    before = build.unary("clone", state)
    build.updates.append((state, build.unary("neg", state)))
    assert [op.kind for op in canonicalise(build.graph(before)).ops] == ["clone", "neg"]


@pytest.mark.parametrize(("updated_in", "stays"), [(Leg.FORWARD, True), (Leg.UPDATE, False)])
def test_backward_keeps_its_copy_of_a_state_that_the_forward_changes(updated_in: Leg, stays: bool) -> None:
    build = GraphBuilder()
    state = build.input("state", Role.BUFFER)
    copied = build.unary("clone", state)
    build.leg = updated_in
    following = build.unary("neg", state)
    build.leg = Leg.BACKWARD
    result = build.unary("tanh", copied)
    build.updates.append((state, following))
    assert ("clone" in [op.kind for op in canonicalise(build.graph(result)).ops]) is stays
