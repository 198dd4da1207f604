"""What rules look at: the tables of a report, the program, and what changes of it become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from torchipu.advice.changes import Change
from torchipu.advice.trials import Subject, Trials, Tried
from torchipu.ir.types import Source
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts

Row = TypeVar("Row", bound=NamedTuple)


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule found.

    Attributes:
        finding: With figures.
        remedy: What to do.
        option: What to set, as it is written; empty where no option does it.
        gain: What the model predicts of it; empty where it was not tried.
        worth: By which advice is sorted: the share of time that is gained; above 1 for what does not run otherwise.
        file: Of the user's line.
        line: From 1; 0 where there is none.
    """

    finding: str
    remedy: str
    option: str = ""
    gain: str = ""
    worth: float = 0.0
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Situation:
    """What rules look at.

    Attributes:
        facts: The report so far.
        trials: Tries changes of the program.
    """

    facts: Facts
    trials: Trials

    @property
    def subject(self) -> Subject:
        """The program, before all passes."""
        return self.trials.subject

    @property
    def base(self) -> Tried:
        """The program as it is."""
        return self.trials.base

    def table(self, name: str, kind: type[Row]) -> list[Row]:
        """Return the rows of a table."""
        return [row for row in self.facts.tables[name] if isinstance(row, kind)]

    def operations(self) -> list[rows.Operation]:
        """Return the ops."""
        return self.table("operations", rows.Operation)

    def best(
        self, changes: Iterable[Change], better: Callable[[Tried], float], least: float = 0.0,
    ) -> tuple[Tried | None, tuple[Tried, ...]]:
        """Return the change that helps most, and all that were tried.

        Args:
            changes: To try.
            better: How much one helps.
            least: What helps no more than this does not count.
        """
        tried = tuple(found for change in changes if (found := self.trials.of(change)) is not None)
        helping = [found for found in tried if not found.refusal and better(found) > least]
        return max(helping, key=better, default=None), tried

    def faster(self, tried: Tried) -> float:
        """Return by which share a change is faster, in samples; what does not fit where the program does is not."""
        if self.base.fits and not tried.fits:
            return -1.0
        return tried.samples_per_second / self.base.samples_per_second - 1 if self.base.samples_per_second else 0.0

    def freed(self, tried: Tried) -> float:
        """Return the bytes that a change frees of the fullest tile; those that make it fit come first."""
        return float(self.base.lacking_bytes - tried.lacking_bytes)

    def gain(self, tried: Tried) -> str:
        """Return what the model predicts of a change."""
        return gain_of(self.base, tried)


def gain_of(base: Tried, tried: Tried) -> str:
    """Return what the model predicts of a change, in words.

    Args:
        base: The program as it is.
        tried: With the change.
    """
    freed = base.fullest_bytes - tried.fullest_bytes
    memory = f"{abs(freed):,} B {'less' if freed > 0 else 'more'} on the fullest tile" if freed else "as much memory"
    if base.fits != tried.fits:
        memory += ", which then fits" if tried.fits else ", which then does not fit"
    elif not tried.fits:
        memory += f", which still lacks {tried.lacking_bytes:,} B"
    rate = tried.samples_per_second / base.samples_per_second - 1 if base.samples_per_second else 0.0
    return f"{rate:+.1%} samples/s; {memory}"


def lines_of_tensors(situation: Situation) -> Mapping[str, Source]:
    """Return the user's line that makes each tensor of the program, or that first reads it, by its name."""
    found: dict[str, Source] = {}
    compiled = situation.base.compiled
    for op in () if compiled is None else compiled.graph.ops:
        if op.source.file:
            for tensor in (*op.outputs, *op.inputs):
                found.setdefault(tensor.name, op.source)
    return found


def told(found: Iterator[tuple[str, Found]]) -> tuple[rows.Advice, ...]:
    """Return findings as rows, what gains most first.

    Args:
        found: By the name of the rule.
    """
    order: Sequence[tuple[str, Found]] = sorted(found, key=lambda pair: -pair[1].worth)
    return tuple(
        rows.Advice(number, rule, one.finding, one.remedy, one.option, one.gain, one.file, one.line)
        for number, (rule, one) in enumerate(order)
    )
