"""Precision: casts where a record does not serve a type, and partials of products."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given

from tests.passes.records import plain_records
from tests.reference import assert_same_values
from tests.strategies import GraphBuilder, graphs
from torchipu.ir.graph import Graph
from torchipu.ir.text import format_graph
from torchipu.ir.types import DType, Leg
from torchipu.ir.verify import verify_graph
from torchipu.optable.random_streams import ROUNDING_STREAM
from torchipu.options import Options
from torchipu.passes.precision import set_precision
from torchipu.target import TARGETS


@pytest.fixture(scope="module", autouse=True)
def records() -> Iterator[None]:
    with plain_records(tanh=(DType.FLOAT,), neg=(DType.FLOAT, DType.LONG), relu=(DType.INT,)):
        yield


def test_half_operand_of_a_float_record_is_cast_there_and_back() -> None:
    build = GraphBuilder(dtype=DType.HALF, block=("A", 0))
    x = build.input("x")
    result = build.add(build.unary("tanh", x), build.unary("tanh", x))
    assert format_graph(set_precision(build.graph(result), Options(), TARGETS["mk2"])) == """\
graph main(%x: half[3,3] input) {
  %0: float[3,3] = cast(%x) {dtype=float}  @F block=A ipu=0
  %1: float[3,3] = tanh(%0)  @F block=A ipu=0
  %2: half[3,3] = cast(%1) {dtype=half}  @F block=A ipu=0
  %3: float[3,3] = tanh(%0)  @F block=A ipu=0
  %4: half[3,3] = cast(%3) {dtype=half}  @F block=A ipu=0
  %5: half[3,3] = add(%2, %4)  @F block=A ipu=0
  return %5
}"""


def test_integers_are_widened_to_the_narrowest_type_served() -> None:
    build = GraphBuilder(dtype=DType.INT)
    result = build.unary("neg", build.input("x"))
    assert format_graph(set_precision(build.graph(result), Options(), TARGETS["mk2"])) == """\
graph main(%x: int[3,3] input) {
  %0: long[3,3] = cast(%x) {dtype=long}
  %1: long[3,3] = neg(%0)
  %2: int[3,3] = cast(%1) {dtype=int}
  return %2
}"""


def test_each_leg_casts_for_itself() -> None:
    build = GraphBuilder(dtype=DType.HALF)
    x = build.input("x")
    first = build.unary("tanh", x)
    build.leg = Leg.BACKWARD
    graph = set_precision(build.graph(first, build.unary("tanh", x)), Options(), TARGETS["mk2"])
    assert [op.leg for op in graph.ops if op.kind == "cast"] == [Leg.FORWARD] * 2 + [Leg.BACKWARD] * 2
    verify_graph(graph, "precision")


def test_op_is_left_alone_when_no_wider_type_is_served() -> None:
    build = GraphBuilder(dtype=DType.FLOAT)
    graph = build.graph(build.unary("relu", build.input("x")))
    assert set_precision(graph, Options(), TARGETS["mk2"]) is graph


def test_products_get_float_partials() -> None:
    build = GraphBuilder()
    x = build.input("x")
    graph = set_precision(build.graph(build.mm(x, x)), Options(), TARGETS["mk2"])
    assert graph.ops[0].attrs["partials"] == "float"
    assert set_precision(graph, Options(), TARGETS["mk2"]) is graph


ROUNDING = Options(stochastic_rounding=True)


def test_each_half_result_has_random_bits_of_its_own() -> None:
    build = GraphBuilder(dtype=DType.HALF)
    x = build.input("x")
    result = build.add(build.unary("relu", x), build.unary("relu", x))
    graph = build.graph(result)
    rounded = set_precision(graph, ROUNDING, TARGETS["mk2"])
    verify_graph(rounded, "precision")
    assert_same_values(graph, rounded)
    streams = [op.attrs[ROUNDING_STREAM] for op in rounded.ops if op.outputs[0].dtype is DType.HALF]
    assert len(streams) >= 3
    assert len(set(streams)) == len(streams)


def test_float_results_are_not_rounded() -> None:
    build = GraphBuilder(dtype=DType.FLOAT)
    graph = build.graph(build.add(build.input("x"), build.input("y")))
    assert not any(ROUNDING_STREAM in op.attrs for op in set_precision(graph, ROUNDING, TARGETS["mk2"]).ops)


def test_product_without_a_record_keeps_its_call() -> None:
    build = GraphBuilder()
    x = build.input("x")
    build.op("aten.linalg_matmul.default", ("self", x), ("other", x))
    graph = build.graph(x)
    assert set_precision(graph, Options(), TARGETS["mk2"]) is graph


@given(graphs())
def test_values_do_not_change(graph: Graph) -> None:
    result = set_precision(graph, Options(), TARGETS["mk2"])
    verify_graph(result, "precision")
    assert_same_values(graph, result)


@given(graphs())
def test_outputs_keep_their_types(graph: Graph) -> None:
    cast = set_precision(graph, Options(), TARGETS["mk2"])
    assert [t.dtype for t in cast.outputs] == [t.dtype for t in graph.outputs]
