"""Cycles: exchange and sync against published figures, pipelines against their formula, times that add up."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.placed_graphs import BACKWARD, lowered, one_forward, op, pipeline, sharded, tensor, training_graph
from torchipu.device.cost import CATEGORIES, chart, estimate
from torchipu.device.cost.exchange import (
    all_reduce_cycles,
    exchange_cycles,
    host_cycles,
    link_cycles,
    streaming_cycles,
)
from torchipu.device.cost.sync import sync_cycles
from torchipu.device.cost.timeline import Span, Timeline
from torchipu.device.schedule import make_schedule
from torchipu.ir.graph import Graph
from torchipu.ir.types import Role
from torchipu.target import lookup_target

MK2 = lookup_target("mk2")
# Data moves and waits for nothing: what is left is the arithmetic of the pipeline.
IDEAL = replace(MK2, sync_cycles=0, ipu_sync_cycles=0, link_bytes_per_cycle=float("inf"), host_bytes_per_s=1e18)


def cost_of(graph, schedule, target, micro_batches=1, **options):
    return estimate(lowered(graph, schedule, target, micro_batches=micro_batches, **options), target, schedule)


# --------------------------------------------------------------------------- formulas
def test_exchange_is_four_bytes_a_cycle():
    # 39,040 B at the busiest tile of a C600: 10,769 cycles as scheduled, of which 600 start the phase (ipu-stack).
    assert exchange_cycles(MK2, 39_040) == pytest.approx(10_769 - 600, rel=0.02)


def test_small_fragments_take_three_cycles_each_and_conflict():
    assert exchange_cycles(MK2, 4_000, 1_000) == 4_200
    assert exchange_cycles(MK2, 4_000, 1) == 1_050
    assert exchange_cycles(MK2, 0, 5) == 0


def test_links_and_streams_take_bytes_over_bandwidth():
    assert link_cycles(MK2, 10**6) / MK2.clock_hz == pytest.approx(10**6 / (2 * 128 * 2**30 / 8 * 0.85), rel=1e-3)
    assert host_cycles(MK2, 3_125_000) / MK2.clock_hz == pytest.approx(1e-3, rel=1e-3)
    assert streaming_cycles(MK2, 5_000_000) / MK2.clock_hz == pytest.approx(1e-3, rel=1e-3)


def test_sync_between_ipus_takes_longer_than_within_one():
    assert sync_cycles(MK2, "ipu") == 120
    assert sync_cycles(MK2, "replica") == 600
    with pytest.raises(ValueError, match="unknown sync scope 'tile'"):
        sync_cycles(MK2, "tile")


def test_function_is_the_sum_of_its_supersteps():
    bias, x, y = tensor("b", 64, role=Role.WEIGHT), tensor("x", 100, 64, role=Role.INPUT), tensor("y", 100, 64)
    cost = cost_of(Graph("g", (bias, x), (y,), (op("add", (x, bias), y),)), one_forward(), MK2)
    function = cost.functions["0F"]
    assert function.cycles_by_category == {
        "compute": 11 + 6 * (29 + 3 * 3),  # 32 floats on the busiest tile
        "exchange": 34,  # 128 bytes: 32 cycles, times 1.05
        "sync": 600 + 120 + 600,
        "link": 0,
        "all-reduce": 0,
        "host": 2 * host_cycles(MK2, 100 * 64 * 4),
    }
    assert cost.cycles == function.cycles == sum(function.cycles_by_category.values())
    (step,) = function.supersteps
    assert (step.sync, step.exchange, step.compute) == (120, 34, 239)


# --------------------------------------------------------------------------- pipelines
def even_graph(stages):
    """One addition forward and one backward in each stage."""
    x = tensor("x", 64, role=Role.WEIGHT)
    ops, value = [], x
    for stage in range(stages):
        result = tensor(f"h{stage}", 64)
        ops.append(op("add", (value, value), result, stage))
        value = result
    for stage in reversed(range(stages)):
        result = tensor(f"g{stage}", 64, role=Role.GRADIENT)
        ops.append(op("add", (value, value), result, stage, BACKWARD))
        value = result
    return Graph("even", (x,), (), tuple(ops))


def drop_update(schedule):
    return replace(schedule, steps=schedule.steps[:-1])


@pytest.mark.parametrize(("stages", "accumulation"), [(2, 256), (4, 2048), (8, 2048)])
def test_balanced_pipeline_is_busy_for_ga_of_ga_plus_2_s_minus_2_cycles(stages, accumulation):
    # BERT-Large on a POD16: 4 stages, 2048 micro-batches, 99.7 % (PopART; ipu_hardware.md 4.1).
    cost = cost_of(even_graph(stages), drop_update(pipeline(stages, accumulation)), IDEAL, accumulation)
    formula = accumulation / (accumulation + 2 * stages - 2)
    assert cost.pipeline_fill == formula
    for efficiency in cost.efficiency_by_ipu:
        assert efficiency == pytest.approx(formula, rel=0.01)


@pytest.mark.parametrize(("stages", "accumulation", "published"), [
    # Stages and micro-batches of Graphcore's configurations of BERT-Large, ViT-Base and GPT-2 medium.
    (4, 2048, 0.997), (8, 256, 0.948), (4, 30, 0.833), (8, 4096, 0.9966),
])
def test_pipelines_are_filled_as_the_published_formula_has_it(stages, accumulation, published):
    cost = cost_of(even_graph(stages), drop_update(pipeline(stages, accumulation)), IDEAL, accumulation)
    assert cost.pipeline_cycles == accumulation + 2 * stages - 2
    assert cost.pipeline_fill == pytest.approx(published, rel=0.001)


@pytest.mark.parametrize(("stages", "accumulation"), [(2, 4), (4, 10), (3, 5)])
def test_fill_and_flush_cycles_of_a_balanced_pipeline_take_one_leg_only(stages, accumulation):
    # S - 1 cycles of forwards alone, GA of both legs, S - 1 of backwards alone.
    cost = cost_of(even_graph(stages), drop_update(pipeline(stages, accumulation)), IDEAL, accumulation)
    for efficiency in cost.efficiency_by_ipu:
        assert efficiency == pytest.approx(accumulation / (accumulation + stages - 1))


def rows_of(timeline):
    """Cut a timeline into pipeline cycles: all IPUs are silent between two of them, while they sync and copy."""
    spans = sorted((s.begin, s.end) for row in timeline.spans_by_ipu for s in row if s.kind != "link")
    rows = [list(spans[0])]
    for begin, end in spans[1:]:
        if begin > rows[-1][1]:
            rows.append([begin, end])
        rows[-1][1] = max(rows[-1][1], end)
    return rows


@given(st.integers(2, 8), st.data())
@settings(deadline=None, max_examples=30)
def test_timeline_of_a_balanced_pipeline_shows_ga_of_ga_plus_2_s_minus_2(stages, data):
    accumulation = data.draw(st.integers(2 * stages - 1, 64))
    cost = cost_of(even_graph(stages), drop_update(pipeline(stages, accumulation)), MK2, accumulation)
    rows = rows_of(cost.timeline)
    for spans in cost.timeline.spans_by_ipu:
        legs = [span for span in spans if span.kind in ("forward", "backward")]
        # A full cycle runs two legs on each IPU.
        measured = len(legs) / (2 * len(rows))
        assert measured == pytest.approx(accumulation / (accumulation + 2 * stages - 2), rel=0.01)
        assert all(any(begin <= span.begin and span.end <= end for begin, end in rows) for span in legs)
    full = [end - begin for begin, end in rows[2 * stages - 2 : accumulation]]
    assert len(set(full)) <= 1, "cycles of the full pipeline are equally long"


def test_all_ipus_wait_for_the_host_streams_of_one_unless_the_sync_pattern_lets_them_compute():
    x = tensor("x", 4096, role=Role.INPUT)
    weight = tensor("w", 4096, role=Role.WEIGHT)
    first, value = tensor("h0", 4096), tensor("h1", 4096)
    ops = [op("add", (x, weight), first, 0), op("add", (first, first), value, 1)]
    for number in range(12):
        later = tensor(f"s{number}", 4096)
        ops.append(op("add", (value, value), later, 1))
        value = later
    graph, schedule = Graph("g", (x, weight), (), tuple(ops)), make_schedule(2, (0, 1), 8, "pipelined", training=False)
    executable = lowered(graph, schedule, MK2, micro_batches=8)
    found = {
        pattern: estimate(executable, MK2, schedule, sync_pattern=pattern)
        for pattern in ("full", "single_pipeline", "replica_and_ladder")
    }
    assert found["single_pipeline"].cycles == found["replica_and_ladder"].cycles
    stream = host_cycles(MK2, 4 * 4096)
    first_stage, second = (found["full"].functions[name].cycles for name in ("0F", "1F"))
    # In seven cycles both stages run; the second computes while, or only after, the first waits for its input.
    beside, after = max(first_stage, second), stream + max(first_stage - stream, second)
    assert found["full"].cycles - found["single_pipeline"].cycles == 7 * (after - beside) > 0
    for cost in found.values():
        assert all(sum(spent.values()) == cost.cycles for spent in cost.cycles_by_category_by_ipu)


def test_sharded_execution_takes_the_sum_over_the_ipus():
    cost = cost_of(even_graph(4), drop_update(sharded(4, 3)), IDEAL, 3)
    assert cost.cycles == 3 * sum(cost.functions[f"{stage}{leg}"].cycles for stage in range(4) for leg in "FB")
    assert cost.efficiency_by_ipu == pytest.approx((0.25,) * 4)


def test_slowest_stage_sets_the_pace_of_a_pipeline():
    graph = even_graph(3)
    extra = [tensor(f"e{number}", 64) for number in range(4)]
    h1 = graph.ops[1].outputs[0]
    more = [op("add", (h1, h1), e, 1) for e in extra]
    slow = Graph("slow", graph.inputs, (), (*graph.ops[:2], *more, *graph.ops[2:]))
    cost = cost_of(slow, drop_update(pipeline(3, 500)), IDEAL, 500)
    pace = cost.functions["1F"].cycles + cost.functions["1B"].cycles
    assert cost.cycles == pytest.approx(500 * pace, rel=0.01)
    assert cost.efficiency_by_ipu[1] > 0.99 > 0.5 > cost.efficiency_by_ipu[0]


@pytest.mark.parametrize("schedule", [pipeline(3, 6), sharded(3, 6)])
def test_categories_of_each_ipu_and_its_idle_time_add_up_to_all_cycles(schedule):
    cost = cost_of(training_graph(3, 5000, layers=2), schedule, MK2, 6, off_chip_state=True)
    for ipu, cycles in enumerate(cost.cycles_by_category_by_ipu):
        assert set(cycles) == {*CATEGORIES, "idle"}
        assert sum(cycles.values()) == cost.cycles
        assert all(count >= 0 for count in cycles.values())
        assert cost.timeline.busy(ipu) <= cost.cycles - cycles["idle"]


def test_copies_between_different_ipus_go_side_by_side():
    two, three = (cost_of(training_graph(n, 100_000), pipeline(n, 6), MK2, 6) for n in (2, 3))
    link = [cost.cycles_by_category_by_ipu[0]["link"] / cost.pipeline_cycles for cost in (two, three)]
    assert link[1] == pytest.approx(link[0], rel=0.25)


def test_device_iterations_do_not_change_the_cycles_of_one():
    graph, schedule = training_graph(2, 64), pipeline(2, 4)
    one, many = (cost_of(graph, schedule, MK2, 4, iterations=count) for count in (1, 50))
    assert (one.cycles, one.device_iterations, many.device_iterations) == (many.cycles, 1, 50)


# --------------------------------------------------------------------------- timeline
def test_timeline_lists_the_actions_of_each_ipu_in_order():
    cost = cost_of(even_graph(2), drop_update(pipeline(2, 3)), IDEAL, 3)
    unit = cost.functions["0F"].cycles
    spans = [[(s.action, s.begin // unit, s.end // unit) for s in row] for row in cost.timeline.spans_by_ipu]
    assert spans == [
        [("0F0", 0, 1), ("0F1", 1, 2), ("0F2", 3, 4), ("0B0", 4, 5), ("0B1", 5, 6), ("0B2", 7, 8)],
        [("1F0", 1, 2), ("1B0", 2, 3), ("1F1", 3, 4), ("1B1", 4, 5), ("1F2", 5, 6), ("1B2", 6, 7)],
    ]


def test_chart_shows_legs_and_idle_time():
    timeline = Timeline([[Span("0F0", 0, 4), Span("0B0", 6, 8)], [Span("U1", 8, 12)]], 12)
    assert chart(timeline, width=12).split("\n") == ["ipu0 |####..==....| 50.0 %", "ipu1 |........++++| 33.3 %"]


def test_chart_of_nothing_is_idle():
    assert chart(Timeline([[]], 0), width=4) == "ipu0 |....| -"


def test_timeline_tells_recomputation_all_reduce_and_links_apart():
    graph = training_graph(2, 4096)
    attrs = {"recomputed_from": "h0.0"}
    again = [replace(made, attrs=attrs) if made.outputs[0].name == "g0.0" else made for made in graph.ops]
    cost = cost_of(replace(graph, ops=tuple(again)), pipeline(2, 5), MK2, 5)
    for ipu in range(2):
        kinds = cost.timeline.cycles_by_kind(ipu)
        assert sum(kinds.values()) == cost.cycles
        assert kinds["idle"] >= 0 < kinds["forward"] * kinds["backward"] * kinds["update"] * kinds["link"]
        assert (kinds["recompute"] > 0) == (ipu == 0)
        spans = cost.timeline.spans_by_ipu[ipu]
        assert all(before.end <= after.begin for before, after in pairwise(spans))
    assert [span.kind for span in cost.timeline.spans_by_ipu[0] if "0B0" in span.action] == ["recompute", "backward"]
    assert "r" in chart(cost.timeline, 200).splitlines()[0]


def test_replicas_beyond_what_links_join_add_up_through_gateways():
    pod, num_bytes = MK2, 100 << 20
    within = all_reduce_cycles(pod, num_bytes, 16, 4)
    assert within == all_reduce_cycles(pod, num_bytes, 16), "16 replicas of 4 IPUs are one POD64"
    over_four = all_reduce_cycles(pod, num_bytes, 64, 4)
    # Each of the 16 replicas of a POD64 has a sixteenth of the sums, of which 3 / 4 go out twice at 6.25 GB/s.
    seconds = num_bytes / 16 * 2 * 3 / 4 / 6.25e9
    assert over_four - within == math.ceil(seconds * pod.clock_hz) + 6 * pod.ipu_sync_cycles
    assert all_reduce_cycles(pod, num_bytes, 1, 4) == 0
