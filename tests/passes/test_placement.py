"""Placement: blocks, stages and IPUs of forward, backward and update ops, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.reference import assert_same_values
from tests.strategies import Block, GraphBuilder, block_lists, graphs, training_graphs
from torchipu.errors import PlacementError
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.text import format_graph
from torchipu.ir.types import Leg, Role, Source
from torchipu.ir.verify import verify_graph
from torchipu.options import Options, Stage
from torchipu.passes.placement import place
from torchipu.target import Target

FOUR = Target(
    name="mk2", title="four small IPUs", num_ipus=4, num_tiles=4, num_workers=6, clock_hz=1e9,
    tile_memory_bytes=1 << 16, code_region_bytes=1 << 15, amp_macs_half_half=64, amp_macs_half_float=32,
    amp_macs_float=16, amp_macs_fp8=0, exchange_bytes_per_cycle=4, sync_cycles=100, ipu_sync_cycles=1000,
    link_bytes_per_cycle=100.0, linked_ipus=4, ipus_per_machine=4, machine_link_bytes_per_s=1e11,
    gateway_bytes_per_s=1e9, host_bytes_per_s=1e10, host_fill_bytes_per_s=1e10, streaming_bytes_per_s=1e10,
    machine_streaming_bytes=10**12, stack_bytes=2048,
    control_bytes_per_compute_set=64,
    state_bytes_per_compute_set=0,
)


def chain(*blocks: Block | None) -> Graph:
    """Make a forward chain with one op for each block, None for an op outside blocks."""
    build = GraphBuilder()
    value = build.input("x")
    for number, block in enumerate(blocks):
        build.block, build.source = block, Source("model.py", number + 1, f"line {number}")
        value = build.unary("tanh", value)
    return build.graph(value)


def places(graph: Graph, **options: object) -> list[str]:
    """Place a graph and return ``block ipu stage leg`` of each op."""
    result = place(graph, Options.from_mapping(options), FOUR)
    verify_graph(result, "placement")
    return [f"{p.block} {p.ipu} {p.stage}{p.leg.value}" for op in result.ops if (p := op.placement)]


def refusal(graph: Graph, **options: object) -> PlacementError:
    """Return the error with which a graph is refused."""
    with pytest.raises(PlacementError) as caught:
        place(graph, Options.from_mapping(options), FOUR)
    return caught.value


# --------------------------------------------------------------------------- forward
def test_model_without_blocks_is_one_block_on_the_first_ipu() -> None:
    assert places(chain(None, None)) == ["main 0 0F", "main 0 0F"]


def test_ops_outside_blocks_are_filled_forward_and_leading_ones_join_the_first() -> None:
    graph = chain(None, ("A", 0), None, ("B", 1), None)
    assert places(graph) == ["A 0 0F", "A 0 0F", "A 0 0F", "B 1 1F", "B 1 1F"]


def test_blocks_without_an_ipu_take_the_next_one() -> None:
    assert places(chain(("A", None), ("B", None), ("C", 3), ("D", 1), ("E", None))) == [
        "A 0 0F", "B 1 1F", "C 3 2F", "D 1 3F", "E 2 4F",
    ]


def test_neighbouring_blocks_on_one_ipu_are_one_stage_and_coming_back_is_another() -> None:
    assert places(chain(("A", 0), ("B", 0), ("C", 1), ("D", 0))) == ["A 0 0F", "B 0 0F", "C 1 1F", "D 0 2F"]


def test_listed_blocks_give_the_order() -> None:
    graph = chain(("A", None), ("A", None), ("B", None))
    assert places(graph, blocks=["A", "B", "unused"]) == ["A 0 0F", "A 0 0F", "B 1 1F"]


def test_only_the_placement_changes() -> None:
    graph = chain(("A", 0), ("B", 1))
    result = place(graph, Options(), FOUR)
    assert [replace(op, placement=None).outputs for op in result.ops] == [op.outputs for op in graph.ops]
    assert place(result, Options(), FOUR) is result


@given(graphs())
def test_values_do_not_change(graph: Graph) -> None:
    assert_same_values(graph, place(graph, Options(), FOUR))


# --------------------------------------------------------------------------- backward and update
def forward_twins(graph: Graph) -> dict[int, tuple[str, int]]:
    """Return block and IPU of the forward ops on each line."""
    return {op.source.line: (p.block, p.ipu) for op in graph.ops if op.leg is Leg.FORWARD and (p := op.placement)}


@given(training_graphs())
def test_backward_op_sits_on_the_ipu_of_its_forward_twin(graph: Graph) -> None:
    result = place(graph, Options(), FOUR)
    verify_graph(result, "placement")
    twins = forward_twins(result)
    for op in result.ops:
        if op.leg is Leg.BACKWARD:
            assert op.placement is not None
            assert (op.placement.block, op.placement.ipu) == twins[op.source.line]


@given(training_graphs())
def test_update_op_sits_with_its_weight(graph: Graph) -> None:
    result = place(graph, Options(), FOUR)
    home = {t: op.placement for op in result.ops if op.leg is Leg.FORWARD for t in op.inputs if t.role is Role.WEIGHT}
    updated = {value: state for state, value in result.updates}
    for op in result.ops:
        if op.leg is Leg.UPDATE and op.outputs[0] in updated:
            weight = home[updated[op.outputs[0]]]
            assert op.placement is not None
            assert weight is not None
            assert (op.placement.ipu, op.placement.stage) == (weight.ipu, weight.stage)


@given(block_lists())
def test_stages_count_the_switches_between_ipus(blocks: list[Block]) -> None:
    result = place(chain(*blocks), Options(), FOUR)
    verify_graph(result, "placement")
    stages = [op.placement.stage for op in result.ops if op.placement]
    ipus = [ipu for _, ipu in blocks]
    assert stages == [sum(ipus[i] != ipus[i - 1] for i in range(1, last + 1)) for last in range(len(ipus))]


def test_whole_training_step() -> None:
    graph = chain(("A", 0), ("B", 1))
    build = GraphBuilder(inputs=list(graph.inputs), ops=list(graph.ops), leg=Leg.BACKWARD)
    weight = build.input("w", Role.WEIGHT)
    build.ops[1] = replace(build.ops[1], inputs=(*build.ops[1].inputs, weight), operands=())
    build.block = ("B", 1)
    gradient = build.unary("neg", graph.outputs[0])
    build.block = ("A", 0)
    build.unary("neg", gradient)
    build.block = None
    total = build.mul(gradient, gradient)
    build.leg = Leg.UPDATE
    build.updates.append((weight, build.add(weight, total)))
    assert format_graph(place(build.graph(graph.outputs[0]), Options(), FOUR)) == """\
