"""Text of the IR: goldens of the smallest example of each level."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.strategies import GraphBuilder, graphs, mappings
from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.mapping import TileMapping, linear
from torchipu.ir.program import (
    AllReduce,
    Call,
    ComputeSet,
    Copy,
    Executable,
    Execute,
    Gather,
    HostCopy,
    OnIpus,
    Repeat,
    Sequence,
    Sync,
    Variable,
    VertexGroup,
)
from torchipu.ir.schedule import Action, Schedule
from torchipu.ir.text import format_executable, format_graph, format_mapping, format_op, format_program, format_schedule
from torchipu.ir.types import DType, Leg, Role, Source

X = Tensor("x", (32, 784), DType.HALF, Role.INPUT)
W = Tensor("w", (10, 784), DType.HALF, Role.WEIGHT)
Y = Tensor("mm_17", (32, 10), DType.HALF)
MATMUL = Op(
    "matmul", (X, W), (Y,), {"transpose_rhs": True, "alpha": 1, "bias": None, "transpose_lhs": False},
    "aten.mm.default", ("self", "mat2"), Source("/home/someone/model.py", 12, "return x @ self.w.T"),
    Placement("B1", 0, 0, Leg.FORWARD),
)
GRAPH = Graph("main", (X, W), (Y,), (MATMUL,))


def test_graph() -> None:
    assert format_graph(GRAPH) == """\
graph main(%x: half[32,784] input, %w: half[10,784] weight) {
  %0: half[32,10] = matmul(%x, %w) {transpose_rhs=True}  @ipu0 0F block=B1  # model.py:12
  return %0
}"""


def test_update_and_second_leg_of_a_graph() -> None:
    build = GraphBuilder(block=("B1", 1))
    weight = build.input("w", Role.WEIGHT, (2,))
    build.leg = Leg.UPDATE
    total = build.add(weight, weight)
    build.block = None
    result = build.op("aten.mul.Scalar", ("self", total), other=-0.5)
    build.updates.append((weight, result))
    assert format_graph(build.graph()) == """\
graph main(%w: float[2] weight) {
  %0: float[2] = add(%w, %w)  @U block=B1 ipu=1
  %1: float[2] = mul(%0) {other=-0.5}  @U
  update %w <- %1
  return
}"""


def test_list_operands_stand_in_brackets_and_absent_members_as_underscore() -> None:
    op = Op("index", (X, W, W), (Y,), {}, "aten.index.Tensor", ("self", "indices[_xx]"))
    assert format_op(op) == "%mm_17: half[32,10] = index(%x, [_, %w, %w])"


def test_generic_op_shows_its_target() -> None:
    op = Op("generic", (X,), (Y,), {"dim": -1}, "aten.cumprod.default", ("self",))
    assert format_op(op) == "%mm_17: half[32,10] = generic<aten.cumprod.default>(%x) {dim=-1}"


def test_attributes_that_repeat_the_default_are_left_out() -> None:
    attrs = {"dtype": DType.FLOAT, "dim": (1,), "keepdim": False, "mask": [], "present": (True, True), "groups": 1,
             "beta": 1.0, "mode": "sum"}
    op = Op("odd", (), (Y,), attrs)
    assert format_op(op) == "%mm_17: half[32,10] = odd() {dtype=float, dim=(1,), beta=1.0, mode='sum'}"


def test_unknown_objects_print_without_an_address() -> None:
    assert format_op(Op("odd", (), (), {"thing": object()})) == "odd() {thing=<object>}"


def test_op_with_several_results_and_a_module_for_source() -> None:
    op = Op("norm", (X,), (Y, replace(Y, name="rstd", shape=())), source=Source(module="encoder.0"))
    assert format_op(op) == "%mm_17: half[32,10], %rstd: half[] = norm(%x)  # encoder.0"


def test_numbers_do_not_collide_with_names_of_inputs() -> None:
    build = GraphBuilder()
    result = build.unary("relu", build.input("0"))
    assert "%1: float[3,3] = relu(%0)" in format_graph(build.graph(result))


def test_many_inputs_stand_one_on_a_line() -> None:
    build = GraphBuilder()
    inputs = [build.input(f"weight_{index}", Role.WEIGHT) for index in range(5)]
    lines = format_graph(build.graph(inputs[0])).splitlines()
    assert lines[0] == "graph main("
    assert lines[1] == "    %weight_0: float[3,3] weight,"
    assert lines[6] == ") {"


@given(graphs())
def test_graph_text_does_not_depend_on_the_names_of_values(graph: Graph) -> None:
    renamed = {t: replace(t, name=f"other_{t.name}") for op in graph.ops for t in op.outputs}
    ops = tuple(
        replace(op, inputs=tuple(renamed.get(t, t) for t in op.inputs), outputs=tuple(renamed[t] for t in op.outputs))
        for op in graph.ops
    )
    other = replace(
        graph, ops=ops, outputs=tuple(renamed.get(t, t) for t in graph.outputs),
        updates=tuple((state, renamed.get(t, t)) for state, t in graph.updates),
    )
    assert format_graph(other) == format_graph(graph)
    assert len(format_graph(graph).splitlines()) == len(graph.ops) + len(graph.updates) + 3


def test_schedule_is_a_grid_with_one_column_an_ipu() -> None:
    f0, f1, g0 = Action(0, Leg.FORWARD, 0), Action(0, Leg.FORWARD, 1), Action(1, Leg.FORWARD, 0)
    back = Action(1, Leg.BACKWARD, 0)
    schedule = Schedule((((f0,), ()), ((f1,), (g0, back)), ((), (Action(1, Leg.UPDATE, None),))))
    assert format_schedule(schedule) == "0F0\n0F1   1F0 1B0\n      1U"
    assert format_schedule(schedule, arrow_at=2, note="here") == "0F0\n0F1   1F0 1B0\n      1U        <-- here"


@pytest.mark.parametrize(("runs", "expected"), [
    ((), "no tiles"),
    (((5, 0, 7),), "tiles 5 x 7"),
    (((0, 0, 2), (1, 2, 4), (2, 4, 5)), "tiles 0..1 x 2, 2 x 1"),
    (((0, 0, 2), (0, 2, 4)), "tiles 0 x 2, 0 x 2"),
    (((0, 4, 6),), "tiles 0 x 2 from 4"),
])
def test_mapping(runs: tuple[tuple[int, int, int], ...], expected: str) -> None:
    assert format_mapping(TileMapping(runs)) == expected


@given(mappings())
def test_mapping_text_can_be_read_back(mapping: TileMapping) -> None:
    runs, position = [], 0
    for group in format_mapping(mapping).removeprefix("tiles ").split(", ") if mapping.runs else []:
        tiles, count = group.split(" x ")
        first, _, last = tiles.partition("..")
        for tile in range(int(first), int(last or first) + 1):
            runs.append((tile, position, position + int(count)))
            position += int(count)
    assert tuple(runs) == mapping.runs


def variable(name: str, shape: tuple[int, ...], ipu: int = 0, role: Role = Role.ACTIVATION) -> Variable:
    """Make a half variable spread over at most 320 tiles."""
    count = shape[0] * shape[1]
    return Variable(name, shape, DType.HALF, ipu, linear(count, 320), role)


VX, VW = variable("x", X.shape, role=Role.INPUT), variable("w", W.shape, role=Role.WEIGHT)
VXT, VY, FAR = variable("x.t", X.shape), variable("mm_17", Y.shape), variable("mm_17.ipu1", Y.shape, ipu=1)
GROUP = VertexGroup("poplin::MatMul<half,float>", {"a": VXT, "b": VW, "out": VY}, linear(320, 320), MATMUL)
EXECUTE = Execute(ComputeSet("matmul.0", 0, (GROUP,), MATMUL))


def test_program() -> None:
    body = Sequence((Sync("ipu"), Copy(VX, VXT, total_bytes=50176, max_tile_bytes=36), EXECUTE))
    assert format_program(Repeat(4, body)) == """\
