"""What a page is made of: levels of detail, values between ops, traces and comparisons, judged by the tables."""

from __future__ import annotations

import json
import re
import shlex
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.report.test_reports import Plain, facts_of, pipelined, trained, with_io_tiles
from torchipu.cli import main
from torchipu.report.compare import differences, numbers_of
from torchipu.report.directory import write_directory
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.page.columns import columns_of
from torchipu.report.page.detail import detail_of
from torchipu.report.page.payload import encoded, payload_of
from torchipu.report.trace import trace_of

LANES = ("compute", "exchange", "sync")


@pytest.fixture(scope="module")
def facts() -> Facts:
    return facts_of(pipelined())


# --------------------------------------------------------------------------- level of detail
@given(st.lists(st.tuples(st.sampled_from(LANES), st.integers(0, 400)), max_size=200))
def test_coarser_levels_hold_the_same_cycles_in_fewer_slices(parts: list[tuple[str, int]]) -> None:
    steps, begin = [], 0
    for number, (lane, cycles) in enumerate(parts):
        steps.append(rows.Step("0F", number, lane, "s", -1, begin, cycles, 1, False, 0, 0, "", 1.0, -1, -1))
        begin += cycles
    run = rows.Run(0, 0, "0F", "0F0", 0, "forward", 0, begin, 0)
    levels = detail_of(Facts({"steps": tuple(steps), "runs": (run,)})).get("0F", [])
    spent = {lane: sum(cycles for name, cycles in parts if name == lane) for lane in LANES}
    counts = []
    for level in levels:
        for lane, cycles in spent.items():
            held = level["lanes"].get(lane, {"begin": [], "end": [], "busy": []})
            assert sum(held["busy"]) == cycles
            assert held["begin"] == sorted(held["begin"])
            for first, last, busy in zip(held["begin"], held["end"], held["busy"], strict=True):
                assert busy <= last - first
                covered = [one for one in steps if one.category == lane and first <= one.begin < last and one.cycles]
                assert sum(one.cycles for one in covered) == busy
        counts.append(sum(len(held["begin"]) for held in level["lanes"].values()))
    assert counts == sorted(counts, reverse=True)
    assert [level["resolution"] for level in levels] == sorted({level["resolution"] for level in levels})


# --------------------------------------------------------------------------- data
def test_columns_are_rows_turned() -> None:
    made = [rows.Function("<b>", 3, 1, 0), rows.Function("x", 4, 2, 1), rows.Function("<b>", 5, 3, 0)]
    assert columns_of(made) == {
        "name": {"words": ["<b>", "x"], "at": [0, 1, 0]}, "cycles": [3, 4, 5], "runs": [1, 2, 3],
        "recompute": [0, 1, 0],
    }
    assert columns_of([]) == {}


def test_numbers_that_json_lacks_are_texts() -> None:
    step = rows.Step("0F", 0, "sync", "s", -1, 0, 1, 1, False, 0, 0, "", float("inf"), -1, -1)
    assert columns_of([step])["tile_balance"] == ["inf"]
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", encoded({"steps": columns_of([step])}))


def test_tiles_of_the_page_are_those_of_the_tables(facts: Facts) -> None:
    tiles = payload_of(facts, "run")["tiles"]
    for one in facts.tables["tiles"]:
        held = tiles[one.ipu]
        assert held["including_gaps"][one.tile] == one.including_gaps
        assert sum(column[one.tile] for column in held["categories"].values()) == one.including_gaps


def test_values_go_from_the_op_that_computes_them_through_views(facts: Facts) -> None:
    ops = facts.tables["operations"]
    found = {(ops[one.source].kind, ops[one.target].kind) for one in facts.tables["flows"]
             if ops[one.source].leg == ops[one.target].leg == "forward"}
    # From the source of the model: Linear, BatchNorm1d and ReLU, then a reshape, and the LSTM's product of its input.
    assert {("addmm", "batch_norm"), ("batch_norm", "relu"), ("relu", "addmm")} <= found
    relu = next(one for one in facts.tables["flows"] if one.tensor == "relu")
    assert relu.bytes == 2 * 32 * 4  # 24 samples in 6 micro-batches of 2 replicas, 32 channels of 4 bytes


