"""pva: its numbers are those of the SQLite file and of the program itself; what cannot be read says so."""

from __future__ import annotations

import json
import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest
import torch

import pva
import torchipu
from tests.report.test_reports import STEPS, pipelined, with_io_tiles
from torchipu import poptorch
from torchipu.errors import ReportError
from torchipu.ir.program import Execute, HostCopy, leaves_of
from torchipu.target import lookup_target
from torchipu.target.spec import TARGETS


@pytest.fixture(scope="module", params=STEPS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    step = STEPS[request.param]()
    return step, step.report(tmp_path_factory.mktemp("run ü"))


def column(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] if len(row) == 1 else row for row in connection.execute(query)]


# --------------------------------------------------------------------------- what a tutorial does
def test_the_alias_is_the_package_itself() -> None:
    assert pva.__name__ == "torchipu.pva"
    assert sys.modules["pva"] is sys.modules["torchipu.pva"]


TUTORIAL = """
import json
import pickle
import sys
import pva

report = pva.openReport(sys.argv[1], sys.argv[2])
print("Number of compute sets:", report.compilation.graph.numComputeSets)
print("Number of tiles on target:", report.compilation.target.numTiles)
print("Version of Poplar used:", report.poplarVersion.string)

cycles = sum(step.ipus[0].cycles for step in report.execution.steps)
print("Cycles on IPU 0:", cycles)

class VertexTypes(pva.ProgramVisitor):
    def __init__(self):
        self.several = []
        self.exchanges = 0
        super().__init__()

    def visitOnTileExecute(self, onTileExecute):
        names = {vertex.type.name for vertex in onTileExecute.computeset.vertices}
        if len(names) > 1:
            self.several.append(onTileExecute.name)

    def visitDoExchange(self, doExchange):
        self.exchanges += 1

visitor = VertexTypes()
for step in report.execution.steps:
    step.program.accept(visitor)
memory = [tile.memory.total.includingGaps for tile in report.compilation.tiles]
lines = []
for operation in pva.OperationAnalysis(report).operations:
    context = operation.debugContext
    layer = json.loads(context.json)
    lines.append((layer["layer"], context.location.fileName, context.location.lineNumber))
print(json.dumps([cycles, visitor.several, visitor.exchanges, max(memory), len(memory), lines]))
"""


def test_the_operations_of_the_tutorial_run_as_a_script(written: tuple[Any, Path], tmp_path: Path) -> None:
    step, path = written
    script = tmp_path / "libpva_tutorial.py"
    script.write_text(TUTORIAL, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, path, path.parent / "debug.cbor"], capture_output=True, text=True, check=True,
    )
    *told, last = done.stdout.splitlines()
    ipus = step.profile.num_ipus
    assert told[0] == f"Number of compute sets: {step.profile.num_compute_sets}"
    assert told[1] == f"Number of tiles on target: {1472 * ipus * step.profile.replicas}"
    assert told[2] == f"Version of Poplar used: 3.3.0 (torchipu {torchipu.__version__})"
    cycles, several, exchanges, fullest, tiles, lines = json.loads(last)
    on_first = "SELECT coalesce(sum(cycles * runs), 0) FROM execution WHERE ipu = 0"
    assert [cycles] == column(path, on_first)
    assert several == []
    assert [exchanges] == column(path, "SELECT count(*) FROM execution WHERE category = 'exchange'")
    assert fullest == max(memory.total_bytes for memory in step.profile.memory_by_ipu)
    assert tiles == 1472 * ipus
    source = str(Path(__file__).with_name("test_reports.py"))
    assert {(layer, file) for layer, file, _ in lines} == {("torchipu", source), ("torchipu", "")}
    held = Path(source).read_text(encoding="utf-8").splitlines()
    assert all(held[line - 1].strip() if file else line == 0 for _, file, line in lines)
    assert "(x)" in held[lines[0][2] - 1]


