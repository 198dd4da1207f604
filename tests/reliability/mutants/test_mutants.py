"""What a change is, where it goes, and that tests that notice it are told from those that do not."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.reliability.mutants import runner
from tests.reliability.mutants.equal import EQUAL
from tests.reliability.mutants.python import mutants, mutated
from tests.reliability.mutants.runner import Judged, chosen, names
from tests.reliability.mutants.targets import FURTHER, NEAREST, PACKAGE

SOURCE = '''
"""Words."""
def f(x: int = 3, *, y: "list[1]" = None) -> int:
    """More."""
    if x < 2 and not y:
        raise ValueError(f"{x + 1} " + "2")
    x += 4
    print(x)
    return max(x, 5) - sum(a for a in [6] if a)
'''


def test_all_kinds_of_changes_are_found_and_no_words_are_changed() -> None:
    told = [mutant.what for mutant in mutants(ast.parse(SOURCE))]
    assert sorted(told) == sorted([
        "3 -> 4", "condition turned round", "and -> or", "Lt -> LtE", "2 -> 3", "not left out", "Add= -> Sub=",
        "4 -> 5", "left out: print(x)", "Sub -> Add", "max -> min", "5 -> 6", "6 -> 7",
        "condition of a comprehension left out",
    ])


@pytest.mark.parametrize("number", range(14))
def test_each_change_changes_the_code_and_nothing_else(number: int) -> None:
    old, new = ast.unparse(ast.parse(SOURCE)).splitlines(), ast.unparse(mutated(SOURCE, number)).splitlines()
    assert len(old) == len(new)
    assert sum(a != b for a, b in zip(old, new, strict=True)) == 1


def test_files_and_tests_exist_and_faults_are_the_same_at_each_call() -> None:
    for file, tests in NEAREST.items():
        assert (PACKAGE / file).exists()
        assert [test for test in (*tests, *FURTHER) if not (PACKAGE.parent / "tests" / test).exists()] == []
    assert chosen(300) == chosen(300)
    assert len(set(chosen(300))) == 300
    file, number = chosen(1)[0]
    assert names(file)[number].startswith("passes/canonicalise.py: `")
    assert all(len(names(file)) == len(set(names(file))) for file in NEAREST)


def test_faults_of_an_earlier_choice_come_first() -> None:
    count = 2 * len(NEAREST)
    later = chosen(2 * count)[count:]
    again = chosen(count, before={names(file)[number] for file, number in later})
    assert sorted(again) == sorted(later), "two of each file, as here"


def test_faults_that_change_nothing_are_faults_of_the_code_as_it_is() -> None:
    for fault in EQUAL:
        assert fault in names(fault.partition(":")[0]), "the line has changed: is it still so?"


def test_a_fault_keeps_its_name_when_code_is_put_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PACKAGE", tmp_path)
    (tmp_path / "code.py").write_text("def f(x):\n    return [a for a in x\n            if a > 1]\n")
    before = names("code.py")
    assert "code.py: `return [a for a in x`: condition of a comprehension left out" in before
    (tmp_path / "code.py").write_text("first = 1\n\n\n" + (tmp_path / "code.py").read_text())
    assert names("code.py") == ["code.py: `first = 1`: 1 -> 2", *before]


NOTICING = """
from tests.reliability.mutants.runner import PACKAGE, fails
from tests.reliability.mutants.python import mutants
import ast, sys
file = PACKAGE / "device/order.py"
what = [mutant.what for mutant in mutants(ast.parse(file.read_text()))]
test = "device/test_order.py"
print(fails([test]), fails([test], (file, what.index("condition turned round"))))
"""


def test_a_fork_imports_the_changed_code_and_another_one_does_not() -> None:
    done = subprocess.run([sys.executable, "-c", NOTICING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(("seconds", "stuck"), [(0.0, False), (60.0, True)])
def test_tests_that_wait_for_ever_are_ended(monkeypatch: pytest.MonkeyPatch, seconds: float, stuck: bool) -> None:
    def become(paths: list[str], fault: object) -> None:
        os.setsid()
        time.sleep(seconds)
        os._exit(0)

    monkeypatch.setattr(runner, "_become_tests", become)
    monkeypatch.setattr(runner, "STILL_SECONDS", 0.5)
    assert runner.fails([]) is stuck


def test_a_run_goes_on_where_it_stood_and_judges_anew_what_escaped(tmp_path: Path) -> None:
    path, file = tmp_path / "kept" / "judged.jsonl", "host/arena.py"
    assert Judged(path).word(file, "one") is None
    Judged(path).keep(file, "one", "nearest")
    Judged(path).keep(file, "other", "escaped")
    assert (Judged(path).word(file, "one"), Judged(path).word(file, "other")) == ("nearest", None)
    Judged(path).keep(file, "other", "further")
    assert Judged(path).word(file, "other") == "further"


def test_what_escapes_because_it_changes_nothing_is_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, file = tmp_path / "judged.jsonl", "host/arena.py"
    monkeypatch.setitem(runner.EQUAL, "one", "for a reason")
    Judged(path).keep(file, "one", "escaped")
    Judged(path).keep(file, "other", "escaped")
    assert (Judged(path).word(file, "one"), Judged(path).word(file, "other")) == ("escaped", None)


def test_a_fault_of_a_file_that_has_changed_is_judged_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PACKAGE", tmp_path)
    path, code = tmp_path / "judged.jsonl", tmp_path / "code.py"
    code.write_text("a = 1\n")
    Judged(path).keep("code.py", "one", "nearest")
    code.write_text("a = 1\nb = 2\n")
    assert Judged(path).word("code.py", "one") is None


def test_faults_of_code_that_is_no_longer_there_are_left_out(tmp_path: Path) -> None:
    path, file = tmp_path / "judged.jsonl", "host/arena.py"
    first, second = names(file)[:2]
    for name in (max(first, second), "host/arena.py: `no such line`: 0 -> 1", min(first, second)):
        Judged(path).keep(file, name, "nearest")
    Judged(path).tidy()
    assert [json.loads(line)[0] for line in path.read_text().splitlines()] == sorted((first, second))


def judged_as(monkeypatch: pytest.MonkeyPatch, words: dict[int, str], sound: bool = True) -> list[int]:
    """Let faults of one file be judged so, by number; return those that are asked for."""
    asked: list[int] = []

    def judge(file: str, number: int) -> str:
        asked.append(number)
        return words[number]

    monkeypatch.setattr(runner, "chosen", lambda count, seed, before: [("host/arena.py", number) for number in words])
    monkeypatch.setattr(runner, "_sound", lambda tests: sound)
    monkeypatch.setattr(runner, "_prepare_forks", lambda: None)
    monkeypatch.setattr(runner, "_judge", judge)
    return asked


def test_a_run_tells_the_names_of_what_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, words = tmp_path / "judged.jsonl", {3: "nearest", 4: "escaped", 5: "further"}
    asked = judged_as(monkeypatch, words)
    found = runner.run(3, path=path)
    escaped = [names("host/arena.py")[4]]
    assert found == {"mutants": 3, "nearest": 1, "caught": 2, "unsound": 0, "as it is": 3, "escaped": escaped}
    words[4] = "nearest"
    assert runner.run(3, path=path)["escaped"] == []
    assert asked == [3, 4, 5, 4]


def test_faults_are_not_judged_by_tests_that_fail_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = judged_as(monkeypatch, {3: "nearest"}, sound=False)
    found = runner.run(3, path=tmp_path / "judged.jsonl")
    assert (asked, found["unsound"], found["mutants"]) == ([], 1, 0)


def test_when_time_is_over_what_came_of_faults_in_earlier_versions_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, told = tmp_path / "judged.jsonl", names("host/arena.py")
    asked = judged_as(monkeypatch, {3: "nearest", 4: "nearest", 5: "nearest"})
    Judged(path).keep("host/arena.py", told[3], "further")
    with monkeypatch.context() as earlier:
        earlier.setattr(runner, "_version", lambda file: "earlier")
        Judged(path).keep("host/arena.py", told[4], "escaped")
    found = runner.run(3, path=path, seconds=0.0)
    assert asked == []
    assert found == {"mutants": 2, "nearest": 0, "caught": 1, "unsound": 0, "as it is": 1, "escaped": [told[4]]}
