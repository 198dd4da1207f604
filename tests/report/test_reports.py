"""Reports: what is written of a program agrees with itself and with the profile, and what cannot be read says so."""

from __future__ import annotations

import gzip
import json
import os
import resource
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import torchipu
from torchipu.advice.door import advised
from torchipu.cli import main
from torchipu.errors import ReportError
from torchipu.report.database import read_database, write_database
from torchipu.report.directory import read_directory, write_directory
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.recorder import Recorded
from torchipu.report.summary import summary_of
from torchipu.report.terminal import text_of
from torchipu.report.trace import trace_of


class Pipelined(nn.Module):
    """Two blocks on two IPUs, with an LSTM's loop in the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.second, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torchipu.Block("first", ipu_id=0):
            hidden = self.first(x).reshape(-1, 4, 8)
        with torchipu.Block("second", ipu_id=1):
            return nn.functional.cross_entropy(self.head(self.second(hidden)[0][:, -1]), labels)


class Plain(nn.Module):
    """A classifier on one IPU."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), labels)


def trained(model: nn.Module, *inputs: torch.Tensor, **options: object) -> torchipu.TrainStep:
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(**options))
    step.compile(*inputs)
    return step


def pipelined() -> torchipu.TrainStep:
    return trained(
        Pipelined(), torch.randn(24, 16), torch.randint(3, (24,)), gradient_accumulation=6, recompute="stage",
        replicas=2, broadcast_buffers=False,
    )


def with_io_tiles() -> torchipu.TrainStep:
    return trained(
        Plain(), torch.randn(8, 1, 8, 8), torch.randint(3, (8,)), gradient_accumulation=2, io_tiles=32,
        overlap_inputs="accumulation_loop",
    )


STEPS = {"pipelined": pipelined, "with IO tiles": with_io_tiles}


@pytest.fixture(scope="module", params=STEPS)
def step(request: pytest.FixtureRequest) -> torchipu.TrainStep:
    return STEPS[request.param]()


def facts_of(step: torchipu.TrainStep) -> Facts:
    return Recorded(step.profile, step.compiled).facts()


def table(facts: Facts, name: str) -> list[tuple[object, ...]]:
    return list(facts.tables[name])


# --------------------------------------------------------------------------- numbers agree
def test_categories_of_a_tile_add_up_and_its_fullest_is_that_of_the_profile(step: torchipu.TrainStep) -> None:
    facts = facts_of(step)
    sums: dict[tuple[int, int], int] = {}
    gaps: dict[tuple[int, int], int] = {}
    for one in table(facts, "tile_categories"):
        sums[one.ipu, one.tile] = sums.get((one.ipu, one.tile), 0) + one.bytes
        gaps[one.ipu, one.tile] = gaps.get((one.ipu, one.tile), 0) + one.bytes * (one.category == "gap")
    for tile in table(facts, "tiles"):
        assert sums[tile.ipu, tile.tile] == tile.including_gaps
        assert tile.including_gaps - tile.excluding_gaps == gaps[tile.ipu, tile.tile] >= 0
        assert tile.always <= tile.excluding_gaps
    for memory in step.profile.memory_by_ipu:
        mine = [tile for tile in table(facts, "tiles") if tile.ipu == memory.ipu]
        assert len(mine) == 1472
        assert max(tile.including_gaps for tile in mine) == memory.total_bytes


def test_liveness_reaches_the_fullest_tile_at_the_step_of_its_peak(step: torchipu.TrainStep) -> None:
    facts = facts_of(step)
    fullest = {(one.step, one.ipu): one.fullest_bytes for one in table(facts, "liveness")}
    computing = 1472 - step.options.io_tiles
    for tile in table(facts, "tiles"):
        if tile.step and tile.tile < computing:
            assert fullest[tile.step, tile.ipu] >= tile.including_gaps
    for one in table(facts, "liveness"):
        assert one.live_bytes >= 0


def test_steps_of_a_function_take_what_the_cost_model_says(step: torchipu.TrainStep) -> None:
    facts = facts_of(step)
    beside = {name: cost.overlapped for name, cost in step.compiled.cost.functions.items()}
    for function in table(facts, "functions"):
        mine = [one for one in table(facts, "steps") if one.function == function.name]
        assert [one.number for one in mine] == list(range(len(mine)))
        assert sum(one.cycles * one.runs for one in mine if not one.overlaps) == function.cycles
        assert sum(one.cycles * one.runs for one in mine if one.overlaps) == sum(beside[function.name].values())
        assert all(0 < one.tile_balance <= 1 for one in mine)