graph main(%x: float[3,3] input, %w: float[3,3] weight) {
  %0: float[3,3] = tanh(%x)  @ipu0 0F block=A  # model.py:1
  %1: float[3,3] = tanh(%0, %w)  @ipu1 1F block=B  # model.py:2
  %2: float[3,3] = neg(%1)  @ipu1 1B block=B
  %3: float[3,3] = neg(%2)  @ipu0 0B block=A
  %4: float[3,3] = mul(%2, %2)  @ipu1 1B block=B
  %5: float[3,3] = add(%w, %4)  @ipu1 1U block=B
  update %w <- %5
  return %1
}"""


def test_sum_of_gradients_of_two_stages_runs_in_the_earlier() -> None:
    graph = chain(("A", 0), ("B", 1))
    build = GraphBuilder(inputs=list(graph.inputs), ops=list(graph.ops), leg=Leg.BACKWARD, block=("B", 1))
    later = build.unary("neg", graph.outputs[0])
    build.block = ("A", 0)
    earlier = build.unary("neg", later)
    build.block = ("B", 1)
    assert places(build.graph(build.add(later, earlier)))[-1] == "A 0 0B"


def test_backward_op_keeps_its_block_among_blocks_of_one_stage() -> None:
    graph = chain(("A", 0), ("B", 0))
    build = GraphBuilder(inputs=list(graph.inputs), ops=list(graph.ops), leg=Leg.BACKWARD, block=("B", 0))
    gradient = build.unary("neg", graph.outputs[0])
    build.block = None
    gradient = build.unary("neg", gradient)
    build.block = ("A", 0)
    assert places(build.graph(build.unary("neg", gradient)))[2:] == ["B 0 0B", "B 0 0B", "A 0 0B"]


def test_accumulators_sit_with_the_gradients_that_they_add() -> None:
    graph = chain(("A", 0), ("B", 1))
    build = GraphBuilder(inputs=list(graph.inputs), ops=list(graph.ops), leg=Leg.BACKWARD, block=("B", 1))
    later = build.unary("neg", graph.outputs[0])
    build.block = ("A", 0)
    earlier = build.unary("neg", later)
    build.block = None
    held = [build.input(name, Role.ACCUMULATOR) for name in ("acc.a", "acc.b")]
    build.add(held[0], earlier)
    total = build.add(held[1], later)
    build.leg = Leg.UPDATE
    build.unary("neg", total)
    assert places(build.graph())[4:] == ["A 0 0B", "B 1 1B", "B 1 1U"]


def test_graph_of_the_backward_alone_counts_stages_from_its_end() -> None:
    graph = chain(("C", 2), ("B", 1), None, ("A", 0))
    backward = replace(graph, ops=tuple(replace(op, leg=Leg.BACKWARD) for op in graph.ops))
    assert places(backward) == ["C 2 2B", "B 1 1B", "B 1 1B", "A 0 0B"]


def test_update_ops_of_a_state_follow_the_gradient_and_scalars_follow_their_reader() -> None:
    graph = chain(("A", 0), ("B", 1))
    build = GraphBuilder(inputs=list(graph.inputs), ops=list(graph.ops), leg=Leg.BACKWARD, block=("B", 1))
    gradient = build.unary("neg", graph.outputs[0])
    build.leg, build.block = Leg.UPDATE, None
    rate, moment = build.input("rate", Role.HYPERPARAMETER), build.input("m", Role.OPTIMISER_STATE)
    factor = build.unary("neg", rate)
    build.unary("neg", moment)
    build.mul(build.mul(moment, gradient), factor)
    assert places(build.graph())[3:] == ["B 1 1U"] * 4


def test_an_update_sits_with_its_weight_though_it_reads_a_gradient_of_elsewhere_first() -> None:
    graph = chain(("A", 0), ("B", 1))
    build = GraphBuilder(inputs=list(graph.inputs), ops=list(graph.ops), leg=Leg.BACKWARD, block=("B", 1))
    weight = build.input("w", Role.WEIGHT)
    build.ops[0] = replace(build.ops[0], inputs=(*build.ops[0].inputs, weight), operands=())
    gradient = build.unary("neg", graph.outputs[0])
    build.leg, build.block = Leg.UPDATE, None
    build.updates.append((weight, build.add(gradient, weight)))
    assert places(build.graph())[3] == "A 0 0U"


def test_what_is_done_once_for_all_weights_is_on_the_last_ipu() -> None:
    build = GraphBuilder()
    weights = [build.input(name, Role.WEIGHT) for name in ("w0", "w1")]
    value = build.input("x")
    for number, weight in enumerate(weights):
        build.block = (f"B{number}", number)
        value = build.mm(value, weight)
    build.leg, build.block = Leg.UPDATE, None
    scale = build.op("ipu.clip_scale.default", ("self", weights[0]))
    build.updates.append((weights[0], build.add(weights[0], scale)))
    result = place(build.graph(value), Options(), FOUR)
    by_kind = {op.kind: op.placement for op in result.ops if op.leg is Leg.UPDATE}
    assert [by_kind[kind].ipu for kind in ("clip_scale", "add")] == [1, 0]


# --------------------------------------------------------------------------- refusals
def test_ipu_beyond_the_target() -> None:
    error = refusal(chain(("A", 0), ("encoder", 7)))
    assert str(error) == """\
