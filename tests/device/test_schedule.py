"""The schedule pass: PopART's pipeline, its grid, and pipelines that are too short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.placed_graphs import op, tensor, training_graph
from tests.strategies import pipelines
from torchipu.device.schedule import ipus_of_stages, make_schedule, schedule_of
from torchipu.errors import ScheduleError
from torchipu.ir.graph import Graph, Placement
from torchipu.ir.schedule import Action, Schedule
from torchipu.ir.text import format_schedule
from torchipu.ir.types import Leg
from torchipu.ir.verify import verify_schedule
from torchipu.options import Options


def row_by_action(schedule: Schedule) -> dict[Action, int]:
    """Return the cycle of each action; every action must occur once."""
    rows = [(action, row) for row, step in enumerate(schedule.steps) for cell in step for action in cell]
    assert len(rows) == len(dict(rows))
    return dict(rows)


def test_training_pipeline_of_two_stages() -> None:
    schedule = make_schedule(2, (0, 1), 4, "pipelined", training=True)
    assert format_schedule(schedule) == """\
0F0
0F1       1F0 1B0
0F2 0B0   1F1 1B1
0F3 0B1   1F2 1B2
0B2       1F3 1B3
0B3
0U        1U"""
    assert (schedule.fill, schedule.flush) == (2, 2)


def test_inference_pipeline_of_three_stages() -> None:
    schedule = make_schedule(3, (0, 1, 2), 3, "pipelined", training=False)
    assert format_schedule(schedule) == """\
0F0
0F1   1F0
0F2   1F1   2F0
      1F2   2F1
            2F2"""
    assert (schedule.fill, schedule.flush) == (2, 2)


def test_sharded_stages_run_one_after_another() -> None:
    schedule = make_schedule(2, (0, 1), 1, "sharded", training=True)
    assert format_schedule(schedule) == "0F0\n      1F0\n      1B0\n0B0\n0U\n      1U"
    assert (schedule.fill, schedule.flush) == (0, 0)


def test_one_stage_needs_no_pipeline() -> None:
    assert format_schedule(make_schedule(1, (0,), 2, "pipelined", training=True)) == "0F0 0B0\n0F1 0B1\n0U"
    assert format_schedule(make_schedule(1, (0,), 1, "pipelined", training=False)) == "0F0"


def test_stages_may_share_an_ipu() -> None:
    schedule = make_schedule(3, (0, 1, 0), 5, "pipelined", training=True)
    verify_schedule(schedule, 3, 5)
    assert format_schedule(schedule).splitlines()[4] == "0F4 2F2 2B2 0B0   1F3 1B1"


@given(pipelines(training=True))
def test_training_pipeline_is_valid_and_as_long_as_popart_says(sizes: tuple[int, int]) -> None:
    stages, micro_batches = sizes
    schedule = make_schedule(stages, range(stages), micro_batches, "pipelined", training=True)
    verify_schedule(schedule, stages, micro_batches)
    rows = row_by_action(schedule)
    assert len(schedule.steps) == micro_batches + 2 * stages - 2 + 1  # the last row is the update
    for stage in range(stages):
        for m in range(micro_batches):
            assert rows[Action(stage, Leg.FORWARD, m)] == m + stage
            assert rows[Action(stage, Leg.BACKWARD, m)] == m + 2 * (stages - 1) - stage
        assert rows[Action(stage, Leg.UPDATE, None)] == len(schedule.steps) - 1


@given(pipelines(training=True))
def test_every_ipu_runs_forward_and_backward_between_fill_and_flush(sizes: tuple[int, int]) -> None:
    stages, micro_batches = sizes
    schedule = make_schedule(stages, range(stages), micro_batches, "pipelined", training=True)
    both = {Leg.FORWARD, Leg.BACKWARD}
    full = [all({action.leg for action in cell} == both for cell in step) for step in schedule.steps]
    cycles = len(schedule.steps) - 1
    assert full == [schedule.fill <= row < cycles - schedule.flush for row in range(cycles)] + [False]


@given(pipelines(training=False))
def test_inference_pipeline_is_valid(sizes: tuple[int, int]) -> None:
    stages, micro_batches = sizes
    schedule = make_schedule(stages, range(stages), micro_batches, "pipelined", training=False)
    verify_schedule(schedule, stages, micro_batches)
    assert len(schedule.steps) == micro_batches + stages - 1
    assert set(row_by_action(schedule)) == {
        Action(stage, Leg.FORWARD, m) for stage in range(stages) for m in range(micro_batches)
    }


@given(st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_sharded_schedule_is_valid_and_has_one_action_a_row(stages: int, micro_batches: int, training: bool) -> None:
    schedule = make_schedule(stages, range(stages), micro_batches, "sharded", training)
    verify_schedule(schedule, stages, micro_batches)
    assert all(sum(len(cell) for cell in step) == 1 for step in schedule.steps)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_schedule_is_valid_for_any_stages_by_ipu(ipus: list[int]) -> None:
    stages = len(ipus)
    for training in (True, False):
        verify_schedule(make_schedule(stages, ipus, 2 * stages, "pipelined", training), stages, 2 * stages)


def test_training_pipeline_that_is_too_short_shows_where() -> None:
    with pytest.raises(ScheduleError) as caught:
        make_schedule(3, (0, 1, 2), 4, "pipelined", training=True)
    assert str(caught.value) == """\
