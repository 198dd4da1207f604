"""The score card as a table for people, as the page ``docs/score.md``, and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from torchipu.score.card import Result, Score
from torchipu.score.constants import FITTED, MOST, Constant, Refit
from torchipu.score.scaling import Pair, pairs_of

_OPENING = """\
# Score card

Written by `torchipu score --write docs/score.md` (or `make score`); do not edit. The machine model beside what others
measured on IPUs, or on Graphcore's own IPU Model: rows and sources are in `torchipu/score/measured/`. Each row is a
workload in PyTorch, captured and compiled as any model is, on the machine and with the options that the row states.

- *error* of a row: the factor between prediction and measurement, whichever is larger, less 1. *median* and *p90* are
  of the errors; *bias* is the geometric mean of prediction over measurement, less 1.
- Cycles are those of the device, without the host's streams, but for training and inference of whole models with real
  inputs.
- *stated reasons* say why a row is off that the model cannot explain; it counts in the figures all the same.
- A row whose configuration cannot be written as a program yet is counted under *left out*, with the reason below.
"""
HEADINGS = ("kind", "what", "against", "rows", "left out", "median", "p90", "bias")
TITLE = HEADINGS.index("what")
"""A column that a terminal has no room for."""
FIELDS = ("kind", "row", "source", "file", "line", "unit", "measured", "predicted", "error", "split", "not expressed")


def percent(share: float) -> str:
    """Return a share in percent, with as many digits as say something."""
    value = 100 * share
    return f"{value:.1f} %" if abs(value) < 10 else f"{value:,.0f} %"


def rows_of(count: int) -> str:
    """Return so many rows in words."""
    return f"{count} row{'s' * (count != 1)}"


def number(value: float) -> str:
    """Return a number with three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cells(score: Score) -> tuple[str, ...]:
    """Return the cells of a kind."""
    kind, found = score.kind, score.statistics
    count, left = len(score.results), len(score.reasons)
    if kind.is_decision:
        figures = (f"{score.num_right} right", "", "")
    elif found is None:
        figures = ("", "", "")
    else:
        figures = (percent(found.median), percent(found.p90), f"{100 * found.bias:+.1f} %")
    return kind.name, kind.title, kind.source, str(count), str(left), *figures


def split_of(result: Result) -> str:
    """Return what a prediction is made of, largest part first, in percent."""
    total = sum(result.prediction.split.values())
    parts = sorted(result.prediction.split.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in parts if value >= 0.005 * total)


def table_of(scores: Sequence[Score]) -> Table:
    """Return the figures of all kinds."""
    table = Table(title="Machine model against measurements", title_justify="left", box=SIMPLE_HEAD)
    for place, heading in enumerate(HEADINGS):
        if place != TITLE:
            table.add_column(heading, justify="right" if place > TITLE + 1 else "left", no_wrap=True)
    for score in scores:
        row = cells(score)
        table.add_row(*row[:TITLE], *row[TITLE + 1:])
    return table


def worst_of(score: Score, count: int) -> Table:
    """Return the rows of a kind that are furthest off."""
    unit = "fits" if score.kind.is_decision else score.kind.unit
    title = f"{score.kind.name} ({score.kind.title}): furthest off, {unit}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("row", "measured", "predicted", "error", "split"):
        table.add_column(heading, justify="left" if heading in ("row", "split") else "right", overflow="fold")
    for result in score.worst(count):
        table.add_row(*(escape(cell) for cell in _worst_cells(score, result)))
    return table


def _worst_cells(score: Score, result: Result) -> tuple[str, ...]:
    if score.kind.is_decision:
        words = ["yes" if value else "no" for value in (result.row.measured, result.prediction.value)]
        return result.row.name, *words, "", split_of(result)
    figures = number(result.row.measured), number(result.prediction.value), percent(result.error)
    return result.row.name, *figures, split_of(result)


def page(scores: Sequence[Score], worst: int, refits: Sequence[Refit] = ()) -> str:
    """Return the page in Markdown.

    Args:
        scores: All kinds.
        worst: How many of the rows that are furthest off to show.
        refits: What fits without a source give, where constants are fitted.
    """
    parts = [_OPENING, "\n".join(_markdown(HEADINGS, list(map(cells, scores)))) + "\n", constants(FITTED, refits)]
    for score in scores:
        parts += _section(score, worst)
        if score.kind.scales:
            parts.append(scaling(pairs_of(score.results)))
    return "\n".join(parts)


