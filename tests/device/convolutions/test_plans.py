"""Plans of convolutions: what they count, how they use tiles, and what they do when memory is short."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from math import prod

import pytest

from torchipu.device.convolutions.axes import (
    Axis,
    Share,
    input_axis,
    output_axis,
    shares_of,
    swapped_axis,
    weight_axis,
)
from torchipu.device.convolutions.plan import plan_convolution
from torchipu.device.convolutions.sets import INPUT, OUTPUT, WEIGHT, Pass, convolution_sets, planned
from torchipu.device.convolutions.vertices import pointwise_cycles, slic_cycles, vertical_cycles
from torchipu.device.matrix_unit import amp_cycles
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.volume import Volume
from torchipu.target import lookup_target

MK1, MK2 = lookup_target("mk1"), lookup_target("mk2")


def volume(batch, channels, out_channels, side, window=1, stride=1, padding=0, groups=1):
    out = (side + 2 * padding - window) // stride + 1
    return Volume(
        batch, groups, channels, out_channels, (1, side, side), (1, out, out), (1, window, window), (1, stride, stride),
        (0, padding, padding), (1, 1, 1),
    )


def plan(kind, v, target=MK2, dtype=DType.HALF, **attrs):
    found = planned(Pass(kind, v), Op("convolution", (), (), attrs), target, dtype)
    assert found is not None
    return found


def counted(axis: Axis, split: int, tap_split: int) -> Share:
    """Go through all pairs of an output and an element of the window."""
    size, tap_size = -(-axis.outputs // split), -(-axis.taps // tap_split)
    most, read, taps = 0.0, 0, 1
    for begin in range(0, axis.outputs, size):
        for tap_begin in range(0, axis.taps, tap_size):
            places = {
                (o, t): o * axis.step + t * axis.tap_step + axis.first
                for o in range(begin, min(begin + size, axis.outputs))
                for t in range(tap_begin, min(tap_begin + tap_size, axis.taps))
            }
            met = {
                pair: place // axis.divisor for pair, place in places.items()
                if place % axis.divisor == 0 and 0 <= place < axis.inputs * axis.divisor
            }
            most, taps = max(most, len(met)), max(taps, len({t for _, t in met}))
            if met:
                read = max(read, min(max(met.values()) - min(met.values()) + 1, len(met)))
    if axis.divisor > 1:
        most, taps = min(most, size * tap_size / axis.divisor), tap_size
    return Share(split, size, most, read, taps, tap_split)


@pytest.mark.parametrize("axis_of", [output_axis, input_axis, weight_axis, swapped_axis])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize(("window", "stride", "padding", "side"), [
    (3, 1, 1, 20), (3, 2, 1, 9), (7, 4, 3, 30), (2, 5, 0, 23), (5, 3, 8, 11), (9, 6, 12, 5), (6, 1, 0, 40),
])
def test_shares_are_those_that_pairs_are_counted_to(axis_of, dilation, window, stride, padding, side):
    v = replace(volume(1, 1, 1, side, 1 + (window - 1) * dilation, stride, padding), window=(1, window, window),
                dilation=(1, dilation, dilation))
    axis = axis_of(v, 2)
    for share in shares_of(axis, 64, (1, 2, 5)):
        assert share == counted(axis, share.split, share.tap_split)


def test_lines_of_a_million_elements_are_planned():
    """A table of all pairs, which are 6.5e7, would be copied several times for each split."""
    v = Volume(1, 1, 1, 1, (1, 1, 1 << 20), (1, 1, 1 << 20), (1, 1, 65), (1, 1, 1), (0, 0, 32), (1, 1, 1))
    tracemalloc.start()
    for axis in (output_axis(v, 2), input_axis(v, 2), weight_axis(v, 2)):
        assert sum(share.met for share in shares_of(axis, MK2.num_tiles)[:1]) == 65 * (1 << 20) - 2 * 32 * 33 // 2
    assert tracemalloc.get_traced_memory()[1] < 1 << 29
    tracemalloc.stop()


@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (7, 2, 3), (5, 3, 0)])
def test_output_and_gradient_meet_the_same_pairs(window, stride, padding):
    v = volume(1, 1, 1, 20, window, stride, padding)
    pairs = sum(
        0 <= out * stride + tap - padding < 20 for out in range(v.out[1]) for tap in range(window)
    )
    whole = [shares_of(axis(v, 1), 1)[0].met for axis in (output_axis, input_axis)]
    assert whole == [pairs, pairs]


@pytest.mark.parametrize("positions", [1, 5, 16, 784])
@pytest.mark.parametrize("is_half", [True, False])
def test_windows_of_one_element_cost_what_a_product_costs(positions, is_half):
    work = {"positions": positions, "inputs": 96, "outputs": 40, "is_half": int(is_half), "output_group": 8}
    sizes = {**work, "input_groups": 6, "output_groups": 5, "groups": 1}
    assert pointwise_cycles(MK2, sizes) == amp_cycles(MK2, work)


@pytest.mark.parametrize("kind", [OUTPUT, INPUT, WEIGHT])
@pytest.mark.parametrize("v", [
    volume(4, 64, 64, 56, 3, 1, 1), volume(4, 512, 1024, 28, 1, 2), volume(2, 1, 1, 30, 3, 2, 1, groups=64),
    volume(1, 3, 5, 7, 3), volume(4, 4, 64, 60, 7, 2, 3),
])
def test_plans_use_no_more_tiles_than_there_are_and_leave_nothing_out(kind, v):
    cut = plan(kind, v).cut
    assert cut.num_vertices <= MK2.num_tiles
    assert all(split * share >= size for split, share, size in zip(cut.splits, cut.shares, cut.sizes, strict=True))


def test_gradient_of_a_strided_window_of_one_element_costs_what_its_output_costs():
    v = volume(4, 512, 512, 28, 1, 2)
    assert plan(INPUT, v).plan.cycles == pytest.approx(plan(OUTPUT, v).plan.cycles, rel=0.05)


def test_gradient_of_an_input_skips_what_falls_on_padding():
    v = Volume(1440, 1, 1, 100, (1, 15, 200), (1, 11, 1), (1, 5, 200), (1, 1, 1), (0, 0, 0), (1, 1, 1))
    cycles = [plan(kind, v).plan.cycles for kind in (OUTPUT, INPUT, WEIGHT)]
    assert max(cycles) < 2 * min(cycles)


def test_floats_of_a_depthwise_convolution_share_panels():
    v = volume(4, 1, 1, 112, 3, 1, 1, groups=32)
    found = plan(OUTPUT, v, dtype=DType.FLOAT).plan
    assert found.method == "window"
    assert found.together > 1
    assert 32 % found.together == 0


@pytest.mark.parametrize("kind", [OUTPUT, INPUT])
@pytest.mark.parametrize(("target", "groups", "side", "partials"), [
    (MK1, 32, 112, 2740), (MK1, 512, 14, 836), (MK1, 1024, 7, 500),
    (MK2, 32, 112, 2292), (MK2, 512, 14, 724), (MK2, 1024, 7, 500),
])
def test_windows_of_single_channels_hold_the_partials_that_the_ipu_model_reports(kind, target, groups, side, partials):
    """Interleaved floats of the fullest tile, less the gap below them, as PopLibs' regression tests have them."""
    found = plan(kind, volume(4, 1, 1, side, 3, 1, 1, groups=groups), target).plan
    assert (found.method, found.together) == ("slic", 4)
    assert found.partial_bytes == 4 * partials


