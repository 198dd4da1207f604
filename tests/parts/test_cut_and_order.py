"""Which ops and values each process has, and the order in which it runs its segments."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchipu
from tests.parts.cases import CASES, made
from torchipu.errors import ScheduleError
from torchipu.host.recomputation import undone
from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.types import DType, Leg, Role
from torchipu.optable.transfer import RECEIVE, SEND, Moment
from torchipu.parts.cut import Cut, Segment, Transfer, cut, weight
from torchipu.parts.order import make_timetable


def cut_of(step: torchipu.TrainStep | torchipu.InferenceStep, *inputs: torch.Tensor) -> Cut:
    step.compile(*inputs)
    return cut(undone(step.compiled.graph), 2, lambda ipu: ipu // 2 if "blocks" in dir(step.model) else ipu)


def transfer(number: int, source: int, target: int) -> Transfer:
    return Transfer(number, Tensor(f"t{number}", (4,), DType.FLOAT), source, target, Moment.BODY, number)


def test_activations_and_their_gradients_go_once_a_micro_batch_and_squares_in_one_message():
    case = CASES["pipelined"]
    found = cut_of(made(case), *case.inputs())
    body = [one for one in found.transfers if one.moment is Moment.BODY]
    assert [(one.source, one.target, one.tensor.shape) for one in body] == [(0, 1, (4, 24)), (1, 0, (4, 24))]
    update = [one for one in found.transfers if one.moment is Moment.UPDATE]
    assert len({one.message for one in update if one.target == 1}) == 1
    assert [one.tensor.name for one in update if one.target == 0] == ["hyper.0.clipped"]


def test_a_part_has_its_transfers_by_moment_and_segments_weigh_what_their_ops_do():
    case = CASES["pipelined"]
    found = cut_of(made(case), *case.inputs())
    assert {one.moment for one in found.transfers} >= {Moment.BODY, Moment.UPDATE}
    for process, part in enumerate(found.parts):
        for moment in Moment:
            theirs = [one for one in found.transfers if one.moment is moment and process in (one.source, one.target)]
            assert sorted(one.number for one in part.transfers[moment]) == sorted(one.number for one in theirs)
        own = [op for op in part.graph.ops if op.target not in (SEND, RECEIVE)]
        heaviest = max(weight(op) for op in own if op.leg is Leg.FORWARD)
        assert min(segment.weight for segment in part.segments) >= 0
        assert sum(segment.weight for segment in part.segments) > heaviest


def test_states_are_where_their_weight_is_updated():
    case = CASES["tied"]
    found = cut_of(made(case), *case.inputs())
    homes = {tensor.name: home for tensor, home in found.owners.items()}
    assert homes["embedding.weight"] == homes["exp_avg.embedding.weight"] == homes["acc.embedding.weight"] == 0
    assert homes["second.weight"] == homes["exp_avg_sq.second.weight"] == 1
    early = [one.tensor.name for one in found.transfers if one.moment is Moment.PROLOGUE]
    assert early == ["embedding.weight"]
    names = {tensor.name for tensor in found.parts[1].graph.inputs if tensor.role is not Role.HYPERPARAMETER}
    assert not {name for name in names if "embedding" in name or "layer" in name}


def one_op(ipu: int, leg: Leg, *operands: Tensor) -> Op:
    """An op of an IPU that adds up its operands."""
    made = Tensor(f"of_{'_'.join(tensor.name for tensor in operands)}_on_{ipu}_{leg.name}", (4,), DType.FLOAT)
    return Op("add", operands, (made,), {}, "aten.add.Tensor", ("self", "other"), placement=Placement("b", ipu, 0, leg),
              leg=leg)


def test_what_the_body_has_sent_the_update_reads_there():
    x, y = (Tensor(name, (4,), DType.FLOAT, Role.INPUT) for name in "xy")
    first = one_op(0, Leg.FORWARD, x, y)
    read = one_op(1, Leg.FORWARD, *first.outputs, y)
    late = one_op(1, Leg.UPDATE, *first.outputs, *read.outputs)
    graph = Graph("g", (x, y), (*read.outputs, *late.outputs), (first, read, late))
    found = cut(graph, 2, lambda ipu: ipu)
    assert [(one.tensor, one.moment) for one in found.transfers] == [(first.outputs[0], Moment.BODY)]


def test_states_whose_next_values_are_inputs_are_where_they_are_first_read():
    x = Tensor("x", (4,), DType.FLOAT, Role.INPUT)
    seen, before, again, other = (
        Tensor(name, (4,), DType.FLOAT, Role.BUFFER) for name in ("seen", "before", "again", "other")
    )
    ops = (one_op(0, Leg.FORWARD, x, again), one_op(1, Leg.FORWARD, seen, before), one_op(1, Leg.FORWARD, other, x))
    updates = ((seen, x), (before, seen), (again, other), (other, again))
    graph = Graph("g", (x, seen, before, again, other), tuple(op.outputs[0] for op in ops), ops, updates)
    owners = cut(graph, 2, lambda ipu: ipu).owners
    assert {tensor.name for tensor in owners} == {"seen", "before", "again", "other"}


def test_what_depends_on_constants_alone_is_computed_where_it_is_read():
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torchipu.Block("first", ipu_id=0):
                mask = torch.ones(6, 6).tril()
                x = torch.tanh(x @ mask)
            with torchipu.Block("second", ipu_id=1):
                return torch.relu(x @ mask)

    found = cut_of(torchipu.InferenceStep(Masked()), torch.randn(4, 6))
    assert [one.tensor.shape for one in found.transfers] == [(4, 6)]
    kinds = [[op.kind for op in part.graph.ops] for part in found.parts]
    assert "tril" in kinds[0]
    assert "tril" in kinds[1]


def test_stages_in_a_row_run_one_forward_one_backward():
    there, back = transfer(0, 0, 1), transfer(1, 1, 0)
    segments = [[Segment(10, [], [there]), Segment(20, [back])], [Segment(30, [there], [back])]]
    found = make_timetable(segments, 6, [3, 3])
    first = "".join(f"{'FB'[segment]}{run} " for segment, run, _ in found.runs[0])
    assert first == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5 "
    assert [run for _, run, _ in found.runs[1]] == list(range(6))
    assert found.lanes == (3, 1)
    lanes = {run: lane for _, run, lane in found.runs[0]}
    assert [lanes[run] for run in range(6)] == [0, 1, 2, 0, 1, 2]


def test_forwards_alone_run_ahead_as_far_as_there_is_room():
    there = transfer(0, 0, 1)
    found = make_timetable([[Segment(1, [], [there])], [Segment(10, [there])]], 50, [3, 3])
    assert found.lanes == (1, 1)
    assert found.room[0] == 3


def test_processes_that_would_wait_for_each_other_are_refused():
    there, back = transfer(0, 0, 1), transfer(1, 1, 0)
    with pytest.raises(ScheduleError, match="wait for each other for ever"):
        make_timetable([[Segment(1, [back], [there])], [Segment(1, [there], [back])]], 2, [2, 2])
