"""Control flow in the IR: its text, its invariants, the programs that it becomes, their cycles and their memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.strategies import GraphBuilder
from torchipu.compiler import Compiled, compile_graph
from torchipu.errors import VerifyError
from torchipu.ir import text
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.program import Copy, If, Program, Repeat, RepeatWhile, parts_of
from torchipu.ir.types import DType, Leg
from torchipu.ir.verify import verify_executable, verify_graph
from torchipu.optable.control import COND, REPEAT, WHILE
from torchipu.options import Options
from torchipu.report import profile_of
from torchipu.target import lookup_target

SIDE = 64


def body(name: str, count: int, formals: tuple[Tensor, ...]) -> Graph:
    """Return a graph that applies tanh some times to its last input."""
    value, ops = formals[-1], []
    for number in range(count):
        result = Tensor(f"{name}.{number}", value.shape, value.dtype)
        ops.append(Op("tanh", (value,), (result,), {}, "aten.tanh.default", ("self",)))
        value = result
    return Graph(name, formals, (value,), tuple(ops))


def formal(name: str, *shape: int, dtype: DType = DType.FLOAT) -> Tensor:
    return Tensor(name, shape, dtype)


def choice(then: int = 1, otherwise: int = 4) -> Graph:
    build = GraphBuilder()
    flag, x = build.input("p", shape=(), dtype=DType.BOOL), build.input("x", shape=(SIDE, SIDE))
    result = formal("chosen", SIDE, SIDE)
    bodies = tuple(
        body(name, count, (formal(f"{name}.x", SIDE, SIDE),)) for name, count in (("then", then), ("else", otherwise))
    )
    op = Op("cond", (flag, x), (result,), {}, COND, ("pred", "operands[x]"), bodies=bodies)
    return Graph("main", (flag, x), (result,), (op,))


def loop(trips: int, count: int = 2) -> Graph:
    build = GraphBuilder()
    first, rows = build.input("c", shape=(SIDE,)), build.input("xs", shape=(trips, SIDE))
    last = formal("last", SIDE)
    inner = body("do", count, (formal("do.c", SIDE), formal("do.x", SIDE)))
    op = Op("repeat", (first, rows), (last,), {"trips": trips}, REPEAT, ("init[x]", "xs[x]", "operands[]"),
            bodies=(inner,))
    return Graph("main", (first, rows), (last,), (op,))


def endless(count: int = 2) -> Graph:
    build = GraphBuilder()
    first = build.input("c", shape=(SIDE,))
    held, flag = formal("while.c", SIDE), formal("while.flag", dtype=DType.BOOL)
    sums = formal("while.sum")
    test = Graph("while", (held,), (flag,), (
        Op("sum", (held,), (sums,), {"dim": None, "keepdim": False, "dtype": None}, "aten.sum.default", ("self",)),
        Op("lt", (sums,), (flag,), {"other": 5.0}, "aten.lt.Scalar", ("self",)),
    ))
    last = formal("last", SIDE)
    op = Op("while_loop", (first,), (last,), {}, WHILE, ("carried[x]", "operands[]"),
            bodies=(test, body("do", count, (formal("do.c", SIDE),))))
    return Graph("main", (first,), (last,), (op,))


def compiled(graph: Graph) -> Compiled:
    return compile_graph(graph, Options.from_mapping({"verify": True}), lookup_target("mk2"))


def found(program: Program, kind: type) -> list[Program]:
    parts = parts_of(program)
    return [part for part in parts if isinstance(part, kind)] + [deep for part in parts for deep in found(part, kind)]


def cycles(graph: Graph) -> int:
    return compiled(graph).cost.cycles


# --------------------------------------------------------------------------- text
def test_text_shows_what_an_op_runs_below_it() -> None:
    lines = text.format_graph(choice()).split("\n")
    assert lines[1:5] == [
        "  %0: float[64,64] = cond(%p, [%x])",
        "    then(%1: float[64,64]) {",
        "      %3: float[64,64] = tanh(%1)",
        "      yield %3",
    ]
    assert text.op_line(loop(4), 0) == 1


def test_text_of_programs_shows_branches_and_loops() -> None:
    assert "if %p {" in text.format_executable(compiled(choice()).executable)
    assert "} else {" in text.format_executable(compiled(choice()).executable)
    assert "repeat 7 {" in text.format_executable(compiled(loop(7)).executable)
    assert "} while %" in text.format_executable(compiled(endless()).executable)


# --------------------------------------------------------------------------- invariants
def test_a_body_in_another_leg_than_its_op_is_refused() -> None:
    graph = choice()
    (op,) = graph.ops
    strayed = replace(op.bodies[0], ops=tuple(replace(o, leg=Leg.BACKWARD) for o in op.bodies[0].ops))
    with pytest.raises(VerifyError, match="in another leg or place"):
        verify_graph(replace(graph, ops=(replace(op, bodies=(strayed, op.bodies[1])),)))


def test_a_body_that_reads_what_it_does_not_take_is_refused() -> None:
    graph = choice()
    (op,) = graph.ops
    then = op.bodies[0]
    reads = replace(then, ops=(replace(then.ops[0], inputs=(graph.inputs[1],)),))
    with pytest.raises(VerifyError, match="reads %x before it is made"):
        verify_graph(replace(graph, ops=(replace(op, bodies=(reads, op.bodies[1])),)))


def test_a_condition_of_several_elements_is_refused() -> None:
    executable = compiled(choice()).executable
    (chosen,) = found(executable.functions["0F"], If)
    wide = next(variable for variable in executable.variables if variable.num_elements > 1)
    functions = {**executable.functions, "0F": replace(chosen, condition=wide)}
    with pytest.raises(VerifyError, match=f"which has {SIDE * SIDE} elements"):
        verify_executable(replace(executable, functions=functions))


# --------------------------------------------------------------------------- programs and cycles
def test_of_a_choice_the_dearest_branch_is_counted_and_both_are_stated() -> None:
    both = compiled(choice(1, 4))
    (stated,) = both.cost.functions["0F"].choices
    assert stated.cycles[0] < stated.cycles[1]
    assert both.cost.cycles == cycles(choice(4, 4)) == cycles(choice(4, 1))
    assert both.cost.cycles > cycles(choice(1, 1))
    profile = profile_of(both.executable, both.cost, both.target)
    assert f"{stated.cycles[0]:,} or {stated.cycles[1]:,}" in profile.text()


def test_a_view_in_a_branch_is_no_work() -> None:
    plain = choice()
    (op,) = plain.ops
    bodies = []
    for branch in op.bodies:
        row = formal(f"{branch.name}.row", SIDE * SIDE)
        flat = body(branch.name, len(branch.ops), (row,))
        view = Op("view", branch.inputs, (row,), {"size": (SIDE * SIDE,)}, "aten.view.default", ("self",))
        bodies.append(replace(flat, inputs=branch.inputs, ops=(view, *flat.ops)))
    result = formal("chosen", SIDE * SIDE)
    viewed = replace(plain, outputs=(result,), ops=(replace(op, outputs=(result,), bodies=tuple(bodies)),))
    assert cycles(viewed) == cycles(plain)


def test_a_repeat_takes_its_body_s_cycles_for_each_trip() -> None:
    few, more, most = (cycles(loop(trips)) for trips in (10, 20, 40))
    # The rows are streamed in once, which takes longer the more there are; the trips alone decide up to that.
    body_cycles = (more - few) / 10
    assert body_cycles > 100
    assert most - more == pytest.approx(2 * (more - few), rel=0.05)
    assert len(found(compiled(loop(10)).executable.functions["0F"], Repeat)) == 1


def test_a_row_that_each_trip_makes_is_copied_into_its_table() -> None:
    graph, trips = loop(6), 6
    (op,) = graph.ops
    (inner,) = op.bodies
    table = formal("table", trips, SIDE)
    both = replace(op, outputs=(*op.outputs, table), bodies=(replace(inner, outputs=(inner.outputs[0],) * 2),))
    program = compiled(replace(graph, outputs=both.outputs, ops=(both,))).executable.functions["0F"]
    (repeat,) = found(program, Repeat)
    copies = {(copy.table, copy.dst.shape): copy.total_bytes for copy in found(repeat, Copy)}
    row = SIDE * 4
    assert copies == {("src", (SIDE,)): row, ("", (SIDE,)): row, ("dst", (trips, SIDE)): row}


def test_a_loop_copies_nothing_that_it_hands_on_as_it_is_and_nothing_that_is_empty() -> None:
    graph = loop(6)
    (op,) = graph.ops
    (inner,) = op.bodies
    handed_on = replace(op, bodies=(replace(inner, outputs=inner.inputs[:1]),))
    program = compiled(replace(graph, ops=(handed_on,))).executable.functions["0F"]
    assert [copy.table for copy in found(program, Copy) if copy.src is copy.dst] == []
    (repeat,) = found(program, Repeat)
    assert [copy.table for copy in found(repeat, Copy)] == ["src"]
    empty = tuple(formal(f"{name}.none", 0) for name in ("init", "last", "do"))
    more = replace(
        handed_on, inputs=(op.inputs[0], empty[0], op.inputs[1]), outputs=(*op.outputs, empty[1]),
        operands=("init[x,x]", "xs[x]", "operands[]"),
        bodies=(replace(
            inner, inputs=(inner.inputs[0], empty[2], inner.inputs[1]), outputs=(inner.inputs[0], empty[2]),
        ),),
    )
    wider = Graph("main", more.inputs, more.outputs, (more,))
    assert [copy.dst.name for copy in found(compiled(wider).executable.functions["0F"], Copy)] == ["last", "do.x"]


def test_of_a_loop_with_a_test_one_trip_is_counted_and_stated() -> None:
    short, long = compiled(endless(1)), compiled(endless(5))
    (stated,) = short.cost.functions["0F"].choices
    assert 0 < stated.cycles[0] < short.cost.cycles < long.cost.cycles
    assert len(found(short.executable.functions["0F"], RepeatWhile)) == 1


def test_supersteps_add_up_to_the_compute_cycles_whatever_runs_how_often() -> None:
    for graph in (choice(), loop(9), endless()):
        cost = compiled(graph).cost
        function = cost.functions["0F"]
        assert sum(step.compute * step.runs for step in function.supersteps) == function.cycles_by_category["compute"]


# --------------------------------------------------------------------------- memory
def test_what_a_loop_carries_keeps_its_place_through_the_loop() -> None:
    executable = compiled(loop(6, count=3)).executable
    places = {variable.name: executable.addresses[variable.name] for variable in executable.variables}
    (carried,) = [name for name in places if name == "last"]
    for name, (begin, end) in places.items():
        if name.startswith("do.") and name != "do.2":
            assert end <= places[carried][0] or begin >= places[carried][1], name
