"""Which function makes a value, who uses it, whose storage it has: graphs of a few ops, and what each must give."""

from __future__ import annotations

from typing import Any

import pytest

import torchipu.ops  # noqa: F401 - registers the ops
from tests.placed_graphs import op, tensor
from torchipu.device.lower.values import Flow, function_of, ipu_of, is_all_reduce, is_in_place, is_view
from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.types import DType, Leg, Role
from torchipu.optable.control import COND, REPEAT, WHILE


def placed(
    kind: str, target: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], *, ipu: int = 0,
    leg: Leg = Leg.FORWARD, operands: tuple[str, ...] = (), bodies: tuple[Graph, ...] = (), **attrs: Any,
) -> Op:
    return Op(
        kind, inputs, outputs, attrs, target=target, operands=operands or tuple(f"o{n}" for n in range(len(inputs))),
        placement=Placement(f"B{ipu}", ipu, ipu, leg), leg=leg, bodies=bodies,
    )


def view(of: Tensor, shown: Tensor, name: str = "view.default") -> Op:
    return placed("view", f"aten.{name}", (of,), (shown,))


X, Y, Z = (tensor(name, 4) for name in "xyz")


@pytest.mark.parametrize(("kind", "attrs", "leg", "name"), [
    ("add", {}, Leg.FORWARD, "2F"), ("add", {}, Leg.BACKWARD, "2B"), ("unscale", {}, Leg.BACKWARD, "2B"),
    ("add", {}, Leg.UPDATE, "U2"), ("all_reduce", {}, Leg.UPDATE, "R2"), ("sum_squares", {}, Leg.UPDATE, "N2"),
    ("add_sums", {}, Leg.UPDATE, "C2"), ("clip_scale", {}, Leg.UPDATE, "C2"), ("unscale", {}, Leg.UPDATE, "C2"),
    ("unscale", {"before_norm": True}, Leg.UPDATE, "R2"), ("clip_values", {"before_norm": True}, Leg.UPDATE, "N2"),
    ("clip_values", {}, Leg.UPDATE, "U2"), ("sum_squares", {"before_norm": True}, Leg.UPDATE, "U2"),
])
def test_an_op_goes_to_the_function_of_its_stage_or_of_its_phase_of_the_update(
    kind: str, attrs: dict[str, Any], leg: Leg, name: str,
) -> None:
    one = placed(kind, f"fake.{kind}", (X,), (Y,), ipu=2, leg=leg, **attrs)
    assert (function_of(one), ipu_of(one)) == (name, 2)


def test_an_op_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="op add is not placed"):
        ipu_of(Op("add", (X,), (Y,), target="fake.add", operands=("self",)))


def test_what_an_op_does_with_its_operand_stands_in_its_record() -> None:
    unknown = placed("generic", "aten.there_is_none.default", (X,), (Y,))
    reduced = placed("all_reduce", "ipu.all_reduce.default", (X,), (Y,), leg=Leg.UPDATE)
    of_nothing = placed("view", "aten.view.default", (), (Y,))
    assert [is_view(one) for one in (view(X, Y), unknown, reduced, of_nothing)] == [True, False, False, False]
    assert [is_in_place(one) for one in (view(X, Y), unknown, reduced)] == [False, False, True]
    assert [is_all_reduce(one) for one in (view(X, Y), unknown, reduced)] == [False, False, True]


def test_makers_and_users_are_functions_and_homes_are_ipus() -> None:
    first, second = tensor("first", 4), tensor("second", 4)
    ops = (
        placed("add", "fake.add", (X, Y), (first,)), placed("add", "fake.add", (X, first), (second,), ipu=1),
        placed("add", "fake.add", (X, second), (Z,), ipu=1, leg=Leg.BACKWARD),
    )
    flow = Flow(Graph("g", (X, Y), (Z,), ops))
    assert flow.maker == {first: "0F", second: "1F", Z: "1B"}
    assert flow.home == {X: 0, Y: 0, first: 0, second: 1, Z: 1}
    assert {key: list(names) for key, names in flow.uses.items()} == {
        (X, 0): ["0F"], (Y, 0): ["0F"], (X, 1): ["1F", "1B"], (first, 1): ["1F"], (second, 1): ["1B"],
    }
    assert (flow.alias, flow.views, flow.returned, flow.means, flow.overlaps) == ({}, set(), [], set(), {})


