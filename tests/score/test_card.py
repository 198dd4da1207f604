"""Facts of the figures of the score card, of what it prints, and its golden on a few rows of the quick kinds."""

from __future__ import annotations

import csv
import importlib
import math
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline

from torchipu.cli import main
from torchipu.errors import OptionsError, PlacementError, RowsError
from torchipu.score import catalogue, throughput
from torchipu.score.card import Result, kinds_named, score, some_of
from torchipu.score.catalogue import KINDS
from torchipu.score.configurations import run_of
from torchipu.score.constants import FITTED, MOST, Constant, Refit, fitted, held_out, median_error, refitted
from torchipu.score.kinds import Kind, NotExpressed, Prediction
from torchipu.score.page import cells, constants, page, percent, scaling, split_of
from torchipu.score.products import Product
from torchipu.score.programs import Frozen, outcome_of
from torchipu.score.rows import Line, Row
from torchipu.score.scaling import pairs_of
from torchipu.score.statistics import error_of, quantile, statistics_of
from torchipu.score.stencils import Stencil
from torchipu.target import lookup_target

QUICK_ROWS = 8


def row(name, measured):
    return Row(name, measured, "a source", Line("rows.csv", 2, {}))


def kind_of(measured, predict, **others):
    rows = tuple(row(f"row{number}", value) for number, value in enumerate(measured))
    return Kind("toy", "a toy", "cycles", lambda: rows, predict, **others)


# --------------------------------------------------------------------------- figures
def test_error_is_a_factor_whichever_way():
    assert (error_of(200, 100), error_of(50, 100), error_of(100, 100)) == (1.0, 1.0, 0.0)
    assert error_of(0, 100) == math.inf


def test_quantile_lies_between_values():
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([1.0, 2.0], 0.9) == pytest.approx(1.9)
    assert quantile([7.0], 0.9) == 7.0


def test_bias_keeps_the_direction_that_errors_lose():
    found = statistics_of([(200, 100), (200, 100), (50, 100)])
    assert found is not None
    assert (found.count, found.median, found.p90) == (3, 1.0, 1.0)
    assert found.bias == pytest.approx(2 ** (1 / 3) - 1)


def test_no_rows_have_no_figures():
    assert statistics_of([]) is None


# --------------------------------------------------------------------------- scaling
def test_a_row_is_compared_with_the_same_program_on_the_next_fewer_ipus_and_of_the_same_software_first():
    rows = [
        ("A1", 4, "net", "1.0", 10.0, 11.0), ("A2", 16, "net", "1.0", 36.0, 40.0), ("A3", 16, "net", "2.0", 38.0, 41.0),
        ("A4", 64, "net", "1.0", 140.0, 120.0), ("A5", 64, "other net", "1.0", 5.0, 5.0),
        ("A6", 256, "net", "3.0", 500.0, 400.0),
    ]
    results = [
        Result(
            Row(name, measured, "a source", Line("rows.csv", 2, {
                "chip": "Bow", "n_ipu": str(ipus), "workload": workload, "sdk": sdk,
            })), Prediction(predicted),
        ) for name, ipus, workload, sdk, measured, predicted in rows
    ]
    pairs = pairs_of(results)
    assert [(pair.few.row.name, pair.many.row.name) for pair in pairs] == [
        ("A1", "A2"), ("A1", "A3"), ("A2", "A4"), ("A4", "A6"),
    ]
    assert (pairs[2].measured, pairs[2].predicted) == (140 / 36, 3.0)
    assert pairs[2].error == pytest.approx(140 / 36 / 3 - 1)
    assert "| A2, A4 | net | 16 to 64 | 3.89 | 3.00 | 30 % |" in scaling(pairs)


# --------------------------------------------------------------------------- rows without a prediction
def test_a_row_that_cannot_be_expressed_is_counted_with_its_reason():
    found = score(kind_of([1, 2, 3], lambda row: NotExpressed("no batch is stated")))
    assert (found.results, found.reasons_by_count()) == ((), {"no batch is stated": 3})
    assert cells(found) == ("toy", "a toy", "silicon", "0", "3", "", "", "")