block 'encoder' asks for ipu 7, but mk2 has ipus 0 to 3
  do      use an ipu_id that is there"""


def test_ipu_beyond_the_option() -> None:
    assert str(refusal(chain(("A", 0), ("B", 1)), num_ipus=1)) == """\
block 'B' asks for ipu 1, but num_ipus=1 has ipu 0 only
  do      use an ipu_id that is there, or raise num_ipus"""


def test_too_many_blocks_without_an_ipu() -> None:
    error = refusal(chain(*((f"B{index}", None) for index in range(5))))
    assert str(error) == """\
block 'B4' would follow on ipu 4, but mk2 has ipus 0 to 3
  do      give ipu_id to the blocks that share an IPU"""


def test_forward_edge_back_to_an_earlier_stage() -> None:
    assert str(refusal(chain(("A", 0), ("B", 1), ("A", 0)))) == """\
block 'A' (stage 0) reads %1, which block 'B' of the later stage 1 makes
  op      %2: float[3,3] = tanh(%1)  @F block=A ipu=0  # model.py:3
  source  model.py:3  line 2
  block   A (ipu 0, stage 0, forward)
  stage 0: A  (ipu 0)   <-- reads what stage 1 makes
  stage 1: B  (ipu 1)
  do      give this region a block name of its own after 'B', or list the blocks in the order of the data in \
