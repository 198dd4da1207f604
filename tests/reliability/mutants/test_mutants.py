"""What a change is, where it goes, and that tests that notice it are told from those that do not."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.mutants.python import mutants, mutated
from tests.reliability.mutants.runner import Judged, chosen, describe
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
    assert describe(*chosen(1)[0]).startswith("passes/canonicalise.py:")


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


def test_a_run_goes_on_where_it_stood(tmp_path: Path) -> None:
    path, file = tmp_path / "kept" / "judged.jsonl", "host/arena.py"
    assert Judged(path).word(file, 3, lambda: "escaped") == "escaped"
    assert Judged(path).word(file, 3, lambda: "judged again") == "escaped"
    assert Judged(path).word(file, 4, lambda: "nearest") == "nearest"