def test_what_the_compiler_refuses_is_a_reason_and_no_end():
    def refuse(row):
        raise PlacementError("256 replicas need 256 IPUs")

    found = score(kind_of([1], refuse))
    assert found.reasons_by_count() == {"PlacementError: 256 replicas need 256 IPUs": 1}


def test_a_damaged_row_ends_the_run():
    def damaged(row):
        raise RowsError("no number", file="rows.csv", line=2, column="cycles")

    with pytest.raises(RowsError):
        score(kind_of([1], damaged))


def test_a_decision_counts_what_is_right_and_shows_what_is_wrong():
    found = score(kind_of([1, 0, 1], lambda row: Prediction(1.0), is_decision=True))
    assert (found.num_right, found.statistics) == (2, None)
    assert [result.row.name for result in found.worst(5)] == ["row1"]
    assert cells(found)[5] == "2 right"


def test_worst_rows_come_first_with_their_split():
    found = score(kind_of([100, 100, 100], lambda row: Prediction(
        {"row0": 110.0, "row1": 400.0, "row2": 50.0}[row.name], {"compute": 30.0, "exchange": 70.0},
    )))
    assert [result.row.name for result in found.worst(2)] == ["row1", "row2"]
    assert split_of(found.worst(1)[0]) == "exchange 70 %, compute 30 %"


def test_some_rows_are_spread_over_all():
    rows = tuple(row(str(number), 1) for number in range(10))
    assert [one.name for one in some_of(rows, 3)] == ["0", "3", "6"]
    assert some_of(rows, None) == some_of(rows, 99) == rows


# --------------------------------------------------------------------------- kinds and command
def test_an_unknown_kind_is_refused_with_the_nearest_name():
    with pytest.raises(OptionsError) as raised:
        kinds_named(["amp_vertex"], KINDS)
    assert raised.value.message == "unknown kind 'amp_vertex'; did you mean 'amp-vertex'?"


def test_command_refuses_an_unknown_kind(capsys):
    assert main(["score", "--kind", "gem"]) == 2
    assert capsys.readouterr().err.startswith("torchipu score: unknown kind 'gem'; did you mean 'gemm'?\n")


def test_command_tells_a_damaged_file(capsys, monkeypatch):
    def damaged():
        raise RowsError("expected 3 columns, got 1", file="rows.csv", line=4)

    monkeypatch.setattr("torchipu.cli.score.KINDS", (Kind("toy", "a toy", "cycles", damaged, lambda row: None),))
    assert main(["score"]) == 2
    assert capsys.readouterr().err == (
        "torchipu score: rows.csv, line 4: expected 3 columns, got 1\n  do      restore the file, or correct the line\n"
    )


def test_command_prints_figures_and_writes_page_and_rows(capsys, tmp_path, monkeypatch, is_thorough):
    if not is_thorough:  # each of some hundred losses of a fit runs the model over all rows
        monkeypatch.setattr("torchipu.cli.score.median_error", lambda kinds, holds: 0.25)
    flags = ["--rows", "3", "--worst", "1", "--csv", str(tmp_path / "all.csv"), "--write", str(tmp_path / "score.md")]
    assert main(["score", "--kind", "amp-vertex", "--kind", "solver", *flags]) == 0
    printed = capsys.readouterr().out
    assert "amp-vertex" in printed
    assert "16 x 16 x 16" in printed
    assert "solver: " in printed
    written = (tmp_path / "score.md").read_text(encoding="utf-8")
    assert "| amp-vertex | matrix unit, one call | silicon | 3 | 0 |" in written
    assert is_thorough or "25 %" in written  # what constants lose on rows that they were not fitted to
    with (tmp_path / "all.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [(one["kind"], bool(one["predicted"]), bool(one["not expressed"])) for one in found] == [
        ("amp-vertex", True, False)] * 3 + [("solver", False, True)] * 3


def test_percent_has_the_digits_that_say_something():
    assert [percent(share) for share in (0.0012, 0.0796, 0.425, 12.98)] == ["0.1 %", "8.0 %", "42 %", "1,298 %"]