gradient_accumulation=4 is shorter than the pipeline: 3 stages need gradient_accumulation of at least 5
  0F0
  0F1   1F0
  0F2   1F1       2F0 2B0
  0F3   1F2 1B0   2F1 2B1
  0B0   1F3 1B1   2F2 2B2   <-- 0F has no micro-batch left, the pipeline is not full yet
  0B1   1B2       2F3 2B3
  0B2   1B3
  0B3
  0U    1U        2U
  do      raise gradient_accumulation to 5 or more, use fewer stages, or set execution='sharded'"""


def test_inference_pipeline_that_is_too_short_shows_where() -> None:
    with pytest.raises(ScheduleError) as caught:
        make_schedule(2, (0, 1), 1, "pipelined", training=False)
    assert str(caught.value) == """\
device_iterations=1 is shorter than the pipeline: 2 stages need device_iterations of at least 2
  0F0
        1F0   <-- 0F has no micro-batch left, the pipeline is not full yet
  do      raise device_iterations to 2 or more, use fewer stages, or set execution='sharded'"""


@given(st.integers(2, 6), st.booleans())
def test_shortest_pipeline_is_the_one_named(stages: int, training: bool) -> None:
    least = 2 * stages - 1 if training else stages
    make_schedule(stages, range(stages), least, "pipelined", training)
    with pytest.raises(ScheduleError, match=f"of at least {least}\n"):
        make_schedule(stages, range(stages), least - 1, "pipelined", training)
    make_schedule(stages, range(stages), least - 1, "sharded", training)


# --------------------------------------------------------------------------- phases, 1F1B, interleaved
def test_phases_go_forward_and_back_and_turn_round_in_the_last() -> None:
    schedule = make_schedule(3, (0, 1, 0), 1, "parallel_phased", training=True)
    assert format_schedule(schedule) == """\
0F0
          1F0
2F0 2B0
          1B0
0B0
0U 2U     1U"""
    apart = make_schedule(2, (0, 0), 1, "serial_phased", training=True, separate_backward=True)
    assert format_schedule(apart) == "0F0\n1F0\n1B0\n0B0\n0U 1U"


def test_parallel_phase_on_the_wrong_half_of_the_ipus_shows_where() -> None:
    with pytest.raises(ScheduleError) as caught:
        make_schedule(3, (0, 1, 1), 1, "parallel_phased", training=True)
    assert str(caught.value) == """\
phase 2 is on ipu 1, but in parallel phased execution an even phase needs an even IPU
  0F0
        1F0
        2F0 2B0   <-- phase 2 on ipu 1
        1B0
  0B0
  0U    1U 2U
  do      give the blocks of even phases even ipu_ids and those of odd phases odd ones, or set \
execution='serial_phased'"""


def test_one_forward_one_backward() -> None:
    schedule = make_schedule(3, (0, 1, 2), 4, "1f1b", training=True)
    assert format_schedule(schedule) == """\
0F0
0F1   1F0
0F2   1F1   2F0
            2B0
      1B0   2F1
0B0   1F2   2B1
0F3   1B1   2F2
0B1   1F3   2B2
      1B2   2F3
0B2         2B3
      1B3