def test_views_share_storage_and_are_permuted_from_the_first_one_that_is() -> None:
    in_order, turned, after = tensor("v", 2, 2), tensor("t", 2, 2), tensor("a", 4)
    ops = (view(X, in_order), view(in_order, turned, "permute.default"), view(turned, after))
    flow = Flow(Graph("g", (X,), (after,), ops))
    assert [flow.storage(one) for one in (X, in_order, turned, after)] == [X] * 4
    assert flow.permuted == {turned, after}
    assert flow.views == set(map(id, ops))
    assert [flow.seen.get(one) for one in (X, in_order, turned, after)] == [None, *ops]
    assert flow.maker == {}
    assert list(flow.results()) == [X]


def test_results_are_told_once_and_in_order() -> None:
    made, shown = tensor("made", 4), tensor("shown", 2, 2)
    flow = Flow(Graph("g", (X,), (shown, made, X), (op("add", (X, X), made), view(made, shown))))
    assert list(flow.results()) == [made, X]


@pytest.mark.parametrize(("mode", "marked"), [
    ("overlap_accumulation_loop", "accumulation_loop"), ("overlap_device_iteration_loop", "device_iteration_loop"),
    ("no_overlap", None),
])
def test_a_mark_of_overlap_is_one_of_the_storage(mode: str, marked: str | None) -> None:
    shown, read = tensor("shown", 2, 2), tensor("read", 2, 2)
    ops = (view(X, shown), placed("overlap", "torchipu.overlap.default", (shown,), (read,), mode=mode))
    flow = Flow(Graph("g", (X,), (read,), ops))
    assert flow.overlaps == ({} if marked is None else {X: marked})
    assert flow.storage(read) is X
    assert flow.permuted == set()


def test_what_is_written_in_place_keeps_the_storage_of_its_first_operand() -> None:
    state, mean, count, after = tensor("s", 4), tensor("m", 4), tensor("count"), tensor("after")
    mean_op = placed("accumulate_mean", "ipu.accumulate_mean.default", (state, X, count), (mean, after))
    flow = Flow(Graph("g", (state, X, count), (mean, after), (mean_op,)))
    assert flow.alias == {mean: state, after: count}
    assert flow.means == {mean}
    assert flow.maker == {mean: "0F", after: "0F"}


def test_replicas_send_others_their_sum() -> None:
    made, total = tensor("made", 4), tensor("total", 4)
    ops = (
        placed("add", "fake.add", (X, X), (made,), leg=Leg.BACKWARD),
        placed("all_reduce", "ipu.all_reduce.default", (made,), (total,), leg=Leg.UPDATE),
    )
    flow = Flow(Graph("g", (X,), (total,), ops))
    assert flow.maker == {made: "R0", total: "R0"}
    assert flow.alias == {total: made}


def test_a_choice_gives_its_branches_the_storage_outside_and_what_is_seen_of_it() -> None:
    chosen, turned, plain = tensor("pred"), tensor("t", 2, 2), tensor("v", 2, 2)
    inner = [tensor(name, 2, 2) for name in ("inner_t", "inner_v", "inner_x")]
    made = tensor("made", 2, 2)
    branch = Graph("yes", tuple(inner), (made,), (op("add", (inner[0], inner[1]), made, stage=1),))
    choice = placed("cond", COND, (chosen, turned, plain, Y), (Z,), bodies=(branch,))
    flow = Flow(Graph("g", (chosen, X, Y), (Z,), (view(X, turned, "t.default"), view(X, plain), choice)))
    assert [flow.storage(one) for one in inner] == [X, X, Y]
    assert flow.permuted == {turned, inner[0]}
    assert [one in flow.seen for one in inner] == [True, True, False]
    shown = flow.seen[inner[0]]
    assert (shown.inputs, shown.outputs, shown.target) == ((turned,), (inner[0],), "aten.alias.default")
    assert flow.maker == {Z: "0F", made: "1F"}
    assert flow.home[made] == 1
    assert list(flow.uses[X, 1]) == ["1F"]


