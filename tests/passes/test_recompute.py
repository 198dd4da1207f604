"""Recomputation: values stay equal, and only what cannot be made again is kept for the backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given

from tests.passes.records import plain_records
from tests.passes.test_placement import FOUR, chain
from tests.reference import assert_same_values
from tests.strategies import GraphBuilder, training_graphs
from torchipu.host.recomputation import undone
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.text import format_graph
from torchipu.ir.types import Leg, Role
from torchipu.ir.verify import verify_graph
from torchipu.optable.marks import MARK
from torchipu.optable.spec import TABLE, OpSpec
from torchipu.options import Options
from torchipu.passes.placement import place
from torchipu.passes.recompute import recompute


@pytest.fixture(scope="module", autouse=True)
def records() -> Iterator[None]:
    with plain_records():
        yield


STAGE = Options(recompute="stage")


def two_stages() -> GraphBuilder:
    """Write ``tanh(tanh(x))`` on IPU 0 followed by ``tanh`` on IPU 1."""
    graph = chain(("A", 0), ("A", 0), ("B", 1))
    return GraphBuilder(inputs=list(graph.inputs), ops=list(graph.ops), leg=Leg.BACKWARD, block=("B", 1))


def kept_activations(graph: Graph) -> set[Tensor]:
    """Return forward results that the backward of the same stage reads."""
    maker = {tensor: op for op in graph.ops for tensor in op.outputs}
    return {
        tensor for op in graph.ops if op.leg is Leg.BACKWARD and op.placement for tensor in op.inputs
        if tensor in maker and maker[tensor].leg is Leg.FORWARD
        and (place := maker[tensor].placement) and place.stage == op.placement.stage
    }


def test_backward_of_an_early_stage_starts_from_the_stage_input() -> None:
    build = two_stages()
    gradient = build.mul(build.ops[2].outputs[0], build.ops[2].outputs[0])
    build.block = ("A", 0)
    gradient = build.mul(gradient, build.ops[1].outputs[0])
    gradient = build.mul(gradient, build.ops[0].outputs[0])
    graph = recompute(place(build.graph(gradient), Options(), FOUR), STAGE)
    assert format_graph(graph) == """\
