"""The lower pass: which function holds what, what crosses between IPUs, how many micro-batches a stash holds."""

from dataclasses import replace

import pytest

from tests.placed_graphs import (
    BACKWARD,
    FORWARD,
    UPDATE,
    lowered,
    one_forward,
    op,
    pipeline,
    sharded,
    tensor,
    training_graph,
)
from torchipu.device.lower.cycles import cycles
from torchipu.device.lower.side_by_side import RESERVED_TILES, SIDE_BY_SIDE
from torchipu.device.schedule import make_schedule
from torchipu.ir.graph import Graph
from torchipu.ir.program import Call, Copy, Execute, Gather, HostCopy, OnIpus, Repeat, Sequence, Sync
from torchipu.ir.types import DType, Leg, Role
from torchipu.ir.verify import verify_executable
from torchipu.target import lookup_target

MK2 = lookup_target("mk2")


def steps(executable, function):
    return executable.functions[function].body


def kinds(executable, function):
    return [type(step).__name__ for step in steps(executable, function)]


def variable(executable, name):
    (found,) = [one for one in executable.variables if one.name == name]
    return found


def test_forward_of_one_op_is_a_stream_a_superstep_and_a_stream():
    x, y = tensor("x", 128, role=Role.INPUT), tensor("y", 128)
    executable = lowered(Graph("g", (x,), (y,), (op("add", (x, x), y),)), one_forward(), MK2)
    assert kinds(executable, "0F") == ["Sync", "HostCopy", "Sync", "Execute", "Sync", "HostCopy"]
    _, copy_in, _, execute, _, copy_out = steps(executable, "0F")
    assert (copy_in.stream, copy_in.to_device, copy_out.stream, copy_out.to_device) == ("x", True, "y", False)
    (group,) = execute.compute_set.groups
    assert {label: v.name for label, v in group.fields.items()} == {"self": "x", "other": "x", "out": "y"}
    # 128 floats on four tiles of 32: 11 + 6 (29 + 3 ceil(32 / 12)).
    assert group.cycles == 11 + 6 * (29 + 3 * 3)
    assert len(group.runs.runs) == 4


def test_of_states_with_one_next_value_one_holds_it_and_the_other_gets_a_copy():
    states = [tensor(name, 128, role=Role.OPTIMISER_STATE) for name in ("m", "n")]
    after = tensor("after", 128, role=Role.OPTIMISER_STATE)
    updates = tuple((state, after) for state in states)
    executable = lowered(Graph("g", tuple(states), (), (op("add", tuple(states), after),), updates), one_forward(), MK2)
    execute, *copies = [step for step in steps(executable, "0F") if isinstance(step, (Execute, Copy))]
    assert execute.compute_set.groups[0].fields["out"].name == "m"
    assert [(copy.src.name, copy.dst.name) for copy in copies] == [("m", "n")]
    assert [(copy.total_bytes, copy.max_tile_bytes) for copy in copies] == [(4 * 128, 4 * 32)]


def test_views_lower_to_nothing_and_share_storage():
    x, v, y = tensor("x", 8, 16, role=Role.INPUT), tensor("v", 128), tensor("y", 128)
    graph = Graph("g", (x,), (y,), (op("view", (x,), v), op("add", (v, v), y)))
    executable = lowered(graph, one_forward(), MK2)
    assert sorted(one.name for one in executable.variables) == ["x", "y"]
    (execute,) = [step for step in steps(executable, "0F") if isinstance(step, Execute)]
    assert execute.compute_set.groups[0].fields["self"].name == "x"


def test_broadcast_operand_is_gathered_by_an_exchange():
    bias, x, y = tensor("b", 64, role=Role.WEIGHT), tensor("x", 100, 64, role=Role.INPUT), tensor("y", 100, 64)
    executable = lowered(Graph("g", (bias, x), (y,), (op("add", (x, bias), y),)), one_forward(), MK2)
    (copy,) = [step for step in steps(executable, "0F") if isinstance(step, Gather)]
    assert [one.name for one in copy.variables] == ["x", "b"]
    assert copy.max_tile_bytes == 32 * 4
    assert copy.total_bytes == copy.max_tile_bytes * 200


def test_elementwise_op_fetches_operands_that_lie_on_other_tiles():
    x, w = tensor("x", 640, role=Role.INPUT), tensor("w", 640, role=Role.WEIGHT, dtype=DType.HALF)
    y = tensor("y", 640)
    executable = lowered(Graph("g", (x, w), (y,), (op("add", (x, w), y),)), one_forward(), MK2)
    (copy,) = [step for step in steps(executable, "0F") if isinstance(step, Gather)]
    # The result lies with one of them: 32 floats a tile, or 64 halves a tile; the other one is fetched.
    assert variable(executable, "x").mapping is not variable(executable, "w").mapping
    assert copy.max_tile_bytes == 32 * 2