0B3
0U    1U    2U"""
    assert (schedule.fill, schedule.flush) == (2, 4)


def in_flight(schedule: Schedule, ipu: int) -> int:
    """Return the most micro-batches between forward and backward on an IPU."""
    held = most = 0
    for step in schedule.steps:
        for action in step[ipu]:
            held += {Leg.FORWARD: 1, Leg.BACKWARD: -1, Leg.UPDATE: 0}[action.leg]
            most = max(most, held)
    return most


@given(st.integers(1, 6), st.integers(1, 14))
def test_1f1b_holds_no_more_micro_batches_than_stages_are_left(stages: int, micro_batches: int) -> None:
    schedule = make_schedule(stages, range(stages), micro_batches, "1f1b", training=True)
    verify_schedule(schedule, stages, micro_batches)
    assert [in_flight(schedule, ipu) for ipu in range(stages)] == [
        min(micro_batches, stages - stage) for stage in range(stages)
    ]
    assert len(schedule.steps) - 1 == 2 * (micro_batches + stages - 1)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.booleans())
def test_interleaved_stages_are_valid(ipus: int, chunks: int, micro_batches: int, training: bool) -> None:
    stages = ipus * chunks
    ipu_by_stage = [stage % ipus for stage in range(stages)]
    for execution in ("interleaved", "1f1b", "serial_phased"):
        schedule = make_schedule(stages, ipu_by_stage, micro_batches, execution, training)
        verify_schedule(schedule, stages, micro_batches)
    assert all(len(cell) <= 1 for step in schedule.steps[:-1] for cell in step) or execution == "serial_phased"


def test_interleaving_shortens_the_ramps() -> None:
    plain = make_schedule(4, (0, 1, 2, 3), 8, "1f1b", training=True)
    interleaved = make_schedule(8, (0, 1, 2, 3) * 2, 8, "interleaved", training=True)
    # Its stages are half as long.
    assert len(interleaved.steps) / 2 < len(plain.steps)


def test_interleaved_stages_take_as_many_micro_batches_as_there_are_ipus_through_all_of_an_ipu() -> None:
    """The order of Narayanan et al., figure 4: two devices with two stages each."""
    schedule = make_schedule(4, (0, 1, 0, 1), 4, "interleaved", training=True)

    def taken(ipu: int, leg: Leg) -> list[tuple[int, int | None]]:
        return [(one.stage, one.micro_batch) for row in schedule.steps for one in row[ipu] if one.leg is leg]

    for ipu in (0, 1):
        first, second = ipu, ipu + 2
        pairs = [(0, 1), (2, 3)]
        forwards = [(stage, m) for pair in pairs for stage in (first, second) for m in pair]
        assert taken(ipu, Leg.FORWARD) == forwards
        assert taken(ipu, Leg.BACKWARD) == [(stage, m) for pair in pairs for stage in (second, first) for m in pair]


# --------------------------------------------------------------------------- of a graph
def of_legs(*legs: Leg, stages: int = 2) -> Graph:
    """Return what of a training is in some legs, a stage on each IPU."""
    whole = training_graph(stages, 4)
    return replace(whole, ops=tuple(op for op in whole.ops if op.leg in legs), updates=())


def written(graph: Graph, micro_batches: int, execution: str = "pipelined") -> str:
    return format_schedule(schedule_of(graph, Options(execution=execution), micro_batches))


def test_what_has_nothing_to_overlap_runs_one_stage_after_another() -> None:
    both, forward = of_legs(Leg.FORWARD, Leg.BACKWARD), of_legs(Leg.FORWARD)
    assert written(forward, 1) == "0F0\n      1F0"
    assert written(both, 1) == "0F0\n      1F0\n      1B0\n0B0\n0U\n      1U"
    assert written(of_legs(Leg.FORWARD, stages=1), 2) == "0F0\n0F1"
    assert written(of_legs(Leg.FORWARD, Leg.BACKWARD, stages=1), 2) == "0F0\n0B0\n0F1\n0B1\n0U"


def test_micro_batches_on_several_ipus_and_trainings_are_pipelines() -> None:
    assert written(of_legs(Leg.FORWARD), 2) == "0F0\n0F1   1F0\n      1F1"
    assert written(training_graph(1, 4), 2) == "0F0 0B0\n0F1 0B1\n0U"
    for graph, micro_batches in ((training_graph(2, 4), 1), (of_legs(Leg.FORWARD, Leg.BACKWARD), 2)):
        with pytest.raises(ScheduleError, match="shorter than the pipeline"):
            written(graph, micro_batches)


def test_phases_are_held_to_their_halves_though_there_is_nothing_to_overlap() -> None:
    graph = of_legs(Leg.FORWARD)
    moved = tuple(replace(one, placement=replace(one.placement, ipu=1)) for one in graph.ops)
    assert written(graph, 1, "parallel_phased") == "0F0\n      1F0"
    with pytest.raises(ScheduleError, match="phase 0 is on ipu 1"):
        written(replace(graph, ops=moved), 1, "parallel_phased")


def test_a_backward_that_is_compiled_apart_goes_from_the_last_stage_to_the_first() -> None:
    assert written(of_legs(Leg.BACKWARD, stages=3), 1) == "            2B0\n      1B0\n0B0"
    assert written(of_legs(Leg.BACKWARD, Leg.UPDATE, stages=2), 1) == "      1B0\n0B0"


def test_stages_lie_where_their_forward_and_backward_do_and_on_the_first_ipu_without_any() -> None:
    x, y = tensor("x"), tensor("y")

    def on(stage: int, ipu: int, leg: Leg) -> Graph:
        made = replace(op("add", (x, x), y, stage, leg), placement=Placement("B", ipu, stage, leg))
        return Graph("one", (x,), (), (made,))

    assert ipus_of_stages(on(2, 3, Leg.FORWARD)) == (0, 0, 3)
    assert ipus_of_stages(on(1, 2, Leg.BACKWARD)) == (0, 2)
    assert ipus_of_stages(on(1, 3, Leg.UPDATE)) == (0,)
