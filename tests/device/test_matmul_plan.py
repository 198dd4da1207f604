"""The planner of products against what others measured of such plans, and what has to hold of any of them."""

from __future__ import annotations

import pytest
import torch

from torchipu.device.codelets import STRIDED_COPY
from torchipu.device.matmul_plan import plan_matmul
from torchipu.device.matrix_unit import COPY, TRANSPOSE, reduce_partials_cycles
from torchipu.device.product_sets import (
    BACKWARD,
    CALLED,
    LAYER_INPUTS,
    LAYER_PASS,
    LEFT,
    MADE_OPERANDS,
    TIME_STEPS,
    UPDATE,
)
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.codelet import Codelet
from torchipu.optable.spec import lookup
from torchipu.passes.layers import find_layers
from torchipu.score.products import Product
from torchipu.score.programs import Frozen, outcome_of
from torchipu.target import lookup_target


def mm(left: Tensor, right: Tensor, name: str, **attrs: object) -> Op:
    result = Tensor(name, (left.shape[0], right.shape[1]), left.dtype)
    return Op("mm", (left, right), (result,), attrs, "aten.mm.default", ("self", "mat2"))


def turned(tensor: Tensor) -> Op:
    return Op("t", (tensor,), (Tensor(f"{tensor.name}.t", tensor.shape[::-1], tensor.dtype),), {}, "aten.t.default",
              ("self",))


def halves(name: str, *shape: int) -> Tensor:
    return Tensor(name, shape, DType.HALF)


# --------------------------------------------------------------------------- against the vendor's planner
@pytest.mark.parametrize(("machine", "sizes", "cycles"), [
    ("mk1", (600, 256, 20000), 144_473), ("mk2", (1000, 512, 20000), 324_972), ("mk2", (200, 512, 30000), 123_952),
    ("mk2", (200, 64, 10000), 10_128), ("mk1", (1000, 256, 20000), 254_923),
])
def test_a_product_that_is_added_takes_what_the_ipu_model_says(
    machine: str, sizes: tuple[int, int, int], cycles: int,
) -> None:
    workload = Product(1, *sizes, torch.half, trains=False)
    assert outcome_of(workload, Frozen(machine)).device_cycles == pytest.approx(cycles, rel=0.05)


def test_partials_take_two_cycles_for_sixteen_bytes() -> None:
    target = lookup_target("mk2")
    few, many = (reduce_partials_cycles(target, {"partials": count, "elements": 24}) for count in (4, 16))
    assert many - few == target.num_workers * 24
    assert reduce_partials_cycles(target, {"partials": 16, "elements": 48, "partial_bytes": 2}) == many