options.blocks"""


def test_a_view_that_is_taken_again_after_a_later_block_leaves_what_follows_to_that_block() -> None:
    build = GraphBuilder()
    build.block = ("A", 0)
    first = build.unary("tanh", build.input("x"))
    build.block = ("B", 1)
    second = build.unary("tanh", first)
    build.block = ("A", 0)
    view = build.unary("detach", first)
    build.block = None
    graph = build.graph(build.unary("tanh", second), build.unary("tanh", view))
    assert places(graph) == ["A 0 0F", "B 1 1F", "A 0 0F", "B 1 1F", "B 1 1F"]


def test_a_view_lies_with_the_earliest_of_its_readers_where_its_block_comes_after_them() -> None:
    build = GraphBuilder()
    build.block = ("A", 0)
    first = build.unary("tanh", build.input("x"))
    build.block = ("C", 2)
    third = build.unary("tanh", first)
    build.block = ("B", 1)
    view = build.unary("detach", build.unary("detach", first))
    build.block = ("C", 2)
    graph = build.graph(third, build.unary("tanh", view))
    assert places(graph) == ["A 0 0F", "C 2 1F", "C 2 1F", "C 2 1F", "C 2 1F"]


def test_block_that_is_not_listed() -> None:
    assert str(refusal(chain(("first", 0), ("secnd", 1)), blocks=["first", "second"])) == """\
block 'secnd' is not in options.blocks; did you mean 'second'?
  op      %1: float[3,3] = tanh(%0)  @F block=secnd ipu=1  # model.py:2
  source  model.py:2  line 1
  known blocks: first, second
  do      add it to options.blocks where its stage belongs, or set blocks=None"""


def test_a_stage_without_an_ipu_is_on_that_of_its_blocks_or_of_its_number() -> None:
    graph = chain(("A", None), ("B", None), ("C", 3), ("D", 0))
    stages = ["A", ["B"], "C", Stage(("D",), ipu=2)]
    assert places(graph, stages=stages) == ["A 0 0F", "B 1 1F", "C 3 2F", "D 2 3F"]


def test_neighbouring_stages_on_one_ipu_are_one_but_phases_stay_apart() -> None:
    graph = chain(("A", None), ("B", None), ("C", None))
    stages = [Stage(("A",), ipu=0), Stage(("B",), ipu=0), Stage(("C",), ipu=1)]
    assert places(graph, stages=stages) == ["A 0 0F", "B 0 0F", "C 1 1F"]
    assert places(graph, stages=stages, execution="serial_phased") == ["A 0 0F", "B 0 1F", "C 1 2F"]


def test_block_that_is_in_no_stage_shows_the_stages() -> None:
    assert str(refusal(chain(("first", 0), ("thrid", 1)), stages=[["first", "second"], "third"])) == """\
block 'thrid' is not in options.stages; did you mean 'third'?
  op      %1: float[3,3] = tanh(%0)  @F block=thrid ipu=1  # model.py:2
  source  model.py:2  line 1
  stage 0: first, second
  stage 1: third
  do      add it to options.stages where its stage belongs, or set stages=None"""


def test_blocks_of_a_stage_that_ask_for_two_ipus() -> None:
    assert str(refusal(chain(("A", 0), ("B", 1)), stages=[["A", "B"]])) == """\
block 'B' asks for ipu 1, but its stage 0 is on ipu 0
  stage 0: A, B   <-- ipu 0 and ipu 1
  do      give the stage an ipu, or the block a stage of its own"""


def test_replicas_leave_fewer_ipus_to_each() -> None:
    assert str(refusal(chain(("A", 0), ("B", 1), ("C", 2)), replicas=2)) == """\
block 'C' asks for ipu 2, but a replica of 2 on the 4 IPUs of mk2 has ipus 0 to 1
  do      use an ipu_id that is there, or use fewer replicas"""
    assert refusal(chain(None), replicas=5).message == (
        "5 replicas of the model need 5 IPUs at least, but mk2 has 4"
    )


def test_listed_blocks_that_no_op_is_in() -> None:
    assert refusal(chain(None, None), blocks=["A"]).message == (
        "options.blocks leaves 2 ops unplaced: no op of the model is in a block"
    )


def test_block_on_two_ipus() -> None:
    error = refusal(chain(("A", 0), ("A", 1)))
    assert error.message == "block 'A' asks for ipu 1 here and for ipu 0 before"


def test_graph_without_ops_is_left_alone() -> None:
    graph = Graph("empty", (tensor := Tensor("x", (1,), GraphBuilder().dtype),), (tensor,), ())
    assert place(graph, Options(blocks=("A",)), FOUR) is graph


def test_op_is_placed_whatever_its_kind() -> None:
    graph = Graph("main", (), (), (Op("generic", (), ()),))
    assert places(graph) == ["main 0 0F"]