def test_elementwise_op_fetches_nothing_where_its_operands_lie():
    executable = lowered(training_graph(1, 6400, layers=3), pipeline(1, 1), MK2)
    for function in ("0B", "U0"):
        assert not {"Copy", "Gather"} & set(kinds(executable, function))


def test_states_that_meet_element_by_element_lie_on_the_same_tiles():
    executable = lowered(training_graph(1, 640, layers=3), pipeline(1, 1), MK2)
    for layer in range(3):
        names = {f"{state}0.{layer}" for state in "wam"}
        assert len({id(one.mapping) for one in executable.variables if one.name in names}) == 1


def test_permuted_operand_of_an_elementwise_op_is_fetched_in_fragments():
    x, v, y = tensor("x", 40, 16, role=Role.INPUT), tensor("v", 16, 40), tensor("y", 16, 40)
    graph = Graph("g", (x,), (y,), (op("view", (x,), v), op("add", (v, v), y)))
    (copy,) = [step for step in steps(lowered(graph, one_forward(), MK2), "0F") if isinstance(step, Gather)]
    assert copy.max_tile_bytes == 2 * 32 * 4
    assert copy.fragments > 2 * 5


@pytest.mark.parametrize("target", ["aten.view.default", "aten.unsqueeze.default", "torchipu.nop.default"])
def test_operand_in_another_shape_but_in_order_is_fetched_from_nowhere(target):
    x, v, y = tensor("x", 640, role=Role.INPUT), tensor("v", 40, 16), tensor("y", 40, 16)
    view = replace(op("view", (x,), v), target=target)
    executable = lowered(Graph("g", (x,), (y,), (view, op("add", (v, v), y))), one_forward(), MK2)
    assert not {"Copy", "Gather"} & set(kinds(executable, "0F"))


def test_main_is_one_cycle_after_another_with_what_crosses_behind():
    executable = lowered(training_graph(2, 64), pipeline(2, 3), MK2, micro_batches=3, iterations=5)
    main = executable.programs["main"]
    assert isinstance(main, Repeat)
    assert main.count == 5
    text = []
    for step in main.body.body:
        match step:
            case OnIpus(bodies=bodies):
                text.append([names(body) for body in bodies])
            case Call(function=function, micro_batch=micro_batch):
                text.append(f"{function}{micro_batch}")
            case Sync(scope=scope):
                text.append(scope)
    assert text == [
        [["0F0"], []], "replica", "0F.send0",
        [["0F1"], ["1F0", "1B0"]], "replica", "0F.send1", "1B.send0",
        [["0F2", "0B0"], ["1F1", "1B1"]], "replica", "0F.send2", "1B.send1",
        [["0B1"], ["1F2", "1B2"]], "replica", "1B.send2",
        [["0B2"], []], "replica",
        [["U0"], ["U1"]], "replica",
    ]


def names(body):
    calls = body.body if isinstance(body, Sequence) else (body,)
    return [call.function if call.micro_batch is None else f"{call.function}{call.micro_batch}" for call in calls]


def test_what_a_schedule_without_updates_changes_is_changed_behind_it():
    w, x = tensor("w", 64, role=Role.WEIGHT), tensor("x", 64, role=Role.INPUT)
    y, changed = tensor("y", 64), tensor("n", 64)
    ops = op("neg", (x,), y), op("add", (w, w), changed, leg=Leg.UPDATE)
    executable = lowered(Graph("g", (w, x), (y,), ops, ((w, changed),)), one_forward(), MK2)
    assert [names(body) for step in executable.programs["main"].body.body for body in step.bodies] == [["0F0"], ["U0"]]


def test_an_op_of_the_host_sends_its_operands_and_waits_for_its_results():
    x, y = tensor("x", 64, role=Role.INPUT), tensor("y", 64)
    there = replace(op("call_host", (x,), y), target="torchipu.call_host.default")
    executable = lowered(Graph("g", (x,), (y,), (there,)), one_forward(), MK2)
    streamed = [step for step in steps(executable, "0F") if isinstance(step, HostCopy)]
    assert kinds(executable, "0F") == ["Sync", "HostCopy"] * 4
    assert [(one.stream, one.to_device) for one in streamed] == [
        ("x", True), ("y.in0", False), ("y.out0", True), ("y", False),
    ]


