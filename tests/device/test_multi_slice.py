"""Plans of access to rows by index."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from torchipu.device.multi_slice import Access, SlicePlan, plan_look, plan_update
from torchipu.score.access import Access as Benchmark
from torchipu.score.access import ScatterAdd
from torchipu.score.programs import Frozen, outcome_of
from torchipu.target import Target, lookup_target

BOW = lookup_target("bow")
MOST = 0.6


def access(rows: int, lines: int, lookups: int, **other: int) -> Access:
    return Access(lines, rows, lookups, 4, **other)


@pytest.mark.parametrize("plan", [plan_look, plan_update])
@pytest.mark.parametrize(("rows", "lines", "lookups"), [(1, 1, 1), (5, 7, 3), (30_000, 1024, 512), (4096, 16, 32_768)])
def test_parts_cover_everything_on_the_tiles_there_are(
    plan: Callable[[Target, Access, float], SlicePlan], rows: int, lines: int, lookups: int,
) -> None:
    made = plan(BOW, access(rows, lines, lookups, adds=True), MOST)
    assert made.vertices <= BOW.num_tiles
    assert made.line_parts * made.lines >= lines > (made.line_parts - 1) * made.lines
    assert made.row_parts * made.rows >= rows > (made.row_parts - 1) * made.rows
    assert made.lookup_parts * made.lookups >= lookups > (made.lookup_parts - 1) * made.lookups
    assert made.groups * made.group >= made.lookup_parts


def test_small_tables_are_copied_and_large_ones_split() -> None:
    """On a Bow, cycles jump between 128 and 1,024 rows (hydronet-gnn's benchmark)."""
    assert plan_look(BOW, access(128, 64, 256), MOST).row_parts == 1
    assert plan_look(BOW, access(1024, 64, 256), MOST).row_parts > 1
    assert plan_look(BOW, access(1024, 64, 4096), MOST).row_parts == 1  # many indices pay for the copies


def test_copies_of_tables_keep_to_the_memory() -> None:
    """With little memory, 4,096 rows of 512 floats take up to 3 times the cycles on a Bow (same source)."""
    most, least = (plan_look(BOW, access(4096, 512, 4096), part) for part in (0.6, 0.04))
    assert least.lookup_parts == 1 < most.lookup_parts


def test_only_sums_are_made_in_parts_where_all_fits() -> None:
    assert plan_update(BOW, access(16, 16, 4096), MOST).lookup_parts == 1
    assert plan_update(BOW, access(16, 16, 4096, adds=True), MOST).lookup_parts > 77


@pytest.mark.parametrize("tables", [1, 2])
def test_what_does_not_fit_is_made_in_parts(tables: int) -> None:
    """A million elements of one line are 8 MB with their indices, and a tile has 0.6."""
    made = plan_update(BOW, access(10_000, 1, 1 << 20, tables=tables), MOST)
    assert made.lookups * 8 + made.rows * 4 * (1 + tables) < BOW.tile_memory_bytes
    assert made.tables == tables
    assert plan_update(BOW, access(10_000, 1, 1 << 20, tables=0), MOST).lookup_parts == 1


def test_sums_of_whole_tables_are_neither_copied_nor_laid_out() -> None:
    """On a Bow, 16 rows take 5,209 cycles for 32,768 indices, and 4,096 rows of 512 floats 177,738 for 16,384."""
    small, large = (plan_update(BOW, access(*sizes, adds=True), MOST) for sizes in (
        (16, 16, 32_768), (4096, 512, 16_384),
    ))
    assert small.sums_whole_rows
    assert small.lines == 16
    assert not large.sums_whole_rows
    assert large.lookup_parts > 1


@pytest.mark.parametrize(("rows", "lines"), [(1024, 16), (4096, 64), (100_000, 3)])
def test_few_updates_share_the_rows_out_among_many_tiles(rows: int, lines: int) -> None:
    """Vertices take the same cycles for 32 indices whether 6 tiles share the rows or all: a row of 5,100 on a Bow."""
    made = plan_update(BOW, access(rows, lines, 2, adds=True), MOST)
    assert made.lines * made.rows <= 2 * max(16, rows * lines / BOW.num_tiles)


@pytest.mark.parametrize(("rows", "lines"), [(100, 1), (1024, 16), (4096, 100), (100_000, 3)])
def test_more_updates_do_not_take_less_time_or_memory(rows: int, lines: int) -> None:
    counts = 1, 16, 256, 4096, 32_768
    made = [outcome_of(Benchmark(ScatterAdd, rows, lines, count), Frozen("bow")) for count in counts]
    for fewer, more in pairwise(made):
        assert fewer.device_cycles <= 1.2 * more.device_cycles
        assert fewer.tile_bytes <= 1.2 * more.tile_bytes


@pytest.mark.parametrize("plan", [plan_look, plan_update])
def test_the_least_memory_is_that_of_words_of_rows(plan: Callable[[Target, Access, float], SlicePlan]) -> None:
    """An index more takes 4 bytes more and one word of its row, as PopLibs' embedding tool has it on 1,472 tiles."""
    made = plan(lookup_target("mk2"), Access(200, 100_000, 11_520, 2, adds=True), 1e-6)
    assert (made.lines, made.row_parts, made.lookup_parts) == (2, 14, 1)


@pytest.mark.parametrize("plan", [plan_look, plan_update])
def test_a_part_of_a_table_fits_a_tile(plan: Callable[[Target, Access, float], SlicePlan]) -> None:
    machine = lookup_target("mk1")
    made = plan(machine, Access(200, 100_000, 11_520, 2, adds=True), 1.0)
    assert made.lines * made.rows * 2 < machine.tile_memory_bytes


def test_indices_of_one_row_are_all_gone_through_by_its_part() -> None:
    even, one_point = (
        plan_look(BOW, access(4096, 64, 512, is_one_point=is_one_point), MOST) for is_one_point in (False, True)
    )
    assert even.sharers == even.row_parts > 1 == one_point.sharers