def test_a_loop_has_what_it_carries_in_its_results_and_a_row_in_storage_of_its_own() -> None:
    begun, rows, constant, ended = ([tensor(f"{name}{n}", 4) for n in range(2)] for name in (
        "begun", "rows", "constant", "ended",
    ))
    first, second, row, given, after, other = (tensor(name, 4) for name in "fsrgao")
    body = Graph("body", (first, second, row, given), (after, other), (
        op("add", (first, row), after), op("add", (second, given), other),
    ))
    loop = placed(
        "repeat", REPEAT, (*begun, rows[0], constant[0]), tuple(ended), ipu=1,
        operands=("init[xx]", "xs[x]", "operands[x]"), bodies=(body,), trips=3,
    )
    flow = Flow(Graph("g", (*begun, rows[0], constant[0]), tuple(ended), (loop,)))
    assert [flow.storage(one) for one in (first, second, row, given)] == [*ended, row, constant[0]]
    assert (flow.maker[row], flow.home[row]) == ("1F", 1)
    assert flow.maker[ended[1]] == "1F"
    assert not {first, second, given} & set(flow.maker)
    assert {key: list(names) for key, names in flow.uses.items()} == {
        (begun[0], 1): ["1F"], (begun[1], 1): ["1F"], (rows[0], 1): ["1F"], (constant[0], 1): ["1F"],
        (ended[0], 0): ["0F"], (row, 0): ["0F"], (ended[1], 0): ["0F"], (constant[0], 0): ["0F"],
    }  # the body stands on another IPU here


def test_what_a_loop_with_a_test_carries_is_its_results() -> None:
    begun, ended = ([tensor(f"{name}{n}", 4) for n in range(2)] for name in ("begun", "ended"))
    tested, yes = [tensor(f"tested{n}", 4) for n in range(2)], tensor("yes")
    test = Graph("test", tuple(tested), (yes,), (op("sum", (tested[1],), yes),))
    loop = placed(
        "while_loop", WHILE, tuple(begun), tuple(ended), operands=("carried[xx]",), bodies=(test,),
    )
    flow = Flow(Graph("g", tuple(begun), tuple(ended), (loop,)))
    assert [flow.storage(one) for one in tested] == ended


def state(name: str, *shape: int, dtype: DType = DType.FLOAT) -> Tensor:
    return tensor(name, *shape, role=Role.WEIGHT, dtype=dtype)


@pytest.mark.parametrize(("value", "fits"), [
    (tensor("next", 4), True), (tensor("next", 2, 2), True), (tensor("next", 5), False),
    (tensor("next", 4, dtype=DType.HALF), False),
])
def test_a_next_value_of_the_same_size_and_type_takes_the_storage_of_the_state(value: Tensor, fits: bool) -> None:
    weight, shown = state("w", 4), tensor("shown", *value.shape)
    ops = (op("add", (X, X), value), view(value, shown), op("add", (shown, shown), Y))
    flow = Flow(Graph("g", (X, weight), (Y,), ops, updates=((weight, value),)))
    assert flow.storage(value) is (weight if fits else value)
    assert flow.storage(shown) is (weight if fits else value)
    assert flow.returned == ([] if fits else [(weight, value)])
    assert flow.home.get(weight) == (0 if fits else None)


def test_a_next_value_of_another_ipu_is_sent_back() -> None:
    weight, value = state("w", 4), tensor("next", 4)
    ops = (op("add", (weight, X), Y), op("add", (Y, Y), value, stage=1))
    flow = Flow(Graph("g", (weight, X), (), ops, updates=((weight, value),)))
    assert flow.returned == [(weight, value)]
    assert flow.storage(value) is value
    assert flow.home[weight] == 0


def test_of_two_states_with_one_next_value_the_first_has_it() -> None:
    first, second, value = state("a", 4), state("b", 4), tensor("next", 4)
    flow = Flow(Graph("g", (X, first, second), (), (op("add", (X, X), value),), updates=(
        (first, value), (second, value),
    )))
    assert flow.storage(value) is first
    assert flow.returned == [(second, value)]


def test_a_state_that_gets_an_input_is_copied_and_one_that_stays_is_left_alone() -> None:
    kept, copied, shown = state("kept", 4), state("copied", 4), tensor("shown", 4)
    flow = Flow(Graph("g", (X, kept, copied), (), (view(kept, shown),), updates=((kept, shown), (copied, X))))
    assert flow.returned == [(copied, X)]
    assert flow.alias == {shown: kept}