def test_a_value_that_the_host_prints_does_not_come_back():
    x, seen, y = tensor("x", 64, role=Role.INPUT), tensor("seen", 64), tensor("y", 64)
    printed = replace(op("print_tensor", (x,), seen), target="torchipu.print_tensor.default")
    executable = lowered(Graph("g", (x,), (y,), (printed, op("neg", (seen,), y))), one_forward(), MK2)
    streamed = [(one.stream, one.to_device) for one in steps(executable, "0F") if isinstance(one, HostCopy)]
    assert streamed == [("x", True), ("seen.in0", False), ("y", False)]
    assert kinds(executable, "0F")[:4] == ["Sync", "HostCopy", "Sync", "HostCopy"]
    assert kinds(executable, "0F").count("Sync") == kinds(executable, "0F").count("HostCopy") + 1


def test_states_are_copied_before_results_go_to_the_host():
    first, second = tensor("a", 64, role=Role.WEIGHT), tensor("b", 64, role=Role.WEIGHT)
    x, y = tensor("x", 64, role=Role.INPUT), tensor("y", 64)
    graph = Graph("g", (first, second, x), (y,), (op("neg", (x,), y),), ((first, y), (second, y)))
    executable = lowered(graph, one_forward(), MK2)
    assert kinds(executable, "0F")[-5:] == ["Execute", "Sync", "Copy", "Sync", "HostCopy"]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stash_of_stage_i_holds_2_s_minus_1_minus_i_plus_1_micro_batches(stages):
    # PopART's pipeline, ipu_hardware.md 4.1. The inner layer of each stage reads its input again in the backward.
    executable = lowered(training_graph(stages, 64, layers=2), pipeline(stages, 9), MK2, micro_batches=9)
    depths = [variable(executable, f"h{stage}.0").depth for stage in range(stages)]
    assert depths == [2 * (stages - 1 - stage) + 1 for stage in range(stages)]


def test_value_that_only_crosses_to_the_next_stage_is_held_once():
    executable = lowered(training_graph(3, 64), pipeline(3, 8), MK2, micro_batches=8)
    assert variable(executable, "h0.0").depth == 1
    assert variable(executable, "h0.0.ipu1").depth == 3, "the received copy is the stash of stage 1"


def test_sharded_execution_stashes_one_micro_batch():
    executable = lowered(training_graph(3, 64, layers=2), sharded(3, 4), MK2, micro_batches=4)
    assert {one.depth for one in executable.variables} == {1}


def test_value_that_skips_a_stage_waits_a_cycle_longer():
    x, a, b, c = tensor("x", 64, role=Role.INPUT), tensor("a", 64), tensor("b", 64), tensor("c", 64)
    ops = (op("add", (x, x), a, 0), op("add", (a, a), b, 1), op("add", (b, a), c, 2))
    forward = pipeline(3, 5)
    executable = lowered(Graph("g", (x,), (c,), ops), forward, MK2, micro_batches=5)
    assert variable(executable, "a.ipu1").depth == 1
    assert variable(executable, "a.ipu2").depth == 2


def test_next_value_of_a_state_is_written_over_the_state():
    executable = lowered(training_graph(1, 64), pipeline(1, 1), MK2)
    assert not [one.name for one in executable.variables if one.name.endswith(".next")]


def test_state_that_another_ipu_reads_is_sent_once_an_iteration():
    w, x = tensor("w", 64, role=Role.WEIGHT), tensor("x", 64, role=Role.INPUT)
    a, b, loss = tensor("a", 64), tensor("b", 64), tensor("w.next", 64, role=Role.WEIGHT)
    ops = (op("add", (x, w), a, 0), op("add", (a, w), b, 1), op("add", (w, w), loss, 0, UPDATE))
    executable = lowered(Graph("g", (w, x), (b,), ops, ((w, loss),)), one_forward(2), MK2, iterations=3)
    (copy,) = steps(executable, "broadcast")
    assert (copy.src.name, copy.dst.name, copy.total_bytes) == ("w", "w.ipu1", 256)
    assert executable.programs["main"].body.body[1].function == "broadcast"
    verify_executable(executable)


def test_off_chip_state_comes_in_before_its_first_use_and_goes_out_after_its_last():
    executable = lowered(training_graph(1, 64), pipeline(1, 2), MK2, micro_batches=2, off_chip_state=True)
    update = [step for step in steps(executable, "U0") if isinstance(step, (HostCopy, Execute))]
    streams = [(step.stream, step.to_device) if isinstance(step, HostCopy) else "run" for step in update]
    assert streams == [("remote.m0.0", True), "run", "run", ("remote.m0.0", False)]
    assert variable(executable, "m0.0").off_chip
    assert not variable(executable, "a0.0").off_chip