graph main(%x: float[3,3] input) {
  %0: float[3,3] = tanh(%x)  @ipu0 0F block=A  # model.py:1
  %1: float[3,3] = tanh(%0)  @ipu0 0F block=A  # model.py:2
  %2: float[3,3] = tanh(%1)  @ipu1 1F block=B  # model.py:3
  %3: float[3,3] = mul(%2, %2)  @ipu1 1B block=B
  %4: float[3,3] = tanh(%x) {recomputed_from='t0'}  @ipu0 0B block=A  # model.py:1
  %5: float[3,3] = tanh(%4) {recomputed_from='t1'}  @ipu0 0B block=A  # model.py:2
  %6: float[3,3] = mul(%3, %5)  @ipu0 0B block=A
  %7: float[3,3] = mul(%6, %4)  @ipu0 0B block=A
  return %7
}"""


@given(training_graphs())
def test_values_do_not_change_and_only_the_backward_grows(graph: Graph) -> None:
    placed = place(graph, Options(), FOUR)
    for options in (STAGE, Options(recompute=("B0", "B2"))):
        result = recompute(placed, options)
        verify_graph(result, "recompute")
        assert_same_values(placed, result)
        clones = [op for op in result.ops if MARK in op.attrs]
        assert all(op.leg is Leg.BACKWARD and op.placement and op.placement.leg is Leg.BACKWARD for op in clones)
        assert len(result.ops) == len(placed.ops) + len(clones)
        assert len({op.attrs[MARK] for op in clones}) == len(clones)


@given(training_graphs())
def test_early_stages_keep_nothing_that_they_made(graph: Graph) -> None:
    result = recompute(place(graph, Options(), FOUR), STAGE)
    stages = {tensor: op.placement.stage for op in result.ops if op.placement for tensor in op.outputs}
    last = max(stages.values())
    assert {stages[tensor] for tensor in kept_activations(result)} <= {last}


@given(training_graphs())
def test_without_the_option_nothing_changes(graph: Graph) -> None:
    placed = place(graph, Options(), FOUR)
    assert recompute(placed, Options(recompute="none")) is placed
    assert recompute(placed, Options(execution="sharded")) is placed


@given(training_graphs())
def test_a_training_pipeline_recomputes_unless_told_otherwise(graph: Graph) -> None:
    placed = place(graph, Options(), FOUR)
    assert format_graph(recompute(placed, Options())) == format_graph(recompute(placed, STAGE))


@given(training_graphs())
def test_undone_is_what_was_before(graph: Graph) -> None:
    placed = place(graph, Options(), FOUR)
    assert format_graph(undone(recompute(placed, STAGE))) == format_graph(placed)


def test_what_the_user_marks_is_kept() -> None:
    build = GraphBuilder(block=("A", 0))
    first = build.unary("tanh", build.input("x"))
    marked = build.op("torchipu.checkpoint.default", ("self", first))
    inner = build.unary("neg", marked)
    build.block = ("B", 1)
    last = build.unary("relu", inner)
    build.leg, build.block = Leg.BACKWARD, ("A", 0)
    graph = recompute(place(build.graph(build.mul(inner, build.mul(last, first))), Options(), FOUR), STAGE)
    assert [op.kind for op in graph.ops if MARK in op.attrs] == ["neg"]
    assert {first, marked} <= kept_activations(graph)


@pytest.mark.parametrize("taken", ["input", "result"])
def test_what_is_recomputed_takes_no_name_that_is_there(taken: str) -> None:
    build = GraphBuilder(block=("A", 0))
    x = build.input("t0.again" if taken == "input" else "x")
    first = build.unary("tanh", x)
    last = build.unary("neg", first)
    if taken == "result":
        build.ops[1] = replace(build.ops[1], outputs=(last := replace(last, name="t0.again"),))
    build.block = ("B", 1)
    after = build.unary("relu", last)
    build.leg, build.block = Leg.BACKWARD, ("A", 0)
    graph = recompute(place(build.graph(build.mul(after, first)), Options(), FOUR), STAGE)
    (again,) = (op for op in graph.ops if MARK in op.attrs)
    assert (first.name, again.outputs[0].name) == ("t0", "t0.again_")
    verify_graph(graph, "recompute")


def test_a_region_of_torch_checkpoint_is_recomputed_from_its_inputs() -> None:
    build = GraphBuilder(block=("A", 0))
    entered = build.unary("tanh", build.input("x"))
    inner = build.op("aten.neg.default", ("self", entered), checkpoint_region=7)
    left = build.op("aten.sigmoid.default", ("self", inner), checkpoint_region=7)
    after = build.unary("relu", left)
    build.leg = Leg.BACKWARD
    gradient = build.mul(build.mul(after, left), build.mul(inner, entered))
    placed = place(build.graph(gradient), Options(), FOUR)
    graph = recompute(placed, Options(recompute="none"))
    verify_graph(graph, "recompute")
    assert [op.attrs[MARK] for op in graph.ops if MARK in op.attrs] == [inner.name]
    assert kept_activations(graph) == {entered, left, after}
    assert_same_values(placed, graph)


def test_one_stage_is_left_alone_but_its_blocks_can_be_named() -> None:
    graph = chain(("A", 0), ("A", 0), ("B", 0))
    build = GraphBuilder(inputs=list(graph.inputs), ops=list(graph.ops), leg=Leg.BACKWARD, block=("A", 0))
    placed = place(build.graph(build.mul(build.ops[1].outputs[0], build.ops[2].outputs[0])), Options(), FOUR)
    assert recompute(placed, STAGE) is placed
    named = recompute(placed, Options(recompute=("A",)))
    assert [op.attrs[MARK] for op in named.ops if MARK in op.attrs] == ["t0", "t1"]


def test_random_ops_are_run_again_with_the_same_bits() -> None:
    build = GraphBuilder(block=("A", 0))
    drawn = build.op("aten.bernoulli.p", ("self", build.unary("tanh", build.input("x"))), p=0.5)
    inner = build.unary("neg", drawn)
    build.block = ("B", 1)
    last = build.unary("relu", inner)
    build.leg, build.block = Leg.BACKWARD, ("A", 0)
    placed = place(build.graph(build.mul(inner, last)), Options(), FOUR)
    graph = recompute(placed, STAGE)
    assert [op.kind for op in graph.ops if MARK in op.attrs] == ["tanh", "bernoulli", "neg"]
    assert format_graph(undone(graph)) == format_graph(placed)  # the host draws once


def test_unknown_ops_are_kept() -> None:
    build = GraphBuilder(block=("A", 0))
    kept = build.op("aten.without_a_record.default", ("self", build.unary("tanh", build.input("x"))), p=0.5)
    inner = build.unary("neg", kept)
    build.block = ("B", 1)
    last = build.unary("relu", inner)
    build.leg, build.block = Leg.BACKWARD, ("A", 0)
    graph = recompute(place(build.graph(build.mul(inner, last)), Options(), FOUR), STAGE)
    assert [op.kind for op in graph.ops if MARK in op.attrs] == ["neg"]
    assert kept in kept_readers(graph)


def kept_readers(graph: Graph) -> set[Tensor]:
    """Return what clones read."""
    return {tensor for op in graph.ops if MARK in op.attrs for tensor in op.inputs}


def test_reader_of_a_state_that_the_forward_changes_is_kept() -> None:
    build = GraphBuilder(block=("A", 0))
    state = build.input("running", Role.BUFFER)
    scaled = build.unary("neg", state)
    build.updates.append((state, build.unary("tanh", state)))
    build.block = ("B", 1)
    last = build.unary("relu", scaled)
    build.leg, build.block = Leg.BACKWARD, ("A", 0)
    placed = place(build.graph(build.mul(scaled, last)), Options(), FOUR)
    assert recompute(placed, STAGE) is placed


def test_long_chain_is_recomputed_without_recursion() -> None:
    build = GraphBuilder(block=("A", 0))
    value = build.input("x")
    for _ in range(3000):
        value = build.unary("neg", value)
    build.block = ("B", 1)
    last = build.unary("relu", value)
    build.leg, build.block = Leg.BACKWARD, ("A", 0)
    graph = recompute(place(build.graph(build.mul(value, last)), Options(), FOUR), STAGE)
    assert sum(MARK in op.attrs for op in graph.ops) == 3000


def test_what_changes_a_state_beside_its_results_is_run_again_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_states(op: Op) -> Op:
        return replace(
            op, target="aten.tanh.default", inputs=op.inputs[:1], operands=op.operands[:1], outputs=op.outputs[:1],
        )

    norm = OpSpec("aten.keeps.default", "norm", lambda op, machine: (), without_states=without_states)
    monkeypatch.setitem(TABLE, norm.target, norm)
    build = GraphBuilder(block=("A", 0))
    x, running = build.input("x"), build.input("running", Role.BUFFER)
    y = build.op(norm.target, ("self", x), ("running", running))
    following = Tensor("following", y.shape, y.dtype, Role.ACTIVATION)
    build.ops[-1] = replace(build.ops[-1], kind="norm", outputs=(y, following))
    build.updates.append((running, following))
    build.block = ("B", 1)
    last = build.unary("relu", y)
    build.leg, build.block = Leg.BACKWARD, ("A", 0)
    placed = place(build.graph(build.mul(y, last)), Options(), FOUR)
    graph = recompute(placed, STAGE)
    verify_graph(graph, "recompute")
    (clone,) = (op for op in graph.ops if MARK in op.attrs)
    assert (clone.target, clone.inputs, len(clone.outputs)) == ("aten.tanh.default", (x,), 1)
    assert graph.updates == placed.updates
    assert format_graph(undone(graph)) == format_graph(placed)
