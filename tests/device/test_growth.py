"""What has to hold of plans of any size: more work takes no less time, and none takes less than the machine's peak."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from torchipu.device.matmul_plan import MatmulPlan, plan_matmul
from torchipu.device.matrix_unit import conv_units
from torchipu.device.multi_slice import Access, SlicePlan, plan_look, plan_update
from torchipu.target import Target, lookup_target

MACHINES = tuple(lookup_target(name) for name in ("mk1", "mk2", "c600"))
SLACK = 1.25
"""By how much plans of more work may be faster: sizes that fill groups of 16 cut up better than 1,000 does (1.19)."""

machines = st.sampled_from(MACHINES)
sizes = st.tuples(*[st.integers(1, 4096)] * 3)


def plan_of(target: Target, sizes: tuple[int, int, int], *, is_half: bool, memory: float = 0.6) -> MatmulPlan:
    group = conv_units(target, is_half=is_half, half_partials=False)
    return plan_matmul(target, 1, *sizes, is_half, group, memory)


@settings(max_examples=40, deadline=None)
@given(machines, sizes, st.integers(0, 2), st.integers(2, 8), st.booleans())
def test_a_larger_product_takes_no_less_time(
    target: Target, sizes: tuple[int, int, int], side: int, factor: int, is_half: bool,
) -> None:
    first, second, third = (size * (factor if number == side else 1) for number, size in enumerate(sizes))
    larger = first, second, third
    small, large = (plan_of(target, one, is_half=is_half) for one in (sizes, larger))
    assert small.excess_bytes > 0 or large.excess_bytes > 0 or small.cycles <= SLACK * large.cycles


@settings(max_examples=40, deadline=None)
@given(machines, sizes, st.booleans())
def test_no_product_is_faster_than_the_matrix_unit(
    target: Target, sizes: tuple[int, int, int], is_half: bool,
) -> None:
    rate = target.amp_macs_half_float if is_half else target.amp_macs_float
    positions, inputs, outputs = sizes
    assert plan_of(target, sizes, is_half=is_half).cycles >= positions * inputs * outputs / target.num_tiles / rate


@settings(max_examples=20, deadline=None)
@given(sizes, st.sampled_from([(0.05, 0.1), (0.1, 0.3), (0.3, 0.6)]))
def test_a_product_with_more_memory_takes_no_more_time(
    sizes: tuple[int, int, int], memory: tuple[float, float],
) -> None:
    less, more = (plan_of(MACHINES[1], sizes, is_half=True, memory=part) for part in memory)
    assert less.excess_bytes > 0 or more.cycles <= less.cycles


@settings(max_examples=20, deadline=None)
@given(machines, st.integers(1, 100_000), st.integers(1, 512), st.integers(1, 32_768), st.sampled_from([2, 4]))
def test_what_a_tile_has_of_a_table_fits_it(
    target: Target, rows: int, lines: int, lookups: int, element_bytes: int,
) -> None:
    access = Access(lines, rows, lookups, element_bytes, adds=True)
    for plan in (plan_look(target, access, 0.6), plan_update(target, access, 0.6)):
        covered = rows * lines * element_bytes <= 0.5 * target.num_tiles * target.tile_memory_bytes
        assert not covered or held(plan) <= target.tile_memory_bytes
        assert plan.vertices <= target.num_tiles


def held(plan: SlicePlan) -> int:
    """Bytes of a table on a tile."""
    return plan.lines * plan.rows * plan.access.element_bytes