def test_ops_side_by_side_run_in_one_superstep_on_tiles_of_their_own():
    inputs = [tensor(name, 640, role=Role.INPUT) for name in "xyz"]
    ops = [
        replace(op("sum", (one,), tensor(f"sum.{one.name}")), attrs={SIDE_BY_SIDE: 0, RESERVED_TILES: reserved})
        for one, reserved in zip(inputs, (5, 3, 1), strict=True)
    ]
    graph = Graph("g", tuple(inputs), tuple(one.outputs[0] for one in ops), tuple(ops))
    executable = lowered(graph, one_forward(), replace(MK2, num_tiles=12))
    first, *_ = [step.compute_set for step in steps(executable, "0F") if isinstance(step, Execute)]
    tiles = [{tile for tile, _, _ in group.runs.runs} for group in first.groups]
    assert [group.op for group in first.groups] == ops
    assert sum(map(len, tiles)) == len(set.union(*tiles)) > 3
    assert set.union(*tiles) <= set(range(12))


def test_ops_that_are_alike_share_their_compute_set_sizes():
    executable = lowered(training_graph(1, 640, layers=3), pipeline(1, 1), MK2)
    groups = [step.compute_set.groups[0] for step in steps(executable, "0F") if isinstance(step, Execute)][:3]
    assert groups[0].work is groups[1].work is groups[2].work


@pytest.mark.parametrize("schedule", [pipeline(3, 7), sharded(3, 7)])
def test_lowered_program_keeps_its_invariants(schedule):
    executable = lowered(training_graph(3, 1000, layers=2), schedule, MK2, micro_batches=7, off_chip_state=True)
    verify_executable(executable, num_tiles=MK2.num_tiles)


def test_each_op_is_lowered_into_the_function_of_its_stage_and_leg():
    graph = training_graph(2, 64)
    executable = lowered(graph, pipeline(2, 3), MK2, micro_batches=3)
    placed = {
        id(step.compute_set.op): name
        for name in executable.functions for step in steps(executable, name) if isinstance(step, Execute)
    }
    for one in graph.ops:
        place = one.placement
        wanted = f"U{place.ipu}" if place.leg is Leg.UPDATE else f"{place.stage}{place.leg.value}"
        assert placed[id(one)] == wanted
    assert {FORWARD, BACKWARD, UPDATE} == {one.leg for one in graph.ops}


def called(schedule, functions, num_ipus):
    """Return what each IPU runs at a time, and what is sent behind it, by name."""
    programs = cycles(schedule, dict.fromkeys(functions, Sequence(())), num_ipus)
    return [
        [body.function if isinstance(body, Call) else [part.function for part in body.body] for body in one.bodies]
        if isinstance(one, OnIpus) else one.function
        for one in programs if isinstance(one, (OnIpus, Call))
    ]


def test_what_comes_before_the_update_runs_once_before_the_first_update_on_the_ipus_that_have_it():
    legs = ["0F", "1F", "1B", "0B"]
    for execution, micro_batches in (("sharded", 1), ("pipelined", 3)):
        schedule = make_schedule(2, (0, 1), micro_batches, execution, training=True)
        cells = called(schedule, [*legs, "R1", "C0", "C1", "U0", "U1"], 2)
        assert cells.count([[], "R1"]) == cells.count(["C0", "C1"]) == 1
        assert cells[cells.index([[], "R1"]) + 1] == ["C0", "C1"]
        after = cells[cells.index(["C0", "C1"]) + 1 :]
        assert after == ([["U0", []], [[], "U1"]] if execution == "sharded" else [["U0", "U1"]])


def test_stages_of_one_ipu_share_an_update_and_a_schedule_without_one_ends_with_it():
    schedule = make_schedule(2, (0, 0), 1, "sharded", training=True)
    assert called(schedule, ["0F", "1F", "1B", "0B", "U0"], 1) == [["0F"], ["1F"], ["1B"], ["0B"], ["U0"]]
    assert called(one_forward(2), ["0F", "1F", "U1"], 2) == [["0F", []], [[], "1F"], [[], "U1"]]
    assert called(one_forward(2), ["0F", "1F"], 2) == [["0F", []], [[], "1F"]]


def test_what_a_cycle_sends_follows_it_where_there_are_several_ipus():
    names = ["broadcast", "0F", "1F", "0F.send"]
    assert called(one_forward(2), names, 2) == ["broadcast", ["0F", []], "0F.send", [[], "1F"]]
    assert called(one_forward(1), ["0F", "0F.send"], 1) == [["0F"]]
