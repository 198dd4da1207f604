"""A fixed part of OpInfo agrees with eager; crashes, hangs and stale entries are told. `make opinfo` runs all of it."""

import json
import os
import random
import time

import pytest
import torch

from tests.opinfo import document, known, table
from tests.opinfo.__main__ import main
from tests.opinfo.choices import CHOICES, assert_same_choice, assert_same_gradient, choice_of
from tests.opinfo.core_set import is_core, others_than_core
from tests.opinfo.judge import judge
from tests.opinfo.pool import Settings, run_cases
from tests.opinfo.samples import ALL_DTYPES, DTYPES, IN_PLACE, OPS, Call, Case, cases, samples_of, spread

NUM_CASES = 110


def subset():
    """Return the cases that run with the tests: drawn from all operators with a fixed seed."""
    names = set(random.Random(0).sample(sorted(OPS), 120))
    every = cases(names.__contains__, list(DTYPES), in_place=True)
    return random.Random(1).sample(every, min(NUM_CASES, len(every)))


@pytest.mark.whole  # what it reaches is run by processes of its own
def test_a_fixed_part_of_opinfo_agrees_with_eager():
    results = list(run_cases(subset(), Settings(most=2, dynamo=0.05, classify=False), num_workers=2))
    known.mark(results, known.read())
    assert len(results) > NUM_CASES
    assert table.failures(results) == ""


def crash_and_hang(pipe, settings, environment):
    """Stand in for the worker: the sample with number 1 crashes, that with number 3 hangs."""
    while True:
        try:
            case, first, ran = pipe.recv()
        except EOFError:
            return
        for index in sorted(set(range(first, 5)) - ran):
            pipe.send(("begin", (index, False)))
            if index == 1:
                os.abort()
            if index == 3:
                time.sleep(600)
            pipe.send(("end", {"op": case.op, "dtype": case.dtype, "index": index, "verdict": "ok"}))
        pipe.send(("done", None))


def test_a_crash_and_a_hang_cost_one_sample_each():
    settings = Settings(seconds=1.0, patience=2.0)
    found = list(run_cases([Case("add", "float32"), Case("mul", "float32")], settings, 2, crash_and_hang))
    for op in ("add", "mul"):
        verdicts = {result["index"]: result["verdict"] for result in found if result["op"] == op}
        assert verdicts == {0: "ok", 1: "crash", 2: "ok", 3: "hang", 4: "ok"}


def test_samples_that_ran_before_are_left_out():
    settings, ran = Settings(seconds=1.0, patience=2.0), {Case("add", "float32"): {0, 1, 3}}
    found = list(run_cases([Case("add", "float32"), Case("mul", "float32")], settings, 1, crash_and_hang, ran))
    assert {result["index"] for result in found if result["op"] == "add"} == {2, 4}
    assert {result["index"] for result in found if result["op"] == "mul"} == {0, 1, 2, 3, 4}


def test_a_run_goes_on_where_an_earlier_one_was_broken_off(tmp_path, capsys):
    part = ["--ops", "add|tril", "--dtypes", "int32", "--fast", "--quiet", "--write", str(tmp_path)]
    main([*part, "--max-samples", "2"])
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    main([*part, "--max-samples", "3", "--resume"])
    grown = (tmp_path / "results.jsonl").read_text().splitlines()
    assert grown[: len(lines)] == lines
    numbers = [(one["op"], one["index"]) for one in map(json.loads, grown)]
    assert len(set(numbers)) == len(numbers) > len(lines)
    assert f"{len(grown)}/{len(grown)} (100.00 %)" in capsys.readouterr().out


def test_the_page_names_the_operators_that_a_run_did_not_come_to():
    part = [result(generic=[], core=True), result(op="mul", verdict="wrong", generic=[], core=True)]
    page = document.page(part, [], most=2, arguments=[])
    assert "| ops of the core ATen set | float32 | 2 | 1/2 (50.00 %) |" in page
    offered = {case.op for case in cases(lambda op: True, list(ALL_DTYPES))}
    assert f"before it came to {len(offered) - 2} of {len(offered)} operators" in page
    lacking = page.split("## Not offered in these element types on the CPU")[1].split("## Not run")[0]
    assert "`torch._scaled_mm`" in lacking
    rest = page.split("## Not run")[1].split("## Samples that fail")[0]
    assert "`sub`" in rest
    assert "`mul`" not in rest
    every = [result(op=op, generic=[], core=True) for op in OPS]
    assert "## Not run" not in document.page(every, [], most=2, arguments=[])


def result(**changes):
    return {"op": "add", "dtype": "float32", "index": 0, "verdict": "ok", "line": "", **changes}


