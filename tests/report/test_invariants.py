"""Numbers of a report agree, whatever the program: tables, summary, trace, pva and the program itself."""

from __future__ import annotations

import itertools
import json
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pva
from tests.placed_graphs import lowered, pipeline, sharded, training_graph
from tests.strategies import GraphBuilder, training_graphs
from torchipu.compiler import compile_graph, try_graph
from torchipu.device.cost import estimate
from torchipu.errors import OutOfTileMemoryError
from torchipu.ir.graph import Graph
from torchipu.ir.program import Executable, Execute, leaves_of
from torchipu.ir.types import Role
from torchipu.options import Options
from torchipu.report import profile_of
from torchipu.report.directory import read_directory, write_directory
from torchipu.report.facts.gather import Facts, facts_of
from torchipu.report.summary import summary_of
from torchipu.report.trace import trace_of
from torchipu.target import lookup_target

MK2 = lookup_target("mk2")
FEW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
Made = tuple[Executable, Facts]


def reported(name: str, executable: Executable, cost: Any, target: Any, options: Options) -> Made:
    profile = profile_of(executable, cost, target, options.io_tiles)
    return executable, facts_of(name, executable, cost, target, options, profile)


@st.composite
def pipelines(draw: st.DrawFn) -> Made:
    """Chains of additions over stages, pipelined or one after another, on a few tiles."""
    stages, layers = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    elements, tiles = draw(st.integers(1, 3000)), draw(st.integers(1, 40))
    micro_batches = draw(st.integers(2 * stages - 1, 2 * stages + 4))
    schedule = draw(st.sampled_from([pipeline, sharded]))(stages, micro_batches)
    target = replace(MK2, num_tiles=tiles)
    executable = lowered(
        training_graph(stages, elements, layers), schedule, target, micro_batches=micro_batches,
        off_chip_state=draw(st.booleans()),
    )
    cost = estimate(executable, target, schedule)
    return reported("train", executable, cost, target, Options())


@st.composite
def compiled(draw: st.DrawFn) -> Made:
    """Matrix products with their backward, in random blocks, through the compiler."""
    target = replace(MK2, num_tiles=draw(st.integers(1, 12)))
    options = Options(
        recompute=draw(st.sampled_from(["none", "stage"])), execution=draw(st.sampled_from(["pipelined", "sharded"])),
    )
    made = compile_graph(draw(training_graphs()), options, target, micro_batches=24)
    return reported(made.graph.name, made.executable, made.cost, made.target, options)


def rows(facts: Facts, name: str) -> list[Any]:
    return list(facts.tables[name])


ANY = st.one_of(pipelines(), compiled())


# --------------------------------------------------------------------------- memory
@FEW
@given(ANY)
def test_categories_add_up_gaps_are_no_less_than_nothing_and_the_fullest_tile_is_the_headline(made: Made) -> None:
    _, facts = made
    limit = facts.figure("tile_memory_bytes")
    sums: Counter[tuple[int, int]] = Counter()
    for one in rows(facts, "tile_categories"):
        assert one.bytes > 0
        sums[one.ipu, one.tile] += one.bytes
    for tile in rows(facts, "tiles"):
        assert sums[tile.ipu, tile.tile] == tile.including_gaps >= tile.excluding_gaps >= tile.always >= 0
    found = summary_of(facts)
    fullest = max(tile.including_gaps for tile in rows(facts, "tiles"))
    assert found["fullest_tile_bytes"] == fullest
    assert found["fits"] == (fullest <= limit)
    assert fullest == max(memory["total_bytes"] for memory in facts.figure("memory_by_ipu"))


@FEW
@given(ANY)
def test_variables_hold_on_tiles_what_they_hold_in_all_and_never_overlap_in_time_and_place(made: Made) -> None:
    executable, facts = made
    held: Counter[int] = Counter()
    tiles: dict[int, set[int]] = {}
    for share in rows(facts, "shares"):
        held[share.variable] += share.bytes * (share.end_tile - share.first_tile)
        tiles.setdefault(share.variable, set()).update(range(share.first_tile, share.end_tile))
    variables = rows(facts, "variables")
    assert [one.name for one in variables] == [one.name for one in executable.variables]
    for one in variables:
        assert held[one.number] == one.bytes
        assert one.begin <= one.end
    on_chip = [one for one in variables if not one.off_chip and one.bytes]
    for one, other in itertools.combinations(on_chip, 2):
        together = one.ipu == other.ipu and one.begin <= other.end and other.begin <= one.end
        if together and tiles[one.number] & tiles[other.number]:
            assert one.address_end <= other.address or other.address_end <= one.address, (one, other)


def test_what_does_not_fit_is_flagged_where_the_compiler_refuses_it() -> None:
    target = replace(MK2, num_tiles=2, tile_memory_bytes=16_384, code_region_bytes=16_384)
    graph = wide_product()
    with pytest.raises(OutOfTileMemoryError):
        compile_graph(graph, Options(), target)
    made = try_graph(graph, Options(), target)
    _, facts = reported("wide", made.executable, made.cost, made.target, Options())
    assert summary_of(facts)["fits"] is False
    with tempfile.TemporaryDirectory() as folder:
        tiles = pva.openReport(write_directory(facts, Path(folder))).compilation.tiles
        assert [tile.memory.overflowed for tile in tiles] == [
            tile.memory.total.includingGaps > 16_384 for tile in tiles
        ]
        assert any(tile.memory.overflowed for tile in tiles)


