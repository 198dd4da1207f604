"""The host plan: what is hoisted, fused, written in place and handed out without a copy."""

from __future__ import annotations

import pytest
import torch

from torchipu.host.edge import Edge
from torchipu.host.executor import GraphExecutor
from torchipu.host.plan import HostPlan
from torchipu.host.planner import Planner
from torchipu.host.storage import Place
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType, Leg, Role


def tensor(name: str, *shape: int, role: Role = Role.ACTIVATION, dtype: DType = DType.FLOAT) -> Tensor:
    return Tensor(name, shape, dtype, role)


def call(target: str, output: Tensor, leg: Leg = Leg.FORWARD, **arguments: object) -> Op:
    """Return the op of an ATen call; arguments that are tensors become operands."""
    operands = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    attrs = {name: value for name, value in arguments.items() if not isinstance(value, Tensor)}
    kind = target.split(".")[1]
    return Op(kind, tuple(operands.values()), (output,), attrs, target, tuple(operands), leg=leg)


def weighted(*, reads_weight: bool = True) -> tuple[Graph, Tensor, Tensor]:
    """``x @ tanh(w)``, or ``x @ tanh(w + x.sum())``, which changes with every micro-batch."""
    x, w = tensor("x", 4, 8, role=Role.INPUT), tensor("w", 8, 8, role=Role.WEIGHT)
    total, moved, bent, result = tensor("total"), tensor("moved", 8, 8), tensor("bent", 8, 8), tensor("result", 4, 8)
    if reads_weight:
        before, source = (), w
    else:
        source = moved
        before = (
            call("aten.sum.default", total, self=x, dtype=None),
            call("aten.add.Tensor", moved, self=w, other=total, alpha=1),
        )
    ops = (
        *before,
        call("aten.tanh.default", bent, self=source),
        call("aten.mm.default", result, self=x, mat2=bent),
    )
    return Graph("g", (x, w), (result,), ops), w, bent


def prologue_targets(plan: HostPlan) -> list[str]:
    return [step.op.target for step in plan.steps[: plan.num_prologue] if step.op is not None]


def test_a_step_that_reads_weights_alone_runs_once_an_iteration() -> None:
    graph, w, _ = weighted()
    assert "aten.tanh.default" in prologue_targets(Planner(graph, states=[w], micro_batches=4).plan())


def test_nothing_is_hoisted_out_of_a_single_micro_batch() -> None:
    graph, w, _ = weighted()
    assert Planner(graph, states=[w], micro_batches=1).plan().num_prologue == 0


def test_a_step_that_reads_an_input_stays_in_the_body() -> None:
    graph, w, _ = weighted(reads_weight=False)
    plan = Planner(graph, states=[w], micro_batches=4).plan()
    assert plan.num_prologue == 0
    assert plan.num_body == len(plan.steps)


def test_a_weight_that_the_body_writes_keeps_its_readers_in_the_body() -> None:
    graph, w, bent = weighted()
    graph = Graph(graph.name, graph.inputs, graph.outputs, graph.ops, ((w, bent),))
    assert Planner(graph, states=[w], micro_batches=4).plan().num_prologue == 0


def test_a_hoisted_value_keeps_its_memory_until_the_body_ends() -> None:
    graph, w, _ = weighted()
    plan = Planner(graph, states=[w], micro_batches=4).plan()
    for step in plan.steps[: plan.num_prologue]:
        for written in step.outputs:
            assert plan.allocations[written.buffer].last >= plan.num_prologue + plan.num_body - 1


def test_a_half_matrix_becomes_float_once_however_it_is_turned() -> None:
    halves = {name: tensor(name, 16, 16, dtype=DType.HALF) for name in ("turned", "first", "second")}
    x, w = (tensor(name, 16, 16, role=role, dtype=DType.HALF) for name, role in (("x", Role.INPUT), ("w", Role.WEIGHT)))
    ops = (
        call("aten.t.default", halves["turned"], self=w),
        call("aten.mm.default", halves["first"], self=x, mat2=halves["turned"]),
        call("aten.mm.default", halves["second"], self=halves["first"], mat2=w),
    )
    graph = Graph("g", (x, w), (halves["second"],), ops)
    plan = Planner(graph).plan()
    assert sum(any(read.buffer == 1 for read in step.inputs) for step in plan.steps) == 1
    generator = torch.Generator().manual_seed(1)
    given, weight = (torch.randn(16, 16, generator=generator).half() for _ in range(2))
    (found,) = GraphExecutor(graph)(given, weight)
    first = (given.double() @ weight.double().t()).half()
    # Sums of 16 products of halves, rounded once each.
    torch.testing.assert_close(found.double(), first.double() @ weight.double(), rtol=2e-3, atol=4e-2)


def test_steps_of_the_update_leg_come_last() -> None:
    x, w = tensor("x", 8, role=Role.INPUT), tensor("w", 8, role=Role.WEIGHT)
    new, result = tensor("new", 8), tensor("result", 8)
    ops = (
        call("aten.mul.Tensor", new, Leg.UPDATE, self=w, other=0.5),
        call("aten.add.Tensor", result, self=x, other=w, alpha=1),
    )
    plan = Planner(Graph("g", (x, w), (result,), ops, ((w, new),)), states=[w], micro_batches=2).plan()
    first_update = plan.num_prologue + plan.num_body
    reading, changing = plan.steps[:first_update], plan.steps[first_update:]
    assert {step.op.leg for step in reading if step.op is not None} == {Leg.FORWARD}
    assert {step.op.leg for step in changing if step.op is not None} == {Leg.UPDATE}
    assert [t for step in reading for t in step.outputs if t.buffer == plan.states[w].buffer] == []
    assert plan.states[w].buffer in {t.buffer for step in changing for t in step.outputs}