def test_runs_are_those_of_the_time_line_and_operations_take_all_of_compute(step: torchipu.TrainStep) -> None:
    facts, cost = facts_of(step), step.compiled.cost
    for ipu, spans in enumerate(cost.timeline.spans_by_ipu):
        mine = [run for run in table(facts, "runs") if run.ipu == ipu and run.kind != "transfer"]
        assert sum(run.end - run.begin for run in mine) == sum(span.end - span.begin for span in spans)
        assert all(0 <= run.recompute <= run.end - run.begin for run in mine)
    counts: dict[str, int] = {}
    for run in table(facts, "runs"):
        if run.function:
            counts[run.function] = counts.get(run.function, 0) + 1
    assert counts == {name: count for name, count in cost.runs_by_function.items() if count}
    compute = sum(spent["compute"] for spent in cost.cycles_by_category_by_ipu)
    assert sum(one.compute for one in table(facts, "operations")) == compute


def test_a_product_of_a_linear_layer_counts_two_for_each_multiplication() -> None:
    facts = facts_of(with_io_tiles())
    forward = [one for one in table(facts, "operations") if one.kind == "addmm"]
    assert [one.flops for one in forward] == [2 * 4 * 144 * 3 * 2]  # 4 samples, 144 to 3, two micro-batches
    assert forward[0].module == "body.3"
    assert (forward[0].file, forward[0].leg) == (__file__, "forward")


# --------------------------------------------------------------------------- files
def test_what_is_written_is_read_back_and_all_files_agree(step: torchipu.TrainStep, tmp_path: Path) -> None:
    path = step.report(tmp_path / "a folder ü", what_if_seconds=0)
    facts = advised(Recorded(step.profile, step.compiled, is_step=True, owner=step), 0)
    assert read_database(path).tables == facts.tables
    summary = json.loads((path.parent / "summary.json").read_text(encoding="utf-8"))
    assert summary == summary_of(facts)
    assert summary["cycles_per_update"] == step.profile.cycles_per_update
    trace = json.loads(gzip.decompress((path.parent / "trace.json.gz").read_bytes()))
    drawn = [one for one in trace["traceEvents"] if one["ph"] == "X" and one["tid"] > 1 and "runs" in one["args"]]
    with closing(sqlite3.connect(path)) as connection:
        held = connection.execute("SELECT count(*) FROM execution").fetchone()[0]
    assert summary["steps_per_update"] == held == len(drawn) == trace["otherData"]["steps"]
    assert all(one["tid"] >= 1 for one in trace["traceEvents"])


def test_slices_of_a_thread_do_not_overlap(step: torchipu.TrainStep) -> None:
    by_thread: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for one in trace_of(facts_of(step))["traceEvents"]:
        if one["ph"] == "X" and one["cat"] not in ("functions", "transfer"):
            begin = one["args"]["begin"]
            by_thread.setdefault((one["pid"], one["tid"]), []).append((begin, begin + one["args"]["cycles"]))
    for slices in by_thread.values():
        slices.sort()
        for (_, end), (begin, _) in pairwise(slices):
            assert end <= begin


def test_steps_beyond_the_limit_are_left_out_and_counted() -> None:
    facts = facts_of(with_io_tiles())
    steps = summary_of(facts)["steps_per_update"]
    notes = trace_of(facts, most=50)["otherData"]
    assert notes["steps"] <= 50
    assert notes["steps"] + notes["steps_left_out"] == steps


def test_names_with_markup_stand_as_they_are() -> None:
    facts = facts_of(with_io_tiles())
    hostile = "<script>alert('x')</script> [bold]\"; DROP TABLE steps"
    changed = [one._replace(code=hostile, name=hostile) for one in table(facts, "operations")]
    told = Facts({**facts.tables, "operations": tuple(changed)})
    assert "[bold]" in text_of(told, "[red]title")