def test_tiles_of_two_ipus_as_one_share_the_work_and_wait_for_each_other():
    stencil = Stencil((64, 512), torch.half)
    one, two = (outcome_of(stencil, Frozen("mk1", memory=(0.4,), chips=chips)) for chips in (1, 2))
    assert two.split["compute"] < one.split["compute"]
    target = lookup_target("mk1")
    assert two.split["sync"] / one.split["sync"] == target.ipu_sync_cycles / target.sync_cycles


# --------------------------------------------------------------------------- fitted constants
def test_loss_of_a_fit_is_the_median_error_over_the_rows_that_it_may_see():
    predicted = {"row0": 110.0, "row1": 150.0, "row2": 900.0}
    toy = kind_of([100.0, 100.0, 100.0], lambda row: Prediction(predicted[row.name]))
    assert median_error([toy], lambda row: row.name in ("row0", "row1")) == pytest.approx(0.3)
    assert median_error([toy], lambda row: row.name == "row1") == pytest.approx(0.5)
    assert median_error([toy], lambda row: False) == 0.0


def toy_constant(box):
    return Constant("toy.FACTOR", 2.0, "cycles", ("toy",), 0.0, 8.0, "median error", lambda value: box.update(at=value))


def test_fit_finds_the_least_loss_and_puts_the_constant_back():
    box = {"at": 2.0}
    found = fitted(toy_constant(box), lambda: (box["at"] - 3.0) ** 2)
    assert found == pytest.approx(3.0, abs=0.05)
    assert box["at"] == 2.0


def rows_of_sources(sources):
    return [Row(f"row {number}", 0.0, source, None) for number, source in enumerate(sources)]


@pytest.mark.parametrize(("sources", "names"), [
    ("ab", ["a", "b"]), ("aa", ["a, 1 rows of 2", "a, 1 rows of 2"]), ("a" * 100, ["a, 16 rows of 32"] * 2), ("a", []),
])
def test_rows_are_held_out_by_source_or_by_halves(sources, names):
    rows = rows_of_sources(sources)
    groups = held_out(rows)
    assert [group.name for group in groups] == names
    for group in groups:
        assert any(map(group.judges, rows))
        assert any(map(group.fits, rows))
        assert not any(group.judges(row) and group.fits(row) for row in rows)


def test_rows_are_judged_by_constants_that_did_not_see_them():
    box = {"at": 2.0}
    best = {"a": 3.0, "b": 5.0}
    rows = rows_of_sources("ab")

    def loss(holds):
        return sum((box["at"] - best[row.source]) ** 2 for row in rows if holds(row))

    refits = list(refitted([toy_constant(box)], held_out(rows), loss))
    assert [one.name for one in refits] == ["a", "b"]
    assert [one.whole for one in refits] == [1.0, 9.0]
    assert [one.without for one in refits] == pytest.approx([4.0, 4.0], abs=0.5)
    assert box["at"] == 2.0


def test_page_shows_constants_and_both_figures():
    text = constants([toy_constant({})], [Refit("a source", 0.05, 0.07)])
    assert "| `toy.FACTOR` | 2 | cycles | toy | median error |" in text
    assert "| a source | 5.0 % | 7.0 % |" in text


def test_few_constants_are_fitted():
    assert len(FITTED) <= MOST
    names = {kind.name for kind in KINDS}
    assert all(set(constant.kinds) <= names for constant in FITTED)


@pytest.mark.parametrize("constant", FITTED, ids=lambda constant: constant.name)
def test_a_fitted_constant_is_what_the_model_has(constant):
    path, name = constant.name.rsplit(".", 1)
    module = importlib.import_module(path)
    assert getattr(module, name) == constant.value
    try:
        constant.put(constant.low)
        assert getattr(module, name) == constant.low
    finally:
        constant.put(constant.value)


# --------------------------------------------------------------------------- workloads
def test_equal_workloads_are_compiled_once():
    product = Product(1, 32, 32, 32, torch.half, trains=False)
    assert outcome_of(product, Frozen("mk2")) is outcome_of(Product(1, 32, 32, 32, torch.half, False), Frozen("mk2"))


def test_samples_of_a_run_are_those_of_an_update():
    samples = {name: run_of(row_of_run("train", name).line).samples for name in ("V001", "V042", "V011")}
    assert samples == {"V001": 1920, "V042": 2040, "V011": 3072}


