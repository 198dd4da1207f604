"""Plans of convolutions: what they count, how they use tiles, and what they do when memory is short."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from torchipu.device.convolutions.axes import input_axis, output_axis, shares_of
from torchipu.device.convolutions.plan import plan_convolution
from torchipu.device.convolutions.sets import INPUT, OUTPUT, WEIGHT, Pass, convolution_sets, planned
from torchipu.device.convolutions.vertices import pointwise_cycles
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


def test_channels_of_a_depthwise_convolution_share_panels():
    v = volume(4, 1, 1, 112, 3, 1, 1, groups=32)
    found = plan(OUTPUT, v).plan
    assert found.together > 1
    assert 32 % found.together == 0


def test_less_memory_than_a_plan_needs_is_a_cliff():
    """On Mk1 silicon a 3x3 filter of an image of 1,024 x 768 takes 27 times as long at 0.1 as at 0.3."""
    v = Volume(1, 1, 4, 4, (1, 1024, 768), (1, 1024, 768), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1))
    roomy, tight = (plan(OUTPUT, v, MK1, available_memory=part).plan for part in (0.3, 0.1))
    assert (roomy.method, tight.method) == ("window", "multiply")
    assert not roomy.excess_bytes
    assert tight.temporary_bytes < roomy.temporary_bytes
    assert 10 < tight.cycles / roomy.cycles < 40


def test_an_image_whose_windows_become_channels_lies_beside_what_tiles_receive_of_it():
    """Four channels by three columns are 12 channels, and a panel has 16: four bytes of each, on 1,216 tiles."""
    v = Volume(1, 1, 4, 4, (1, 1024, 768), (1, 1024, 768), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1))
    folded, plain = (plan(OUTPUT, v, MK1, DType.FLOAT, available_memory=part).plan for part in (0.3, 0.2))
    assert (folded.sizes["input_group"], plain.sizes["input_group"]) == (16, 8)
    assert folded.expanded_bytes == -(-1024 * 768 * 16 * 4 // 1216)
    assert plain.expanded_bytes == 0
    op = Op("convolution", (), (), {"available_memory": 0.3})
    multiplied = convolution_sets(Pass(OUTPUT, v), op, MK1, DType.FLOAT)[0]
    assert multiplied.temporary_bytes == folded.temporary_bytes - folded.partial_bytes + folded.expanded_bytes


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
