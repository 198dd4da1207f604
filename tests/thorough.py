"""Which tests run unless all are asked for.

A test of many cases, each a combination of parameters, runs on a few in which every value of every parameter comes up.
The others repeat its paths with other combinations, and are marked ``thorough``, as are tests that say so themselves.
Where some values of a parameter show what the others do, ``suffices`` names them; a test that goes through many values
by itself asks ``is_thorough`` whether to.

Each test has ``ALLOTTED_SECONDS``: of one whose cases take long, by ``tests/costs.json``, as many run as fit into them,
and one at least. Tests of a file that have parameters in common then go through different values, so that together they
meet most of them. Left whole are those in which each value is a thing of its own, such as an operator, which are marked
``whole``, those of kernels, and those that are held to notice faults in the code,
``tests/reliability/mutants/targets.py``.

Tests that reach next to no line of the package which others do not reach are left out, but those that are left whole,
those of the catalogue of faults, and short ones: ``tests/repeats``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from itertools import combinations
from math import prod
from pathlib import Path

import pytest

from tests.costs import seconds_of
from tests.reliability.mutants.targets import FURTHER, NEAREST
from tests.repeats import repeats_others

MARK, SOME, WHOLE, CATALOGUED = "thorough", "suffices", "whole", "case"
KERNELS = Path(__file__).parent / "kernels"
"""Tests that take little: every pair of values comes up, as where the edges of two sizes meet."""
ALLOTTED_SECONDS = 1.0
NOTICING = tuple(Path(__file__).parent / test for tests in (*NEAREST.values(), FURTHER) for test in tests)
"""Files and folders of tests that faults in the code are put before."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let ``--thorough`` ask for all tests."""
    parser.addoption("--thorough", action="store_true", help="run all tests, also those that repeat paths of others")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say at the top that tests are left out."""
    return None if are_all_asked_for(config) else "tests that repeat paths of others are left out; --thorough runs all"


@pytest.hookimpl(tryfirst=True)  # before ``-m`` chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that repeat paths of others, and leave them out unless they are asked for."""
    mark(items)
    if not are_all_asked_for(config):
        refuse_unknown(items)
        leave_out(config, items)


@pytest.fixture(scope="session")
def is_thorough(pytestconfig: pytest.Config) -> bool:
    """Whether a test goes through all the values that it has, rather than through some that show its paths."""
    return are_all_asked_for(pytestconfig)


def are_all_asked_for(config: pytest.Config) -> bool:
    """Whether no test is left out: all are asked for, or some by name, by expression, or since they failed."""
    asked = config.getoption
    return bool(
        asked("thorough") or asked("keyword") or asked("markexpr") or asked("lf", False)
        or any("::" in argument for argument in config.args)
    )


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of tests that no selection needs, and tests that repeat others."""
    for item in items:
        if repeats_others(item.nodeid) and not stays(item):
            item.add_marker(MARK)
    met = defaultdict[Path, Counter[Hashable]](Counter)
    for cases in _by_test(items):
        together = 2 if cases[0].path.is_relative_to(KERNELS) else 1
        values_of = zip(cases, _values(cases, as_rows=together == 1), strict=True)
        named = [(case, values) for case, values in values_of if _suffices(case)]
        covered = covering([values for _, values in named], together)
        chosen = affordable([named[number][0] for number in covered], met[cases[0].path])
        for case in cases:
            if case not in chosen:
                case.add_marker(MARK)


def affordable(cases: Sequence[pytest.Function], met: Counter[Hashable]) -> set[pytest.Function]:
    """Choose as many cases of a test as it has time for: in turn the one whose values came up most seldom before.

    Args:
        cases: Of one test.
        met: How often values came up in tests of the same file, by name; those of the chosen cases are added.
    """
    left, chosen = list(cases), set[pytest.Function]()
    seconds = 0.0 if not left or _is_whole(left[0]) else seconds_of(left[0].nodeid)
    count = max(1, int(ALLOTTED_SECONDS / seconds)) if seconds else len(left)
    values = {case: [(name, _told(value)) for name, value in case.callspec.params.items()] for case in cases}
    if count >= len(left):  # in whichever order
        met.update(value for case in left for value in values[case])
        return set(left)
    while len(chosen) < count:
        best = min(left, key=lambda case: sum(met[value] for value in values[case]))
        chosen.add(best)
        left.remove(best)
        met.update(values[best])
    return chosen


def stays(item: pytest.Item) -> bool:
    """Whether a test runs though others reach what it reaches."""
    return _is_whole(item) or item.get_closest_marker(CATALOGUED) is not None


def _is_whole(case: pytest.Item) -> bool:
    """Whether a test is left whole, whatever it takes."""
    return case.get_closest_marker(WHOLE) is not None or _holds_whole_ones(case.path)


@cache
def _holds_whole_ones(file: Path) -> bool:
    """Whether all tests of a file are left whole; thousands of cases of some hundred files ask for it."""
    return not {file, *file.parents}.isdisjoint((KERNELS, *NOTICING))


def refuse_unknown(items: Sequence[pytest.Item]) -> None:
    """See to it that there is a case of each value that is to suffice: a test without one would never run.

    Raises:
        pytest.UsageError: There is none.
    """
    for cases in _by_test(items):
        for name, values in _named(cases[0]).items():
            unknown = [value for value in values if all(case.callspec.params.get(name) != value for case in cases)]
            if unknown:
                raise pytest.UsageError(f"{cases[0].nodeid}: suffices has {name}={unknown}, of which there is no case")


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the marked ones out."""
    left = [item for item in items if item.get_closest_marker(MARK)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker(MARK)]


