"""Buffers that inputs are streamed from: how long a device waits for the host to fill them, and what they take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchipu
from tests.placed_graphs import lowered, op, sharded, tensor, training_graph
from torchipu import Options
from torchipu.device.cost import Cost, estimate
from torchipu.device.cost.host_buffers import HostBuffers
from torchipu.device.schedule import make_schedule
from torchipu.ir.graph import Graph
from torchipu.ir.types import Role
from torchipu.target import Target, lookup_target

MK2 = lookup_target("mk2")
BYTES = 4 * 4096
COUNT = 8


def inference(target: Target, depth: int, layers: int = 1) -> Cost:
    """Return the cost of eight micro-batches of an input that some additions change."""
    x, weight = tensor("x", 4096, role=Role.INPUT), tensor("w", 4096, role=Role.WEIGHT)
    ops, value = [], x
    for number in range(layers):
        result = tensor(f"h{number}", 4096)
        ops.append(op("add", (value, weight), result))
        value = result
    schedule = make_schedule(1, (0,), COUNT, "pipelined", training=False)
    executable = lowered(Graph("g", (x, weight), (), tuple(ops)), schedule, target, micro_batches=COUNT)
    return estimate(executable, target, schedule, prefetch_depth=depth)


def filling_in(cycles: int) -> Target:
    """Return a machine whose host fills the buffer of that input in so many cycles."""
    return replace(MK2, host_fill_bytes_per_s=BYTES * MK2.clock_hz / cycles)


@given(st.integers(1, 5), st.integers(0, 50), st.integers(0, 50), st.lists(st.integers(0, 80), min_size=1, max_size=30))
def test_a_ring_is_filled_in_turn_as_far_as_it_was_read(depth: int, fill: int, load: int, work: list[int]) -> None:
    ring, now, begins = HostBuffers(fill, load, depth), 0, []
    for cycles in work:
        now += ring.wait(now)
        begins.append(now)
        ring.read(now)
        now += load + cycles
    # Each fill on its own: behind the fill before it, and behind the read that made its buffer free.
    filled, ready, clock = [], 0, 0
    for number, cycles in enumerate(work):
        if number >= depth:
            ready = max(ready, begins[number - depth] + load) + fill
        filled.append(ready)
        assert begins[number] == max(clock, filled[number])
        clock = begins[number] + load + cycles


def test_a_host_that_is_fast_enough_is_not_waited_for_unless_it_is_asked_first() -> None:
    found = {depth: inference(filling_in(100), depth) for depth in (0, 1, 3)}
    assert found[1].cycles == found[3].cycles == found[0].cycles - COUNT * 100
    assert [cost.host_waits_by_ipu for cost in found.values()] == [(COUNT * 100,), (0,), (0,)]


def test_a_host_that_is_slower_sets_the_pace_and_with_one_buffer_waits_for_the_device_too() -> None:
    one, two, four = (inference(filling_in(90_000), depth) for depth in (1, 2, 4))
    load = one.functions["0F"].load_cycles
    assert one.cycles == COUNT * (90_000 + load)
    assert two.cycles == four.cycles == COUNT * 90_000
    for cost in (one, two, four):
        (spent,) = cost.cycles_by_category_by_ipu
        assert sum(spent.values()) == cost.cycles
        assert spent["host"] == COUNT * cost.functions["0F"].cycles_by_category["host"] + cost.host_waits_by_ipu[0]


@pytest.mark.parametrize(("depth", "cycles"), [
    # Four reads an update, 10 cycles of work behind each, then 200 of the update; a fill takes 50, and a read none.
    (0, 4 * 60 + 200), (1, 10 + 3 * 50 + 200), (2, 10 + 10 + 2 * 40 + 10 + 200), (4, 4 * 10 + 200), (9, 4 * 10 + 200),
])
def test_more_buffers_even_out_what_the_host_is_behind_between_updates(depth: int, cycles: int) -> None:
    ring, now, ends = HostBuffers(50, 0, depth), 0, [0]
    for _ in range(5):
        for _ in range(4):
            now += ring.wait(now)
            ring.read(now)
            now += 10
        now += 200
        ends.append(now)
    assert ends[-1] - ends[-2] == cycles


def test_iterations_are_those_of_a_long_run_in_which_the_host_is_behind() -> None:
    graph, schedule = training_graph(1, 4096), sharded(1, 4)
    quick = replace(MK2, host_bytes_per_s=1e12)
    executable = lowered(graph, schedule, quick, micro_batches=4)
    ideal = estimate(executable, quick, schedule)
    slower = replace(quick, host_fill_bytes_per_s=BYTES * MK2.clock_hz / ideal.cycles)
    found = [estimate(executable, slower, schedule, prefetch_depth=depth) for depth in (1, 2, 4, 8)]
    loads = found[0].functions["0F"].load_cycles
    assert [one.cycles for one in found] == [4 * (ideal.cycles + loads), *3 * [4 * ideal.cycles]]
    assert [one.host_buffer_bytes // BYTES for one in found] == [1, 2, 4, 8]
    most = estimate(executable, slower, schedule, prefetch_depth=2**40)
    assert (most.cycles, most.host_buffer_bytes) == (found[-1].cycles, 2**40 * BYTES)


def test_an_estimate_tells_who_waits_for_the_host_and_what_buffers_take() -> None:
    model = torch.nn.Linear(64, 64).eval()
    slow = Options(target="bow,host_fill_bytes_per_s=1e8", prefetch_depth=3, device_iterations=5)
    found = torchipu.estimate(model, torch.zeros(16, 64), slow)
    assert f"host buffers         {3 * 16 * 64 * 4:,} B on the host a replica; ipu0 waits" in found.text()
    assert "host buffers" not in torchipu.estimate(model, torch.zeros(16, 64), replace(slow, target="bow")).text()
    assert found.profile.host_waits_by_ipu[0] > found.cycles // 2


def test_a_second_buffer_is_filled_while_io_tiles_bring_the_first() -> None:
    model = torch.nn.Linear(512, 8).eval()
    one, two = (
        torchipu.estimate(model, torch.zeros(256, 512), Options(
            target="bow,host_fill_bytes_per_s=3.2e9", io_tiles=32, device_iterations=8, prefetch_depth=depth,
            overlap_inputs="device_iteration_loop", overlap_outputs="device_iteration_loop",
        )).profile for depth in (1, 2)
    )
    assert one.host_waits_by_ipu > two.host_waits_by_ipu == (0,)
    assert one.cycles_per_update > two.cycles_per_update


def test_states_and_results_have_no_such_buffers() -> None:
    weight, result = tensor("w", 64, role=Role.WEIGHT), tensor("y", 64)
    graph = Graph("g", (weight,), (result,), (op("add", (weight, weight), result),))
    schedule = make_schedule(1, (0,), 1, "sharded", training=False)
    cost = estimate(lowered(graph, schedule, MK2, micro_batches=1), MK2, schedule, prefetch_depth=0)
    assert (cost.host_buffer_bytes, cost.host_waits_by_ipu) == (0, (0,))


def test_a_depth_below_none_is_refused() -> None:
    with pytest.raises(torchipu.OptionsError, match="prefetch_depth"):
        Options(prefetch_depth=-1)