def test_slices_of_the_trace_are_steps_at_the_begin_of_their_runs(facts: Facts) -> None:
    expected = []
    for run in facts.tables["runs"]:
        for step in facts.tables["steps"]:
            if run.function and step.function == run.function:
                lane = "transfer" if step.overlaps else step.category
                expected.append((step.name, lane, run.ipu + 1, run.begin + step.begin, step.cycles * step.runs))
    drawn = [
        (one["name"], one["cat"], one["pid"], one["args"]["begin"], one["args"]["cycles"])
        for one in trace_of(facts)["traceEvents"] if one["ph"] == "X" and "runs" in one["args"]
    ]
    assert sorted(drawn) == sorted(expected)
    clock = facts.figure("clock_hz")
    for one in trace_of(facts)["traceEvents"]:
        if one["ph"] == "X":
            assert one["ts"] == pytest.approx(one["args"]["begin"] / clock * 1e6)
            assert one["dur"] == pytest.approx(one["args"]["cycles"] / clock * 1e6)


# --------------------------------------------------------------------------- compare
def test_a_run_differs_in_nothing_from_itself(facts: Facts) -> None:
    found = differences(facts, facts)
    assert len(found) == len(numbers_of(facts)) > 100
    assert all(one.change == 0 and one.share == 0 for one in found)


def test_what_changes_is_told_with_the_largest_share_first(facts: Facts) -> None:
    changed = [one._replace(cycles=one.cycles * 3) if one.number == 2 else one for one in facts.tables["operations"]]
    other = Facts({**facts.tables, "operations": tuple(changed)})
    found = [one for one in differences(facts, other) if one.change]
    old = facts.tables["operations"][2]
    assert [(one.group, one.before, one.after, one.share) for one in found] == [
        ("operation", old.cycles, 3 * old.cycles, 2.0)
    ]
    assert found[0].name.endswith("cycles")
    assert old.module in found[0].name


def test_one_more_op_is_new(facts: Facts) -> None:
    more = facts.tables["operations"][0]._replace(module="added", number=len(facts.tables["operations"]))
    other = Facts({**facts.tables, "operations": (*facts.tables["operations"], more)})
    new = [one for one in differences(facts, other) if one.before is None]
    assert {one.after for one in new} == {more.cycles, more.flops, more.exchanged_bytes, more.code_bytes}


# --------------------------------------------------------------------------- command
@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A browser that only writes down what it is asked to show."""
    log, program = tmp_path / "shown", tmp_path / "browser"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$1\" >> {shlex.quote(str(log))}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("BROWSER", f"{program} %s")
    # The list of browsers is made once in a process.
    monkeypatch.setattr("webbrowser._tryorder", None)
    return log


def test_open_shows_the_page_of_a_report_and_writes_it_where_it_lacks(
    facts: Facts, tmp_path: Path, shown: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "a run"
    write_directory(facts, folder)
    page = folder / "report.html"
    text = page.read_bytes()
    assert main(["report", str(folder), "--open"]) == 0
    assert shown.read_text().split() == [page.as_uri()]
    assert f"page: {page}" in capsys.readouterr().out
    page.unlink()
    assert main(["report", "--open", str(folder)]) == 0
    assert page.read_bytes() == text


def test_diff_says_what_changed_and_writes_both_on_a_page(
    facts: Facts, tmp_path: Path, shown: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    for name, held in (("one", facts), ("two", facts_of(with_io_tiles()))):
        write_directory(held, tmp_path / name)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    before, after = (json.loads(Path(path, "summary.json").read_text())["num_ipus"] for path in (one, two))
    assert main(["report", one, "--diff", two, "--open"]) == 0
    out = capsys.readouterr().out
    assert f"{one} -> {two}" in out
    assert (before, after) == (2, 1)
    assert shown.read_text().split() == [(tmp_path / "one" / "compare.html").as_uri()]
    assert main(["report", "--diff", one, one]) == 0
    assert " 0 of " in capsys.readouterr().out


def test_reports_without_a_program_in_common_cannot_be_compared(
    facts: Facts, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("a/1-training", "a/2-inference", "b/3-other", "b/4-other"):
        write_directory(facts, tmp_path / name)
    assert main(["report", str(tmp_path / "a"), "--diff", str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert "no program in common: one has 1-training, 2-inference, the other 3-other, 4-other" in said
    assert main(["report", str(tmp_path / "a"), "--diff", str(tmp_path / "nowhere")]) == 2
    assert "there is no report" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_says_so(
    facts: Facts, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    write_directory(facts, folder)
    (folder / "report.html").unlink()
    (folder / ".report.lock").unlink()
    (folder / ".report.lock").mkdir()
    assert main(["report", str(folder), "--open"]) == 2
    assert ".report.lock" in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_profiling_changes_no_value() -> None:
    inputs = torch.randn(8, 1, 8, 8), torch.randint(3, (8,))
    losses = []
    for told in (False, True):
        torch.manual_seed(3)
        step = trained(Plain(), *inputs, gradient_accumulation=2)
        if told:
            facts_of(step)
        losses.append([step(*inputs).clone() for _ in range(2)])
    assert all(torch.equal(a, b) for a, b in zip(*losses, strict=True))