# --------------------------------------------------------------------------- numbers agree
def test_programs_are_those_of_the_executable(written: tuple[Any, Path]) -> None:
    step, path = written
    report = pva.openReport(path)
    programs = {**step.compiled.executable.programs, **step.compiled.executable.functions}
    leaves = [leaf for program in programs.values() for leaf in leaves_of(program)]
    sets = [leaf.compute_set for leaf in leaves if isinstance(leaf, Execute)]
    known = {variable.name for variable in step.compiled.executable.variables}
    assert [one.name for one in report.compilation.computeSets] == [one.name for one in sets]
    for found, expected in zip(report.compilation.computeSets, sets, strict=True):
        counts: dict[str, int] = {}
        for group in expected.groups:
            counts[group.codelet] = counts.get(group.codelet, 0) + len(group.runs.runs)
        assert {one.type.name: one.count for one in found.vertices} == counts
        fields = {variable.name for group in expected.groups for variable in group.fields.values()}
        assert {one.name for one in found.program.vars} == fields & known
        assert max(found.cyclesByTile) == max(group.cycles for group in expected.groups)
        busy = [tile for tile, cycles in enumerate(found.cyclesByTile) if cycles]
        assert {tile // 1472 for tile in busy} <= {expected.ipu}
        assert {tile % 1472 for tile in busy} <= {tile for group in expected.groups for tile, _, _ in group.runs.runs}
    kinds = [one.type for one in report.compilation.programs]
    assert kinds.count(pva.Program.Type.StreamCopyMid) == sum(isinstance(leaf, HostCopy) for leaf in leaves)
    graph = report.compilation.graph
    assert graph.numComputeSets == len(sets)
    exchanges = {pva.Program.Type.DoExchange, pva.Program.Type.GlobalExchange}
    assert graph.numExchanges == sum(kind in exchanges for kind in kinds) > 0
    assert graph.numVars == len(step.compiled.executable.variables)
    assert graph.numVertices == sum(len(group.runs.runs) for one in sets for group in one.groups)


def test_the_tree_of_programs_reaches_each_once_and_calls_lead_to_functions(written: tuple[Any, Path]) -> None:
    step, path = written
    compilation = pva.openReport(path).compilation
    roots = {one.name: one for one in compilation.programs if one.name in {"main", *step.compiled.executable.functions}}
    seen: list[int] = []

    def walk(program: pva.Program) -> None:
        seen.append(program._id)
        if program.type is pva.Program.Type.Call:
            assert [child.name for child in program.children] == [program.name]
            return
        for child in program.children:
            walk(child)

    with closing(sqlite3.connect(path)) as connection:
        starts = [row[0] for row in connection.execute("SELECT number FROM programs WHERE parent = -1")]
    for number in starts:
        walk(compilation.programs[number])
    assert sorted(seen) == list(range(len(compilation.programs)))
    assert {"main", *step.compiled.executable.functions} == set(roots)


def test_steps_of_the_execution_are_those_of_the_file(written: tuple[Any, Path]) -> None:
    step, path = written
    report = pva.openReport(path)
    execution, tiles = report.execution, report.compilation.target.tilesPerIpu
    assert len(execution.steps) == column(path, "SELECT count(*) FROM execution")[0]
    assert execution.totalCycles.total == step.profile.cycles_per_update
    (run,) = execution.runs
    assert run.microseconds.end == pytest.approx(step.profile.microseconds_per_update)
    assert len(run.steps) == len(execution.steps)
    rows = column(path, "SELECT ipu, started, name, cycles * runs, exchanged_bytes * runs, category FROM execution")
    for found, (ipu, started, _, cycles, moved, category) in zip(execution.steps, rows, strict=True):
        assert found.begin == started
        assert [(number, one.cycles) for number, one in enumerate(found.ipus) if one.cycles] == [
            (ipu, cycles)
        ] * (cycles > 0)
        here = found.ipus[ipu]
        assert here.cyclesFrom == (started, started)
        assert here.cyclesTo.max == started + cycles
        own = found.cyclesByTile[ipu * tiles : (ipu + 1) * tiles]
        assert here.cyclesTo.min == started + min(own)
        if category == "compute":
            busy = [one for one in own if one]
            assert here.activeTileBalance == pytest.approx(sum(busy) / len(busy) / cycles)
        assert here.activeCycles == cycles
        assert (here.activeCycles.cyclesFrom, here.activeCycles.cyclesTo) == (here.cyclesFrom, here.cyclesTo)
        assert pickle.loads(pickle.dumps(here.activeCycles)).cyclesTo.max == here.cyclesTo.max
        assert 0 < here.tileBalance <= here.activeTileBalance <= 1
        assert len(found.computeSets) == (category == "compute")
        ways = (here.dataIn, here.dataOut)
        assert sorted(ways) == ([0, moved] if category == "host" else [moved, moved])
    host = {found.program.name: found for found in execution.steps if found.program.type.name == "StreamCopyMid"}
    incoming = {leaf.stream for leaf in host_copies(step) if leaf.to_device}
    assert {name for name, found in host.items() if sum(one.dataIn for one in found.ipus)} == incoming & set(host)
    last = execution.steps[-1]
    assert last.begin == execution.steps[len(execution.steps) - 1].begin
    assert [one.begin for one in execution.steps[:3]] == [execution.steps[place].begin for place in range(3)]
    with pytest.raises(IndexError, match=f"place {len(execution.steps)} of a list of {len(execution.steps)}"):
        execution.steps[len(execution.steps)]


def test_tiles_that_all_work_end_when_their_own_cycles_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a whole IPU a small program leaves some tile idle in every step: its first ends as it begins."""
    monkeypatch.setitem(TARGETS, "few tiles", replace(lookup_target("mk2"), name="few tiles", num_tiles=4))
    step = torchipu.InferenceStep(torch.nn.Linear(70, 33), torchipu.Options(target="few tiles"))
    step(torch.randn(9, 70))
    busy = list[int]()
    for found in pva.openReport(step.report(tmp_path)).execution.steps:
        (here,), own = found.ipus, found.cyclesByTile
        assert here.cyclesTo == (found.begin + min(own), found.begin + max(own))
        busy += [found.begin for _ in own if min(own) > 0]
    assert max(busy) > 0, "none of them begins later than the program"


def host_copies(step: Any) -> list[HostCopy]:
    functions = step.compiled.executable.functions.values()
    return [leaf for program in functions for leaf in leaves_of(program) if isinstance(leaf, HostCopy)]


def test_memory_is_that_of_the_profile_by_tile_category_and_variable(written: tuple[Any, Path]) -> None:
    step, path = written
    compilation = pva.openReport(path).compilation
    for ipu in compilation.ipus:
        expected = step.profile.memory_by_ipu[ipu.id]
        assert max(tile.memory.total.includingGaps for tile in ipu.tiles) == expected.total_bytes
        tile = ipu.tiles[expected.tile]
        assert tile.id == ipu.id * 1472 + expected.tile
        assert tile.memory.byCategory == {name: count for name, count in expected.bytes_by_category.items() if count}
    for tile in compilation.tiles[::97]:
        memory = tile.memory
        named = {name: getattr(memory.category, name).total for name in dir(memory.category)}
        assert sum(named.values()) == memory.total.excludingGaps
        assert memory.alwaysLiveBytes + memory.notAlwaysLiveBytes == memory.total.excludingGaps
        assert memory.overflowed is False
    code = {one.codelet: one for group in compute_groups(step) for one in group}
    assert {one.type.name for tile in compilation.tiles[::7] for one in tile.memory.vertices} <= set(code)
    with pytest.raises(AttributeError, match="there is no category 'vertexcode' of memory: they are constant"):
        _ = compilation.tiles[0].memory.category.vertexcode


def test_vertices_of_a_tile_are_those_that_the_program_puts_there(written: tuple[Any, Path]) -> None:
    step, path = written
    expected: dict[int, dict[str, int]] = {}
    programs = {**step.compiled.executable.programs, **step.compiled.executable.functions}
    leaves = [leaf for program in programs.values() for leaf in leaves_of(program) if isinstance(leaf, Execute)]
    for compute_set in {leaf.compute_set.name: leaf.compute_set for leaf in leaves}.values():
        for group in compute_set.groups:
            for tile, _, _ in group.runs.runs:
                here = expected.setdefault(compute_set.ipu * 1472 + tile, {})
                here[group.codelet] = here.get(group.codelet, 0) + 1
    tiles = pva.openReport(path).compilation.tiles
    for place in {*sorted(expected)[::5], *range(0, len(tiles), 97)}:
        found = {one.type.name: one.count for one in tiles[place].memory.vertices}
        assert found == expected.get(place, {}), place


def test_a_tile_that_is_full_to_its_last_byte_does_not_overflow(tmp_path: Path) -> None:
    path = STEPS[next(iter(STEPS))]().report(tmp_path)
    most = max(tile.memory.total.includingGaps for tile in pva.openReport(path).compilation.tiles)
    for room, overflows in ((most, False), (most - 1, True)):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE facts SET value = ? WHERE name = 'tile_memory_bytes'", (str(room),))
        tiles = pva.openReport(path).compilation.tiles
        fullest = [tile for tile in tiles if tile.memory.total.includingGaps == most]
        assert fullest
        assert all(tile.memory.overflowed is overflows for tile in fullest)


def compute_groups(step: Any) -> list[Any]:
    functions = step.compiled.executable.functions.values()
    leaves = [leaf for program in functions for leaf in leaves_of(program)]
    return [leaf.compute_set.groups for leaf in leaves if isinstance(leaf, Execute)]


def test_variables_lie_where_the_program_maps_them(written: tuple[Any, Path]) -> None:
    step, path = written
    compilation = pva.openReport(path).compilation
    by_name: dict[str, dict[int, int]] = {}
    for one in compilation.loweredVariables:
        by_name.setdefault(one.name, {})[one.tile] = one.size
    for variable in step.compiled.executable.variables:
        expected: dict[int, int] = {}
        for tile, begin, end in variable.mapping.runs:
            place = variable.ipu * 1472 + tile
            size = (end - begin) * variable.dtype.device_bytes * variable.depth
            expected[place] = expected.get(place, 0) + size
        assert by_name.get(variable.name, {}) == expected
    for one in compilation.loweredVariables[::13]:
        assert one.offset == step.compiled.executable.addresses[one.name][0]
    always = {one.name: one.size for one in compilation.alwaysLiveVariables}
    tiles = range(1472 * step.profile.num_ipus)
    by_tile = [one for tile in tiles[:64] for one in compilation.alwaysLiveVariablesForTile(tile)]
    assert {one.name for one in by_tile} <= set(always)
    with pytest.raises(IndexError, match="there is no tile -1: the program has"):
        compilation.alwaysLiveVariablesForTile(-1)


def test_what_lives_at_a_step_adds_up_on_all_tiles_and_on_each(written: tuple[Any, Path]) -> None:
    _, path = written
    compilation = pva.openReport(path).compilation
    assert len(compilation.livenessProgramSteps) == column(path, "SELECT count(*) FROM liveness")[0]
    for step in compilation.livenessProgramSteps[:: max(1, len(compilation.livenessProgramSteps) // 12)]:
        held = step.notAlwaysLiveMemory
        assert sum(one.size for one in held.variables) == held.bytes
        assert step.program.type is pva.Program.Type.OnTileExecute
        used = [tile for tile in range(1472 * len(compilation.ipus)) if tile // 1472 == step.ipu]
        assert sum(step.notAlwaysLiveMemoryForTile(tile).bytes for tile in used) == held.bytes
        sizes = [one.size for one in held.variables]
        assert sizes == sorted(sizes, reverse=True)


def test_a_recomputed_op_leads_to_the_op_of_the_forward(tmp_path: Path) -> None:
    report = pva.openReport(pipelined().report(tmp_path))
    operations = pva.OperationAnalysis(report).operations
    again = [one for one in operations if one.replacedDebugContext is not None]
    assert again
    by_name = {one.name: one for one in operations}
    for one in again:
        assert one.replacedDebugContext.name == one.name.removesuffix(".again")
        assert by_name[one.replacedDebugContext.name].type == one.type
    assert {one.name for one in operations if one.name.endswith(".again")} == {one.name for one in again}
    for one in operations:
        assert one.cycles == one.computeCycles + one.exchangeCycles + one.syncCycles
        kinds = [program.type.name for program in one.programs]
        assert kinds.count("OnTileExecute") >= 1


def test_a_report_of_poptorch_has_contexts_of_its_layer_for_every_operation(tmp_path: Path) -> None:
    class Looping(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.for_loop(3, lambda y: [y * 2 + 1], [x])[0].relu()

    poptorch.inferenceModel(Looping(), poptorch.Options().enableProfiling(tmp_path)).compile(torch.randn(4, 3))
    report = pva.openReport(tmp_path / "inference" / "profile.pop", tmp_path / "inference" / "debug.cbor")
    operations = pva.OperationAnalysis(report).operations
    assert {"mul", "relu"} <= {one.type for one in operations}
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    for one in operations:
        assert one.debugContext is not None
        assert (one.debugContext.layer, json.loads(one.debugContext.json)["layer"]) == ("poptorch", "poptorch")
    for one in operations:
        if one.type == "relu":
            assert one.debugContext.name == "Relu"
            assert one.debugContext.location.fileName == __file__
            assert ".relu()" in source[one.debugContext.location.lineNumber - 1]


def test_settings_versions_and_lists_that_print_as_long_as_asked(tmp_path: Path) -> None:
    report = pva.openReport(with_io_tiles().report(tmp_path))
    levels = pva.InstrumentationSettings.ComputeInstrumentationLevel
    assert report.instrumentationSettings.computeInstrumentationLevel is levels.Tile
    assert [level.value for level in levels] == [0, 1, 2, 3, 4, 5]
    assert report.version.isUnstableFormat
    target = report.compilation.target
    assert (target.type, target.architecture) == (pva.Target.Type.IpuModel, pva.IPU.Architecture.Ipu2)
    assert target.totalMemory == target.numIPUs * target.bytesPerIPU == 1472 * 624 * 1024
    report.listPrintLength(2)
    assert repr(report.compilation.tiles).endswith("... 1470 more]")
    report.listPrintLength(10)
    with pytest.raises(ValueError, match="a list cannot print -1 members"):
        report.listPrintLength(-1)


def test_every_kind_of_program_has_a_method_of_the_visitor() -> None:
    for kind in pva.Program.Type:
        assert callable(getattr(pva.ProgramVisitor(), f"visit{kind.name}"))


# --------------------------------------------------------------------------- bad input
@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_io_tiles().report(tmp_path_factory.mktemp("good"))


def test_a_profile_that_is_no_profile_is_refused(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    with pytest.raises(FileNotFoundError, match="there is no profile"):
        pva.openReport(path)
    for content, words in ((b"", "is empty"), (b"\x7fELF and more", "is no profile of torchipu")):
        path.write_bytes(content)
        with pytest.raises(ReportError, match=words):
            pva.openReport(path)
    path.write_bytes(good.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE format SET version = 99")
        connection.commit()
    with pytest.raises(ReportError, match="has version 99 of the format"):
        pva.openReport(path)


@pytest.mark.parametrize(("change", "words"), [
    ("DELETE FROM facts WHERE name = 'num_tiles'", "is damaged: there is no fact 'num_tiles'"),
    ("UPDATE facts SET value = '[1472]' WHERE name = 'num_tiles'", r"the fact 'num_tiles' is \[1472\], no number"),
    ("UPDATE facts SET value = 'Infinity' WHERE name = 'num_tiles'", "the fact 'num_tiles' is inf, no number"),
])
def test_a_fact_that_is_missing_or_no_number_is_damage(good: Path, tmp_path: Path, change: str, words: str) -> None:
    path = tmp_path / "profile.pop"
    path.write_bytes(good.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    with pytest.raises(ReportError, match=words):
        assert pva.openReport(path).compilation.target.numTiles


def test_damage_that_is_met_later_is_told_then(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    path.write_bytes(good.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE steps")
        connection.commit()
    report = pva.openReport(path)
    assert len(report.compilation.tiles) == 1472
    with pytest.raises(ReportError, match="is damaged: no such table: steps"):
        len(report.execution.steps)


def test_cycles_by_tile_do_not_depend_on_the_number_of_their_pattern(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    path.write_bytes(good.read_bytes())
    kept = pva.openReport(good).execution.steps
    uneven = next(one for one in kept if len({*one.cyclesByTile} - {0}) > 1)
    number = uneven._row.cycles_by_tile
    with closing(sqlite3.connect(path)) as connection:  # the first is of the memory: no step has it
        connection.execute("DELETE FROM patterns WHERE pattern = 0")
        connection.execute("UPDATE patterns SET pattern = 0 WHERE pattern = ?", [number])
        connection.execute("UPDATE steps SET cycles_by_tile = 0 WHERE cycles_by_tile = ?", [number])
        connection.commit()
    steps = pva.openReport(path).execution.steps
    assert [one.cyclesByTile for one in steps] == [one.cyclesByTile for one in kept]
    for found, before in zip(steps, kept, strict=True):
        for here, there in zip(found.ipus, before.ipus, strict=True):
            assert (here.cyclesTo, here.activeTileBalance) == (there.cyclesTo, there.activeTileBalance)


def test_a_program_without_steps_has_an_execution_without_any(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    path.write_bytes(good.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM steps")
        connection.commit()
    execution = pva.openReport(path).execution
    assert (len(execution.steps), list(execution.steps)) == (0, [])
    with pytest.raises(IndexError, match="place 0 of a list of 0"):
        execution.steps[0]


def test_a_debug_file_that_is_none_is_refused(good: Path, tmp_path: Path) -> None:
    whole = (good.parent / "debug.cbor").read_bytes()
    path = tmp_path / "debug.cbor"
    with pytest.raises(FileNotFoundError, match="there is no debug file"):
        pva.openReport(good, path)
    for content, words in (
        (b"", "is empty"), (whole[:-9], "is damaged"), (b"\xff\xff\xff", "is damaged"), (whole + b"\x00", "is damaged"),
        (cbor2.dumps([1, 2]), "is CBOR, but no debug file of torchipu"),
        (cbor2.dumps({"format": "torchipu.debug", "version": 99}), "has version 99"),
        (cbor2.dumps({"format": "torchipu.debug", "version": 2}), "is damaged: KeyError"),
        (cbor2.dumps({"format": "torchipu.debug", "version": 2, "contexts": [{"name": 7}]}), "is damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(ReportError, match=words):
            pva.openReport(good, path)


def test_without_a_debug_file_operations_have_no_context(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    path.write_bytes(good.read_bytes())
    assert {one.debugContext for one in pva.OperationAnalysis(pva.openReport(path)).operations} == {None}


def test_programs_are_equal_that_are_the_same_of_one_report(written: tuple[Any, Path]) -> None:
    one, other = pva.openReport(str(written[1])), pva.openReport(str(written[1]))
    first, again = ([step.program for step in report.execution.steps] for report in (one, one))
    assert first == again
    assert len({program._id for program in first}) > 1
    a, b = next((a, b) for a in first for b in first if a._id != b._id)
    assert a != b
    assert hash(a) == hash(again[first.index(a)])
    assert a != other.execution.steps[first.index(a)].program
    assert a != a._id