@pytest.mark.parametrize(("target", "method"), [(MK1, "window"), (MK2, "slic")])
def test_gradients_between_whose_places_zeros_stand_write_them_out_where_that_is_cheaper(target, method):
    assert plan(INPUT, volume(4, 1, 1, 14, 3, 2, 1, groups=512), target).plan.method == method


@pytest.mark.parametrize(("target", "groups", "side", "partials"), [
    (MK1, 64, 112, 2688), (MK1, 128, 56, 1344), (MK2, 64, 112, 2240), (MK2, 128, 56, 1344),
])
def test_gradients_of_strided_windows_hold_the_partials_that_the_ipu_model_reports(target, groups, side, partials):
    v = Volume(
        4, groups, 1, 1, (1, side, side), (1, side // 2, side // 2), (1, 3, 3), (1, 2, 2), (0, 1, 1), (1, 1, 1),
    )
    found = plan(INPUT, v, target).plan
    assert (found.method, found.together, found.partial_bytes) == ("window", 8, 4 * partials)


@pytest.mark.parametrize(
    ("groups", "side", "method"), [(32, 112, "vertical"), (1024, 7, "vertical"), (1, 112, "pointwise")],
)
def test_updates_of_many_groups_take_vertices_that_add_up_groups_side_by_side(groups, side, method):
    found = plan(WEIGHT, volume(4, 1, 1, side, 3, 1, 1, groups=groups), MK1)
    assert (found.plan.method, found.slides) == (method, method == "vertical")
    assert plan(WEIGHT, volume(4, 1, 1, side, 3, 1, 1, groups=groups), MK1, DType.FLOAT).plan.method == "pointwise"


def test_tiles_that_share_a_large_window_have_partials_of_it_each():
    """An output of 3 x 3 of two panels of 16 groups alone would be for 18 tiles."""
    found = plan(WEIGHT, volume(4, 1, 1, 112, 3, 1, 1, groups=32), MK1)
    assert found.cut.splits[3] > 4 * 56
    assert MK1.num_tiles // 2 < found.cut.num_vertices <= MK1.num_tiles


def test_rows_of_a_window_are_shared_where_that_gives_tiles_work():
    found = plan(OUTPUT, volume(1, 16, 16, 6, 5, 1, 2), replace(MK2, num_tiles=16))
    assert (found.plan.method, found.plan.sizes["taps"], found.cut.splits[3]) == ("window", 5, 5)
    assert found.cut.shares[3] == 16 * 5
    v = volume(4, 96, 192, 17, 3, 1, 1)
    shares = shares_of(output_axis(v, 1), 4, (1, 3))
    assert [(one.split, one.tap_split, one.taps) for one in shares] == [
        (1, 1, 3), (1, 3, 1), (2, 1, 3), (3, 1, 3), (4, 1, 3),
    ]


def test_workers_add_up_rows_of_windows_side_by_side():
    """Six rows, one each, of four elements of eight groups; nine results of a group, zeroed and added up by six."""
    sizes = {"rows": 6, "met": 24, "lanes": 8, "positions": 9, "input_groups": 1, "output_groups": 1, "groups": 1}
    zeroed, added = 6 * (4 + 72 / 4), 33 + 6 * (20 + (2 * 6 + 8) * 3)
    assert vertical_cycles(MK2, sizes) == 100 + 32 + zeroed + added + 24 + 6 * (15 + 7 + 3 + 3 * 3)
    assert vertical_cycles(MK2, {**sizes, "lanes": 16}) > vertical_cycles(MK2, sizes)


@pytest.mark.parametrize("sizes", [{"window": 1}, {"window": 3, "stride": 3, "padding": 1}, {"side": 8, "window": 8}])
def test_windows_of_few_channels_need_neighbours(sizes):
    v = volume(**{"batch": 1, "channels": 1, "out_channels": 1, "side": 30, "groups": 8, **sizes})
    methods = {plan(kind, v).plan.method for kind in (OUTPUT, INPUT)}
    assert sizes.get("side") or "slic" not in methods


def test_one_group_of_few_channels_is_left_to_other_vertices():
    """A 3x3 filter of four channels takes 13,251 cycles for an image of 1,024 x 768 on Mk1 silicon."""
    v = Volume(1, 1, 4, 4, (1, 1024, 768), (1, 1024, 768), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1))
    assert plan(OUTPUT, v, MK1).plan.method == "window"