def test_exchanges_and_control_of_steps_are_what_tiles_hold_of_them(step: torchipu.TrainStep) -> None:
    facts = facts_of(step)
    parts: dict[int, list[rows.Pattern]] = {}
    for one in table(facts, "patterns"):
        parts.setdefault(one.pattern, []).append(one)
    control = np.zeros((step.profile.num_ipus, 1472), np.int64)
    for one in table(facts, "liveness"):
        for part in parts[one.vertices_by_tile]:
            control[one.ipu, part.first_tile : part.end_tile] += one.control_bytes
    exchanged = [0] * step.profile.num_ipus
    for one in table(facts, "exchanges"):
        exchanged[one.ipu] += one.code_bytes
        sent = [table(facts, "variables")[number] for number in json.loads(one.variables)]
        assert {variable.number for variable in sent} == set(json.loads(one.variables)) != set()
    held = {(one.ipu, one.tile, one.category): one.bytes for one in table(facts, "tile_categories")}
    for tile in table(facts, "tiles"):
        computes = tile.tile < 1472 - step.options.io_tiles
        in_all = sum(held.get((tile.ipu, tile.tile, name), 0) for name in ("control", "vertex state"))
        assert in_all == control[tile.ipu, tile.tile]
        assert held.get((tile.ipu, tile.tile, "exchange code"), 0) == exchanged[tile.ipu] * computes


def test_gaps_lie_before_interleaved_memory_and_nowhere_else(step: torchipu.TrainStep) -> None:
    facts = facts_of(step)
    begin = facts.figure("code_region_bytes")
    behind = 0
    for tile in table(facts, "tiles"):
        there = max(0, tile.including_gaps - begin)
        assert there <= tile.excluding_gaps
        assert there > 0 or tile.including_gaps == tile.excluding_gaps
        behind += there > 0
    assert 0 < behind < len(table(facts, "tiles"))


