"""Invariants of the IR: valid text passes, each breach is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.strategies import GraphBuilder, graphs, mappings, training_graphs
from torchipu.errors import VerifyError
from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.mapping import TileMapping, linear
from torchipu.ir.program import (
    Call,
    ComputeSet,
    Executable,
    Execute,
    HostCopy,
    If,
    OnIpus,
    Program,
    Repeat,
    RepeatWhile,
    Sequence,
    Sync,
    Variable,
    VertexGroup,
)
from torchipu.ir.schedule import Action, Schedule
from torchipu.ir.types import DType, Leg, Role
from torchipu.ir.verify import context, verify_executable, verify_graph, verify_mapping, verify_schedule


def two_ops() -> tuple[GraphBuilder, Tensor, Tensor]:
    """Return a builder of ``tanh(relu(x))`` and its two values."""
    build = GraphBuilder()
    first = build.unary("relu", build.input("x"))
    return build, first, build.unary("tanh", first)


def breach(graph: Graph) -> str:
    """Return the message with which a graph is refused."""
    with pytest.raises(VerifyError) as caught:
        verify_graph(graph, "testing")
    return caught.value.message.removeprefix("invariant broken after pass 'testing': ")


@given(graphs())
def test_random_graphs_are_valid(graph: Graph) -> None:
    verify_graph(graph)


@given(training_graphs())
def test_random_training_graphs_are_valid(graph: Graph) -> None:
    verify_graph(graph)


def test_reading_before_making_is_refused_with_ten_lines_around() -> None:
    build, _, last = two_ops()
    for _ in range(20):
        last = build.unary("neg", last)
    graph = build.graph(last)
    swapped = replace(graph, ops=(*graph.ops[:10], graph.ops[11], graph.ops[10], *graph.ops[12:]))
    with pytest.raises(VerifyError) as caught:
        verify_graph(swapped, "testing")
    lines = caught.value.detail.splitlines()
    assert "op neg reads %t10 before it is made" in caught.value.message
    assert len(lines) == 10
    assert [line for line in lines if line.startswith("->")] == [lines[5]]


def test_value_made_twice_is_refused() -> None:
    build, first, last = two_ops()
    build.ops.append(Op("neg", (last,), (first,)))
    assert breach(build.graph(last)) == "tensor %t0 is made more than once"


def test_what_is_wrong_with_inputs_points_to_the_line_of_the_graph() -> None:
    build, _, last = two_ops()
    build.inputs.append(replace(build.inputs[0]))
    with pytest.raises(VerifyError) as caught:
        verify_graph(build.graph(last), "testing")
    assert "two tensors are called %x" in caught.value.message
    (pointed,) = [line for line in caught.value.detail.splitlines() if line.startswith("->")]
    assert pointed.startswith("-> graph ")


def test_two_values_of_one_name_are_refused() -> None:
    build, first, last = two_ops()
    build.ops.append(Op("neg", (last,), (replace(first),)))
    assert breach(build.graph(last)) == "two tensors are called %t0"


@pytest.mark.parametrize("shape", [(2, -1), (2, 1.0)])
def test_sizes_are_whole_numbers_from_0(shape: tuple[int, ...]) -> None:
    build, _, last = two_ops()
    build.ops.append(Op("neg", (last,), (replace(last, name="odd", shape=shape),)))
    assert breach(build.graph(last)) == f"tensor %odd has shape {shape}"


def test_tensors_may_have_no_elements() -> None:
    build = GraphBuilder()
    verify_graph(build.graph(build.unary("relu", build.input("x", shape=(3, 0)))))


def test_operands_must_fit_the_inputs() -> None:
    build, first, last = two_ops()
    build.ops.append(Op("cat", (first,), (replace(last, name="cat"),), operands=("tensors[xx]",)))
    assert breach(build.graph(last)) == "op cat names 2 operands but has 1 inputs"


def test_forward_must_not_read_the_backward() -> None:
    build = GraphBuilder(leg=Leg.BACKWARD)
    gradient = build.unary("relu", build.input("x"))
    build.leg = Leg.FORWARD
    build.unary("tanh", gradient)
    assert breach(build.graph(gradient)) == "op tanh of leg F reads %t0 of leg B"


def test_output_must_be_made() -> None:
    build, _, last = two_ops()
    assert breach(build.graph(replace(last, name="nowhere"))) == "output %nowhere is never made"


@pytest.mark.parametrize(("state", "value", "expected"), [
    ("value", "value", "update of %t0, which is no input"),
    ("x", "lost", "update of %x from %lost, which is never made"),
    ("x", "narrow", "update of %x changes its shape or dtype"),
])
def test_updates_must_write_inputs(state: str, value: str, expected: str) -> None:
    build, first, last = two_ops()
    narrow = build.op("aten.sum.default", ("self", last), shape=())
    named = {"x": build.inputs[0], "value": first, "lost": replace(last, name="lost"), "narrow": narrow}
    build.updates.append((named[state], named[value]))
    assert breach(build.graph(last)) == expected


def test_state_must_not_be_updated_twice() -> None:
    build, first, last = two_ops()
    build.updates += [(build.inputs[0], first), (build.inputs[0], last)]
    assert breach(build.graph(last)) == "%x is updated twice"


@pytest.mark.parametrize(("places", "expected"), [
    ([Placement("A", 0, 0, Leg.FORWARD), None], "op tanh is not placed"),
    ([Placement("A", 0, 0, Leg.FORWARD), Placement("A", 0, 0, Leg.UPDATE)], "op tanh of leg F is placed in leg U"),
    ([Placement("A", 0, 0, Leg.FORWARD), Placement("A", 1, 0, Leg.FORWARD)], "stage 0 is on ipu 0 and on ipu 1"),
    ([Placement("B", 1, 1, Leg.FORWARD), Placement("A", 0, 0, Leg.FORWARD)],
     "op tanh in 0F reads %t0 of 1F, which runs after it"),
])
def test_placements_must_agree(places: list[Placement | None], expected: str) -> None:
    build, _, last = two_ops()
    build.ops = [replace(op, placement=place) for op, place in zip(build.ops, places, strict=True)]
    assert breach(build.graph(last)) == expected


def test_gradient_must_not_go_on_to_a_later_stage() -> None:
    build = GraphBuilder(leg=Leg.BACKWARD)
    last = build.unary("tanh", build.unary("relu", build.input("x")))
    places = [Placement("A", 0, 0, Leg.BACKWARD), Placement("B", 1, 1, Leg.BACKWARD)]
    build.ops = [replace(op, placement=place) for op, place in zip(build.ops, places, strict=True)]
    assert breach(build.graph(last)) == "op tanh in 1B reads %t0 of 0B, which runs after it"


def test_what_is_wrong_with_an_input_is_shown_where_inputs_stand() -> None:
    build, _, last = two_ops()
    graph = build.graph(last)
    with pytest.raises(VerifyError, match="is made more than once") as caught:
        verify_graph(replace(graph, inputs=(*graph.inputs, *graph.inputs)))
    marked, *_ = caught.value.detail.splitlines()
    assert marked.startswith("-> graph main(%x")


def test_context_is_short_at_both_ends() -> None:
    lines = [str(number) for number in range(4)]
    assert context(lines, 0) == "-> 0\n   1\n   2\n   3"
    assert context([str(number) for number in range(30)], 29).splitlines()[-1] == "-> 29"


# --------------------------------------------------------------------------- schedule
F0, F1, G0, G1 = (Action(stage, Leg.FORWARD, m) for stage in (0, 1) for m in (0, 1))


@pytest.mark.parametrize(("steps", "expected"), [
    ((((F0,), ()), ((F1,), (G0,))), "action 1F1 is missing"),
    ((((F0,), ()), ((F1,), (G0,)), ((F0,), (G1,))), "action 0F0 runs twice"),
    ((((F0,), ()), ((), (F1, G0)), ((), (G1,))), "stage 0 runs on two IPUs"),
    ((((F0,), (G0,)), ((F1,), ()), ((), (G1,))), "1F0 does not run after 0F0"),
    ((((F0,), ()), ((F1,), (G0,)), ((Action(0, Leg.UPDATE, None),), (G1,))), "action 0U has no place in this schedule"),
    ((((F0,), ()), ((F1,),), ((), (G0, G1))), "row 1 has 1 columns"),
])
def test_broken_schedule_is_refused(steps: tuple[tuple[tuple[Action, ...], ...], ...], expected: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_schedule(Schedule(steps), 2, 2, "schedule")
    assert caught.value.message == f"invariant broken after pass 'schedule': {expected}"
    assert "->" in caught.value.detail


def test_backward_of_the_last_stage_may_share_the_cell_of_its_forward() -> None:
    f, b, u = (Action(0, leg, None if leg is Leg.UPDATE else 0) for leg in Leg)
    verify_schedule(Schedule((((f, b),), ((u,),))), 1, 1)
    with pytest.raises(VerifyError, match="0B0 does not run after 0F0"):
        verify_schedule(Schedule((((b, f),), ((u,),))), 1, 1)
    with pytest.raises(VerifyError, match="0U does not run after 0F0"):
        verify_schedule(Schedule((((u, f, b),),)), 1, 1)


# --------------------------------------------------------------------------- mapping
@given(mappings(num_tiles=8))
def test_mapping_that_covers_once_is_valid(mapping: TileMapping) -> None:
    verify_mapping(mapping, mapping.num_elements, 8)


@pytest.mark.parametrize(("runs", "grain", "expected"), [
    (((0, 0, 4), (9, 4, 8)), 1, "tile 9 does not exist: there are 8"),
    (((0, 0, 4), (1, 3, 8)), 1, "element 3 is mapped twice"),
    (((0, 0, 4), (1, 5, 8)), 1, "element 4 is mapped nowhere"),
    (((0, 0, 4), (1, 4, 4), (2, 4, 8)), 1, "run 4..4 on tile 1 is empty"),
    (((0, 0, 3), (1, 3, 8)), 2, "run 3..8 on tile 1 splits a grain of 2 elements"),
    (((0, 0, 4),), 1, "4 of 8 elements are mapped"),
    (((0, 0, 9),), 1, "9 of 8 elements are mapped"),
])
def test_broken_mapping_is_refused(runs: tuple[tuple[int, int, int], ...], grain: int, expected: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_mapping(TileMapping(runs), 8, 8, grain)
    assert caught.value.message == f"invariant broken: mapping: {expected}"


def test_what_is_shown_of_a_broken_mapping_are_the_runs_around_the_element() -> None:
    runs = tuple((tile, 8 * tile + (tile == 6), 8 * tile + 8) for tile in range(14))
    with pytest.raises(VerifyError, match="element 48 is mapped nowhere") as caught:
        verify_mapping(TileMapping(runs), 8 * 14, 14)
    shown = [line for line in str(caught.value).splitlines() if line.strip().startswith("tile ")]
    assert [line.split(":")[0].split()[-1] for line in shown] == [str(tile) for tile in range(2, 11)]


# --------------------------------------------------------------------------- executable
def state(name: str, ipu: int = 0, tiles: int = 4, first_tile: int = 0) -> Variable:
    """Make a weight of eight floats."""
    return Variable(name, (8,), DType.FLOAT, ipu, linear(8, tiles, first_tile=first_tile), Role.WEIGHT)


A, B, FAR = state("a"), state("b"), state("far", ipu=1)


def execute(ipu: int, *variables: Variable) -> Execute:
    """Make a compute set on an IPU."""
    op = Op("odd", (), ())
    group = VertexGroup("poplin::Odd", {variable.name: variable for variable in variables}, linear(8, 4), op)
    return Execute(ComputeSet("odd", ipu, (group,), op))


def executable(main: Program, **functions: Program) -> Executable:
    """Make an executable of the three variables."""
    return Executable({"main": main}, functions, (A, B, FAR), {"a": (0, 8), "b": (8, 16), "far": (0, 8)}, 2)


def test_valid_executable_passes() -> None:
    program = Sequence((
        Sync("ipu"), HostCopy("x", A, to_device=True), Repeat(2, OnIpus((Call("0F", 0), Call("1F", 1)))),
    ))
    verify_executable(executable(program, **{"0F": execute(0, A, B), "1F": execute(1, FAR)}), "memory", num_tiles=4)


@pytest.mark.parametrize(("main", "functions", "expected"), [
    (Sync("everyone"), {}, "main syncs the unknown scope 'everyone'"),
    (Repeat(0, Sync("ipu")), {}, "main repeats 0 times"),
    (Call("0F"), {}, "main calls '0F', which does not exist"),
    (Call("f"), {"f": Call("g"), "g": Call("f")}, "function f calls itself"),
    (execute(0, state("a")), {}, "main uses %a, which is no variable of the executable"),
    (HostCopy("x", state("z"), to_device=True), {}, "main uses %z, which is no variable of the executable"),
    (execute(0, A, FAR), {}, "compute set odd on ipu 0 uses %far of ipu 1"),
    (OnIpus((execute(0, A), Call("f"))), {"f": execute(0, B)}, "two bodies of a pipeline cycle in main run on ipu 0"),
    (OnIpus((Sequence((execute(0, A), execute(1, FAR))),)), {},
     "body 0 of a pipeline cycle in main touches ipus [0, 1]"),
])
def test_broken_program_is_refused(main: Program, functions: dict[str, Program], expected: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_executable(executable(main, **functions), "lower")
    assert caught.value.message == f"invariant broken after pass 'lower': {expected}"


CONDITION = Variable("condition", (), DType.BOOL, 0, linear(1, 1), Role.ACTIVATION)
BROKEN, NOTHING, ODD = Sync("everyone"), Sequence(()), Op("odd", (), ())


@pytest.mark.parametrize("main", [
    Repeat(2, BROKEN), Sequence((NOTHING, Sequence((BROKEN,)))), OnIpus((BROKEN,)), If(CONDITION, BROKEN, NOTHING, ODD),
    If(CONDITION, NOTHING, BROKEN, ODD), RepeatWhile(BROKEN, CONDITION, NOTHING, ODD),
    RepeatWhile(NOTHING, CONDITION, BROKEN, ODD),
])
def test_what_is_broken_is_found_at_any_depth(main: Program) -> None:
    broken = replace(executable(main), variables=(A, B, FAR, CONDITION))
    with pytest.raises(VerifyError, match="main syncs the unknown scope 'everyone'"):
        verify_executable(broken, "lower")


@pytest.mark.parametrize("main", [If(A, NOTHING, NOTHING, ODD), RepeatWhile(NOTHING, A, NOTHING, ODD)])
def test_a_condition_has_one_element(main: Program) -> None:
    with pytest.raises(VerifyError, match="main decides by %a, which has 8 elements"):
        verify_executable(executable(main), "lower")


@pytest.mark.parametrize("main", [If(CONDITION, NOTHING, NOTHING, ODD), RepeatWhile(NOTHING, CONDITION, NOTHING, ODD)])
def test_a_condition_is_a_variable_of_the_executable(main: Program) -> None:
    with pytest.raises(VerifyError, match="main uses %condition, which is no variable of the executable"):
        verify_executable(executable(main), "lower")


@pytest.mark.parametrize(("addresses", "expected"), [
    ({"z": (0, 4)}, "an address is given for %z, which is no variable"),
    ({"a": (8, 4)}, "%a has addresses 8..4"),
    ({"a": (0, 12), "b": (8, 16)}, "%a and %b overlap in tile 0"),
])
def test_broken_addresses_are_refused(addresses: dict[str, tuple[int, int]], expected: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_executable(replace(executable(Sync("ipu")), addresses=addresses))
    assert caught.value.message == f"invariant broken: {expected}"


def test_states_on_different_tiles_or_ipus_may_share_addresses() -> None:
    variables = (A, state("b", first_tile=4), FAR)
    verify_executable(Executable({"main": Sync("ipu")}, {}, variables, {"a": (0, 8), "b": (0, 8), "far": (0, 8)}, 2))


def test_variable_on_a_missing_ipu_is_refused() -> None:
    with pytest.raises(VerifyError, match="variable %far is on ipu 1 of 1"):
        verify_executable(replace(executable(Sync("ipu")), num_ipus=1))


def test_mappings_are_checked_against_the_tiles_of_the_target() -> None:
    with pytest.raises(VerifyError, match="variable %a: tile 2 does not exist: there are 2"):
        verify_executable(executable(Sync("ipu")), num_tiles=2)


def test_state_inside_a_wider_one_is_found() -> None:
    wide, narrow, above = state("a", tiles=8), state("b", tiles=1), state("far", tiles=1)
    addresses = {"a": (0, 100), "b": (10, 20), "far": (100, 110)}
    with pytest.raises(VerifyError, match="%a and %b overlap in tile 0"):
        verify_executable(Executable({}, {}, (wide, narrow, above), addresses))