def row_of_run(kind, name):
    (found,) = (row for row in kinds_named([kind], KINDS)[0].rows() if row.line.values.get("id") == name)
    return found


def test_a_training_and_an_inference_predict_as_before():
    """Of whole models two small ones: accept a change with EXPECTTEST_ACCEPT=1 once it is meant."""
    runs = (("train", "V085"), ("infer", "V093"))
    lines = [f"{name} {throughput.throughput(row_of_run(kind, name)).value:,.0f} samples/s" for kind, name in runs]
    assert_expected_inline("\n".join(lines), """\
V085 77,591 samples/s
V093 4,258 samples/s""")


def test_what_is_made_on_the_device_waits_for_no_stream():
    assert "host" not in throughput.throughput(row_of_run("train", "V085")).split
    assert "host" in throughput.throughput(row_of_run("train", "V088")).split


def test_what_fits_is_a_one_with_the_bytes_of_its_fullest_tile():
    predicted = throughput.fits(row_of_run("fits", "V093"))
    assert isinstance(predicted, Prediction)
    assert predicted.value == 1.0
    assert predicted.split["weights"] > 0


def test_quick_kinds_score_as_before():
    """A change of the model shows here: accept it with EXPECTTEST_ACCEPT=1 once it is meant."""
    lines = []
    for kind in catalogue.KINDS:
        if kind.is_quick:
            found = score(kind, QUICK_ROWS)
            figures = found.statistics
            numbers = "" if figures is None else f"{figures.median:.4f} {figures.p90:.4f} {figures.bias:+.4f}"
            lines.append(f"{kind.name:<12}{len(found.results):>3}{len(found.reasons):>3} {numbers}".rstrip())
    assert_expected_inline("\n".join(lines), """\
amp-vertex    8  0 0.0014 0.0084 +0.0007
vertex        2  6 0.0585 0.0969 -0.0444
conv          8  0 0.0642 0.1062 +0.0112
fc-bert       8  0 0.0319 0.0744 +0.0358
fc            8  0 0.0253 0.2999 -0.0589
gemm          8  0 0.0151 0.0311 +0.0015
tile          8  0 0.0093 0.0856 -0.0078
pooling       8  0 0.0584 0.0876 +0.0251
reduction     8  0 0.0444 0.1248 +0.0585
embedding     4  0 0.0181 0.0188 +0.0014
lstm          8  0 0.0597 0.1746 -0.0002
solver        0  8
gather        8  0 0.0696 0.6570 +0.1697
scatter       8  0 0.0849 0.3692 +0.1129""")


@pytest.mark.parametrize("name", ["amp-vertex", "vertex", "fc", "gemm", "pooling"])
def test_committed_page_has_the_figures_of_this_model(name):
    page = (Path(__file__).parents[2] / "docs" / "score.md").read_text(encoding="utf-8")
    committed = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
    (kind,) = kinds_named([name], KINDS)
    assert committed == "| " + " | ".join(cells(score(kind))) + " |", "run: make score"


def test_committed_page_has_every_kind():
    page = (Path(__file__).parents[2] / "docs" / "score.md").read_text(encoding="utf-8")
    assert [kind.name for kind in KINDS if f"\n## {kind.name}: {kind.title}\n" not in page] == []


def test_page_states_reasons_of_rows_that_count_all_the_same():
    found = score(kind_of([100, 50], lambda row: Prediction(100.0), stated={"row1": "the table says too little"}))
    text = page([found], 1)
    assert "Stated reasons:\n\n- row1: the table says too little.\n" in text
    assert "Mean error: 50 %; without the rows of stated reasons 0.0 %.\n" in text
    assert "- row0" not in text
    assert "| toy | a toy | silicon | 2 | 0 |" in text


def test_page_has_a_section_for_each_kind():
    found = score(kind_of([100], lambda row: Prediction(110.0, {"compute": 110.0})))
    text = page([found], 1)
    assert "| toy | a toy | silicon | 1 | 0 | 10 % | 10 % | +10.0 % |" in text
    assert "## toy: a toy\n\nFurthest off, in cycles:\n\n| row |" in text
    assert "| row0 | 100 | 110 | 10 % | compute 100 % |" in text