def scaling(pairs: Sequence[Pair]) -> str:
    """Return the section on runs of one program on different numbers of IPUs."""
    text = (
        "## scaling: rates on more IPUs over rates on fewer\n\n"
        "Runs of one program; where there are several on fewer IPUs, that of the same software. Updates of more\n"
        "replicas mostly have fewer micro-batches each, as the rows state.\n\n"
    )
    rows = [
        (f"{pair.few.row.name.split()[0]}, {pair.many.row.name.split()[0]}", pair.many.row.line.text("workload"),
         "{} to {}".format(*pair.ipus), f"{pair.measured:.2f}", f"{pair.predicted:.2f}", percent(pair.error))
        for pair in pairs
    ]
    return text + "\n".join(_markdown(("rows", "program", "IPUs", "measured", "predicted", "error"), rows)) + "\n"


def constants(fitted: Sequence[Constant], refits: Sequence[Refit] = ()) -> str:
    """Return the section on fitted constants."""
    rows = [(f"`{one.name}`", number(one.value), one.unit, ", ".join(one.kinds), one.how) for one in fitted]
    text = "## Fitted constants\n\n"
    if not rows:
        return text + (
            f"None, of at most {MOST} (`torchipu/score/constants.py`): the model is made of published numbers, each\n"
            "with its source beside it, and of estimates. The figures above are the same without any of the sources.\n"
        )
    text += "\n".join(_markdown(("constant", "value", "unit", "fitted on", "how"), rows)) + "\n"
    left = [(one.name, percent(one.whole), percent(one.without)) for one in refits]
    if not left:
        return text
    return text + "\nMedian error of rows, with constants fitted to all rows, and fitted without these:\n\n" + (
        "\n".join(_markdown(("rows", "fitted to all", "fitted without them"), left)) + "\n"
    )


def _section(score: Score, worst: int) -> Iterator[str]:
    yield f"## {score.kind.name}: {score.kind.title}\n"
    rows = [_worst_cells(score, result) for result in score.worst(worst)]
    if rows:
        yield "Wrong:\n" if score.kind.is_decision else f"Furthest off, in {score.kind.unit}:\n"
        yield "\n".join(_markdown(("row", "measured", "predicted", "error", "split"), rows)) + "\n"
    stated = [(result.row.name.split()[0], result.row.name) for result in score.results]
    reasons = [f"- {row}: {score.kind.stated[name]}." for name, row in stated if name in score.kind.stated]
    if reasons:
        without = [result.error for result in score.results if result.row.name.split()[0] not in score.kind.stated]
        rest = f"; without the rows of stated reasons {percent(fmean(without))}" if without else ""
        yield f"Mean error: {percent(fmean(result.error for result in score.results))}{rest}.\n"
        yield "Stated reasons:\n"
        yield "\n".join(reasons) + "\n"
    if score.reasons:
        yield "Not expressed:\n"
        yield "\n".join(f"- {rows_of(count)}: {reason}." for reason, count in score.reasons_by_count().items()) + "\n"


def _markdown(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield _line(headings)
    yield _line(["---"] * len(headings))
    for row in rows:
        yield _line(row)


def _line(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def write_csv(scores: Sequence[Score], file: TextIO) -> None:
    """Write every row, with a prediction or the reason why there is none."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(FIELDS)
    for score in scores:
        kind = score.kind
        for result in score.results:
            row, value = result.row, result.prediction.value
            error = "" if kind.is_decision else f"{result.error:.6g}"
            split = " ".join(f"{name}={part:.10g}" for name, part in result.prediction.split.items())
            writer.writerow((kind.name, row.name, row.source, row.line.file, row.line.number, kind.unit,
                             f"{row.measured:.10g}", f"{value:.10g}", error, split, ""))
        for row, reason in score.reasons:
            writer.writerow((kind.name, row.name, row.source, row.line.file, row.line.number, kind.unit,
                             f"{row.measured:.10g}", "", "", "", reason))