def test_a_listed_difference_is_known_and_one_that_no_longer_differs_is_stale():
    entry = known.Difference("add", "torch rounds twice where we round once", ("float32",), (0, 1))
    results = [result(verdict="wrong", line="far off"), result(index=1), result(index=2, verdict="wrong")]
    known.mark(results, [entry])
    assert [one["verdict"] for one in results] == ["known", "ok", "wrong"]
    assert known.stale(results, [entry], complete=True) == []
    assert known.stale([result(), result(index=1)], [entry], complete=False) == [entry]
    assert known.stale([result()], [entry], complete=False) == []


def test_a_listed_difference_covers_what_is_told_as_listed_alone():
    entry = known.Difference("add", "torch rounds twice where we round once", told="^result 0: .* 1 /")
    results = [result(verdict="wrong", line=f"result 0: Mismatched elements: {count} / 9") for count in (1, 2)]
    known.mark(results, [entry])
    assert [one["verdict"] for one in results] == ["known", "wrong"]


# ---------------------------------------------------------------------- choices among equal elements
ROW = torch.tensor([2.0, 1.0, 2.0, 1.0, 3.0])


def differs(choice, ours, eagers):
    """Return what is told of our results; empty where they are as right as eager's."""
    try:
        assert_same_choice(choice, ROW, ours, eagers)
    except AssertionError as error:
        return str(error)
    return ""


def test_equal_elements_may_come_in_any_order_and_no_other_may():
    choice = CHOICES["sort"]()
    values, positions = torch.sort(ROW, stable=True)
    exchanged, wrong, twice = (torch.tensor(order) for order in ([3, 1, 2, 0, 4], [1, 3, 0, 4, 2], [1, 1, 0, 2, 4]))
    assert differs(choice, [values, exchanged], [values, positions]) == ""
    assert "not equal" in differs(choice, [values, wrong], [values, positions])
    assert "twice" in differs(choice, [values, twice], [values, positions])
    assert "outside" in differs(choice, [values, positions + 1], [values, positions])
    assert differs(choice, [values.flip(0), positions], [values, positions])


def test_a_row_names_any_of_equal_elements():
    for choice in (CHOICES["kthvalue"](2), CHOICES["mode"]()):
        one = torch.tensor(1.0)
        assert differs(choice, [one, torch.tensor(3)], [one, torch.tensor(1)]) == ""
        assert differs(choice, [one, torch.tensor(0)], [one, torch.tensor(1)])


def test_a_gradient_may_be_exchanged_among_equal_elements_alone():
    choice, eagers = CHOICES["msort"](), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert_same_gradient(choice, ROW, torch.tensor([3.0, 4.0, 1.0, 2.0, 5.0]), eagers)
    with pytest.raises(AssertionError):
        assert_same_gradient(choice, ROW, torch.tensor([2.0, 1.0, 3.0, 4.0, 5.0]), eagers)


def test_a_stable_order_is_promised_and_compared_as_it_is():
    (stable,) = [s for s in samples_of(Case("sort", "int64")) if s.kwargs.get("stable")][:1]
    (free,) = [s for s in samples_of(Case("sort", "int64")) if not s.kwargs.get("stable")][:1]
    assert choice_of(Call(Case("sort", "int64"), stable)) is None
    assert choice_of(Call(Case("sort", "int64"), free)) is not None
    assert choice_of(Call(Case("add", "int64"), samples_of(Case("add", "int64"))[0])) is None


@pytest.mark.parametrize("op", sorted(CHOICES))
def test_long_rows_of_few_values_are_chosen_from_as_eager_does(op):
    case = Case(op, "int64")
    samples = samples_of(case)
    long = next((s for s in samples if s.input.numel() > 500), samples[0])
    assert judge(case, Call(case, long), dynamo=False).verdict == "ok"


@pytest.mark.parametrize("verdict", ["crash", "hang"])
def test_a_crash_is_never_known(verdict):
    results = [result(verdict=verdict)]
    known.mark(results, [known.Difference("add", "a reason of some words")])
    assert results[0]["verdict"] == verdict


def test_every_known_difference_names_an_operator():
    assert known.read()
    for entry in known.read():
        assert entry.op.removesuffix(IN_PLACE) in OPS
        assert set(entry.dtypes) <= set(DTYPES)


def test_whether_an_operator_counts_is_told_from_its_graph():
    assert is_core("add")
    assert is_core("nn.functional.silu")  # decomposed to sigmoid and mul
    assert not is_core("linalg.svd")
    assert any("svd" in target for target in others_than_core("linalg.svd"))


def test_samples_are_spread_over_the_list():
    assert spread(3, None) == [0, 1, 2]
    assert spread(100, 3) == [0, 50, 99]