# --------------------------------------------------------------------------- any plan
@pytest.mark.parametrize("sizes", [(1, 1000, 512, 3000), (1, 7, 9, 11), (12, 128, 64, 128), (1, 5, 4096, 1)])
@pytest.mark.parametrize("part", [0.6, 0.05])
def test_shares_and_parts_cover_a_product(sizes: tuple[int, int, int, int], part: float) -> None:
    target = lookup_target("mk2")
    plan = plan_matmul(target, *sizes, True, 8, part)
    groups, rows, inputs, columns = sizes
    splits = plan.row_split, plan.column_split, plan.input_split
    at_once = plan.positions, plan.outputs, plan.inputs
    assert groups * splits[0] * splits[1] * splits[2] <= target.num_tiles
    for size, split, share, step in zip((rows, columns, inputs), splits, plan.shares, at_once, strict=True):
        assert split * share >= size
        assert step <= share
    parts = [-(-share // step) for share, step in zip(plan.shares, at_once, strict=True)]
    assert parts[0] * parts[1] * parts[2] <= plan.repeats


@pytest.mark.parametrize("sizes", [(200, 512, 30000), (600, 256, 20000), (30000, 512, 200)])
def test_rows_are_what_the_matrix_unit_holds(sizes: tuple[int, int, int]) -> None:
    plan = plan_matmul(lookup_target("mk2"), 1, *sizes, True, 8)
    assert plan.has_rows_as_channels
    assert plan.laid == 0


def test_swapped_operands_are_laid_out_anew() -> None:
    target = lookup_target("mk2")
    plan = plan_matmul(target, 1, 4096, 4096, 1, True, 8)
    assert not plan.has_rows_as_channels
    assert plan.laid == plan.calls * plan.inputs * (plan.positions + plan.outputs)


def test_neighbours_receive_what_they_share_at_the_same_time() -> None:
    target = lookup_target("mk2")
    plan = plan_matmul(target, 1, 600, 256, 10000, True, 8)
    field, channels = plan.channels
    assert plan.received_bytes < (field + channels) * plan.inputs * 2


# --------------------------------------------------------------------------- passes of a layer
def layer(*, with_backward: bool = True) -> Graph:
    x, w, g = halves("x", 16, 100), halves("w", 32, 100), halves("g", 16, 32)
    view, g_view = turned(w), turned(g)
    ops = [view, mm(x, view.outputs[0], "y"), g_view, mm(g_view.outputs[0], x, "gw")]
    if with_backward:
        ops.append(mm(g, w, "gx"))
    return Graph("layer", (x, w, g), tuple(op.outputs[0] for op in ops if op.kind == "mm"), tuple(ops))


def passes_of(graph: Graph) -> dict[str, object]:
    return {op.outputs[0].name: op.attrs[LAYER_PASS] for op in find_layers(graph).ops if LAYER_PASS in op.attrs}


def test_the_products_of_a_layer_that_is_trained_are_found_by_what_they_share() -> None:
    assert passes_of(layer()) == {"gw": UPDATE, "gx": BACKWARD}
    assert passes_of(layer(with_backward=False)) == {"gw": UPDATE}


def test_a_product_whose_weight_has_no_gradient_is_none_of_a_layer() -> None:
    graph = layer()
    ops = tuple(op for op in graph.ops if op.outputs[0].name != "gw")
    inference = Graph("inference", graph.inputs, graph.outputs[:1], ops)
    assert find_layers(inference) is inference


@pytest.mark.parametrize(("layer_pass", "matrices"), [(None, 0), (BACKWARD, 1), (UPDATE, 3)])
def test_a_pass_rearranges_what_lies_as_another_one_takes_it(layer_pass: str | None, matrices: int) -> None:
    attrs = {} if layer_pass is None else {LAYER_PASS: layer_pass}
    spec = lookup("aten.mm.default")
    assert spec is not None
    sets = spec.lower(mm(halves("a", 64, 128), halves("b", 128, 256), "c", **attrs), lookup_target("mk2"))
    names = [one.codelet.name for one in sets]
    assert names.count(TRANSPOSE.name) == names.count(COPY.name) == matrices


@pytest.mark.parametrize(("inputs", "codelet", "cycles_per_half"), [
    (4096 + 8, COPY, 1.25), (4096 + 4, STRIDED_COPY, 0.88), (4096 + 2, STRIDED_COPY, 6.25),
    (4096 + 1, STRIDED_COPY, 10.3),
])
def test_padded_weights_are_put_together_of_the_pieces_that_they_are_created_in(
    inputs: int, codelet: Codelet, cycles_per_half: float,
) -> None:
    """Pieces are as many input channels as divide these and the 16 of a group; what 2.5 has of small ones."""
    bow = lookup_target("bow")
    spec = lookup("aten.mm.default")
    assert spec is not None
    first, *others = spec.lower(mm(halves("a", 2, inputs), halves("b", inputs, 4100), "c"), bow)
    assert first.codelet is codelet
    assert TRANSPOSE.name not in [one.codelet.name for one in others]
    fixed = {COPY: 6 * 30, STRIDED_COPY: 587}[codelet]
    share = -(-inputs * 4100 // 1472)
    assert first.codelet.cycles(bow, first.work(1)) == pytest.approx(fixed + cycles_per_half * share, abs=2)


@pytest.mark.parametrize(("inputs", "outputs", "codelet"), [
    (96, 100, COPY), (104, 100, COPY), (100, 96, STRIDED_COPY), (98, 96, STRIDED_COPY),
])
@pytest.mark.parametrize("is_turned", [False, True])
def test_the_result_of_an_update_goes_into_the_pieces_that_the_weight_is_created_in(
    inputs: int, outputs: int, codelet: Codelet, is_turned: bool,
) -> None:
    """Pieces are of the layer's inputs, whichever side of the result these are; outputs do not matter."""
    x, g = halves("x", 16, inputs), halves("g", 16, outputs)
    if is_turned:  # as nn.Linear holds its weight
        w = halves("w", outputs, inputs)
        ops = turned(w), turned(g)
        forward, update = mm(x, ops[0].outputs[0], "y"), mm(ops[1].outputs[0], x, "gw")
    else:
        w = halves("w", inputs, outputs)
        ops = turned(x), turned(w)
        forward, update = mm(x, w, "y"), mm(ops[0].outputs[0], g, "gw")
    graph = Graph("layer", (x, w, g), (forward.outputs[0], update.outputs[0]), (*ops, forward, update))
    (found,) = (op for op in find_layers(graph).ops if op.attrs.get(LAYER_PASS) == UPDATE)
    assert found.attrs[LAYER_INPUTS] == inputs
    spec = lookup("aten.mm.default")
    assert spec is not None
    *_, turn, placed = spec.lower(found, lookup_target("mk2"))
    assert (turn.codelet, placed.codelet) == (TRANSPOSE, codelet)
    assert placed.gathered_bytes == 2 * -(-inputs * outputs // 1472)


def test_the_result_of_an_update_of_what_an_op_has_made_is_put_together_of_no_pieces() -> None:
    """As the gradient of keys is, whose number divides no group: nothing of these was created."""
    x, g, before = halves("x", 16, 197), halves("g", 16, 64), halves("before", 64, 197)
    x_view = turned(x)
    gelu = Op("gelu", (before,), (halves("made", 64, 197),), {}, "aten.gelu.default", ("self",))
    w = turned(gelu.outputs[0])
    forward, update = mm(x, w.outputs[0], "y"), mm(x_view.outputs[0], g, "gw")
    graph = Graph("keys", (x, before, g), (forward.outputs[0], update.outputs[0]), (gelu, w, x_view, forward, update))
    (found,) = (op for op in find_layers(graph).ops if op.attrs.get(LAYER_PASS) == UPDATE)
    assert LAYER_INPUTS not in found.attrs
    spec = lookup("aten.mm.default")
    assert spec is not None
    assert spec.lower(found, lookup_target("mk2"))[-1].codelet is COPY


def test_layers_alike_are_one_function_whose_calls_copy_turned_weights() -> None:
    one, other = layer(), layer()
    both = Graph("both", one.inputs + other.inputs, one.outputs + other.outputs, one.ops + other.ops)
    backwards = [op for op in find_layers(both).ops if op.attrs.get(LAYER_PASS) == BACKWARD]
    assert [op.attrs[CALLED] for op in backwards] == [True, True]
    assert all(CALLED not in op.attrs for op in find_layers(one).ops)
    spec = lookup("aten.mm.default")
    assert spec is not None
    sets = spec.lower(backwards[0], lookup_target("mk2"))
    names = [made.codelet.name for made in sets]
    assert STRIDED_COPY.name in names
    assert TRANSPOSE.name not in names
    copied = sets[names.index(STRIDED_COPY.name)]
    assert copied.codelet.cycles(lookup_target("mk2"), copied.work(1)) == 587 + int(5.15 * 2 * 3)  # of 3,200


def test_what_other_ops_have_made_is_rearranged_and_states_and_inputs_are_not() -> None:
    x, w, v = halves("x", 64, 128), halves("w", 128, 256), halves("v", 256, 128)
    first = mm(x, w, "y")
    graph = Graph("two", (x, w, v), (), (first, mm(first.outputs[0], v, "z")))
    one, two = find_layers(graph).ops
    assert MADE_OPERANDS not in one.attrs
    assert two.attrs[MADE_OPERANDS] == LEFT
    spec = lookup("aten.mm.default")
    assert spec is not None
    names = [made.codelet.name for made in spec.lower(two, lookup_target("mk2"))]
    assert names.count(TRANSPOSE.name) == names.count(COPY.name) == 1


def test_the_gradient_of_a_weight_of_a_recurrence_adds_a_term_in_each_step() -> None:
    left, right = halves("a", 512, 400), halves("b", 400, 512)
    spec = lookup("aten.mm.default")
    assert spec is not None
    whole, stepped = (
        spec.lower(mm(left, right, "c", **attrs), lookup_target("mk2"))[0] for attrs in ({}, {TIME_STEPS: 25})
    )
    assert (whole.repeats, stepped.repeats) == (1, 25)
    assert stepped.work(1)["inputs"] == 16