def covering(cases: Sequence[Sequence[Hashable]], together: int = 1) -> list[int]:
    """Choose cases so that every value is among them, at each place.

    Each is the first of those with most that is new, then with most pairs of values that are new, then with values that
    were taken most seldom: what is chosen of a list of names goes through all types in turn.

    Args:
        cases: Values by place, as many in each.
        together: Of so many places every combination that there is has to be among them.

    Returns:
        Numbers of cases, in order.
    """
    if any(len(set(values)) == len(cases) for values in zip(*cases, strict=True)):
        return list(range(len(cases)))
    wanted = [_combined(case, together) for case in cases]
    pairs = [_combined(case, 2) for case in cases]
    uses, met, chosen = Counter[Hashable](), set[Hashable](), list[int]()

    def worth(number: int) -> tuple[int, int, int, int]:
        new = wanted[number] - met
        return len(new), len(pairs[number] - met), -sum(uses[value] for value in enumerate(cases[number])), -number

    while left := [number for number in range(len(cases)) if wanted[number] - met]:
        best = max(left, key=worth)
        chosen.append(best)
        met |= wanted[best] | pairs[best]
        uses.update(enumerate(cases[best]))
    return sorted(chosen)


def _combined(case: Sequence[Hashable], together: int) -> frozenset[Hashable]:
    """Return the values of a case with their places, so many at a time."""
    return frozenset(combinations(enumerate(case), min(together, len(case))))


def _by_test(items: Sequence[pytest.Item]) -> Iterable[list[pytest.Function]]:
    """Return the cases of each test that has parameters."""
    cases = defaultdict[Hashable, list[pytest.Function]](list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            cases[item.parent, item.originalname].append(item)
    return cases.values()


def _named(item: pytest.Function) -> dict[str, Sequence[object]]:
    """Return the values by parameter that suffice."""
    return {name: values for marker in item.iter_markers(SOME) for name, values in marker.kwargs.items()}


def _suffices(item: pytest.Function) -> bool:
    """Whether a case has the values that the marks of its test name, and is not marked itself."""
    has_them = all(item.callspec.params.get(name) in values for name, values in _named(item).items())
    return has_them and item.get_closest_marker(MARK) is None


def _values(cases: Sequence[pytest.Function], *, as_rows: bool) -> list[list[Hashable]]:
    """Return what tells the values of each case from those of others; equal numbers of different types are not one.

    As rows, names that are parametrised together have one value, unless their rows are half of all combinations.
    """
    together = defaultdict[Hashable, list[str]](list)
    for name in cases[0].callspec.params:
        together[tuple(case.callspec.indices[name] for case in cases)].append(name)
    columns = list[list[Hashable]]()
    for names in together.values():
        of_names = [[_told(case.callspec.params[name]) for case in cases] for name in names]
        rows = list(zip(*of_names, strict=True))
        are_combined = 2 * len(set(rows)) >= prod(len(set(values)) for values in of_names)
        columns += [rows] if as_rows and not are_combined else of_names
    return [list(values) for values in zip(*columns, strict=True)]


def _told(value: object) -> Hashable:
    if isinstance(value, Hashable):
        try:
            hash(value)
        except TypeError:  # a tuple with a list in it
            return repr(value)
        return type(value), value
    return repr(value)