# --------------------------------------------------------------------------- cycles
@FEW
@given(ANY)
def test_a_tile_takes_no_more_than_its_step_and_the_slowest_takes_all_of_it(made: Made) -> None:
    executable, facts = made
    patterns: dict[int, list[int]] = {}
    for part in rows(facts, "patterns"):
        patterns.setdefault(part.pattern, []).append(part.value)
        assert 0 <= part.first_tile < part.end_tile <= facts.figure("num_tiles")
    sets = {
        leaf.compute_set.name: leaf.compute_set
        for program in executable.functions.values() for leaf in leaves_of(program) if isinstance(leaf, Execute)
    }
    for step in rows(facts, "steps"):
        if step.category != "compute":
            assert step.cycles_by_tile == -1
            continue
        cycles = patterns.get(step.cycles_by_tile, [0])
        assert max(cycles) == step.cycles == max(group.cycles for group in sets[step.name].groups)
        assert step.vertices == sum(len(group.runs.runs) for group in sets[step.name].groups)


@FEW
@given(ANY)
def test_functions_runs_and_operations_add_up_to_the_iteration(made: Made) -> None:
    _, facts = made
    by_function: Counter[str] = Counter()
    for step in rows(facts, "steps"):
        by_function[step.function] += 0 if step.overlaps else step.cycles * step.runs
    assert {one.name: one.cycles for one in rows(facts, "functions")} == {
        one.name: by_function[one.name] for one in rows(facts, "functions")
    }
    for run in rows(facts, "runs"):
        assert 0 <= run.begin <= run.end <= facts.figure("cycles_per_update")
    for _, mine in itertools.groupby(rows(facts, "runs"), key=lambda run: run.ipu):
        for before, after in itertools.pairwise(run for run in mine if run.kind != "transfer"):
            assert before.end <= after.begin
    spent = sum(by_category["compute"] for by_category in facts.figure("cycles_by_category_by_ipu"))
    assert sum(one.compute for one in rows(facts, "operations")) == spent
    for one in rows(facts, "operations"):
        assert one.cycles == one.compute + one.exchange + one.sync


# --------------------------------------------------------------------------- files
@FEW
@given(ANY)
def test_rows_slices_and_pva_have_as_many_steps_and_the_same_cycles(made: Made) -> None:
    _, facts = made
    with tempfile.TemporaryDirectory() as folder:
        path = write_directory(facts, Path(folder))
        report = pva.openReport(path)
        with closing(sqlite3.connect(path)) as connection:
            def one(query: str) -> Any:
                return connection.execute(query).fetchone()[0]

            count = one("SELECT count(*) FROM execution")
            drawn = [slice_ for slice_ in trace_of(facts)["traceEvents"] if "runs" in slice_.get("args", {})]
            assert len(report.execution.steps) == count == len(drawn) == summary_of(facts)["steps_per_update"]
            for ipu in range(facts.figure("num_ipus")):
                total = one(f"SELECT coalesce(sum(cycles * runs), 0) FROM execution WHERE ipu = {ipu}")
                assert sum(step.ipus[ipu].cycles for step in report.execution.steps) == total
                slices = [slice_ for slice_ in drawn if slice_["pid"] == ipu + 1]
                assert sum(slice_["args"]["cycles"] for slice_ in slices) == total
            tiles = report.compilation.tiles
            assert [tile.memory.total.includingGaps for tile in tiles] == [
                row[0] for row in connection.execute("SELECT including_gaps FROM tiles ORDER BY ipu, tile")
            ]
            assert report.compilation.graph.numComputeSets == facts.figure("num_compute_sets")
            assert len(report.compilation.loweredVariables) == one("SELECT sum(end_tile - first_tile) FROM shares")
        for step in report.compilation.livenessProgramSteps:
            held = step.notAlwaysLiveMemory
            assert sum(variable.size for variable in held.variables) == held.bytes
        (again,) = read_directory(Path(folder)).values()
        assert again.tables == facts.tables


@FEW
@given(ANY)
def test_the_same_program_gives_the_same_files(made: Made) -> None:
    _, facts = made
    first, second = (_bytes(lambda folder: write_directory(facts, folder)) for _ in range(2))
    assert first == second
    told = json.loads(first["summary.json"])
    assert all(told[name] - json.loads(second["summary.json"])[name] == 0 for name in told if is_number(told[name]))


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bytes(write: Callable[[Path], object]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")  # the page has the name of its directory
        write(run)
        return {file.name: file.read_bytes() for file in run.iterdir() if file.suffix}


def wide_product() -> Graph:
    build = GraphBuilder()
    value = build.input("x", shape=(64, 64))
    weight = build.input("w", Role.WEIGHT, shape=(64, 64))
    return build.graph(build.op("aten.mm.default", ("self", value), ("mat2", weight)))
