"""Many estimates in one call: all combinations of some values of options, best first."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from torchipu.errors import CaptureError, IpuError, OptionsError, nearest
from torchipu.estimation.figures import Estimate
from torchipu.estimation.workload import Workload
from torchipu.options import Options
from torchipu.report.figures import rate_words
from torchipu.report.trust import notes_of
from torchipu.step.seen import resized
from torchipu.target import Target, lookup_target

MICRO_BATCH = "micro_batch"
"""Beside the options, what may be swept over: samples of a micro-batch."""

ALL_IPUS = "available_memory"
"""An option by IPU, of which one number stands for all of them."""

COLUMNS = (
    "samples_per_second", "cycles", "ipus", "fullest_tile_bytes", "fits", "bottleneck", "p90", "memory_p90",
    "unjudged_share", "generic_share", "extrapolated", "refused",
)
_WIDE = 200  # columns of a table that is printed to no terminal


@dataclass(frozen=True, slots=True)
class Row:
    """A combination.

    Attributes:
        settings: Its values by option.
        estimate: What it would take; None where it is refused.
        refusal: Why it is refused, in a line.
    """

    settings: Mapping[str, Any]
    estimate: Estimate | None
    refusal: str = ""

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sorts what fits before what does not, and the fastest first."""
        if self.estimate is None:
            return True, True, 0.0
        return False, not self.estimate.fits, -self.estimate.samples_per_second


@dataclass(frozen=True, slots=True)
class Sweep:
    """Estimates, best first: those that fit, by samples a second; those that do not; what is refused.

    Attributes:
        name: What is done, to which model.
        over: Names of the options.
        rows: All combinations.
    """

    name: str
    over: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row | None:
        """The fastest that fits, if any does."""
        first = self.rows[0] if self.rows else None
        return first if first is not None and first.estimate is not None and first.estimate.fits else None

    def table(self) -> Table:
        """Return the table for a terminal."""
        table = Table(title=f"{self.name}: best first, modelled", title_justify="left", box=SIMPLE_HEAD)
        for name in self.over:
            table.add_column(name, overflow="fold")
        for name in ("samples/s", "p90", "cycles", "IPUs", "fullest tile"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("held up by", overflow="fold")
        for row in self.rows:
            settings = [shown(row.settings[name]) for name in self.over]
            table.add_row(*settings, *_cells(row))
        table.caption = notes_of(row.estimate.trust for row in self.rows if row.estimate is not None)
        table.caption_justify = "left"
        return table

    def csv(self) -> str:
        """Return all of it as CSV."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.over, *COLUMNS])
        for row in self.rows:
            writer.writerow([*(shown(row.settings[name]) for name in self.over), *_values(row)])
        return text.getvalue()

    def write_csv(self, path: str | Path) -> None:
        """Write `csv` to a file."""
        Path(path).write_text(self.csv(), encoding="utf-8")

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDE, color_system=None)
        console.print(self.table())
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def sweep_over(workload: Workload, options: Options, over: Mapping[str, Sequence[Any]]) -> Sweep:
    """Estimate all combinations of some values.

    Args:
        workload: The model.
        options: What is not swept over.
        over: Values by option.

    Raises:
        OptionsError: An option is unknown, or has no values.
    """
    check_names(over)
    rows = [_row(workload, options, settings) for settings in combinations(over)]
    return Sweep(workload.name, tuple(over), tuple(sorted(rows, key=lambda row: row.rank)))


def combinations(over: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield all combinations of some values, one value of each option."""
    for values in product(*over.values()):
        yield dict(zip(over, values, strict=True))


def check_names(over: Mapping[str, Sequence[Any]]) -> None:
    """Refuse options that there are not, and those without values.

    Raises:
        OptionsError: It names the option.
    """
    known = [*(option.name for option in fields(Options)), MICRO_BATCH]
    for name, values in over.items():
        if name not in known:
            raise OptionsError(
                f"unknown option {name!r}{nearest(str(name), known)}", option=str(name), value=values,
                allowed=", ".join(known),
            )
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
            raise OptionsError(
                f"a sweep over {name} expects values in a list, got {values!r}", option=name, value=values,
                allowed=f"{name}=[one, another ...]",
            )


def _row(workload: Workload, options: Options, settings: Mapping[str, Any]) -> Row:
    try:
        return Row(settings, with_settings(workload, settings).estimate(changed(options, settings)))
    except CaptureError:
        raise
    except IpuError as error:
        return Row(settings, None, str(error).partition("\n")[0])


def with_settings(workload: Workload, settings: Mapping[str, Any]) -> Workload:
    """Return the workload of a combination: another one where the micro-batch is another."""
    if MICRO_BATCH not in settings:
        return workload
    size = settings[MICRO_BATCH]
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise OptionsError(
            f"{MICRO_BATCH} must be a whole number from 1, got {size!r}", option=MICRO_BATCH, value=size,
            allowed="a whole number from 1",
        )
    arguments, keywords = resized((workload.arguments, workload.keywords), size)
    if size not in workload.sizes:
        workload.sizes[size] = Workload(workload.step, arguments, keywords)
    return workload.sizes[size]


def changed(options: Options, settings: Mapping[str, Any]) -> Options:
    """Return options with the values of a combination.

    Args:
        options: All others.
        settings: Values by option; one number for ``available_memory`` holds for all IPUs.

    Raises:
        OptionsError: A value is out of range.
    """
    values = {name: value for name, value in settings.items() if name != MICRO_BATCH}
    share = values.get(ALL_IPUS)
    if isinstance(share, (int, float)) and not isinstance(share, bool):
        if not 0 < share <= 1:
            raise OptionsError(
                f"{ALL_IPUS} must be above 0 and at most 1, got {share!r}", option=ALL_IPUS, value=share,
                allowed="above 0 and at most 1",
            )
        target = lookup_target(values.get("target", options.target))
        values[ALL_IPUS] = dict.fromkeys(range(target.num_ipus), share)
    return replace(options, **values)


def shown(value: Any) -> str:
    """Return a value as a cell."""
    return value.name if isinstance(value, Target) else str(value)


def _cells(row: Row) -> tuple[str, ...]:
    found = row.estimate
    if found is None:
        return ("", "", "", "", "refused", row.refusal)
    fullest = max(memory.total_bytes for memory in found.memory_by_ipu) / found.compiled.target.tile_memory_bytes
    return (
        rate_words(found.samples_per_second), found.trust.rate_cell, f"{found.cycles:,}", f"{found.ipus}",
        f"{fullest:.0%}" + ("" if found.fits else ", does not fit"),
        f"{found.bottleneck.category} {found.bottleneck.share:.0%}",
    )


def _values(row: Row) -> tuple[object, ...]:
    found = row.estimate
    if found is None:
        return (*[""] * (len(COLUMNS) - 1), row.refusal)
    trust = found.trust
    fullest = max(memory.total_bytes for memory in found.memory_by_ipu)
    return (
        f"{found.samples_per_second:.6g}", found.cycles, found.ipus, fullest, found.fits, found.bottleneck.category,
        "" if trust.rate is None else trust.rate.p90, "" if trust.memory is None else trust.memory.p90,
        f"{trust.unscored_share:.3f}", f"{trust.generic_share:.3f}", "; ".join(trust.extrapolations), "",
    )
