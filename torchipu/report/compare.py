"""Two reports beside each other: every number of both, and by how much it changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.summary import summary_of

OPERATION_UNITS = {"cycles": "cycles", "flops": "FLOP", "exchanged_bytes": "B", "code_bytes": "B"}
"""Columns of operations that are compared."""
COUNTED = ("operations", "generic_operations", "steps_per_update", "flops_per_update", "fits", "format", "version")
"""Figures of a summary that are counted from others and are no facts themselves."""


class Number(NamedTuple):
    """A number of a report.

    Attributes:
        group: ``whole run``, ``IPU``, ``memory``, ``function`` or ``operation``.
        name: What it is a number of; a group has each name once.
        unit: As of `torchipu.report.facts.rows.Fact`.
        confidence: As there.
        value: The number.
        operation: Number of the op that it is about; -1 for none.
    """

    group: str
    name: str
    unit: str
    confidence: str
    value: float
    operation: int


class Difference(NamedTuple):
    """A number of two reports.

    Attributes:
        group: As of `Number`.
        name: As there.
        unit: As there.
        before: In the first; None where it has none of this name.
        after: In the second; None where it has none of this name.
        change: How much more the second has; an absent number counts as 0.
    """

    group: str
    name: str
    unit: str
    before: float | None
    after: float | None
    change: float

    @property
    def share(self) -> float:
        """The change over the first number; infinite where that is 0 and something was added."""
        if not self.change:
            return 0.0
        return self.change / abs(self.before) if self.before else float("inf") * (1 if self.change > 0 else -1)


def numbers_of(facts: Facts) -> tuple[Number, ...]:
    """Return every number of a report that another run of the same program would have as well.

    Args:
        facts: Of the program.
    """
    return (*_of_summary(facts), *_of_memory(facts), *_of_functions(facts), *_of_operations(facts))


def differences(before: Facts, after: Facts) -> list[Difference]:
    """Return all numbers of two reports, those that changed by the largest share first.

    Args:
        before: One report.
        after: The other.
    """
    first, second = _by_name(numbers_of(before)), _by_name(numbers_of(after))
    found = []
    for group, name in dict.fromkeys((*first, *second)):
        old, new = first.get((group, name)), second.get((group, name))
        unit = (old or new).unit  # type: ignore[union-attr]  # one of the two has it
        was, now = (None if one is None else one.value for one in (old, new))
        found.append(Difference(group, name, unit, was, now, (now or 0) - (was or 0)))
    return sorted(found, key=lambda one: -abs(one.share))


def _by_name(numbers: Sequence[Number]) -> dict[tuple[str, str], Number]:
    return {(one.group, one.name): one for one in numbers}


def _of_summary(facts: Facts) -> Iterator[Number]:
    held = {fact.name: fact for fact in facts.tables["facts"] if isinstance(fact, rows.Fact)}
    for name, value in summary_of(facts).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or name == "version":
            continue
        fact = held.get(name)
        unit = fact.unit if fact else _unit(name)
        confidence = fact.confidence if fact else "exact" if name in COUNTED else "modelled"
        yield Number("IPU" if name.startswith("ipu") else "whole run", name, unit, confidence, value, -1)


def _unit(name: str) -> str:
    return next((unit for ending, unit in (("_cycles", "cycles"), ("_bytes", "B")) if name.endswith(ending)), "")


def _of_memory(facts: Facts) -> Iterator[Number]:
    sums: dict[tuple[int, str], int] = {}
    for one in facts.tables["tile_categories"]:
        assert isinstance(one, rows.TileCategory)
        sums[one.ipu, one.category] = sums.get((one.ipu, one.category), 0) + one.bytes
    for (ipu, category), count in sums.items():
        yield Number("memory", f"ipu{ipu} {category}", "B", "modelled", count, -1)


def _of_functions(facts: Facts) -> Iterator[Number]:
    for one in facts.tables["functions"]:
        assert isinstance(one, rows.Function)
        yield Number("function", f"{one.name} cycles of a run", "cycles", "modelled", one.cycles, -1)
        yield Number("function", f"{one.name} runs", "", "exact", one.runs, -1)


def _of_operations(facts: Facts) -> Iterator[Number]:
    """Yield numbers of ops by what a user knows them by; those alike are numbered in the order of the program."""
    seen: dict[str, int] = {}
    for one in facts.tables["operations"]:
        assert isinstance(one, rows.Operation)
        about = f"{one.module or '(no module)'}  {one.kind}  {one.leg}{' again' if one.is_recomputed else ''}"
        seen[about] = seen.get(about, 0) + 1
        name = about if seen[about] == 1 else f"{about}  #{seen[about]}"
        for column, unit in OPERATION_UNITS.items():
            confidence = "exact" if column == "flops" else one.confidence
            yield Number("operation", f"{name}  {column}", unit, confidence, getattr(one, column), one.number)


def settings_of(facts: Facts) -> Mapping[str, str]:
    """Return options and versions by name.

    Args:
        facts: Of the program.
    """
    found = {
        one.name if one.kind in ("options", "environment") else f"{one.kind}: {one.name}": one.value
        for one in facts.tables["settings"] if isinstance(one, rows.Setting)
    }
    return found | {"program": json.dumps(facts.figure("program"))}