def chain_graph() -> Graph:
    """Four elementwise ops on one shape, two of whose results are read outside."""
    x, y = tensor("x", 6, 50, role=Role.INPUT), tensor("y", 50, role=Role.INPUT)
    a, b, c, d = (tensor(name, 6, 50) for name in "abcd")
    return Graph("g", (x, y), (b, d), (
        call("aten.add.Tensor", a, self=x, other=y, alpha=1),
        call("aten.relu.default", b, self=a),
        call("aten.mul.Tensor", c, self=b, other=a),
        call("aten.tanh.default", d, self=c),
    ))


def test_elementwise_ops_of_one_shape_become_one_step() -> None:
    plan = Planner(chain_graph()).plan()
    assert [step.kernel.name for step in plan.steps if step.kernel is not None] == ["chain"]
    x, y = torch.randn(6, 50), torch.randn(50)
    found = GraphExecutor(chain_graph())(x, y)
    torch.testing.assert_close(found[0], (x + y).relu())
    torch.testing.assert_close(found[1], ((x + y).relu() * (x + y)).tanh())


def test_a_value_read_only_within_its_chain_takes_no_memory() -> None:
    plan = Planner(chain_graph()).plan()
    assert [a for a in plan.allocations if a.place is Place.ARENA and a.first >= 0 and a.num_bytes >= 6 * 50 * 4] == []


def test_a_change_of_shape_ends_a_chain() -> None:
    x, y = tensor("x", 6, 50, role=Role.INPUT), tensor("y", 7, role=Role.INPUT)
    a, b = tensor("a", 6, 50), tensor("b", 7)
    ops = (call("aten.relu.default", a, self=x), call("aten.relu.default", b, self=y))
    assert len(Planner(Graph("g", (x, y), (a, b), ops)).plan().steps) == 2


def test_an_op_writes_its_result_into_the_outputs_own_memory() -> None:
    graph, _, _ = weighted()
    plan = Planner(graph).plan()
    assert plan.output_is_direct == [True]
    assert plan.allocations[plan.outputs[0].buffer].place is Place.OUTPUT
    assert plan.steps[-1].op is not None, "a copy came last"


def test_a_view_of_an_input_is_handed_out_without_a_copy() -> None:
    x, turned = tensor("x", 3, 5, role=Role.INPUT), tensor("turned", 5, 3)
    graph = Graph("g", (x,), (turned,), (call("aten.permute.default", turned, self=x, dims=[1, 0]),))
    assert Planner(graph).plan().steps == []
    given = torch.randn(3, 5)
    (found,) = GraphExecutor(graph)(given)
    assert torch.equal(found, given.t())
    assert found.data_ptr() == given.data_ptr()


def test_a_view_of_a_state_is_copied_before_the_state_changes() -> None:
    w, new, turned = tensor("w", 3, 5, role=Role.WEIGHT), tensor("new", 3, 5), tensor("turned", 5, 3)
    ops = (
        call("aten.permute.default", turned, self=w, dims=[1, 0]),
        call("aten.add.Tensor", new, self=w, other=1, alpha=1),
    )
    plan = Planner(Graph("g", (w,), (turned,), ops, ((w, new),)), states=[w]).plan()
    written = [t.buffer for step in plan.steps for t in step.outputs]
    assert plan.output_is_direct == [True]
    assert written.index(plan.outputs[0].buffer) < written.index(plan.states[w].buffer)


def test_states_that_swap_are_read_before_either_is_written() -> None:
    a, b = tensor("a", 4, role=Role.WEIGHT), tensor("b", 4, role=Role.WEIGHT)
    plan = Planner(Graph("g", (a, b), (), (), ((a, b), (b, a))), states=[a, b]).plan()
    state_buffers = {held.buffer for held in plan.states.values()}
    reads = [n for n, step in enumerate(plan.steps) if any(t.buffer in state_buffers for t in step.inputs)]
    writes = [n for n, step in enumerate(plan.steps) if any(t.buffer in state_buffers for t in step.outputs)]
    assert len(reads) == len(writes) == 2
    assert max(reads) < min(writes)


@pytest.mark.parametrize(("shows", "expected"), [
    (False, {Place.ARENA}), (True, {Place.INPUT, Place.OUTPUT}),
])
def test_an_op_without_a_record_runs_through_aten_in_the_arena_or_where_the_caller_has_its_tensors(
    shows: bool, expected: set[Place],
) -> None:
    x, y = tensor("x", 4, role=Role.INPUT), tensor("y", 4)
    graph = Graph("g", (x,), (y,), (Op("generic", (x,), (y,), {}, "aten.special_erfcx.default", ("self",)),))
    plan = Planner(graph, edge=Edge(shows=shows)).plan()
    (generic,) = (step for step in plan.steps if step.kernel is None)
    places = {plan.allocations[t.buffer].place for t in (*generic.inputs, *generic.outputs)}
    assert places == expected
    given = torch.randn(4)
    torch.testing.assert_close(GraphExecutor(graph)(given)[0], torch.special.erfcx(given))