def test_workers_start_anew_at_each_row():
    """Half a row of 112 each: 20 cycles, 11 for the row, and twice 10 and a cycle a position."""
    sizes = {
        "positions": 336, "rows": 3, "tap_rows": 3, "pieces_of_rows": 1, "step": 1, "together": 4, "passes": 2,
        "groups": 1, "input_groups": 1, "output_groups": 1,
    }
    assert slic_cycles(MK2, sizes) == 28 + 3 * (20 + 110 + 6 * (20 + 11 + 2 * (10 + 56)))
    assert slic_cycles(MK2, {**sizes, "passes": 1}) < slic_cycles(MK2, sizes)
    assert slic_cycles(MK2, {**sizes, "step": 2}) > slic_cycles(MK2, sizes)


@pytest.mark.parametrize(("channels", "dtype", "per_byte"), [
    (1, DType.HALF, 5.15), (2, DType.HALF, 3.125), (2, DType.FLOAT, 0.44),
])
def test_weights_of_groups_that_are_computed_as_one_are_set_among_zeros(channels, dtype, per_byte):
    """Beyond what the planner counts: as many cycles a byte as pieces of a group's channels take, and a fixed part."""
    found = plan(INPUT, volume(4, channels, channels, 14, 3, 2, 1, groups=512), MK1, dtype).plan
    assert (found.method, found.together > 1) == ("window", True)
    sizes = found.sizes
    weights = sizes["taps"] * sizes["inputs"] * sizes["outputs"] * sizes["groups"]
    assert sizes["laid"] == pytest.approx(587 + per_byte * dtype.device_bytes * weights, abs=1)