def test_notes_that_cannot_be_read_say_why_and_others_are_settings(tmp_path: Path) -> None:
    facts = facts_of(with_io_tiles())
    (tmp_path / "framework.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "app.json").write_text('{"a": {"b": [1, {"c": "<i>"}]}, "rate": 1e-3, "none": null, "empty": {}}')

    def noted() -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {"app.json": {}, "framework.json": {}}
        for one in read_database(write_directory(facts, tmp_path)).tables["settings"]:
            if one.kind in found:
                found[one.kind][one.name] = one.value
        return found

    notes = noted()
    assert notes["app.json"] == {"a.b[0]": "1", "a.b[1].c": "<i>", "rate": "0.001", "none": "null", "empty": "{}"}
    assert notes["framework.json"]["framework.json"].startswith("left out: it is no JSON")
    for text, words in (
        ("[" * 100_000, "left out: it is no JSON"), (" " * 1_100_000, "left out: it is larger than"),
        (r'{"app.json": "half \ud800"}', "half ?"),
    ):
        (tmp_path / "app.json").write_text(text)
        assert noted()["app.json"]["app.json"].startswith(words)
    (tmp_path / "framework.json").unlink()
    (tmp_path / "app.json").write_text("3")
    assert list(noted().values()) == [{"app.json": "3"}, {}]


# --------------------------------------------------------------------------- bad input
def written(tmp_path: Path) -> Path:
    return write_directory(facts_of(with_io_tiles()), tmp_path / "run")


def test_files_that_are_no_profiles_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for content, words in (
        (b"", "is empty"), (b"PK\x03\x04", "is no profile of torchipu"), (whole[: len(whole) // 2], "is damaged"),
        (whole[:5000] + b"\xff" * 9000 + whole[14000:], "is damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(ReportError, match=words):
            read_database(path)


@pytest.mark.parametrize(("change", "words"), [
    ("UPDATE facts SET value = '{' || value", "is damaged: Expecting"),
    ("UPDATE facts SET value = x'00'", r"is damaged: value of facts is b'\\x00', no str"),
    ("UPDATE facts SET value = replace(hex(zeroblob(5000)), '00', '[')", "is damaged: maximum recursion depth"),
    ("UPDATE steps SET number = 'first'", "is damaged: number of steps is 'first', no int"),
])
def test_values_that_no_column_has_are_damage(tmp_path: Path, change: str, words: str) -> None:
    path = written(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    with pytest.raises(ReportError, match=words):
        read_database(path)


def test_databases_of_others_and_newer_ones_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE format SET version = 99")
        connection.commit()
    with pytest.raises(ReportError, match="has version 99 of the format, and this torchipu reads 4"):
        read_database(path)
    other = tmp_path / "other.pop"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE things (x)")
        connection.commit()
    with pytest.raises(ReportError, match="is a database, but no profile of torchipu"):
        read_database(other)


def test_a_directory_that_cannot_be_written_keeps_what_it_has(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    facts = facts_of(pipelined())
    broken = Facts({**facts.tables, "steps": (rows.Step(*[object()] * len(rows.Step._fields)),)})
    with pytest.raises(sqlite3.Error):
        write_database(broken, path)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir() if one.name.endswith(".part")] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_directory(facts, tmp_path / "file" / "run")


def test_two_writers_of_one_directory_leave_the_files_of_one(tmp_path: Path) -> None:
    both = [facts_of(make()) for make in STEPS.values()]
    threads = [threading.Thread(target=write_directory, args=(facts, tmp_path)) for facts in both * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (held,) = read_directory(tmp_path).values()
    assert held.tables in [facts.tables for facts in both]
    assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8")) == summary_of(held)


def writing(facts: Facts, folder: Path, said: Path, most_bytes: int | None = None) -> int:
    """Fork a process that writes a directory three times, files of so many bytes at most; return its number."""
    process = os.fork()
    if process:
        return process
    os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY), 2)
    status = 1
    try:
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        for _ in range(3):
            write_directory(facts, folder)
        status = 0
    except BaseException as error:
        os.write(2, str(error).encode())
    os._exit(status)


def test_two_processes_that_write_one_directory_leave_the_files_of_one(tmp_path: Path) -> None:
    folder, both = tmp_path / "both", [facts_of(make()) for make in STEPS.values()]
    said = [tmp_path / name for name in STEPS]
    processes = [writing(facts, folder, place) for facts, place in zip(both, said, strict=True)]
    statuses = [os.waitpid(process, 0)[1] for process in processes]
    assert statuses == [0, 0], [place.read_text() for place in said]
    (held,) = read_directory(folder).values()
    assert held.tables in [facts.tables for facts in both]
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8")) == summary_of(held)
    trace = gzip.decompress((folder / "trace.json.gz").read_bytes()).decode()
    assert f'"steps":{sum(1 for _ in steps_in(held))},' in trace


def steps_in(facts: Facts) -> Iterator[rows.Step]:
    """Yield the steps of all runs of an iteration."""
    for run in facts.tables["runs"]:
        yield from (step for step in facts.tables["steps"] if step.function == run.function)


def test_a_full_disk_is_said_and_the_files_stay_as_they_were(tmp_path: Path) -> None:
    folder, said = written(tmp_path).parent, tmp_path / "said"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    _, status = os.waitpid(writing(facts_of(pipelined()), folder, said, 20_000), 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert "profile.pop cannot be written: " in said.read_text()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# --------------------------------------------------------------------------- where ops come from
class Outer(nn.Module):
    """A model whose layer is called through a function."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return called(self.inner, x)


class Inner(nn.Module):
    """What is called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def called(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Call a layer."""
    return layer(x)


def test_an_op_knows_all_lines_that_led_to_it(tmp_path: Path) -> None:
    step = torchipu.InferenceStep(Outer())
    step(torch.randn(4))
    step.report(tmp_path, what_if_seconds=0)
    (one,) = read_database(tmp_path / "profile.pop").tables["operations"]
    lines = [(file, code) for file, _, code in json.loads(one.callers)]
    assert [*lines, (one.file, one.code)] == [
        (__file__, "return called(self.inner, x)"), (__file__, "return layer(x)"), (__file__, "return x.sin()"),
    ]


# --------------------------------------------------------------------------- command
def test_a_script_is_run_and_its_reports_shown_then_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import torch, torchipu\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.one = torch.nn.Linear(4, 2)\n    def forward(self, x):\n        return self.one(x).sum()\n"
        "net = Net()\nstep = torchipu.TrainStep(net, torch.optim.SGD(net.parameters(), lr=0.1))\n"
        "step(torch.randn(8, 4))\n",
    )
    assert main(["report", "train.py"]) == 0
    shown = capsys.readouterr().out
    assert "weight update" in shown
    assert "train.py:7  return self.one(x).sum()" in shown
    assert main(["report", "report/train"]) == 0
    assert capsys.readouterr().out == shown


def test_what_cannot_be_shown_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "nowhere"]) == 2
    assert "torchipu report: there is no report nowhere" in capsys.readouterr().err
    Path("empty").mkdir()
    assert main(["report", "empty"]) == 2
    assert "empty holds no profile.pop" in capsys.readouterr().err
    assert main(["report", "missing.py"]) == 2
    assert "there is no script missing.py" in capsys.readouterr().err
    Path("nothing.py").write_text("print('done')\n")
    assert main(["report", "nothing.py"]) == 1
    assert "nothing was compiled for the IPU" in capsys.readouterr().err