repeat 4 {
  sync ipu
  copy %x -> %x.t  # exchange, 50176 B, busiest tile 36 B
  execute matmul.0 @ipu0
    poplin::MatMul<half,float> tiles 0..319 x 1 {a=%x.t, b=%w, out=%0}
}"""


def test_every_kind_of_copy_and_call() -> None:
    program = Sequence((
        HostCopy("x", VX, to_device=True), Gather((VX,), 100, 8, fragments=3), Copy(VY, FAR, 640),
        OnIpus((Call("0F", 3), Call("1F", 2))), AllReduce((VW,), mean=True), Call("U0"),
        HostCopy("loss", VY, to_device=False),
    ))
    assert format_program(program) == """\
copy host 'x' -> %x  # host, 50176 B
gather %x  # exchange, 100 B, busiest tile 8 B, 3 fragments
copy %0 -> %0.ipu1  # link, 640 B
on ipus {
  0:
    call 0F mb=3
  1:
    call 1F mb=2
}
all_reduce mean %w  # 2 replicas, 15680 B
call U0
copy %0 -> host 'loss'  # host, 640 B"""


def test_executable_prints_each_function_once() -> None:
    executable = Executable(
        programs={"main": Repeat(2, Call("0F", 0))}, functions={"0F": EXECUTE},
        variables=(VW, VY, replace(VXT, depth=3), replace(FAR, off_chip=True, role=Role.OPTIMISER_STATE)),
        addresses={"w": (0, 50), "mm_17": (52, 54)}, num_ipus=2,
    )
    assert format_executable(executable, GRAPH) == """\
executable on 2 ipus {
  %w: half[10,784] weight @ipu0 tiles 0..159 x 25, 160..319 x 24 at 0..50 B
  %0: half[32,10] activation @ipu0 tiles 0..319 x 1 at 52..54 B
  %x.t: half[32,784] activation depth=3 @ipu0 tiles 0..127 x 79, 128..319 x 78
  %0.ipu1: half[32,10] optimiser_state off_chip @ipu1 tiles 0..319 x 1
}
function 0F {
  execute matmul.0 @ipu0
    poplin::MatMul<half,float> tiles 0..319 x 1 {a=%x.t, b=%w, out=%0}
}
program main {
  repeat 2 {
    call 0F mb=0
  }
}"""


def test_something_else_is_no_program() -> None:
    with pytest.raises(TypeError, match="str is not a program"):
        format_program("main")  # type: ignore[arg-type]