def test_less_memory_than_a_plan_needs_is_a_cliff():
    """On Mk1 silicon a 3x3 filter of an image of 1,024 x 768 takes 27 times as long at 0.1 as at 0.3."""
    v = Volume(1, 1, 4, 4, (1, 1024, 768), (1, 1024, 768), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1))
    roomy, tight = (plan(OUTPUT, v, MK1, available_memory=part).plan for part in (0.3, 0.1))
    assert (roomy.method, tight.method) == ("window", "multiply")
    assert not roomy.excess_bytes
    assert tight.temporary_bytes < roomy.temporary_bytes
    assert 10 < tight.cycles / roomy.cycles < 40


def test_an_image_whose_windows_become_channels_lies_beside_what_tiles_receive_of_it():
    """Two channels by three columns are six channels, and a panel has eight: four bytes of each, on 1,216 tiles."""
    v = Volume(1, 1, 2, 4, (1, 1024, 768), (1, 1024, 768), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1))
    folded, plain = (plan(OUTPUT, v, MK1, DType.FLOAT, available_memory=part).plan for part in (0.3, 0.1))
    assert (folded.method, folded.sizes["taps"], folded.sizes["input_group"]) == ("window", 3, 8)
    assert folded.expanded_bytes == -(-1024 * 768 * 8 * 4 // 1216)
    assert (plain.method, plain.expanded_bytes) == ("multiply", 0)
    op = Op("convolution", (), (), {"available_memory": 0.3})
    multiplied = convolution_sets(Pass(OUTPUT, v), op, MK1, DType.FLOAT)[0]
    assert multiplied.temporary_bytes == folded.temporary_bytes - folded.partial_bytes + folded.expanded_bytes


def test_a_unit_holds_sixteen_halves_or_eight_floats_of_a_windows_element():
    plans = [plan(OUTPUT, volume(16, 64, 64, 56, 3, 1, 1), MK1, dtype).plan for dtype in (DType.HALF, DType.FLOAT)]
    assert [(one.method, one.sizes["input_group"]) for one in plans] == [("window", 16), ("window", 8)]


def test_serial_parts_are_cut_before_windows_become_channels():
    """Four channels are one panel: that three columns make two of them gives nothing to take in parts."""
    v = Volume(1, 1, 4, 4, (1, 1024, 1024), (1, 1024, 1024), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1))
    tight = plan(OUTPUT, v, MK1, DType.FLOAT, available_memory=0.2)
    assert prod(tight.cut.parts) == 1


def test_channels_are_taken_in_parts_before_that():
    v = volume(8, 512, 512, 28, 3, 1, 1)
    whole, parts = (plan(OUTPUT, v, available_memory=part) for part in (0.6, 0.1))
    assert prod(whole.cut.parts) == 1
    assert prod(parts.cut.parts) > 1
    assert not parts.plan.excess_bytes
    assert parts.plan.cycles > whole.plan.cycles


def test_machines_of_few_tiles_have_plans():
    few = replace(MK2, num_tiles=3)
    assert plan(OUTPUT, volume(2, 16, 16, 12, 3, 1, 1), few).cut.num_vertices <= 3
    assert plan_convolution.cache_info().currsize
